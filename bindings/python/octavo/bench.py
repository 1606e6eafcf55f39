"""What one AttentionPlan.run costs above the C call that it makes: `python -m octavo.bench`.

The C call is timed inside the extension, in a loop of its own over the same arguments; both take turns, and medians of rounds are printed. With torch
installed its tensors are timed too.
"""
from __future__ import annotations

import statistics
import time

import numpy as np

import octavo


def overhead(q, out, plan, layer, rounds=15, calls=4000):
    """Medians in microseconds: of a run from Python, of the C call, and of their difference in the same round."""
    python, c = [], []
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(calls):
            plan.run(q, layer, out=out)
        python.append((time.perf_counter() - begin) / calls * 1e6)
        c.append(plan._time_runs(q, layer, out, calls) / calls * 1e6)
    return statistics.median(python), statistics.median(c), statistics.median(a - b for a, b in zip(python, c))


def main():
    spec = octavo.KVSpec(2, 64, k="e4m3fn")
    context = octavo.Context(threads=1)
    layer = octavo.KVPool(spec, 1, 2, context=context).layer(0)
    q, out = np.ones((1, 4, 64), np.float32), np.empty((1, 4, 64), np.float32)
    octavo.kv_write(layer, np.ones((16, 2, 64), np.float32), np.ones((16, 2, 64), np.float32), np.arange(16, dtype=np.int32))
    plan = octavo.AttentionPlan(4, spec, q_dtype="f32", context=context)
    plan.update(np.array([0, 1], np.int32), np.array([[0]], np.int32), np.array([16], np.int32), n_pages=2)
    arrays = {"numpy": (q, out)}
    try:
        import torch
        arrays["torch"] = (torch.from_numpy(q), torch.from_numpy(out))
    except ImportError:
        pass
    for name, (a, b) in arrays.items():
        python, c, above = overhead(a, b, plan, layer)
        print(f"{name}: run {python:.2f} us, the C call {c:.2f} us, above it {above:.2f} us")


if __name__ == "__main__":
    main()
