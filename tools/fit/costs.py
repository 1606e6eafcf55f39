"""Fits the costs of src/cpu/variants.def to what `octavo bench regret --save` measured, on one machine or several, and prints the rows' COST_WAYS.

    octavo bench regret -t 1 --rates none --first 100000 --problems 600 --save a.jsonl     # a quiet machine like the rows' reference
    octavo tune --out xeon.json                                                            # another one, with its rates
    octavo bench regret -t 1 --rates xeon.json --first 110000 --problems 600 --save b.jsonl
    python3 tools/fit/costs.py a.jsonl xeon.json@b.jsonl                                   # wants numpy
    python3 tools/fit/costs.py --only avx2word a.jsonl                                     # the other rows as the table has them

Problems below 100,000 are held out: they judge the choice and are refused here. Each quarter of the others is left out once, to show how a fit does on
problems that it hasn't seen. What is counted is what src/plan/amount.c counts, and how rates change it what src/plan/cost.c does; they change together."""

import json
import os
import re
import sys

import numpy as np

HELD_OUT_BELOW = 100_000
SIZES = {"e4m3fn": 1, "e4m3fnuz": 1, "e5m2": 1, "i8": 1, "f16": 2, "bf16": 2, "f32": 4}
# Vectors that are few, keys a row below which several rows are not, vectors of a pass of few, lanes of a register and vectors of a score product of many (src/cpu/avx2.h, avx512.h,
# avx2_vectors.h, avx512_many.h, attn_amxbf16.c).
KERNELS = {"avx2": (24, 32, 4, 8, 16), "avx512": (28, 16, 4, 16, 48), "avx512bf16": (12, 16, 8, 16, 48), "avx512vnni": (24, 16, 8, 16, 48), "avx512vnnibf16": (24, 16, 8, 16, 48),
           "amxbf16": (0, 0, 0, 16, 32), "avx2word": (24, 32, 4, 8, 16)}
NAMES = list(KERNELS)
UNITS = {"avx2": "CORE", "avx512": "FMA512", "avx512bf16": "BF16", "avx512vnni": "I8", "avx512vnnibf16": "I8_BF16", "amxbf16": "CORE", "avx2word": "CORE"}
FIRST = ["item", "vector", "key", "page", "scale", "edge", "lane", "wait"]
WAY = ["mac", "again", "exp", "block", "stage", "float8", "i8", "half", "f32", "pad", "value"]
FEATURES = FIRST + ["few_" + f for f in WAY] + ["many_" + f for f in WAY]
AT = {name: i for i, name in enumerate(FEATURES)}
# Rows that are another but for some numbers; and where each row's numbers stand among all that are fitted.
LIKE = {"avx2word": ("avx2", [AT[w + f] for w in ("few_", "many_") for f in ("mac", "exp", "block", "float8", "i8", "value")])}
PLACES = np.arange(len(NAMES) * len(FEATURES)).reshape(len(NAMES), -1)
for name_, (like_, own_) in LIKE.items():
    kept_ = PLACES[NAMES.index(name_), own_].copy()
    PLACES[NAMES.index(name_)] = PLACES[NAMES.index(like_)]
    PLACES[NAMES.index(name_), own_] = kept_
# Rows of integer products that sum a V that isn't i8 in f32.
SUMS_IN_F32 = {"avx512vnni": 6, "avx2word": 3}
# What is likely, to which a number stays near that no measurement speaks of: ps, ns for item and block, a share for wait.
START = {"item": 200, "vector": 700, "key": 5000, "page": 10000, "scale": 3000, "edge": 20, "lane": 100, "wait": 0.2,
         "few_mac": 14, "few_again": 6, "few_exp": 400, "few_block": 60, "few_stage": 20, "few_float8": 20, "few_i8": 25, "few_half": 25, "few_f32": 60, "few_pad": 0.01, "few_value": 0.01,
         "many_mac": 14, "many_again": 6, "many_exp": 200, "many_block": 300, "many_stage": 0.01, "many_float8": 100, "many_i8": 150, "many_half": 120, "many_f32": 200, "many_pad": 10,
         "many_value": 0.01}
