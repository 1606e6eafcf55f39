"""Fits the costs of src/cpu/variants.def to what `octavo bench regret --save` measured, and prints the rows' COST_WAYS.

    octavo bench regret -t 1 --rates none --first 100000 --problems 150 --save a.jsonl     # pieces of a quiet machine like the rows' reference
    octavo bench regret -t 1 --rates none --first 100150 --problems 150 --save b.jsonl
    python3 tools/fit/costs.py a.jsonl b.jsonl                                           # wants numpy and scipy

Problems below 100,000 are held out: they judge the choice and are refused here. A quarter of the others is left out first, to show how the fit does
on problems that it hasn't seen. What is counted is what src/plan/amount.c counts; the two change together."""

import json
import sys

import numpy as np
from scipy.optimize import least_squares

HELD_OUT_BELOW = 100_000
SIZES = {"e4m3fn": 1, "e4m3fnuz": 1, "e5m2": 1, "i8": 1, "f16": 2, "bf16": 2, "f32": 4}
# Vectors that are few, keys a row below which several rows are not, vectors of a pass of few, lanes of a register and vectors of a score product of many (src/cpu/avx2.h, avx512.h,
# avx2_vectors.h, avx512_many.h).
KERNELS = {"avx2": (24, 32, 4, 8, 16), "avx512": (28, 16, 4, 16, 48), "avx512bf16": (12, 16, 8, 16, 48), "avx512vnni": (24, 16, 8, 16, 48), "avx512vnnibf16": (24, 16, 8, 16, 48)}
UNITS = {"avx2": "CORE", "avx512": "FMA512", "avx512bf16": "BF16", "avx512vnni": "I8", "avx512vnnibf16": "I8_BF16"}
WAY = ["mac", "again", "exp", "block", "stage", "float8", "i8", "half", "f32", "pad"]
FEATURES = ["item", "vector", "key", "page", "edge"] + ["few_" + f for f in WAY] + ["many_" + f for f in WAY]
AT = {name: i for i, name in enumerate(FEATURES)}
# What is likely, to which a number stays near that no measurement speaks of: ps, ns for item and block.
START = {"item": 200, "vector": 700, "key": 5000, "page": 10000, "edge": 20, "few_mac": 14, "few_again": 6, "few_exp": 400, "few_block": 60, "few_stage": 20, "few_float8": 20, "few_i8": 25,
         "few_half": 25, "few_f32": 60, "few_pad": 0.01, "many_mac": 14, "many_again": 6, "many_exp": 200, "many_block": 300, "many_stage": 0.01, "many_float8": 100,
         "many_i8": 150, "many_half": 120, "many_f32": 200, "many_pad": 10}
# Multiply-adds take about what their rate says, in every way and row, so that a machine of other rates is told apart: 2 flop at 118 GFLOP/s, a bit less
# since conversion hides behind them; bf16 twice and int8 four times that rate, the latter in two bytes of q.
PRODUCTS = {"avx2": (14, 0.01), "avx512": (14, 0.01), "avx512bf16": (7, 7), "avx512vnni": (7, 3.5), "avx512vnnibf16": (7, 3.5)}
FIRM, LOOSE = 1.0, 0.02
NANO = {"item", "few_block", "many_block"}
CORE_READ_BYTES = 19e9


def parts(text):
    base = text.split(":")[0].split("+")[0]
    return base, "token" in text, "channel" in text, "rot" in text


def column(way, dtype):
    return AT[way + {"i8": "_i8", "f16": "_half", "bf16": "_half", "f32": "_f32"}.get(dtype, "_float8")]


def blocks(n):
    return (n + 63) // 64


