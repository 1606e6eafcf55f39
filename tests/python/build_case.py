"""A pool, a batch and a plan from a dict of choices, for the tests here."""
import numpy as np

import octavo
import oracle

FEATURES = {
    "k": ["f32", "f16", "bf16", "e4m3fn", "e4m3fnuz", "e5m2", "i8"],
    "k_mode": ["none", "tensor", "layer", "layer_head", "token_head", "channel"],
    "v": ["f32", "f16", "bf16", "e4m3fn", "e5m2", "i8"],
    "v_mode": ["none", "layer", "layer_head", "token_head", "channel"],
    "rotated": ["no", "k", "both"],
    "layout": ["NHD", "HND", "V5D"],
    "dims": [(64, 64), (80, 48), (16, 32)],
    "heads": [(4, 2), (6, 1), (5, 5)],
    "q": ["f32", "f16", "bf16", "e4m3fn"],
    "out": ["f32", "bf16", "e4m3fn"],
    "src": ["f32", "bf16", "f16"],
    "window": [0, 1, 19],
    "softcap": [0.0, 2.0],
    "sink": [False, True],
    "mask": [False, True],
    "causal": [True, False],
    "batch": ["padded", "compressed"],
    "rows": [[1, 1, 3], [20, 5], [4]],
    "exact": [False, True],
}


def legal(c):
    """Combinations that the library refuses by its contract."""
    for t, mode in (("k", "k_mode"), ("v", "v_mode")):
        wide = c[t] in ("f32", "f16", "bf16")
        if wide and c[mode] != "none" or c[t] == "i8" and c[mode] not in ("token_head", "channel"):
            return False
    return True


def pairs_cover(rng, extra=0):
    """Cases in which every legal pair of two features' values occurs."""
    names = list(FEATURES)

    def draw(fixed):
        for _ in range(200):
            c = {n: FEATURES[n][rng.integers(len(FEATURES[n]))] for n in names}
            c.update(fixed)
            for t, mode in (("k", "k_mode"), ("v", "v_mode")):
                if not legal(c):   # mend by the mode first, then by the type
                    if mode not in fixed:
                        c[mode] = "none" if c[t] in ("f32", "f16", "bf16") else "token_head"
                    elif t not in fixed:
                        c[t] = "bf16" if c[mode] == "none" else "i8" if c[mode] in ("token_head", "channel") else "e4m3fn"
            if legal(c):
                return c
        return None

    missing = {(a, i, b, j) for x, a in enumerate(names) for b in names[x + 1:] for i in range(len(FEATURES[a])) for j in range(len(FEATURES[b]))}
    cases = []
    while missing:
        a, i, b, j = min(missing)
        fixed = {a: FEATURES[a][i], b: FEATURES[b][j]}
        best, gain = None, set()
        for _ in range(12):
            c = draw(fixed)
            if c is None:
                break
            index = {n: FEATURES[n].index(c[n]) for n in names}
            got = {p for p in missing if index[p[0]] == p[1] and index[p[2]] == p[3]}
            if len(got) > len(gain):
                best, gain = c, got
        if best is None:
            missing.discard((a, i, b, j))   # no legal case has both
            continue
        cases.append(best)
        missing -= gain
    for _ in range(extra):
        c = draw({})
        cases += [c] if c else []
    return cases


def fmt(dtype, mode, rotated):
    return octavo.KVFormat(dtype, mode, rotated=rotated)


def static_scale(rng, mode, heads, dim):
    base = 0.02
    if mode in ("tensor", "layer"):
        return base
    if mode == "layer_head":
        return rng.uniform(0.5, 2, heads).astype(np.float32) * np.float32(base)
    if mode == "channel":
        return rng.uniform(0.5, 2, (heads, dim)).astype(np.float32) * np.float32(base)
    return None


