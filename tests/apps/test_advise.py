"""octavo advise on a tiny model: the cheapest that meets the target by the report's own numbers, layers kept in 16 bits where that pays, and a file that run, serve's flags and
explain take."""
import json

import pytest

import tiny_gguf

CANDIDATES = "e4m3,e4m3:layer,e5m2,i8,i8+rot/i8,f16/e4m3"


def advise(octavo, model, *arguments, check=0):
    result = octavo("advise", "-m", model, "--output-format", "json", "--tokens", "96", "--candidates", CANDIDATES, "-t", "1", *arguments, check=check)
    return json.loads(result.out) if result.out else result


@pytest.fixture(scope="module")
def losses(octavo, tiny):
    """Every candidate's numbers, from a target that all meet."""
    said = advise(octavo, tiny, "--max-kl", "50")
    return {c["name"]: c for c in said["candidates"]}


def test_the_cheapest_that_meets_the_loss(octavo, tiny, losses):
    assert set(losses) == {*CANDIDATES.split(","), "f16"} and losses["f16"]["share"] == 1
    for c in losses.values():
        assert c["meets"] and c["kl_low"] is None or c["name"] == "f16" or c["kl_low"] <= c["kl"] <= c["kl_high"]
    cheapest = min((c["bytes_per_token"], c["kl"]) for c in losses.values())
    assert [(c["bytes_per_token"], c["kl"]) for c in losses.values() if c["chosen"]] == [cheapest]
    # A target between two of them: none that may lose more is chosen, and who lost is told by what.
    ordered = sorted((c for c in losses.values() if c["name"] != "f16"), key=lambda c: c["kl_high"])
    target = (ordered[0]["kl_high"] * ordered[1]["kl_high"]) ** 0.5
    said = advise(octavo, tiny, "--max-kl", repr(target), "--weights", "file")
    chosen = next(c for c in said["candidates"] if c["chosen"])
    assert chosen["kl_high"] <= target and chosen["name"] == said["chosen"]
    assert all(not c["meets"] or c["bytes_per_token"] >= chosen["bytes_per_token"] for c in said["candidates"])
    for c in said["candidates"]:
        assert c["chosen"] or c["name"] == "f16" or "lose" in c["why"] or "more bytes" in c["why"] or "as cheap" in c["why"], c


def test_layers_in_16_bits(octavo, tiny, tmp_path):
    """e5m2 alone loses too much; with its costliest layer in 16 bits it is smaller than 16 bits and meets a looser target."""
    alone = advise(octavo, tiny, "--max-kl", "50", "--candidates", "e5m2")["candidates"][0]
    path = tmp_path / "mixed.json"
    said = advise(octavo, tiny, "--max-kl", repr(alone["kl"] * 0.9), "--weights", "file", "--candidates", "e5m2", "-o", path)
    chosen = next(c for c in said["candidates"] if c["chosen"])
    assert chosen["layers_in_16_bits"] in (1, 2) and chosen["kl_high"] <= alone["kl"] * 0.9 and 0.5 < chosen["share"] < 1
    assert chosen["k"].count("f16") == chosen["layers_in_16_bits"] and chosen["k"].count("e5m2") == 3 - chosen["layers_in_16_bits"]
    file = json.loads(path.read_text())
    assert file["octavo"]["version"] == 2 and file["octavo"]["formats"] == {"k": chosen["k"], "v": chosen["v"]}
    # run takes it and says what it costs; explain tells the kinds of layers apart; another format on the command line counts more than the file.
    ran = octavo("run", "-m", tiny, "--kv-scales", path, "-p", "Hello", "-n", "4", "--temp", "0", "--verbose")
    assert f"{chosen['bytes_per_token']} bytes a token" in ran.err and "of 3 layers otherwise" in ran.err
    explained = json.loads(octavo("explain", "-m", tiny, "--kv-scales", path, "-o", "json").out)
    by_layer = {layer: (kind["k"], kind["v"]) for kind in explained["kinds"] for layer in kind["layers"]}
    assert [by_layer[layer] for layer in range(3)] == list(zip(chosen["k"], chosen["v"]))
    text = octavo("explain", "-m", tiny, "--kv-scales", path).out
    assert "kept in e5m2:" in text and "kept in f16:" in text
    plain = octavo("run", "-m", tiny, "--kv-scales", path, "-ctk", "e4m3", "-ctv", "e4m3", "-p", "Hello", "-n", "1", "--temp", "0", "--verbose")
    assert "cache: e4m3fn:layer," in plain.err
    # Of another model: said, not taken.
    said = octavo("run", "-m", tiny, "--kv-scales", path, "--k-scale", "2", "-p", "x", check=2)
    assert "exclude each other" in said.err


def test_files_without_formats(octavo, tiny, tmp_path):
    """A file of version 1 says nothing about formats: those of the command line need scales, or it is of no use, as before."""
    path = tmp_path / "scales.json"
    octavo("calibrate", "-m", tiny, "-o", path, "--tokens", "32")
    assert json.loads(path.read_text())["octavo"]["version"] == 1
    assert "--kv-scales: neither K nor V" in octavo("run", "-m", tiny, "--kv-scales", path, "-p", "x", check=2).err
    assert "cache: e4m3fn:layer," in octavo("run", "-m", tiny, "--kv-scales", path, "-ctk", "e4m3", "-ctv", "e4m3", "-p", "x", "-n", "1", "--verbose").err
    assert "none.json" in octavo("run", "-m", tiny, "--kv-scales", tmp_path / "none.json", "-p", "x", check=1).err


