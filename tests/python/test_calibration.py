"""The calibration file as the package reads it: both versions, vLLM's own form, scales by format, and every kind of wrong file with its key."""
import json

import numpy as np
import octavo
import pytest


def ours(**changed):
    sides = {"layer": [0.5, 0.25], "head": [[0.5, 0.125], [0.25, 0.0625]], "channel": (np.arange(1, 65, dtype=float).reshape(2, 2, 16) / 64).tolist()}
    return {"version": 2, "heads": 2, "dim": 16, "rotated": [True, False], "formats": {"k": ["i8:channel+rot", "f16"], "v": ["e4m3fn:layer", "i8:token32"]}, "k": sides, "v": sides} | changed


def written(tmp_path, octavo_key, factors=None):
    path = tmp_path / "calibration.json"
    root = {"model_type": "llama", "kv_cache": {"dtype": "float8_e4m3fn", "scaling_factor": factors or {"0": {"0": 0.5, "1": 0.25}}}}
    path.write_text(json.dumps(root | ({"octavo": octavo_key} if octavo_key is not None else {})))
    return path


def test_formats_and_scales(tmp_path):
    c = octavo.read_calibration(written(tmp_path, ours()))
    channel, layer = octavo.KVFormat("i8", "channel", rotated=True), octavo.KVFormat("e4m3fn", "layer")
    assert c.formats == ((channel, layer), (octavo.KVFormat("f16"), octavo.KVFormat("i8", "token_head", scale_dtype="f32"))) and c.n_layers == 2
    np.testing.assert_allclose(c.scales(1, 0, channel), np.arange(33, 65).reshape(2, 16) / 64 * 448 / 127, rtol=1e-6)
    np.testing.assert_array_equal(c.scales(0, 1, layer), np.float32([0.5]))
    np.testing.assert_array_equal(c.scales(1, 1, octavo.KVFormat("e4m3fnuz", "layer_head")), np.float32([0.5, 0.125]))
    np.testing.assert_array_equal(c.scales(1, 1, octavo.KVFormat("e5m2", "tensor")), np.float32([0.5]))
    assert c.scales(0, 1, octavo.KVFormat("i8", "token_head")) is None
    with pytest.raises(octavo.BadData, match="made for values kept rotated"):
        c.scales(0, 0, layer)
    # What set_scale takes.
    pool = octavo.KVPool(octavo.KVSpec(2, 16, k=channel, v=layer), 1, 1)
    pool.set_scale(0, k=c.scales(0, 0, channel), v=c.scales(0, 1, layer))


def test_an_engine_with_formats_of_its_own(tmp_path):
    layer = octavo.KVFormat("e4m3fn", "layer")
    c = octavo.read_calibration(written(tmp_path, ours(rotated=[False, False])))
    for kept, says in (((octavo.KVFormat("i8", "channel", rotated=True), octavo.KVFormat("bf16")), r"V of layer 0 is to be kept in e4m3fn:layer, and the engine keeps it in bf16$"),
                       ((layer, layer), r"K of layer 0 is to be kept in i8:channel\+rot, and the engine keeps it in e4m3fn:layer$"),
                       ((octavo.KVFormat("i8", "token_head"), layer), r"keeps it in i8:token$"), ((octavo.KVFormat("e4m3fn", "token_head", scale_dtype="f32"), layer), r"keeps it in e4m3fn:token32$")):
        with pytest.raises(NotImplementedError, match=says):
            c.scales_in("the engine", 0, kept)
    with pytest.raises(octavo.BadData, match="is of 2 layers; the model has a layer 2"):
        c.scales_in("the engine", 2, (layer, layer))
    fits = octavo.read_calibration(written(tmp_path, ours(rotated=[False, False], formats={"k": ["e4m3fn:layer", "bf16"], "v": ["e4m3fn:layer", "e5m2:layer"]}) | {"v": {"layer": [1.0, 2.0]}}))
    assert fits.version == 2 and fits.scales_in("the engine", 0, (layer, layer)) == (0.5, 1.0)
    assert fits.scales_in("the engine", 1, (octavo.KVFormat("bf16"), octavo.KVFormat("e5m2", "layer"))) == (None, 2.0)
    assert fits.scales_in("the engine", 0, (octavo.KVFormat("e4m3fnuz", "layer"),) * 2) == (1.0, 2.0)   # the same formats as gfx942 has them
    assert octavo.read_calibration(written(tmp_path, None)).version == 0


