"""quantize, dequantize and calibrate against ml_dtypes and float64."""
import ml_dtypes
import numpy as np
import pytest

import octavo
import oracle

FLOATS = ["e4m3fn", "e4m3fnuz", "e5m2"]
LARGEST = {"e4m3fn": 448.0, "e4m3fnuz": 240.0, "e5m2": 57344.0, "i8": 127.0}


@pytest.mark.parametrize("name", FLOATS)
def test_every_byte_and_every_half(name):
    codes = np.arange(256, dtype=np.uint8)
    got, want = octavo.dequantize(codes, name), codes.view(oracle.TYPES[name]).astype(np.float32)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(got.view(np.uint32)[~np.isnan(got)], want.view(np.uint32)[~np.isnan(got)])
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    number = ~np.isnan(halves)
    bytes_got = octavo.quantize(halves, name)
    bytes_want = np.clip(halves[number].astype(np.float32), -LARGEST[name], LARGEST[name]).astype(oracle.TYPES[name]).view(np.uint8)
    np.testing.assert_array_equal(bytes_got[number], bytes_want)
    assert np.isnan(octavo.dequantize(bytes_got[~number], name)).all()


@pytest.mark.parametrize("name", FLOATS + ["i8"])
@pytest.mark.parametrize("mode", ["number", "head", "channel", "token_head"])
@pytest.mark.parametrize("rotated", [False, True])
def test_scales(name, mode, rotated, rng):
    x = rng.standard_normal((7, 3, 48)).astype(np.float32) * 3
    y = x.astype(np.float64) @ oracle.hadamard(48) if rotated else x.astype(np.float64)
    if mode == "token_head":
        codes, scale = octavo.quantize(x, name, "token_head", rotated=rotated)
        assert scale.shape == (7, 3, 1)
        np.testing.assert_allclose(scale[..., 0], np.abs(y).max(-1) / LARGEST[name], rtol=1e-6)
    else:
        scale = octavo.calibrate(x, name, {"number": "layer", "head": "layer_head", "channel": "channel"}[mode], rotated=rotated)
        np.testing.assert_allclose(scale, np.atleast_1d(np.abs(y).max({"number": None, "head": (0, 2), "channel": 0}[mode]) / LARGEST[name]), rtol=1e-6)
        scale = float(scale[0]) if mode == "number" else scale
        codes = octavo.quantize(x, name, scale, rotated=rotated)
    assert codes.dtype == (np.int8 if name == "i8" else np.uint8) and codes.shape == x.shape
    step = {"e4m3fn": 1 / 16, "e4m3fnuz": 1 / 16, "e5m2": 1 / 8, "i8": 0}[name]   # half a step of a float, relative
    s = np.broadcast_to(np.asarray(scale)[:, None] if mode == "head" else scale, x.shape)
    slack = np.abs(y) * step + s * (0.5 if name == "i8" else 2.0 ** -6) * 1.001 + 1e-6
    assert (np.abs(octavo.dequantize(codes, name, scale) - y) <= slack).all()
    back = octavo.dequantize(codes, name, scale, rotated=rotated)
    assert np.linalg.norm(back - x) <= 0.1 * np.linalg.norm(x)


def test_saturation_and_special_numbers():
    x = np.array([np.inf, -np.inf, 1e9, -1e9, np.nan, 0, -0.0, 2.0 ** -9], np.float32)
    np.testing.assert_array_equal(octavo.quantize(x), np.array([0x7E, 0xFE, 0x7E, 0xFE, 0x7F, 0, 0x80, 1], np.uint8))
    assert octavo.quantize(np.zeros((0, 2, 16), np.float32)).shape == (0, 2, 16)
    assert octavo.calibrate(np.array([[[np.inf, np.nan] + [0] * 14]], np.float32))[0] == np.float32(1e-6)
    bf16 = np.array([1.5, 3.0], ml_dtypes.bfloat16)
    np.testing.assert_array_equal(octavo.dequantize(octavo.quantize(bf16)), bf16.astype(np.float32))


V4 = np.array([0, 11, 22, 35, 48, 63, 80, 99, 124, -123, -94, -73, -56, -41, -26, -13], np.float64)