def test_bytes_and_machines(octavo, tiny, losses):
    said = advise(octavo, tiny, "--max-bytes", "0.52")
    fits = [c for c in losses.values() if c["share"] <= 0.52]
    chosen = next(c for c in said["candidates"] if c["chosen"])
    assert fits and chosen["share"] <= 0.52 and chosen["kl"] <= min(c["kl"] for c in fits) * 1.001
    said = octavo("advise", "-m", tiny, "--max-bytes", "0.1", "--tokens", "64", "--candidates", "i8", "-t", "1", check=1)
    assert "no candidate meets the target" in said.err and "Nothing meets that" in said.out and "allowed are 0.100" in said.out
    # The kernel is explain's, on that machine.
    for machine in ("cpu", "h200", "mi355x"):
        said = advise(octavo, tiny, "--for", machine, "--max-kl", "50")
        chosen = next(c for c in said["candidates"] if c["chosen"])
        assert chosen["predicted_seconds"] <= min(c["predicted_seconds"] for c in said["candidates"] if c["meets"]) * 1.002
        where = ("--machine", machine) if machine != "cpu" else ()
        k, v = chosen["k"][0].removesuffix(":token"), chosen["v"][0].removesuffix(":token")
        scale = [flag for flag, name in (("--k-scale", k), ("--v-scale", v)) if ":" in name and "token" not in name]
        explained = json.loads(octavo("explain", "-m", tiny, "-ctk", k, "-ctv", v, *[x for flag in scale for x in (flag, 1)], *where, "-o", "json").out)
        decode = explained["attn_full"]["operations"][0]["variants"]
        assert [(x["name"], x["seconds"]) for x in decode if x["state"] == "chosen"] == [(chosen["kernel"], pytest.approx(chosen["predicted_seconds"], rel=1e-5))]
        # Whose costs they are, as explain says it; and that nothing was run.
        problem = explained["attn_full"]
        assert said["predicted"] == {"what": "attention of one layer", "rows": 1, "keys": 4096, "machine": problem.get("device") or problem["cpu"], "rates": problem["rates"]}
    text = octavo("advise", "-m", tiny, "--for", "mi355x", "--max-kl", "50", "--tokens", "32", "--candidates", "i8", "-t", "1").out
    assert f"Times are predictions, nothing was run for them: attention of 1 token over 4096 keys in one layer that sees all of them, by the plan's costs for {problem['device']} with the rates of" in text


def test_wrong_words(octavo, tiny, tmp_path):
    assert "give --max-kl, --max-bytes or --for" in octavo("advise", "-m", tiny, check=2).err
    assert "--candidates" in octavo("advise", "-m", tiny, "--max-kl", "1", "--candidates", "q5", check=2).err
    assert "can't be chosen" in octavo("advise", "-m", tiny, "--max-kl", "1", "--candidates", "llama:f16", check=2).err
    assert "/no/such/folder" in octavo("advise", "-m", tiny, "--max-kl", "50", "--tokens", "64", "--candidates", "i8", "-t", "1", "-o", "/no/such/folder/a.json", check=1).err
    # Outputs are looked at before the work, and take nobody's place.
    assert "would take the place" in octavo("advise", "-m", tiny, "--max-kl", "50", "-o", tmp_path / "a.json", "--report", tmp_path / "." / "a.json", check=2).err
    assert "would take the place" in octavo("advise", "-m", tiny, "--max-kl", "50", "-o", tiny, check=2).err


def test_a_text_that_is_no_text(octavo, tiny, tmp_path):
    (tmp_path / "latin").write_bytes("K\xe4se und Brot, ".encode("latin-1") * 20)
    assert "not UTF-8" in octavo("advise", "-m", tiny, "--max-kl", "1", "--tokens", "32", "-f", tmp_path / "latin", "-t", "1", check=1).err


def test_beside_a_choice_that_loses_nothing(octavo, tiny):
    said = octavo("advise", "-m", tiny, "--max-bytes", "1.2", "--tokens", "32", "--weights", "file", "--candidates", "f16,f16/i8", "-t", "1").out
    assert "> f16" in said and "the choice nothing" in said and " inf " not in said and "nan" not in said


def test_a_base_without_numbers_does_not_win(octavo, tmp_path):
    def edit(tensors):
        tensors["blk.1.attn_v.weight"] *= 1e6       # infinite in f16
    model = tiny_gguf.write(tmp_path / "large.gguf", edit=edit)
    assert "not all numbers" in octavo("advise", "-m", model, "--max-kl", "1", "--tokens", "32", "--weights", "file", "--candidates", "i8", "-t", "1", check=1).err


def test_why_a_format_is_refused_is_said_to_the_end(octavo, tiny, tmp_path):
    odd = tiny_gguf.write(tmp_path / "odd.gguf", dim=16)
    lines = {}
    for model in (tiny, odd):
        said = octavo("advise", "-m", model, "--for", "h200", "--tokens", "32", "--weights", "file", "--max-kl", "50", "--candidates", "e4m3,i8+rot/v4+rot", "-t", "1").out
        lines[model], = [line for line in said.splitlines() if line.startswith("i8+rot/v4+rot ")]
    assert lines[odd].endswith("spec.kv.dim_v is 16; must be a multiple of 32 with V in v4") and "must be" not in lines[tiny]


def test_the_fastest_within_bytes_may_not_lose_what_it_likes(octavo, tiny):
    said = octavo("advise", "-m", tiny, "--for", "h200", "--max-bytes", "0.55", "--tokens", "32", "--weights", "file", "--candidates", "e4m3", "-t", "1").out
    assert "a KL of at most 0.01, at most 0.55 of the 16-bit cache's bytes, fastest on h200" in said