def test_files_of_another_model(tmp_path):
    path = written(tmp_path, ours())
    octavo.read_calibration(path).check_model("llama", 2)
    for n in (1, 3):
        with pytest.raises(octavo.BadData, match=f"is of 2 layers; the model has {n}$"):
            octavo.read_calibration(path).check_model("llama", n)
    root = json.loads(path.read_text())
    # By a GGUF's architecture, by Hugging Face's name; llama.cpp's converter makes a llama of a mistral; a file that names none fits any.
    for made_of, fits, others in (("llama", ("llama", "mistral"), ("qwen2", "llama4_text", "")), ("gemma3", ("gemma3_text", "gemma3"), ("gemma2", "llama")), ("gemma3_text", ("gemma3_text",), ("gemma3n_text",)),
                                  ("qwen3", ("qwen3",), ("qwen2", "qwen3_moe", "mistral")), (None, ("llama", "qwen3"), ())):
        path.write_text(json.dumps(root | {"model_type": made_of}))
        file = octavo.read_calibration(path)
        assert file.model_type == made_of
        for name in fits:
            file.check_model(name, 2)
        for name in others:
            with pytest.raises(octavo.BadData, match=f"calibration.json: is of a model of type '{made_of}'; this model's is '{name}'$"):
                file.check_model(name, 2)
    for wrong, says in (({"model_type": 5}, "model_type is 5"), ({"kv_cache": root["kv_cache"] | {"dtype": "float8_e5m2"}}, "kv_cache.dtype is 'float8_e5m2'; must be 'float8_e4m3fn'"),
                        ({"kv_cache": {"scaling_factor": root["kv_cache"]["scaling_factor"]}}, "kv_cache.dtype is None")):
        path.write_text(json.dumps(root | wrong))
        with pytest.raises(octavo.BadData, match=says):
            octavo.read_calibration(path)


def test_older_files(tmp_path):
    first = octavo.read_calibration(written(tmp_path, ours(version=1)))
    assert first.formats is None and first.scales(1, 1, octavo.KVFormat("e4m3fn", "layer"))[0] == 0.25
    vllm = octavo.read_calibration(written(tmp_path, None, {"0": {"0": 0.5, "1": 0.25}, "1": {"0": 0.125, "1": 0.75}}))
    assert vllm.formats is None and [float(vllm.scales(i, 0, octavo.KVFormat("e4m3fn", "layer"))[0]) for i in range(2)] == [0.5, 0.75]
    with pytest.raises(octavo.BadData, match="no numbers by head"):
        vllm.scales(0, 0, octavo.KVFormat("e4m3fn", "layer_head"))


@pytest.mark.parametrize("changed, says", [
    ({"version": 3}, "version is 3"), ({"version": True}, "version is True"), ({"version": [2]}, "version is"), ({"formats": ["f16"]}, "2 names"), ({"rotated": 1}, "octavo.rotated"),
    ({"rotated": [1, 0]}, "octavo.rotated"), ({"v": {"layer": [10 ** 400, 1]}}, "octavo.v.layer"), ({"k": [1, 2]}, "octavo.k.layer"), ({"formats": None}, "2 names"), ({"formats": {"k": ["f16"], "v": ["f16", "f16"]}}, "2 names"),
    ({"formats": {"k": ["f16", "q5"], "v": ["f16", "f16"]}}, "'q5' is no cache format"), ({"formats": {"k": ["f16", "f16+up"], "v": ["f16", "f16"]}}, r"'f16\+up' is no cache format"),
    ({"k": {}}, "octavo.k.layer is missing"), ({"v": {"layer": [1.0, 0.0]}}, "octavo.v.layer must be"), ({"v": {"layer": [1.0]}}, "octavo.v.layer must be"), ({"v": {"layer": ["a", 1]}}, "octavo.v.layer"),
])
def test_wrong_files(tmp_path, changed, says):
    with pytest.raises(octavo.BadData, match=says):
        octavo.read_calibration(written(tmp_path, ours(**changed)))


def test_no_such_files(tmp_path):
    with pytest.raises(OSError):
        octavo.read_calibration(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("{")
    with pytest.raises(octavo.BadData, match="no calibration file"):
        octavo.read_calibration(tmp_path / "text.json")
    with pytest.raises(octavo.BadData):
        octavo.read_calibration(written(tmp_path, None, {"0": {"0": -1.0}}))
    with pytest.raises(octavo.BadData, match="no calibration file"):
        octavo.read_calibration(written(tmp_path, None, {"0": {"0": 10 ** 400}}))
    with pytest.raises(octavo.BadData, match="octavo is no object"):
        octavo.read_calibration(written(tmp_path, [1, 2]))
    (tmp_path / "deep.json").write_text("[" * 100000)
    with pytest.raises(octavo.BadData, match="no calibration file"):
        octavo.read_calibration(tmp_path / "deep.json")
