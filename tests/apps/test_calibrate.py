"""octavo calibrate: its file, our finer forms, and what a run makes of it."""
import json

import pytest

LAYERS, HEADS, DIM = 3, 2, 32


@pytest.fixture(scope="module")
def scales(octavo, tiny, tmp_path_factory):
    path = tmp_path_factory.mktemp("scales") / "scales.json"
    octavo("calibrate", "-m", tiny, "-o", path, "--tokens", "200", "--per-head")
    return path


def test_the_common_form(octavo, tiny, tmp_path):
    path = tmp_path / "scales.json"
    said = octavo("calibrate", "-m", tiny, "-o", path, "--tokens", "200", "--tp", "2").out
    assert "3 layers from 200 tokens" in said
    content = json.loads(path.read_text())
    cache = content["kv_cache"]
    assert cache["dtype"] in ("float8_e4m3fn", "fp8_e4m3", "float8_e4m3") and set(cache["scaling_factor"]) == {"0", "1"}
    for rank in ("0", "1"):
        factors = cache["scaling_factor"][rank]
        assert set(factors) == {str(layer) for layer in range(LAYERS)}
        assert all(0 < factor < 1 for factor in factors.values())
    assert content["model_type"] == "llama"
    assert not any(path.name != "scales.json" for path in tmp_path.iterdir())


def flat(tree):
    return [number for part in tree for number in flat(part)] if isinstance(tree, list) else [tree]


def numbers_in(tree):
    if isinstance(tree, dict):
        return [number for value in tree.values() for number in numbers_in(value)]
    if isinstance(tree, list):
        return [number for value in tree for number in numbers_in(value)]
    return [tree] if isinstance(tree, float) else []


def test_finer_forms(octavo, tiny, tmp_path, scales):
    by_head = json.loads(scales.read_text())
    assert len(numbers_in(by_head["octavo"])) >= 2 * LAYERS * HEADS
    octavo("calibrate", "-m", tiny, "-o", tmp_path / "channels.json", "--tokens", "200", "--per-channel")
    by_channel = json.loads((tmp_path / "channels.json").read_text())
    assert len(numbers_in(by_channel["octavo"])) >= 2 * LAYERS * HEADS * DIM
    for name, path in (("e4m3:head", scales), ("e4m3:channel", tmp_path / "channels.json")):
        octavo("run", "-m", tiny, "-p", "a", "-n", "4", "-ctk", name, "-ctv", name, "--kv-scales", path)
    # What the file lacks is not made up.
    assert "channel" in octavo("run", "-m", tiny, "-p", "a", "-ctk", "e4m3:channel", "-ctv", "e4m3:channel", "--kv-scales", scales, check=1).err


def test_the_same_text_gives_the_same_file(octavo, tiny, tmp_path):
    for name in ("a.json", "b.json"):
        octavo("calibrate", "-m", tiny, "-o", tmp_path / name, "--tokens", "150", "--per-head")
    assert (tmp_path / "a.json").read_text() == (tmp_path / "b.json").read_text()


def test_scales_reach_the_cache(octavo, tiny, tmp_path, scales):
    """Scales a thousand times too small saturate everything: the answer must change; and read back they must be the ones of the file."""
    typed = ["run", "-m", tiny, "-p", "the store now holds", "-n", "32", "--temp", "0", "--ignore-eos", "--kv-cache-dtype", "fp8"]
    good = octavo(*typed, "--kv-scales", scales).out
    assert good == octavo(*typed, "--kv-scales", scales).out
    content = json.loads(scales.read_text())
    del content["octavo"]
    factors = content["kv_cache"]["scaling_factor"]["0"]
    content["kv_cache"]["scaling_factor"]["0"] = {layer: factor / 1000 for layer, factor in factors.items()}
    small = tmp_path / "small.json"
    small.write_text(json.dumps(content))
    assert octavo(*typed, "--kv-scales", small).out != good


def test_rotated_scales_are_for_rotated_caches(octavo, tiny, tmp_path):
    path = tmp_path / "rotated.json"
    octavo("calibrate", "-m", tiny, "-o", path, "--tokens", "100", "--rotate-k")
    octavo("run", "-m", tiny, "-p", "a", "-n", "4", "-ctk", "e4m3:layer+rot", "-ctv", "e4m3", "--kv-scales", path)
    assert "rotated" in octavo("run", "-m", tiny, "-p", "a", "-n", "4", "-ctk", "e4m3:layer", "-ctv", "e4m3", "--kv-scales", path, check=1).err


