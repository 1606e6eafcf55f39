#!/usr/bin/env python3
"""Loads `octavo serve` and, in turns with it, llama.cpp's llama-server, and prints what both gave; then what octavo serve costs beside the model.

usage: serve.py -m MODEL.gguf [--octavo build/release/octavo] [--llama-server build/peers/llama-server/bin/llama-server] [--parts load,memory,overhead,idle] [flags]

load      --clients at once, each prompt --prefix tokens that all have and --own of its own, answers of --answer tokens: total tokens a second, time to the first token
memory    how many requests of 2,048 tokens run at once in the same --memory: 8-bit pages and bf16
overhead  64 answers at once: seconds of scheduler, sampling and the HTTP thread, of the model's
idle      what 1,000 connections cost that ask nothing
(nothing but Python's own library is needed; llama-server is left out where it is not given)

llama-server is built from the archive that tools/setup/llama.txt pins, the same that build/deps/llama comes from:
  build/venv/bin/pip download --no-deps --no-binary :all: --no-build-isolation -d build/peers -r tools/setup/llama.txt
  tar -xzf build/peers/llama_cpp_python-*.tar.gz -C build/peers
  cmake -S build/peers/llama_cpp_python-*/vendor/llama.cpp -B build/peers/llama-server -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DGGML_OPENMP=OFF \\
    -DLLAMA_BUILD_COMMON=ON -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_CURL=OFF \\
    -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_UI=OFF && cmake --build build/peers/llama-server --target llama-server
"""
import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request


def get(port, path, timeout=30):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=timeout) as reply:
        return reply.read().decode()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def served(name, command):
    port = free_port()
    environment = os.environ | {"LD_LIBRARY_PATH": os.path.dirname(os.path.abspath(command[0]))} if "llama-server" in command[0] else os.environ
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([*map(str, command), "--port", str(port)], stdout=log, stderr=log, env=environment)
        try:
            end = time.monotonic() + 120
            while True:
                try:
                    get(port, "/health", 2)
                    break
                except OSError:
                    if process.poll() is not None or time.monotonic() > end:
                        log.seek(0)
                        sys.exit(f"{name} did not start:\n{log.read().decode(errors='replace')[-2000:]}")
                    time.sleep(0.1)
            yield port, process.pid
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def ours(o, *more):
    return [o.octavo, "serve", "-m", o.model, "-t", o.threads, "--kv-cache-dtype", o.format, *more]


def load(o, port, requests, prefix, own, answer, clients, seed=1):
    """One load by `octavo bench serve`: its report."""
    done = subprocess.run([o.octavo, "bench", "serve", "--port", str(port), "--num-prompts", str(requests), "--max-concurrency", str(clients), "--random-prefix-len", str(prefix),
                           "--random-input-len", str(own), "--random-output-len", str(answer), "--ignore-eos", "--seed", str(seed), "-o", "json"],
                          capture_output=True, text=True, timeout=o.timeout)
    if done.returncode != 0:
        sys.exit(f"octavo bench serve ended with {done.returncode}: {done.stderr[-1000:]}")
    return json.loads(done.stdout)


def part_load(o):
    context = o.prefix + o.own + o.answer + 128
    servers = {"octavo": ours(o, "--max-num-seqs", o.clients, "-c", context, "--kv-cache-memory", "1G")}
    if o.llama_server:
        servers["llama-server"] = [o.llama_server, "-m", o.model, "-t", o.threads, "-tb", o.threads, "-fa", "on", "-ctk", "q8_0", "-ctv", "q8_0", "-np", o.clients, "-c", o.clients * context,
                                   *o.llama_flags.split()]
    rows = {name: [] for name in servers}
    for turn in range(o.rounds):
        for name, command in servers.items():
            with served(name, command) as (port, _):
                r = load(o, port, o.requests, o.prefix, o.own, o.answer, o.clients, seed=turn + 1)
            rows[name].append(r)
            print(f"  {name}, turn {turn + 1}: {r['duration']:.1f} s, {r['total_token_throughput']:.0f} tok/s in all, {r['output_throughput']:.1f} tok/s answered, TTFT p50 {r['p50_ttft_ms'] / 1000:.2f} s, "
                  f"p99 {r['p99_ttft_ms'] / 1000:.2f} s, TPOT p50 {r['p50_tpot_ms']:.0f} ms, {r['completed']} of {o.requests} done, {r['total_cached_tokens']} of {r['total_input_tokens']} prompt tokens cached",
                  flush=True)
    if o.llama_server:
        for key, name in (("total_token_throughput", "total throughput"), ("p50_ttft_ms", "TTFT p50"), ("p99_ttft_ms", "TTFT p99")):
            ratios = sorted(a[key] / b[key] for a, b in zip(rows["octavo"], rows["llama-server"]))
            print(f"  {name}: octavo / llama-server = {ratios[len(ratios) // 2]:.2f} (median of {len(ratios)})", flush=True)


