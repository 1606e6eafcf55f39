"""Attention in float64 on the bytes that are stored: the judge. Nothing of octavo's own arithmetic is used but the view of its pages."""
import ml_dtypes
import numpy as np

TYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "e4m3fn": ml_dtypes.float8_e4m3fn, "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
         "e5m2": ml_dtypes.float8_e5m2, "i8": np.int8}


def hadamard(dim):
    """Orthonormal, in blocks of the largest power-of-two divisor."""
    block = dim & -dim
    h = np.ones((1, 1))
    while len(h) < block:
        h = np.block([[h, h], [h, -h]])
    return np.kron(np.eye(dim // block), h / np.sqrt(block))


def pages(array, dtype, layout, is_v):
    """[page, token, head, dim] in float64, as stored: no scale, still rotated."""
    a = np.asarray(array).view(TYPES[dtype]).astype(np.float64)
    if layout == "HND":
        return a.transpose(0, 2, 1, 3)
    if layout == "V5D" and not is_v:   # [page, head, dim / x, token, x]
        p, h, groups, t, x = a.shape
        return a.transpose(0, 3, 1, 2, 4).reshape(p, t, h, groups * x)
    if layout == "V5D":                # [page, head, token / x, dim, x]
        p, h, groups, d, x = a.shape
        return a.transpose(0, 2, 4, 1, 3).reshape(p, groups * x, h, d)
    return a


def stored(layer, which, scale=None):
    """K or V of a layer, [page, token, head, dim]: decoded, scaled, and turned back where the format is rotated. scale: what a static mode was given."""
    spec = layer.spec
    form = spec.k if which == "k" else spec.v
    a = pages(layer.k if which == "k" else layer.v, form.dtype, spec.layout, which == "v")
    if form.scale == "token_head":
        dynamic = layer.k_token_scale if which == "k" else layer.v_token_scale
        a = a * np.asarray(dynamic).astype(np.float64)[..., None]
    elif form.scale in ("tensor", "layer"):
        a = a * float(np.float32(np.asarray(scale).reshape(-1)[0]))
    elif form.scale == "layer_head":
        a = a * np.asarray(scale, np.float32).astype(np.float64)[:, None]
    elif form.scale == "channel":
        a = a * np.asarray(scale, np.float32).astype(np.float64)
    return a @ hadamard(a.shape[-1]) if form.rotated else a


def attention(q, k, v, *, sm_scale, causal=True, window=0, softcap=0.0, sink=None, mask=None):
    """One sequence. q [n, hq, dk], k [keys, h, dk], v [keys, h, dv] in float64; mask bool [n, n]. Returns out [n, hq, dv], lse [n, hq]."""
    n, heads_q, _ = q.shape
    n_keys, heads, dim_v = v.shape
    out, lse = np.zeros((n, heads_q, dim_v)), np.full((n, heads_q), -np.inf)
    position = n_keys - n + np.arange(n)
    j = np.arange(n_keys)
    seen = np.ones((n, n_keys), bool)
    if causal:
        seen &= j[None] <= position[:, None]
    if window:
        seen &= position[:, None] - j[None] < window
    if mask is not None:
        own = j - (n_keys - n)
        seen &= np.where(own[None] >= 0, np.take_along_axis(mask, np.maximum(own, 0)[None].repeat(n, 0), 1), True)
    for h in range(heads_q):
        g = h // (heads_q // heads)
        s = sm_scale * q[:, h] @ k[:, g].T
        s = softcap * np.tanh(s / softcap) if softcap else s
        s = np.where(seen, s, -np.inf)
        m = s.max(axis=1, initial=-np.inf)
        m = np.maximum(m, sink[h]) if sink is not None else m
        safe = np.where(np.isfinite(m), m, 0)
        p = np.exp(s - safe[:, None])
        z = p.sum(axis=1) + (np.exp(sink[h] - safe) if sink is not None else 0)
        with np.errstate(divide="ignore"):
            lse[:, h] = safe + np.log(z)
        out[:, h] = (p @ v[:, g]) / np.where(z > 0, z, 1)[:, None]
    return out, lse


def sequence_keys(k, table_row, n_keys):
    """The first n_keys tokens of a sequence, from pages [page, token, head, dim] and its list of pages."""
    page_size = k.shape[1]
    n_pages = -(-n_keys // page_size)
    return k[np.asarray(table_row[:n_pages])].reshape(n_pages * page_size, *k.shape[2:])[:n_keys]


def judge(out, want, max_v, bound=2e-2, cosine=0.9999):
    """The bounds of doc/NUMERICS.md at the worst row and head."""
    assert out.shape == want.shape
    assert np.isfinite(out).all()
    worst = np.abs(out - want).max(initial=0)
    assert worst <= bound * max_v, f"max error {worst} of {max_v}"
    norm = np.linalg.norm(out, axis=-1) * np.linalg.norm(want, axis=-1)
    cos = np.divide((out * want).sum(-1), norm, out=np.ones_like(norm), where=norm > 1e-3 * max_v * max_v)
    assert cos.min(initial=1) >= cosine, f"cosine {cos.min()}"
