"""Public faults of other engines, through Python: A1, A3 (scales), B1 (window), D5 (padding slots), F5 (merging by log-sum-exp)."""
import ml_dtypes
import numpy as np
import pytest

import octavo
import oracle


def write_all(layer, k, v):
    octavo.kv_write(layer, k, v, np.arange(len(k), dtype=np.int32))


def one_sequence(plan, n_rows, n_keys, page_size, n_pages):
    pages = np.arange(-(-n_keys // page_size), dtype=np.int32)[None]
    plan.update(np.array([0, n_rows], np.int32), pages, np.array([n_keys], np.int32), n_pages=n_pages)


def test_A1_each_layer_writes_and_reads_with_its_own_scale(rng):
    """sgl-project/sglang#18818: scales of a file never reached the function that writes the pool."""
    scales = [(0.04, 0.1), (0.5, 1.0), (2.0, 4.0)]
    spec = octavo.KVSpec(2, 64, k=octavo.KVFormat("e4m3fn", "layer"))
    k, v = (rng.normal(0, 2, (3, 40, 2, 64)).astype(np.float32) for _ in range(2))
    q = rng.standard_normal((1, 4, 64)).astype(np.float32)

    def bytes_with(order):
        pool = octavo.KVPool(spec, 3, 3)
        found = []
        for layer, i in enumerate(order):
            pool.set_scale(layer, k=scales[i][0], v=scales[i][1])
        for layer, i in enumerate(order):
            view = pool.layer(layer)
            write_all(view, k[layer], v[layer])
            for which, x, scale in (("k", k[layer], scales[i][0]), ("v", v[layer], scales[i][1])):
                got = np.asarray(getattr(view, which)).reshape(48, 2, 64)[:40]
                want = np.clip(x / np.float32(scale), -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
                np.testing.assert_array_equal(got, want)
                found.append(got.tobytes())
            plan = octavo.AttentionPlan(4, spec, q_dtype="f32")
            one_sequence(plan, 1, 40, 16, 3)
            out, lse = plan.run(q, view, return_lse=True)
            kk, vv = oracle.stored(view, "k", scales[i][0]).reshape(48, 2, 64)[:40], oracle.stored(view, "v", scales[i][1]).reshape(48, 2, 64)[:40]
            want, want_lse = oracle.attention(q.astype(np.float64), kk, vv, sm_scale=0.125)
            oracle.judge(out.astype(np.float64), want, np.abs(vv).max())
            np.testing.assert_allclose(lse, want_lse, atol=1e-3)
        return found

    assert bytes_with([0, 1, 2])[:4] != bytes_with([1, 0, 2])[:4]
    pool = octavo.KVPool(spec, 1, 1)
    with pytest.raises(octavo.InvalidArgument):   # a scale that nobody set is no silent 1
        pool.layer(0)


def test_A3_the_output_follows_both_scales(rng):
    """flashinfer-ai/flashinfer#1023: the output was the same whatever k_scale and v_scale were."""
    spec = octavo.KVSpec(16, 128, page_size=1, k=octavo.KVFormat("e4m3fn", "layer"))
    k, v = (rng.standard_normal((128, 16, 128)).astype(ml_dtypes.float8_e4m3fn) for _ in range(2))
    pages = k.view(np.uint8).reshape(128, 1, 16, 128), v.view(np.uint8).reshape(128, 1, 16, 128)
    q = rng.standard_normal((100, 64, 128)).astype(ml_dtypes.bfloat16)
    plan = octavo.AttentionPlan(64, spec, q_dtype="bf16", out_dtype="f32")
    one_sequence(plan, 100, 128, 1, 128)

    def out(k_scale, v_scale):
        got = plan.run(q, octavo.KVLayer(spec, *pages, k_scale=k_scale, v_scale=v_scale))
        want, _ = oracle.attention(q.astype(np.float64), k.astype(np.float64) * np.float32(k_scale), v.astype(np.float64) * np.float32(v_scale), sm_scale=128 ** -0.5)
        oracle.judge(got.astype(np.float64), want, v.astype(np.float64).max() * v_scale)
        return got

    one = out(1.0, 1.0)
    np.testing.assert_allclose(out(1.0, 2.0), 2 * one, rtol=2.0 ** -8)
    for k_scale in (0.1, 0.07):
        assert np.abs(out(k_scale, 1.0) - one).max() > 1e-2


@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 128])
@pytest.mark.parametrize("rows", [1, 40])
def test_B1_a_window_counts_the_token_itself(window, rows):
    """huggingface/transformers#39408: one key too many was seen."""
    for n_keys in sorted({window - 1, window, window + 1, 3 * window + 5} - {0}):
        n_rows = min(rows, n_keys)
        n_pages = -(-n_keys // 16)
        dim = 256   # two probes of 256 positions each see up to 512 keys
        spec = octavo.KVSpec(1, dim, k="f32")
        seen = np.zeros((n_rows, n_keys))
        for probe in range(-(-n_keys // dim)):
            layer = octavo.KVPool(spec, 1, n_pages).layer(0)
            v = np.zeros((n_keys, 1, dim), np.float32)
            mine = np.arange(probe * dim, min(n_keys, (probe + 1) * dim))
            v[mine, 0, mine - probe * dim] = 1
            write_all(layer, np.zeros_like(v), v)
            plan = octavo.AttentionPlan(1, spec, q_dtype="f32", window=window)
            one_sequence(plan, n_rows, n_keys, 16, n_pages)
            seen[:, mine] = plan.run(np.zeros((n_rows, 1, dim), np.float32), layer)[:, 0, :len(mine)]
        for r in range(n_rows):
            p = n_keys - n_rows + r
            want = np.zeros(n_keys)
            want[max(0, p - window + 1):p + 1] = 1 / min(window, p + 1)
            np.testing.assert_allclose(seen[r], want, atol=2e-3 / min(window, p + 1))
            assert np.array_equal(seen[r] > 0, want > 0)


def test_D5_negative_slots_write_nowhere(rng):
    """vllm-project/vllm#43810: the padding slot -1 wrote the last slot of the pool."""
    spec = octavo.KVSpec(2, 32, k="e4m3fn", v="e5m2")
    pool = octavo.KVPool(spec, 1, 2)
    layer = pool.layer(0)
    fill = rng.standard_normal((32, 2, 32)).astype(np.float32)
    write_all(layer, fill, fill)
    slots = np.array([0, 5, -1, 17, -1, -1, 31, -1], np.int32)
    for n in (8, 6):   # with 8 rows and 6 slots rows 6 and 7 are not read
        before = [np.asarray(a).copy().reshape(32, 2, 32) for a in (layer.k, layer.v)]
        k, v = rng.normal(50, 1, (2, 8, 2, 32)).astype(np.float32)
        octavo.kv_write(layer, k, v, slots[:n])
        for old, now, x, name in zip(before, (layer.k, layer.v), (k, v), ("e4m3fn", "e5m2")):
            now = np.asarray(now).reshape(32, 2, 32)
            written = [(i, s) for i, s in enumerate(slots[:n]) if s >= 0]
            for s in set(range(32)) - {s for _, s in written}:
                np.testing.assert_array_equal(now[s], old[s])
            for i, s in written:
                np.testing.assert_array_equal(now[s], octavo.quantize(x[i:i + 1], name)[0])
    before = np.asarray(layer.k).copy()
    with pytest.raises(octavo.InvalidArgument, match="32"):
        octavo.kv_write(layer, k, v, np.array([0, 32], np.int32))
    np.testing.assert_array_equal(np.asarray(layer.k), before)
    octavo.kv_write(layer, k, v, np.array([1, 32], np.int32), checked=False)   # skipped, and the rest is written
    assert not np.array_equal(np.asarray(layer.k)[0, 1], before[0, 1])


def test_F5_prefix_and_suffix_merge_to_one_pass(rng):
    """sgl-project/sglang#40903: a log-sum-exp of base 2 fed to a merge by natural logarithms."""
    n_prefix, n_suffix, heads_q, heads, dim = 3072, 64, 8, 2, 64
    spec = octavo.KVSpec(heads, dim, k="e4m3fn")
    n_pages = (n_prefix + n_suffix) // 16
    layer = octavo.KVPool(spec, 1, n_pages).layer(0)
    write_all(layer, *rng.standard_normal((2, n_prefix + n_suffix, heads, dim)).astype(np.float32))
    q = rng.standard_normal((n_suffix, heads_q, dim)).astype(np.float32)
    pages = np.arange(n_pages, dtype=np.int32)[None]
    qo = np.array([0, n_suffix], np.int32)
    parts, lses = [], []
    for causal, first, n in ((False, 0, n_prefix), (True, n_prefix // 16, n_suffix)):
        plan = octavo.AttentionPlan(heads_q, spec, q_dtype="f32", causal=causal)
        plan.update(qo, np.ascontiguousarray(pages[:, first:]), np.array([n], np.int32), n_pages=n_pages)
        out, lse = plan.run(q, layer, return_lse=True)
        parts.append(out)
        lses.append(lse)
    merged, lse = octavo.merge_states(np.stack(parts, 1), np.stack(lses, 1))
    k, v = (oracle.stored(layer, w).reshape(-1, heads, dim) for w in "kv")
    want, want_lse = oracle.attention(q.astype(np.float64), k, v, sm_scale=dim ** -0.5)
    assert np.abs(merged - want).max() <= 5e-3 * np.abs(want).max()
    assert np.abs(lse - want_lse).max() <= 1e-3
    # Strided heads and parts of somebody else's memory give the same bits.
    strided_s = np.stack(lses, 0).transpose(2, 0, 1).copy().transpose(2, 1, 0)
    strided_v = np.stack(parts, 0).transpose(1, 0, 2, 3)
    again, lse_again = octavo.merge_states(strided_v, strided_s)
    assert again.tobytes() == merged.tobytes() and lse_again.tobytes() == lse.tobytes()
    # What the fault did: base 2 taken for natural is far off, so this test would see it.
    wrong, _ = octavo.merge_states(np.stack(parts, 1), np.stack(lses, 1) / np.float32(np.log(2)))
    assert np.abs(wrong - want).max() > 5e-3 * np.abs(want).max()


def test_empty_parts_are_neutral():
    v = np.full((1, 3, 1, 16), np.nan, np.float32)
    v[0, 1] = 5
    s = np.array([[[-np.inf], [0.5], [np.inf]]], np.float32)
    out, lse = octavo.merge_states(v, s)
    assert (out == 5).all() and lse[0, 0] == np.float32(0.5)
    out, lse = octavo.merge_states(v[:, :1], s[:, :1])
    assert (out == 0).all() and lse[0, 0] == -np.inf