def tile(x, p, kernel, n_rows, n_heads, key0, key1, pos0):
    """One tile's counts, as oct__tally_tile."""
    (k, k_token, k_channel, k_rotated), (v, v_token, _, _) = parts(p["k_format"]), parts(p["v_format"])
    dim_k, dim_v, window = p["dim_k"], p["dim_v"], p["window"]
    again = p["operand"] != "bf16" or k_rotated or k_channel
    n_vectors, n_keys = n_rows * n_heads, key1 - key0
    few, few_keys, most, width, span = KERNELS[kernel]

    def keys_seen(row0, row1):
        return max(min(key1, pos0 + row1 + 1) - (max(key0, pos0 + row0 - window + 1) if window else key0), 0)

    x[AT["item"]] += 1
    x[AT["vector"]] += n_vectors * (dim_k + dim_v)
    x[AT["key"]] += n_keys
    x[AT["page"]] += -(-n_keys // p["page"])
    low, high = key0, key1
    if n_rows > 1:
        high = min(key1, max(pos0 + 1, 0) // 64 * 64)
        if window:
            low = max(key0, blocks(max(pos0 + n_rows - window, 0)) * 64)
    common, pads = max(high - low, 0), 0
    if n_vectors <= few and (n_rows == 1 or n_keys >= few_keys * n_rows):
        way, passes, passes_row = "few", n_vectors // most - (-(n_vectors % most) // 4), n_heads // most - (-(n_heads % most) // 4)
        scores, keys, loads, n_blocks = common * n_vectors, common, common * passes, blocks(common) * passes
        for r in range(n_rows if common < n_keys else 0):
            n = max(keys_seen(r, r), common) - common
            scores, keys, loads, n_blocks = scores + n * n_heads, keys + n, loads + n * passes_row, n_blocks + blocks(n) * passes_row
        seen = exps = scores
    else:
        way, keys, loads, n_blocks = "many", n_keys, n_keys, blocks(n_keys)
        n_lanes = -(-n_vectors // width) * width
        registers = -(-n_lanes // 16)
        if n_rows == 1:
            scores = seen = n_keys * n_vectors
            exps, pads = n_keys * n_lanes, n_keys * (n_lanes - n_vectors)
        else:
            scores = exps = 0
            groups = -(-registers * 16 // span)
            for g in range(groups):
                lane0, lane1 = registers * g // groups * 16, min(registers * (g + 1) // groups * 16, n_lanes)
                real = min(lane1, n_vectors) - lane0
                n = keys_seen(lane0 // n_heads, (lane0 + real - 1) // n_heads)
                scores, pads = scores + n * real, pads + n * (lane1 - lane0 - real)
                for lane in range(lane0, lane1, 16):
                    last = min(lane + 16, lane1)
                    exps += (last - lane) * keys_seen(lane // n_heads, (min(last, n_vectors) - 1) // n_heads)
            seen = sum(n_heads * keys_seen(r, r) for r in range(n_rows))
            x[AT["edge"]] += (n_keys - common) * dim_v
    x[AT[way + "_mac"]] += scores * dim_k + seen * dim_v
    x[AT[way + "_again"]] += (scores + pads) * dim_k * again
    x[AT[way + "_exp"]] += exps
    x[AT[way + "_block"]] += n_blocks
    x[AT[way + "_pad"]] += pads * dim_k
    for dtype, dim in ((k, dim_k), (v, dim_v)):
        x[column(way, dtype)] += loads * dim
        x[AT[way + "_stage"]] += keys * dim * (SIZES[dtype] == 1 and dtype != "i8")
    return n_keys * (dim_k * SIZES[k] + dim_v * SIZES[v] + 2 * k_token + 2 * v_token)


def counts(p, kernel):
    tile_vectors = 64 if p["op"] == "attn_decode" else 128
    group = p["heads_q"] // p["heads_kv"]
    cuts = -(-group // tile_vectors)
    rows = tile_vectors // -(-group // cuts)
    x, n_bytes = np.zeros(len(FEATURES)), 0
    for r in range(0, p["q_len"], rows):
        n, pos0 = min(rows, p["q_len"] - r), p["kv_len"] - p["q_len"] + r
        key0 = max(0, pos0 - p["window"] + 1) if p["window"] else 0
        key1 = min(p["kv_len"], pos0 + n)
        for c in range(cuts):
            n_bytes += tile(x, p, kernel, n, (c + 1) * group // cuts - c * group // cuts, key0, key1, pos0)
    for name in NANO:
        x[AT[name]] *= 1000
    return x * p["heads_kv"] * p["batch"], n_bytes * p["heads_kv"] * p["batch"]


def load(files):
    problems = []
    for name in files:
        for line in open(name, encoding="utf-8"):
            p = json.loads(line)
            if p["number"] < HELD_OUT_BELOW:
                sys.exit(f"{name}: problem {p['number']} is held out")
            p["times"] = {v.split(".")[1]: t for v, t in p["seconds"].items() if v.split(".")[1] in KERNELS}
            p["counts"] = {k: counts(p, k) for k in p["times"]}
            problems.append(p)
    return problems


def predict(costs, x, n_bytes):
    work, memory = float(x @ costs) * 1e-12, n_bytes / CORE_READ_BYTES
    return work if work > memory else memory + 0.02 * work


def regrets(problems, costs):
    found = []
    for p in problems:
        predicted = {k: predict(costs[k], *p["counts"][k]) for k in p["times"]}
        chosen = min(predicted, key=predicted.get)
        found.append((p["times"][chosen] / min(p["times"].values()) - 1, chosen, predicted, p))
    return sorted(found, key=lambda f: -f[0])


def fit(problems):
    names = list(KERNELS)
    kernel, x, memory, times, best, group = [], [], [], [], [], []
    for g, p in enumerate(problems):
        least = min(p["times"].values())
        for k, t in p["times"].items():
            kernel.append(names.index(k)), x.append(p["counts"][k][0] * 1e-12), memory.append(p["counts"][k][1] / CORE_READ_BYTES)
            times.append(t), best.append(least), group.append(g)
    kernel, x, memory, times, best, group = (np.array(a) for a in (kernel, x, memory, times, best, group))
    start, prior = np.tile([START[f] for f in FEATURES], (len(names), 1)), np.full((len(names), len(FEATURES)), LOOSE)
    for i, k in enumerate(names):
        for way in ("few", "many"):
            for f, ps in zip(("_mac", "_again"), PRODUCTS[k]):
                start[i, AT[way + f]], prior[i, AT[way + f]] = ps, FIRM
    start, prior = np.log(start.ravel()), prior.ravel()
    n_in_group = np.bincount(group)
    weight = 0.3 / np.sqrt(0.02 + times / best - 1)   # close races decide

    def mean_of(a):
        sums = np.zeros((len(n_in_group),) + a.shape[1:])
        np.add.at(sums, group, a)
        return (sums.T / n_in_group).T[group]

    def work_of(u):
        return x * np.exp(u).reshape(len(names), -1)[kernel]

    def residuals(u):
        work = work_of(u).sum(1)
        e = np.log((work**4 + memory**4) ** 0.25 / times)
        return np.concatenate([0.3 * e, weight * (e - mean_of(e)), prior * (u - start)])

    def jacobian(u):
        each = work_of(u)
        work = each.sum(1)
        part = each * (work**3 / (work**4 + memory**4))[:, None]
        j = np.zeros((len(times), len(u)))
        for i, k in enumerate(kernel):
            j[i, k * len(FEATURES):(k + 1) * len(FEATURES)] = part[i]
        return np.concatenate([0.3 * j, weight[:, None] * (j - mean_of(j)), np.diag(prior)])

    found = least_squares(residuals, start, jacobian, loss="soft_l1", f_scale=0.05, max_nfev=300)
    return dict(zip(names, np.exp(found.x).reshape(len(names), -1)))


def say(title, problems, costs):
    found = regrets(problems, costs)
    values = np.sort([100 * f[0] for f in found])
    print(f"{title}: {len(values)} problems, median {np.median(values):.2f} %, p95 {values[int(0.95 * len(values))]:.2f} %, worst {values[-1]:.2f} %")
    return found


def main():
    problems = load(sys.argv[1:])
    some, others = [p for i, p in enumerate(problems) if i % 4 > 0], problems[::4]
    costs = fit(some)
    say("fitted", some, costs)
    say("left out", others, costs)
    costs = fit(problems)
    for regret, chosen, predicted, p in say("all", problems, costs)[:12]:
        keys = ("op", "k_format", "v_format", "heads_q", "heads_kv", "dim_k", "dim_v", "page", "batch", "q_len", "kv_len", "window", "operand")
        print(f"  {100 * regret:5.1f} % {chosen}:", *(p[k] for k in keys), {k: (round(t * 1e6, 1), round(predicted[k] * 1e6, 1)) for k, t in p["times"].items()})
    for k, c in costs.items():
        def numbers(way):
            return ", ".join(f"{c[AT[way + '_' + f]]:.3g}" for f in WAY)
        firsts = ", ".join(f"{c[i]:.4g}" for i in range(5)) + "".join(f", {n}" for n in KERNELS[k])
        print(f"{k}: COST_WAYS({firsts},\n    WAY({UNITS[k]}, {numbers('few')}),\n    WAY({UNITS[k]}, {numbers('many')}))")


if __name__ == "__main__":
    main()