class Case:
    """Everything of one random step: pool written, plan made and updated."""

    def __init__(self, c, rng, context=None, **plan):
        heads_q, heads = c["heads"]
        dk, dv = c["dims"]
        self.c, page = c, 16
        self.spec = octavo.KVSpec(heads, dk, dim_v=dv, page_size=page, layout=c["layout"], k=fmt(c["k"], c["k_mode"], c["rotated"] != "no"),
                                  v=fmt(c["v"], c["v_mode"], c["rotated"] == "both"))
        self.rows = c["rows"]
        self.keys = [n + int(rng.integers(0, 40)) + c.get("more_keys", 0) for n in self.rows]
        n_pages = sum(-(-n // page) for n in self.keys) + 2
        self.pool = octavo.KVPool(self.spec, 1, n_pages, context=context)
        self.k_scale = static_scale(rng, c["k_mode"], heads, dk)
        self.v_scale = static_scale(rng, c["v_mode"], heads, dv)
        self.pool.set_scale(0, k=self.k_scale, v=self.v_scale)
        self.layer = self.pool.layer(0)
        self.table = octavo.PageTable(page, n_pages, len(self.rows), context=context)
        src = oracle.TYPES[c["src"]]
        for s, n in enumerate(self.keys):
            slots, _ = self.table.append(s, n)
            k, v = (rng.standard_normal((n, heads, d)).astype(np.float32).astype(src) for d in (dk, dv))
            octavo.kv_write(self.layer, k, v, slots)
        self.block_table, self.seq_lens = self.table.batch(list(range(len(self.rows))))
        self.qo = np.concatenate(([0], np.cumsum(self.rows))).astype(np.int32)
        n_rows = int(self.qo[-1])
        self.q = rng.standard_normal((n_rows, heads_q, dk)).astype(np.float32)
        self.q_scale = 0.05 if c["q"] == "e4m3fn" else None
        self.q_given = (self.q / (self.q_scale or 1)).astype(oracle.TYPES[c["q"]])
        self.out_scale = 0.01 if c["out"] == "e4m3fn" else None
        self.sink = rng.normal(0, 2, heads_q).astype(np.float32) if c["sink"] else None
        self.tree = np.tril(rng.integers(0, 2, (n_rows, 32)).astype(bool)) | np.eye(n_rows, 32, dtype=bool) if c["mask"] else None
        self.mask = (self.tree * (1 << np.arange(32, dtype=np.uint64))).sum(1).astype(np.uint32)[:, None] if c["mask"] else None
        self.plan = octavo.AttentionPlan(heads_q, self.spec, q_dtype=c["q"], out_dtype=c["out"], sm_scale=0.3, softcap=c["softcap"], causal=c["causal"], window=c["window"],
                                         sink=c["sink"], mask=c["mask"], deterministic=c["exact"], context=context, **plan)
        self.n_pages = n_pages

    def update(self):
        if self.c["batch"] == "padded":
            self.plan.update(self.qo, self.block_table, self.seq_lens, n_pages=self.n_pages)
        else:
            lists = [self.table.pages(s) for s in range(len(self.rows))]
            indptr = np.concatenate(([0], np.cumsum([len(p) for p in lists]))).astype(np.int32)
            last = np.array([(n - 1) % 16 + 1 for n in self.keys], np.int32)
            self.plan.update(self.qo, kv_indptr=indptr, kv_indices=np.concatenate(lists), kv_last_page_len=last, n_pages=self.n_pages)

    def run(self, **more):
        return self.plan.run(self.q_given, self.layer, return_lse=True, q_scale=self.q_scale, out_scale=self.out_scale, sink=self.sink, mask=self.mask, **more)

    def want(self):
        q = self.q_given.astype(np.float64) * float(np.float32(self.q_scale or 1))
        k, v = oracle.stored(self.layer, "k", self.k_scale), oracle.stored(self.layer, "v", self.v_scale)
        parts = []
        for s, n in enumerate(self.rows):
            a, b = self.qo[s], self.qo[s + 1]
            parts.append(oracle.attention(q[a:b], oracle.sequence_keys(k, self.block_table[s], self.keys[s]), oracle.sequence_keys(v, self.block_table[s], self.keys[s]),
                                          sm_scale=float(np.float32(0.3)), causal=self.c["causal"], window=self.c["window"], softcap=self.c["softcap"], sink=self.sink,
                                          mask=self.tree[a:b, :n] if self.tree is not None else None))
        self.max_v = np.abs(v).max()
        return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])

    def judge(self, out, lse):
        want, want_lse = self.want()
        got = np.asarray(out).view(oracle.TYPES[self.c["out"]]).astype(np.float64)
        if self.out_scale:
            got = got * float(np.float32(self.out_scale))
            # A step of e4m3 is an eighth of a number at most, so half of it a sixteenth; below 2^-6 steps are of 2^-9. It saturates at 448.
            top = 448 * self.out_scale
            slack = 2e-2 * self.max_v + np.abs(want) / 16 + self.out_scale * 2.0 ** -10
            assert (np.abs(got - np.clip(want, -top, top)) <= slack).all()
        else:
            oracle.judge(got, want, self.max_v)
        empty = ~np.isfinite(want_lse)
        assert np.array_equal(np.asarray(lse)[empty], want_lse[empty].astype(np.float32))
        off = np.abs(np.asarray(lse)[~empty] - want_lse[~empty])
        assert off.max(initial=0) <= 1e-3 * max(1, np.abs(want_lse[~empty]).max(initial=0)), off.max()