# Multiply-adds take about what their rate says, in every way and row, so that a machine of other rates is told apart: 2 flop at 118 GFLOP/s, a bit less
# since conversion hides behind them; bf16 twice and int8 four times that rate, the latter in two bytes of q; two words of AVX2's with an addition. A V that isn't i8 costs integer rows FMAs.
PRODUCTS = {"avx2": (14, 0.01), "avx512": (14, 0.01), "avx512bf16": (7, 7), "avx512vnni": (7, 3.5), "avx512vnnibf16": (7, 3.5), "amxbf16": (0.6, 0.6), "avx2word": (10, 0.01)}
FIRM, LOOSE, HELD = 1.0, 0.02, 1e4
NANO = ("item", "few_block", "many_block")
# Rates of the core that costs are told for, src/plan/cost.c.
REFERENCE_CPU = " [25/17/"
REFERENCE = {"fma_avx2_flops": 118e9, "fma_avx512_flops": 118e9, "dot_bf16_flops": 236e9, "dot_i8_ops": 472e9, "read_memory_bytes": 32e9}
I8_DOT_MOST = 1.1  # src/plan/cost.c
WEIGHT_MOST = 2.5  # of an error on a machine with few problems: machines count about alike
SOFT = 0.05  # errors above this share count less than by their square


