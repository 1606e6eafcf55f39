"""Numbers outside of pages: quantise, dequantise, calibrate. Bytes are made by the library's own write, so they are the pool's."""
from __future__ import annotations

from typing import Any

import numpy as np

from . import _octavo

# Exponent bits, mantissa bits, bias, and whether it is a "finite only" format: doc/NUMERICS.md.
_FLOATS = {"e4m3fn": (4, 3, 7), "e4m3fnuz": (4, 3, 8), "e5m2": (5, 2, 15)}
_LARGEST = {"e4m3fn": 448.0, "e4m3fnuz": 240.0, "e5m2": 57344.0, "i8": 127.0}
_SMALLEST_SCALE = 1e-6
_tables: dict[str, np.ndarray] = {}
# v4's blocks and the numbers of its codes: doc/NUMERICS.md.
_BLOCK, _BLOCK_BYTES = 32, 18
_V4 = np.array([0, 11, 22, 35, 48, 63, 80, 99, 124, -123, -94, -73, -56, -41, -26, -13], np.float32)


def _is_v4(dtype: object) -> bool:
    return dtype == "v4" or isinstance(dtype, _octavo.KVFormat) and dtype.dtype == "v4"


def _name(dtype: object) -> str:
    name = _octavo.KVFormat(dtype).dtype
    if name not in _LARGEST:
        _octavo._refuse("dtype", f"is {name}; must be e4m3fn, e4m3fnuz, e5m2, i8 or, to quantize and dequantize, v4")
    return name


def _table(name: str) -> np.ndarray:
    """The 256 numbers of an 8-bit float."""
    if name not in _tables:
        e_bits, m_bits, bias = _FLOATS[name]
        codes = np.arange(256)
        e = (codes >> m_bits) & ((1 << e_bits) - 1)
        m = codes & ((1 << m_bits) - 1)
        value = np.where(e == 0, np.ldexp(m / (1 << m_bits), 1 - bias), np.ldexp(1 + m / (1 << m_bits), e - bias))
        value = np.where(codes >= 128, -value, value)
        if name == "e4m3fn":
            value[(codes & 0x7F) == 0x7F] = np.nan
        elif name == "e4m3fnuz":
            value[0x80] = np.nan
        else:
            top = (codes & 0x7C) == 0x7C
            value[top] = np.where(m[top] == 0, np.copysign(np.inf, value[top]), np.nan)
        _tables[name] = value.astype(np.float32)
    return _tables[name]


