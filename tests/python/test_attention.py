"""Write and attention through Python against float64, over all pairs of features on small shapes."""
import numpy as np
import pytest

import octavo
from build_case import FEATURES, Case, pairs_cover


def pytest_generate_tests(metafunc):
    if "case" in metafunc.fixturenames:
        seed, extra = metafunc.config.getoption("seed"), metafunc.config.getoption("cases")
        cases = pairs_cover(np.random.default_rng(seed), extra)
        metafunc.parametrize("case", cases, ids=[str(i) for i in range(len(cases))])


def test_pairs(case, rng):
    step = Case(case, rng)
    step.update()
    out, lse = step.run()
    step.judge(out, lse)
    # Into arrays of the caller's, not contiguous, which come back as they are; rows beside them stay.
    wide = np.full((out.shape[0], out.shape[1] + 1, out.shape[2]), 7).astype(out.dtype)
    again, lse_again = step.run(out=wide[:, :-1], lse=np.empty((lse.shape[1], lse.shape[0]), np.float32).T)
    assert again.base is wide and (wide[:, -1] == np.array(7).astype(out.dtype)).all()
    if case["exact"]:
        assert again.tobytes() == out.tobytes() and np.array_equal(lse_again, lse)
    else:
        step.judge(again, lse_again)


PLAIN = {n: v[0] for n, v in FEATURES.items()} | {"k": "e4m3fn", "v": "e4m3fn", "rows": [20, 1, 3]}


def test_every_variant_by_force_and_by_deny(rng):
    names = [n for n in octavo.default_context().variants() if n.startswith(("attn_decode.", "attn_extend."))]
    ran = 0
    for name in names:
        other = ",".join(n for n in names if n.split(".")[0] == name.split(".")[0] and n != name)
        try:
            step = Case(PLAIN, rng, force=name)
        except octavo.Unsupported as error:
            assert "needs" in str(error) or "cpu." in str(error) or name in str(error)
            with pytest.raises(octavo.Unsupported):
                Case(PLAIN, rng, deny=other)
            continue
        for plan in (step, Case(PLAIN, rng, deny=other)):
            plan.update()
            assert name in (plan.plan.info["decode_variant"], plan.plan.info["extend_variant"])
            plan.judge(*plan.run())
            assert name in octavo.explain(plan.plan) and isinstance(octavo.explain(plan.plan, json=True), dict)
            ran += 1
    assert ran >= 4   # scalar decode and extend run everywhere