@pytest.mark.parametrize("rotated", [False, True])
def test_v4(rotated, rng):
    x = rng.standard_normal((5, 3, 96)).astype(np.float32) * 3
    y = (x.astype(np.float64) @ oracle.hadamard(96) if rotated else x.astype(np.float64)).reshape(5, 3, 3, 32)
    codes = octavo.quantize(x, "v4", rotated=rotated)
    assert codes.dtype == np.uint8 and codes.shape == (5, 3, 54)
    blocks = codes.reshape(5, 3, 3, 18)
    scale = np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(np.float64)
    least = np.abs(y).max(-1, keepdims=True) / 127
    assert ((scale >= least * (1 - 1e-6)) & (scale <= least * (1 + 2.0 ** -10) + 1e-7)).all()   # up to the next f16
    numbers = np.concatenate((V4[blocks[..., 2:] & 15], V4[blocks[..., 2:] >> 4]), -1)
    nearest = np.abs((y / scale)[..., None] - V4).min(-1)
    assert (np.abs(y / scale - numbers) <= nearest + 1.001).all()   # by way of a whole number: half a one each way
    np.testing.assert_array_equal(octavo.dequantize(codes, "v4").reshape(y.shape), (numbers * scale).astype(np.float32))
    back = octavo.dequantize(codes, octavo.KVFormat("v4"), rotated=rotated)
    assert 0.05 < np.linalg.norm(back - x) / np.linalg.norm(x) < 0.12
    if not rotated:   # any shape, and each block by itself
        np.testing.assert_array_equal(octavo.quantize(x.reshape(-1, 32), "v4").reshape(codes.shape), codes)
    pool = octavo.KVPool(octavo.KVSpec(3, 96, page_size=4, k="f16", v=octavo.KVFormat("v4", rotated=rotated)), 1, 2)
    octavo.kv_write(pool.layer(0), x, x, np.arange(5, dtype=np.int32))
    np.testing.assert_array_equal(np.asarray(pool.layer(0).v).reshape(-1, 3, 54)[:5], codes)


def test_v4_of_special_numbers():
    x = np.zeros((4, 32), np.float32)
    x[1, 7], x[2, 30], x[3, 0], x[3, 1] = np.nan, -np.inf, np.inf, 5
    values = octavo.dequantize(octavo.quantize(x, "v4"), "v4")
    assert (values[0] == 0).all() and np.isnan(values[1]).all() and values[2, 30] < 0 and np.isfinite(values[2:]).all()
    assert 4.8 < values[3, 0] < 5 and 4.8 < values[3, 1] < 5 and (values[3, 2:] == 0).all()
    assert octavo.quantize(np.zeros((0, 2, 64), np.float32), "v4").shape == (0, 2, 36)
    for call, words in ((lambda: octavo.quantize(np.zeros((2, 48), np.float32), "v4"), "multiple of 32"), (lambda: octavo.quantize(x, "v4", 0.5), "must not be for v4"),
                        (lambda: octavo.dequantize(np.zeros((2, 17), np.uint8), "v4"), "whole blocks"), (lambda: octavo.calibrate(x[None], "v4"), "must be e4m3fn")):
        with pytest.raises(octavo.InvalidArgument, match=words):
            call()


def test_pool_bytes_are_those_of_quantize(rng):
    x = rng.standard_normal((5, 2, 32)).astype(np.float32)
    spec = octavo.KVSpec(2, 32, page_size=8, k=octavo.KVFormat("e4m3fn", "layer"))
    pool = octavo.KVPool(spec, 1, 1)
    pool.set_scale(0, k=0.03, v=0.5)
    octavo.kv_write(pool.layer(0), x, x, np.arange(5, dtype=np.int32))
    np.testing.assert_array_equal(np.asarray(pool.layer(0).k)[0, :5], octavo.quantize(x, "e4m3fn", 0.03))
    np.testing.assert_array_equal(np.asarray(pool.layer(0).v)[0, :5], octavo.quantize(x, "e4m3fn", 0.5))


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf, np.ones(5, np.float32), "layer"])
def test_bad_scales_are_refused(scale):
    with pytest.raises(octavo.InvalidArgument):
        octavo.quantize(np.zeros((2, 2, 16), np.float32), "e4m3fn", scale)