def test_what_others_read(octavo, tiny, tmp_path, scales):
    """export-scales leaves the common form alone, for as many ranks as wished; what it can't say is refused by name and leaves no file."""
    out, whole = tmp_path / "out.json", json.loads(scales.read_text())
    said = octavo("export-scales", "--kv-scales", scales, "-o", out, "--tp", "2").out
    k, v = (whole["octavo"][side]["layer"] for side in "kv")
    ratios = [max(max(other / own for own, other in zip(*pair)), 1) for pair in ((k, v), (v, k))]
    assert "3 layers" in said and "by head and channel stay behind" in said and f"K's up to {ratios[0]:.3g} times its own, V's up to {ratios[1]:.3g} times" in said
    assert json.loads(out.read_text()) == {"model_type": "llama", "kv_cache": {"dtype": "float8_e4m3fn", "scaling_factor": {r: whole["kv_cache"]["scaling_factor"]["0"] for r in "01"}}}
    typed = ["run", "-m", tiny, "-p", "the store now holds", "-n", "8", "--temp", "0", "--kv-cache-dtype", "fp8", "--kv-scales"]
    octavo(*typed, out)
    bad = tmp_path / "bad.json"
    for key, value, says in (("rotated", [False, True], "scales of V were made for rotated values"), ("formats", {"k": ["e4m3fn:layer"] * 3, "v": ["e4m3fn:layer", "i8+rot", "f16"]}, "V of layer 1 is to be kept in i8:token+rot"),
                             ("formats", {"k": ["e4m3fn:layer", "e4m3fn:layer", "e4m3fn"], "v": ["e4m3fn:layer"] * 3}, "K of layer 2 is to be kept in e4m3fn;")):
        bad.write_text(json.dumps(whole | {"octavo": whole["octavo"] | {"version": 2, "formats": {side: ["e4m3fn:layer"] * 3 for side in "kv"}} | {key: value}}))
        assert says in octavo("export-scales", "--kv-scales", bad, "-o", tmp_path / "none.json", check=1).err
    assert {path.name for path in tmp_path.iterdir()} == {"out.json", "bad.json"}
    # The input stays, by whatever name it is to be overwritten.
    (tmp_path / "again.json").symlink_to(scales)
    for path in (scales, tmp_path / "again.json"):
        assert "would take the place of --kv-scales" in octavo("export-scales", "--kv-scales", scales, "-o", path, check=2).err
    assert json.loads(scales.read_text()) == whole
    # Ranks of their own become one: the largest number of each layer.
    ranks = tmp_path / "ranks.json"
    numbers = [[0.5, 2.0, 1.0], [1.5, 0.25, 1.0]]
    ranks.write_text(json.dumps({"model_type": "llama", "kv_cache": {"dtype": "float8_e4m3fn", "scaling_factor": {str(r): {str(i): x for i, x in enumerate(row)} for r, row in enumerate(numbers)}}}))
    octavo("export-scales", "--kv-scales", ranks, "-o", out, "--tp", "2")
    assert json.loads(out.read_text())["kv_cache"]["scaling_factor"] == {r: {"0": 1.5, "1": 2.0, "2": 1.0} for r in "01"}


def change(content, layer, value):
    content = json.loads(content)
    content["kv_cache"]["scaling_factor"]["0"][layer] = value
    content.pop("octavo", None)
    return json.dumps(content)


BAD = {
    "zero": (lambda text: change(text, "1", 0.0), "1"),
    "negative": (lambda text: change(text, "2", -0.5), "2"),
    "NaN": (lambda text: change(text, "0", 1.0).replace(": 1.0", ": NaN"), ""),
    "infinite": (lambda text: change(text, "0", 1.0).replace(": 1.0", ": 1e999"), ""),
    "text for a number": (lambda text: change(text, "1", "0.5"), "1"),
    "a layer too many": (lambda text: change(text, "3", 0.5), "layers"),
    "not JSON": (lambda text: text[:-10], ""),
    "empty": (lambda text: "", ""),
    "another file": (lambda text: "{\"a\": [1, 2]}", ""),
    "another model": (lambda text: text.replace('"llama"', '"mamba"'), "mamba"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_scales_are_named(octavo, tiny, tmp_path, scales, name):
    spoil, named = BAD[name]
    path = tmp_path / "bad-scales.json"
    path.write_text(spoil(scales.read_text()))
    result = octavo("run", "-m", tiny, "-p", "a", "-n", "4", "--kv-cache-dtype", "fp8", "--kv-scales", path, check=1)
    assert ("bad-scales.json" in result.err or "scales are for" in result.err) and named in result.err and result.out == ""


def test_a_missing_file_is_named(octavo, tiny, tmp_path):
    assert "absent.json" in octavo("run", "-m", tiny, "-p", "a", "--kv-cache-dtype", "fp8", "--kv-scales", tmp_path / "absent.json", check=1).err