def test_splits_and_threads_agree(rng):
    scalar = "attn_decode.scalar,attn_extend.scalar"
    one = Case(PLAIN | {"more_keys": 700}, rng, context=octavo.Context(threads=1), split_tokens=4096, force=scalar)
    one.update()
    out, lse = one.run()
    for context, split in ((octavo.Context(threads=3), 64), (octavo.Context(threads=2), 256)):
        plan = octavo.AttentionPlan(4, one.spec, q_dtype="f32", sm_scale=0.3, split_tokens=split, force=scalar, context=context)
        plan.update(one.qo, one.block_table, one.seq_lens, n_pages=one.n_pages)
        assert plan.info["items_split"] > 0
        again, lse_again = plan.run(one.q_given, one.layer, return_lse=True)
        np.testing.assert_allclose(again, out, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(lse_again, lse, rtol=1e-6, atol=1e-6)
    one.judge(out, lse)


def test_deterministic_rows_do_not_depend_on_their_mates(rng):
    step = Case(PLAIN | {"exact": True, "rows": [1, 1, 1]}, rng)
    step.update()
    out, _ = step.run()
    for s in range(3):
        step.plan.update(np.array([0, 1], np.int32), step.block_table[s:s + 1], step.seq_lens[s:s + 1], n_pages=step.n_pages)
        alone = step.plan.run(step.q_given[s:s + 1], step.layer)
        assert alone.tobytes() == out[s:s + 1].tobytes()


def test_rope_in_the_write(rng):
    spec = octavo.KVSpec(2, 32, k="f32")
    layer = octavo.KVPool(spec, 1, 2).layer(0)
    k, v = rng.standard_normal((2, 9, 2, 32)).astype(np.float32)
    positions = np.arange(100, 109, dtype=np.int32)
    factors = np.linspace(1, 3, 8).astype(np.float32)
    for style in ("neox", "normal"):
        octavo.kv_write(layer, k, v, np.arange(9, dtype=np.int32), rope=octavo.Rope(16, 5000.0, style=style, position_scale=0.5, factors=factors), positions=positions)
        theta = positions[:, None] * 0.5 * 5000.0 ** (-2 * np.arange(8) / 16) / factors.astype(np.float64)
        c, s = np.cos(theta)[:, None], np.sin(theta)[:, None]
        want = k.astype(np.float64)
        a, b = (np.s_[..., 0:8], np.s_[..., 8:16]) if style == "neox" else (np.s_[..., 0:16:2], np.s_[..., 1:16:2])
        want[a], want[b] = k[a] * c - k[b] * s, k[b] * c + k[a] * s
        np.testing.assert_allclose(np.asarray(layer.k)[0, :9], want, atol=1e-5)
        np.testing.assert_array_equal(np.asarray(layer.v)[0, :9], v)


def test_twin_pools(rng):
    """One write fills the full and the window pool; a window plan over either sees the same keys."""
    spec = octavo.KVSpec(2, 32, page_size=4, k="e4m3fn")
    full, small = octavo.KVPool(spec, 1, 16).layer(0), octavo.KVPool(spec, 1, 4).layer(0)
    twin = octavo.TwinPageTable(4, 16, 4, 1, 6)
    for n in (5, 4, 3, 4, 4, 3):
        slots, slots_window, copies, copies_window = twin.append(0, n)
        assert not copies and not copies_window
        octavo.kv_write(full, *rng.standard_normal((2, n, 2, 32)).astype(np.float32), slots, kv_window=small, slots_window=slots_window)
        twin.slide(0)
    assert twin.full.length(0) == twin.window.length(0) == 23
    assert (twin.window.pages(0) == -1).any()
    q = rng.standard_normal((1, 4, 32)).astype(np.float32)
    plan = octavo.AttentionPlan(4, spec, q_dtype="f32", window=6)
    outs = []
    for layer, table, n_pages in ((full, twin.full, 16), (small, twin.window, 4)):
        plan.update(np.array([0, 1], np.int32), *table.batch([0]), n_pages=n_pages)
        outs.append(plan.run(q, layer))
    np.testing.assert_array_equal(*outs)
    everything = np.concatenate([twin.full.pages(0)[i // 4] * 4 + i % 4 for i in range(23)], axis=None).astype(np.int32)
    mapped = twin.map(everything)
    assert (mapped[:12] == -1).all() and (mapped[17:] >= 0).all()


def test_prefixes_are_shared_and_copied_on_write(rng):
    spec = octavo.KVSpec(1, 16, page_size=4, k="f32")
    pool, table = octavo.KVPool(spec, 2, 8), octavo.PageTable(4, 8, 2)
    slots, _ = table.append(0, 6)
    for i in range(2):
        octavo.kv_write(pool.layer(i), *rng.standard_normal((2, 6, 1, 16)).astype(np.float32), slots)
    table.share(0, 1, 6)
    assert table.refcount(table.pages(0)[1]) == 2 and table.stats()["shared"] == 2
    slots, copies = table.append(1, 1)
    assert len(copies) == 1
    pool.copy_page(*copies[0])
    octavo.kv_write(pool.layer(0), *np.full((2, 1, 1, 16), 9, np.float32), slots)
    mine, theirs = (np.asarray(pool.layer(0).k)[table.pages(s)[1]] for s in (1, 0))
    np.testing.assert_array_equal(mine[:2], theirs[:2])
    assert (mine[2] == 9).all() and (theirs[2] == 0).all()
    table.truncate(1, 4)
    table.free(0)
    assert table.stats()["used"] == 1