class Machine:
    """What turns counts into seconds: as unit_time and oct__cost_seconds."""

    def __init__(self, file):
        rates = {name: [value] for name, value in REFERENCE.items()}
        if file:
            with open(file, encoding="utf-8") as f:
                rates = json.load(f)
        self.is_reference, self.cpu = not file, rates.get("cpu")
        self.speed, self.read_bytes = rates["fma_avx2_flops"][0] / REFERENCE["fma_avx2_flops"], rates["read_memory_bytes"][0]
        fma512, bf16, i8 = (REFERENCE[name] * self.speed / rates[name][0] for name in ("fma_avx512_flops", "dot_bf16_flops", "dot_i8_ops"))
        i8 = max(i8, 1 / I8_DOT_MOST)
        self.unit = {"CORE": 1.0, "FMA512": fma512, "BF16": bf16, "I8": i8, "I8_BF16": (i8 + bf16) / 2}

    def seconds(self, kernel, x, n_bytes):
        """Of each count at a cost of 1; and of the bytes."""
        y = x * 1e-12 / self.speed
        for way in ("few_", "many_"):
            for f in ("mac", "again", "pad"):
                y[AT[way + f]] *= self.unit[UNITS[kernel]]
            y[AT[way + "value"]] *= self.unit["FMA512"]
        memory = n_bytes / self.read_bytes
        y[AT["wait"]] = memory
        return y, memory


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
    n_vectors, n_keys, n_pages = n_rows * n_heads, key1 - key0, -(-(key1 - key0) // p["page"])
    few, few_keys, most, width, span = KERNELS[kernel]

    def keys_seen(row0, row1):
        return max(min(key1, pos0 + row1 + 1) - (max(key0, pos0 + row0 - window + 1) if window else key0), 0)

    x[AT["item"]] += 1
    x[AT["vector"]] += n_vectors * (dim_k + dim_v)
    x[AT["key"]] += n_keys
    x[AT["page"]] += n_pages
    x[AT["scale"]] += n_pages * (k_token + v_token)
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
        x[AT["lane"]] += n_lanes * dim_k
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
    x[AT[way + "_value"]] += seen * dim_v * (v != "i8" and kernel in SUMS_IN_F32)
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


def load(arguments):
    problems = []
    for argument in arguments:
        rates, _, name = argument.rpartition("@")
        machine = Machine(rates)
        with open(name, encoding="utf-8") as lines:
            for line in lines:
                p = json.loads(line)
                if p["number"] < HELD_OUT_BELOW:
                    sys.exit(f"{name}: problem {p['number']} is held out")
                # Files from before CPUs were told apart say none.
                if "cpu" in p and (REFERENCE_CPU not in p["cpu"] if machine.is_reference else machine.cpu != p["cpu"]):
                    sys.exit(f"{name}: problem {p['number']} was measured on '{p['cpu']}', not on {'the reference' if machine.is_reference else repr(machine.cpu)}")
                p["machine"] = rates or "reference"
                p["times"] = {v.split(".")[1]: t for v, t in p["seconds"].items() if v.split(".")[1] in KERNELS}
                p["counts"] = {k: machine.seconds(k, *counts(p, k)) for k in p["times"]}
                if len(p["times"]) > 1:
                    problems.append(p)
    return problems


def predict(costs, x, memory):
    busy = float(x @ costs)
    return busy if busy > memory else memory + 0.02 * busy


def regrets(problems, costs):
    found = []
    for p in problems:
        predicted = {k: predict(costs[k], *p["counts"][k]) for k in p["times"]}
        chosen = min(predicted, key=predicted.get)
        found.append((p["times"][chosen] / min(p["times"].values()) - 1, chosen, predicted, p))
    return sorted(found, key=lambda f: -f[0])


def likely(only=None):
    """Where a fit begins, and how firmly each number stays there: all but one row's as the table has them, where there is one."""
    start, firm = np.tile([float(START[f]) for f in FEATURES], (len(NAMES), 1)), np.full((len(NAMES), len(FEATURES)), LOOSE)
    for i, k in enumerate(NAMES):
        for way in ("few_", "many_"):
            for f, ps in zip(("mac", "again"), PRODUCTS[k]):
                start[i, AT[way + f]], firm[i, AT[way + f]] = ps, FIRM
            if k in SUMS_IN_F32:
                start[i, AT[way + "value"]], firm[i, AT[way + "value"]] = SUMS_IN_F32[k], 0.3
        if k == "amxbf16":
            start[i, AT["item"]], start[i, AT["many_pad"]] = 2500, 0.5
            firm[i, [AT["many_mac"], AT["many_again"]]] = 0.05
    if only is not None:
        table = rows_of_table()
        for i, k in enumerate(NAMES):
            if k != only:
                start[i], firm[i] = table[k], HELD
    return np.log(start).ravel(), firm.ravel()


def rows_of_table():
    """Each row's numbers as src/cpu/variants.def has them; what it has as 0 is as good as none."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../src/cpu/variants.def"), encoding="utf-8") as file:
        text = file.read().replace("\\\n", " ")
    of = dict(re.findall(r"#define (\w+)_COST +(.*)", text))
    found = {}
    for k in NAMES:
        numbers = [float(n) for n in re.findall(r"(?<![\w.])\d[\d.e+-]*", of[k.upper()].replace("NO_WAY", "WAY(" + ", ".join(["0"] * len(WAY)) + ")"))]
        found[k] = np.maximum(numbers[:len(FIRST)] + numbers[len(FIRST) + len(KERNELS[k]):], 1e-3)
    return found


def fit(problems, steps=80, begin=None, only=None):
    """Levenberg and Marquardt on a soft L1 loss of two kinds of errors: of a row's time, and, which counts more in close races, of its time beside the others'."""
    machines = [p["machine"] for p in problems]
    share = {m: min((len(problems) / machines.count(m) / len(set(machines))) ** 0.5, WEIGHT_MOST) for m in set(machines)}
    rows = [(NAMES.index(k), *p["counts"][k], t, t / min(p["times"].values()), share[p["machine"]]) for p in problems for k, t in p["times"].items()]
    kernel, x, memory, times, beside, share = (np.array(column_) for column_ in zip(*rows))
    sizes = np.array([len(p["times"]) for p in problems])
    heads, group = np.concatenate([[0], np.cumsum(sizes)[:-1]]), np.repeat(np.arange(len(problems)), sizes)
    start, firm = likely(only)
    weight = share * 0.3 / np.sqrt(0.02 + beside - 1)
    of_kernel = [np.flatnonzero(kernel == i) for i in range(len(NAMES))]

    def centred(a):
        return a - (np.add.reduceat(a, heads, axis=0).T / sizes).T[group]

    def work_of(u):
        return x * np.exp(u)[PLACES][kernel]

    def errors(u):
        work = work_of(u).sum(1)
        e = np.log((work**4 + memory**4) ** 0.25 / times)
        return np.concatenate([0.3 * share * e, weight * centred(e), firm * (u - start)])

    def slopes(u):
        each = work_of(u)
        work = each.sum(1)
        part, j = each * (work**3 / (work**4 + memory**4))[:, None], np.zeros((len(times), len(u)))
        for i, r in enumerate(of_kernel):
            j[np.ix_(r, PLACES[i])] = part[r]
        return np.concatenate([0.3 * share[:, None] * j, weight[:, None] * centred(j), np.diag(firm)])

    def loss(e):
        return (np.sqrt(1 + (e / SOFT) ** 2) - 1).sum()

    u, damping = (start if begin is None else begin).copy(), 1e-2
    e = errors(u)
    least = loss(e)
    for _ in range(steps):
        j, w = slopes(u), 1 / np.sqrt(1 + (e / SOFT) ** 2)
        a, g = j.T @ (w[:, None] * j), j.T @ (w * e)
        for _ in range(8):
            step = np.clip(-np.linalg.solve(a + damping * np.diag(np.diag(a) + 1e-9), g), -1, 1)
            e_next = errors(u + step)
            next_ = loss(e_next)
            if next_ < least:
                break
            damping *= 4
        else:
            break
        is_done = least - next_ < 1e-6 * least
        u, e, least, damping = u + step, e_next, next_, max(damping / 3, 1e-9)
        if is_done:
            break
    return dict(zip(NAMES, np.exp(u)[PLACES])), u


def say(title, found):
    for machine in sorted({f[3]["machine"] for f in found}):
        values = np.sort([100 * f[0] for f in found if f[3]["machine"] == machine])
        print(f"{title}, {machine}: {len(values)} problems, median {np.median(values):.2f} %, p95 {values[int(0.95 * len(values))]:.2f} %, above 10 % {(values > 10).sum()}, worst {values[-1]:.2f} %")


def main():
    only, files = (sys.argv[2], sys.argv[3:]) if sys.argv[1:2] == ["--only"] else (None, sys.argv[1:])
    if only is not None and only not in NAMES:
        sys.exit(f"--only: one of {', '.join(NAMES)}")
    problems = load(files)
    costs, all_of_it = fit(problems, only=only)
    say("fitted", regrets(problems, costs))
    found = []
    for i in range(4):
        some, _ = fit([p for j, p in enumerate(problems) if j % 4 != i], 25, all_of_it, only)
        found += regrets(problems[i::4], some)
    found.sort(key=lambda f: -f[0])
    say("left out", found)
    for regret, chosen, predicted, p in found[:12]:
        keys = ("op", "k_format", "v_format", "heads_q", "heads_kv", "dim_k", "dim_v", "page", "batch", "q_len", "kv_len", "window", "operand")
        print(f"  {100 * regret:5.1f} % {chosen}:", *(p[k] for k in keys), {k: (round(t * 1e6, 1), round(predicted[k] * 1e6, 1)) for k, t in p["times"].items()})
    for k, c in costs.items():
        if only not in (None, k):
            continue

        def numbers(way):
            return ", ".join("0" if f == "value" and k not in SUMS_IN_F32 else f"{c[AT[way + '_' + f]]:.3g}" for f in WAY)
        firsts = ", ".join(f"{c[AT[f]]:.4g}" for f in FIRST) + "".join(f", {n}" for n in KERNELS[k])
        print(f"{k}: COST_WAYS({firsts},\n    WAY({UNITS[k]}, {numbers('few')}),\n    WAY({UNITS[k]}, {numbers('many')}))")


if __name__ == "__main__":
    main()