def part_memory(o):
    most = {}
    for name in (o.format, "bf16"):
        # A request runs once the pages of its whole prompt are set aside; in small chunks all that fit do so within a few steps.
        command = ours(o, "--max-num-seqs", 256, "-c", 2048, "--kv-cache-memory", o.memory, "--no-prefix-cache", "--max-num-batched-tokens", 256, "--chunk", 4)
        command[command.index("--kv-cache-dtype") + 1] = name
        with served(name, command) as (port, _):
            pages = [p["pages"] for p in json.loads(get(port, "/status"))["pools"]]
            model = json.loads(get(port, "/v1/models"))["data"][0]["id"]

            def ask(i):
                body = json.dumps({"model": model, "prompt": [10 + (7 * i + k) % 5000 for k in range(2040)], "max_tokens": 8, "temperature": 0, "ignore_eos": True}).encode()
                try:
                    urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body), timeout=o.timeout).read()
                except OSError:
                    pass     # the server has gone

            for i in range(o.many):
                threading.Thread(target=ask, args=(i,), daemon=True).start()
            # Until ten steps have let nobody more in, however long a busy machine takes for them.
            end, since = time.monotonic() + o.timeout, 0
            while time.monotonic() < end:
                state, steps = json.loads(get(port, "/status")), metrics(port)["steps_total"]
                if state["running"] > most.get(name, 0):
                    most[name], since = state["running"], steps
                if name in most and steps - since >= 10:
                    break
                time.sleep(0.2)
            preempted = metrics(port)["num_preemptions_total"]
            print(f"  {name}: {most[name]} requests of 2,048 tokens at once in {o.memory} (pages: {pages[0]}), {preempted:.0f} preempted", flush=True)
    print(f"  {most[o.format] / most['bf16']:.2f} times as many", flush=True)


def cpu_seconds(pid, comm):
    """CPU time of the threads of that name."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/stat", encoding="ascii") as stat:
            text = stat.read()
        if text[text.index("(") + 1 : text.rindex(")")].startswith(comm):
            fields = text[text.rindex(")") + 2 :].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def metrics(port):
    """Samples without labels of their own."""
    return {line.split("{")[0].removeprefix("octavo:"): float(line.rsplit(" ", 1)[1]) for line in get(port, "/metrics").splitlines() if not line.startswith("#")}


def part_overhead(o):
    with served("octavo", ours(o, "--max-num-seqs", 64, "-c", 512, "--kv-cache-memory", "256M")) as (port, pid):
        load(o, port, 64, 0, 8, 2, 64)     # first steps make graphs
        before, http = metrics(port), cpu_seconds(pid, "MHD")
        load(o, port, 64, 0, 16, o.overhead_tokens, 64, seed=2)
        after = {key: value - before[key] for key, value in metrics(port).items() if key in before}
        http = cpu_seconds(pid, "MHD") - http
    model, sampling = after["model_seconds_total"], after["sampling_seconds_total"]
    scheduler = after["step_seconds_total"] - model - sampling
    print(f"  64 at once, streamed, {after['steps_total']:.0f} steps of {1000 * after['step_seconds_total'] / after['steps_total']:.1f} ms: model {model:.2f} s, sampling {sampling:.3f} s, "
          f"scheduler and waiting for the lock {scheduler:.3f} s, HTTP thread {http:.2f} s of CPU", flush=True)
    print(f"  scheduler and HTTP thread: {100 * (scheduler + http) / after['step_seconds_total']:.2f} % of the steps' time, with sampling {100 * (scheduler + http + sampling) / after['step_seconds_total']:.2f} %", flush=True)


def part_idle(o):
    with served("octavo", ours(o, "--max-num-seqs", 4, "-c", 512, "--kv-cache-memory", "16M", "--max-connections", 1200)) as (port, pid):
        def rss():
            with open(f"/proc/{pid}/statm", encoding="ascii") as numbers:
                return int(numbers.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        load(o, port, 4, 0, 8, 2, 4)
        before = rss()
        sockets = []
        for i in range(1000):
            s = socket.create_connection(("127.0.0.1", port))
            if i % 2 == 0:     # half of them have asked once
                s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                s.recv(1000)
            sockets.append(s)
        time.sleep(0.5)
        print(f"  1,000 idle connections: {(rss() - before) / 1e6:.1f} MB", flush=True)
        for s in sockets:
            s.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--octavo", default="build/release/octavo")
    parser.add_argument("--llama-server", default="")
    parser.add_argument("--llama-flags", default="--no-webui", help="further ones for llama-server")
    parser.add_argument("--parts", default="load,memory,overhead,idle")
    parser.add_argument("--format", default="int8_rotated", help="octavo's pages, as --kv-cache-dtype")
    parser.add_argument("-t", "--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--prefix", type=int, default=1024)
    parser.add_argument("--own", type=int, default=256)
    parser.add_argument("--answer", type=int, default=128)
    parser.add_argument("--memory", default="1G")
    parser.add_argument("--many", type=int, default=64, help="requests of the part memory")
    parser.add_argument("--overhead-tokens", type=int, default=40)
    parser.add_argument("--timeout", type=int, default=600)
    o = parser.parse_args()
    for name in o.parts.split(","):
        print(f"{name}:", flush=True)
        {"load": part_load, "memory": part_memory, "overhead": part_overhead, "idle": part_idle}[name](o)


if __name__ == "__main__":
    main()