def _hadamard(x: np.ndarray) -> np.ndarray:
    """The orthonormal Hadamard transform over the last axis, in blocks of its largest power-of-two divisor; its own inverse."""
    dim = x.shape[-1]
    block = dim & -dim
    y = np.asarray(x, np.float32).reshape(*x.shape[:-1], dim // block, block)
    step = 1
    while step < block:
        z = y.reshape(*y.shape[:-1], block // (2 * step), 2, step)
        y = np.stack((z[..., 0, :] + z[..., 1, :], z[..., 0, :] - z[..., 1, :]), axis=-2).reshape(y.shape)
        step *= 2
    return (y * np.float32(1 / np.sqrt(block))).reshape(x.shape)


def _heads_view(x: np.ndarray) -> np.ndarray:
    if x.ndim != 3:
        _octavo._refuse("x", f"has shape {list(x.shape)}; must be [tokens, heads, dim] here")
    return x


def _quantize_v4(x: np.ndarray, rotated: bool, context: _octavo.Context | None) -> np.ndarray:
    if x.ndim == 0 or x.shape[-1] % _BLOCK:
        _octavo._refuse("x", f"has shape {list(x.shape)}; must end in a multiple of {_BLOCK} for v4")
    dim = x.shape[-1]
    # Without rotation a block stands by itself, so a row of any length is rows of one block.
    rows = np.ascontiguousarray(_heads_view(x) if rotated else x.reshape(-1, 1, _BLOCK))
    tokens, heads, width = rows.shape
    out = np.zeros((tokens, 1, heads, width // _BLOCK * _BLOCK_BYTES), np.uint8)
    spec = _octavo.KVSpec(heads, 16, dim_v=width, page_size=1, k="f16", v=_octavo.KVFormat("v4", rotated=rotated))
    k = np.zeros((tokens, heads, 16), rows.dtype)   # the write takes K as well: a narrow row that nobody reads
    _octavo.kv_write(_octavo.KVLayer(spec, np.zeros((tokens, 1, heads, 16), np.float16), out, context=context), k, rows, np.arange(tokens, dtype=np.int32))
    return out.reshape(*x.shape[:-1], dim // _BLOCK * _BLOCK_BYTES)


def _dequantize_v4(codes: np.ndarray) -> np.ndarray:
    if codes.ndim == 0 or codes.shape[-1] % _BLOCK_BYTES:
        _octavo._refuse("codes", f"has shape {list(codes.shape)}; must end in whole blocks of v4, {_BLOCK_BYTES} bytes")
    blocks = codes.view(np.uint8).reshape(*codes.shape[:-1], codes.shape[-1] // _BLOCK_BYTES, _BLOCK_BYTES)
    scale = np.ascontiguousarray(blocks[..., :2]).view("<f2").astype(np.float32)
    numbers = _V4[np.concatenate((blocks[..., 2:] & 15, blocks[..., 2:] >> 4), axis=-1)]
    return (numbers * scale).reshape(*codes.shape[:-1], codes.shape[-1] // _BLOCK_BYTES * _BLOCK)


def quantize(x: Any, dtype: object = "e4m3fn", scale: Any = 1.0, *, rotated: bool = False, context: _octavo.Context | None = None) -> Any:
    """The bytes that a pool would hold for x: round_to_nearest_even(x / scale), saturating; NaN stays NaN.

    x: float32, float16 or ml_dtypes.bfloat16 in host memory, [tokens, heads, dim]; any shape where scale is a number and nothing is rotated.
    scale: a number, [heads], [heads, dim], or "token_head": amax / largest finite of each vector. Finite and > 0. rotated: by the Hadamard
    transform over dim, first. Returns uint8 (int8 for "i8") like x; with "token_head" (bytes, scale float32[tokens, heads, 1]).
    "v4": blocks of 32, their scales in them, uint8 [..., dim / 32 * 18]; no scale is given, and x may have any shape unless it is rotated.
    Raises InvalidArgument. Source: oct_kv_write, doc/NUMERICS.md.
    """
    x = np.asarray(x)
    if _is_v4(dtype):
        if isinstance(scale, str) or np.ndim(scale) > 0 or scale != 1.0:
            _octavo._refuse("scale", "is given; must not be for v4, whose scales lie in its blocks")
        return _quantize_v4(x, rotated, context)
    name = _name(dtype)
    dynamic = isinstance(scale, str)
    if dynamic and scale != "token_head":
        _octavo._refuse("scale", f"is {scale!r}; must be numbers or \"token_head\"")
    shape = x.shape
    if not dynamic and not rotated and np.ndim(scale) == 0 and x.ndim != 3 or x.ndim == 3 and not dynamic and not rotated and np.ndim(scale) == 0:
        flat = np.ascontiguousarray(x).reshape(-1)
        short = -flat.size % 16
        rows = np.concatenate((flat, np.zeros(short, flat.dtype))) if short else flat
        rows = rows.reshape(-1, 1, 16)
    else:
        rows = np.ascontiguousarray(_heads_view(x))
    tokens, heads, dim = rows.shape
    out = np.zeros((tokens, 1, heads, dim), np.int8 if name == "i8" else np.uint8)
    token_scale = np.zeros((tokens, 1, heads), np.float32) if dynamic else None
    if dynamic:
        mode, numbers = "token_head", None
    else:
        numbers = np.asarray(scale, np.float32)
        if numbers.ndim > 0 and numbers.shape not in ((heads,), (heads, dim)):
            _octavo._refuse("scale", f"has shape {list(numbers.shape)}; must be a number, [{heads}] or [{heads}, {dim}]")
        if name == "i8" and numbers.ndim < 2:
            numbers = np.broadcast_to(numbers[:, None] if numbers.ndim == 1 else numbers, (heads, dim))
        mode = ("layer", "layer_head", "channel")[numbers.ndim]
        numbers = np.ascontiguousarray(numbers).reshape(-1)
    k = _octavo.KVFormat(name, mode, scale_dtype="f32" if dynamic else None, rotated=rotated)
    spec = _octavo.KVSpec(heads, dim, dim_v=16, page_size=1, k=k, v="f16")
    # The write takes K and V; V is a narrow row of zeros that nobody reads.
    v = np.broadcast_to(np.zeros(1, rows.dtype), (tokens, heads, 16))[..., :].copy() if rows.size else np.zeros((tokens, heads, 16), rows.dtype)
    layer = _octavo.KVLayer(spec, out, np.zeros((tokens, 1, heads, 16), np.float16), k_scale=numbers, k_token_scale=token_scale, context=context)
    _octavo.kv_write(layer, rows, v, np.arange(tokens, dtype=np.int32))
    size = int(np.prod(shape, dtype=np.int64))
    codes = out.reshape(-1)[:size].reshape(shape)
    return (codes, token_scale.reshape(tokens, heads, 1)) if dynamic else codes


def dequantize(codes: Any, dtype: object = "e4m3fn", scale: Any = 1.0, *, rotated: bool = False) -> np.ndarray:
    """What bytes mean, in float32: byte * scale, exactly decoded; rotated: the transform undone.

    codes: uint8, int8 or an 8-bit float array. scale: a number, [heads] for codes [..., heads, dim], or whatever broadcasts to codes, as
    [heads, dim] or quantize's [tokens, heads, 1]. "v4": blocks, uint8 [..., dim / 32 * 18], without a scale. Source: doc/NUMERICS.md.
    """
    name = "v4" if _is_v4(dtype) else _name(dtype)
    codes = np.ascontiguousarray(codes)
    if codes.dtype.itemsize != 1:
        _octavo._refuse("codes", f"is {codes.dtype}; must be of one byte an element")
    if name == "v4":
        if np.ndim(scale) > 0 or scale != 1.0:
            _octavo._refuse("scale", "is given; must not be for v4, whose scales lie in its blocks")
        values = _dequantize_v4(codes)
        return _hadamard(values) if rotated else values
    numbers = np.asarray(scale, np.float32)
    if numbers.ndim == 1 and codes.ndim > 1:
        numbers = numbers[:, None]
    values = codes.view(np.int8).astype(np.float32) if name == "i8" else _table(name)[codes.view(np.uint8)]
    values = values * numbers
    return _hadamard(values) if rotated else values


def calibrate(x: Any, dtype: object = "e4m3fn", mode: str = "layer", *, rotated: bool = False) -> np.ndarray:
    """The scale that just holds x in an 8-bit format: amax of its finite values / largest finite, at least 1e-6.

    x: [tokens, heads, dim], K (after RoPE) or V of one layer over a sample text. mode: "layer" gives float32[1], "layer_head" [heads],
    "channel" [heads, dim]: what KVPool.set_scale takes. rotated: as the pool's format is. Source: doc/NUMERICS.md.
    """
    largest = _LARGEST[_name(dtype)]
    axes = {"layer": (0, 1, 2), "layer_head": (0, 2), "channel": (0,)}.get(mode)
    if axes is None:
        _octavo._refuse("mode", f"is {mode!r}; must be layer, layer_head or channel")
    x = np.asarray(_heads_view(np.asarray(x)), np.float32)
    x = np.abs(_hadamard(x) if rotated else x)
    amax = np.max(np.where(np.isfinite(x), x, np.float32(0)), axis=axes, initial=np.float32(0))
    return np.atleast_1d(np.maximum(amax / np.float32(largest), np.float32(_SMALLEST_SCALE)).astype(np.float32))
