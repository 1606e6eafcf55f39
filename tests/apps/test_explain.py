"""octavo explain and octavo machine."""
import json

import pytest

OPERATIONS = {"attn_full": {"attn_decode", "attn_extend"}, "attn_window": {"attn_decode", "attn_extend"}, "kv_write": {"kv_write"}}


def words_of(tree):
    """All strings in a JSON tree."""
    if isinstance(tree, dict):
        return [word for value in tree.values() for word in words_of(value)]
    if isinstance(tree, list):
        return [word for value in tree for word in words_of(value)]
    return [tree] if isinstance(tree, str) else []


@pytest.mark.parametrize("name", ["f16", "fp8", "fp8_e5m2", "fp8_e4m3fnuz", "int8_per_token_head", "int8_rotated", "int8_v4"])
def test_json(octavo, tiny, tiny_window, name):
    plain = json.loads(octavo("explain", "-m", tiny, "--kv-cache-dtype", name, "-o", "json").out)
    assert plain["architecture"] == "llama" and plain["attn_window"] is None and plain["window_tokens"] == 0
    window = json.loads(octavo("explain", "-m", tiny_window, "--kv-cache-dtype", name, "-o", "json").out)
    assert window["architecture"] == "gemma3" and window["window_tokens"] == 48
    for key, operations in OPERATIONS.items():
        words = " ".join(words_of(window[key]))
        assert all(operation in words for operation in operations) and "chosen" in words, words


def test_text_names_every_variant_and_reasons(octavo, tiny_window):
    text = octavo("explain", "-m", tiny_window).out
    for variant in ("attn_decode.scalar", "attn_extend.scalar", "kv_write.scalar"):
        assert variant in text
    assert text.count("chosen") == 5, "decode and extend of two kinds of layers, and the write"


def test_force_and_deny(octavo, tiny):
    def chosen(*more):
        lines = octavo("explain", "-m", tiny, *more).out.splitlines()
        return {line.split()[1].rstrip(",") for line in lines if line.split()[:1] == ["chosen"]}

    scalar = {"attn_decode.scalar", "attn_extend.scalar"}
    assert scalar <= chosen("--force", "attn_decode.scalar,attn_extend.scalar")
    best = chosen()
    for variant in sorted(v for v in best if v.startswith("attn_")):
        assert variant not in chosen("--deny", variant)
    # Everything that could serve is denied: no silent way out.
    everything = ",".join(sorted({line.split()[1].rstrip(",") for line in octavo("explain", "-m", tiny).out.splitlines() if line.split()[:1] and "attn_decode." in line}))
    assert "attn_decode" in octavo("explain", "-m", tiny, "--deny", everything, check=1).err


MACHINES = {"zen4", "zen3", "xeon_amx", "avx512_vm_without_zmm", "x86_64_without_avx2", "a100", "h100", "h200", "mi300x", "mi355x"}


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_recorded_machines(octavo, tiny, tiny_window, name):
    text = octavo("explain", "-m", tiny_window, "--machine", name).out
    assert text.count("chosen") == 5
    is_gpu = name in {"a100", "h100", "h200", "mi300x", "mi355x"}
    assert ("attn_decode.simt4" in text) == is_gpu and ("attn_decode.avx2" in text) != is_gpu
    tree = json.loads(octavo("explain", "-m", tiny, "--machine", name, "-o", "json").out)
    facts = tree["attn_full"]["facts"]
    assert (facts["dev.kind"] > 0) == is_gpu
    if is_gpu:
        assert tree["attn_full"]["operations"][0]["units"] == facts["dev.units"]
        # A name of these rows can be forced, one of the CPU's does not exist there.
        assert "chosen    attn_decode.simt16" in octavo("explain", "-m", tiny, "--machine", name, "--force", "attn_decode.simt16").out
        assert "attn_decode.avx2" in octavo("explain", "-m", tiny, "--machine", name, "--force", "attn_decode.avx2", check=2).err


def test_machines_and_devices_that_are_none(octavo, tiny):
    assert "no such recorded machine" in octavo("explain", "-m", tiny, "--machine", "zen", check=2).err
    assert "exclude each other" in octavo("explain", "-m", tiny, "--machine", "zen4", "--device", "cuda", check=2).err
    assert "must be cpu, cuda or hip" in octavo("explain", "-m", tiny, "--device", "gpu", check=2).err
    assert octavo("explain", "-m", tiny, "--device", "cpu").out == octavo("explain", "-m", tiny).out


def test_the_help_names_every_recorded_machine(octavo):
    text = " ".join(octavo("explain", "--help").out.split())
    assert all(name in text for name in MACHINES)


def test_to_a_file(octavo, tiny, tmp_path):
    octavo("explain", "-m", tiny, "-o", "json", "--output", tmp_path / "why.json")
    assert json.loads((tmp_path / "why.json").read_text())["model"] == str(tiny)


def test_machine(octavo, tmp_path):
    assert "cpu" in octavo("machine").out.lower()
    facts = json.loads(octavo("machine", "-o", "json").out)
    assert facts and isinstance(facts, dict)
    # Each vendor has GPUs here or a reason why not.
    for kind in ("cuda", "hip"):
        has = any(name.startswith(kind + ":") for name in facts["gpus"])
        assert has != (kind in facts["no_gpus"]) and (has or facts["no_gpus"][kind])
        assert has or f"no {kind:4} GPU" in octavo("machine").out
    octavo("machine", "-o", "json", "--output", tmp_path / "machine.json")
    assert json.loads((tmp_path / "machine.json").read_text()).keys() == facts.keys()
