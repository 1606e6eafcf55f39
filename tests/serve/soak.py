#!/usr/bin/env python3
"""Hours of use in minutes: `octavo serve` under clients that ask, hang up, read slowly, close half, send nonsense and flood, in pools too small for them.

usage: soak.py --octavo PROGRAM [--minutes 3] [--clients 6] [--pause SECONDS] [--bursts] [--full PERCENT] [--seed N]

Two servers, one of them with window layers and its pages swapped to the host, both deterministic: every answer that comes whole must be what the same request gave a server by
itself. Pages are added up (free + cached + used = all) ten times a second, memory must stop growing, and at the end no page is held and SIGTERM ends the program with 0.
--pause is each client's mean rest between two requests: half a second leaves the machine to others, 0 keeps the pools full. --bursts lets all of them begin at once, each --pause seconds: that
fills the pools with a tenth of a core. However it is run, there must have been requests that were preempted, swapped out, found in the cache, and cached pages that made room.
"""
import argparse
import json
import os
import random
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True
import conftest  # noqa: E402
import tiny_gguf  # noqa: E402

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def asks(dice, chat):
    """A request that takes a while, of one of a few beginnings, so that pages are shared."""
    which = dice.randrange(4)
    beginning = [5 + (which * 17 + k) % 80 for k in range(dice.choice([0, 64, 130, 200]))]
    body = {"max_tokens": dice.choice([1, 8, 30, 120]), "ignore_eos": dice.random() < 0.8, "seed": dice.randrange(1000), "temperature": dice.choice([0, 0, 1.0]), "logprobs": None}
    if chat and dice.random() < 0.4:
        body["messages"] = [{"role": "user", "content": "".join(dice.choice("abc Grüße東 ") for _ in range(dice.randrange(1, 60)))}]
        return CHAT, body
    body["prompt"] = beginning + [5 + dice.randrange(90) for _ in range(dice.randrange(1, 90))]
    if dice.random() < 0.2:
        body["n"] = 2
    elif dice.random() < 0.2:
        body["prompt"] = [body["prompt"], beginning + [7, 8, 9]]
    if dice.random() < 0.3:
        body["stop"] = ["ab", "q"]
    if dice.random() < 0.3:
        body["presence_penalty"] = 0.5
    return COMPLETIONS, body


def texts(choices):
    return [(c["text"] if "text" in c else c["message"]["content"], c["finish_reason"]) for c in choices]


def of_stream(data):
    """What a whole stream adds up to, as texts of choices; None: it was cut off."""
    head, body = data.split(b"\r\n\r\n", 1)
    text = b"" if b"chunked" in head else body
    while b"chunked" in head and body:
        size, body = body.split(b"\r\n", 1)
        n = int(size, 16)
        text, body = text + body[:n], body[n + 2 :]
        if n == 0:
            break
    lines = [line[6:] for line in text.decode("utf-8").split("\n\n") if line.startswith("data: ")]
    if not lines or lines[-1] != "[DONE]":
        return None
    found = {}
    for line in lines[:-1]:
        event = json.loads(line)
        assert "error" not in event, event
        for c in event["choices"]:
            piece, reason = found.get(c["index"], ("", None))
            found[c["index"]] = (piece + (c["text"] if "text" in c else c["delta"].get("content", "")), c["finish_reason"] or reason)
    return [found[i] for i in sorted(found)]


class Soak:
    def __init__(self, o, server, alone, chat, folder):
        self.server, self.chat, self.folder, self.pause, self.bursts = server, chat, folder, o.pause, o.bursts
        dice = random.Random(o.seed)
        self.known = []
        for _ in range(40):
            path, body = asks(dice, chat)
            self.known.append((path, body, texts(alone.post(path, body)["choices"])))
        self.stop, self.lock = threading.Event(), threading.Lock()
        self.counts, self.problems, self.samples, self.full, self.rss = {}, [], 0, 0, []

    def count(self, what):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=120)

    def send(self, path, body):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        s = self.connect()
        s.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        return s

    @staticmethod
    def read(s, slow=None):
        data = b""
        while True:
            if slow is not None and len(data) < 2000:
                time.sleep(slow.random() * 0.05)
            piece = s.recv(slow.choice([1, 7, 300]) if slow is not None else 65536)
            if not piece:
                return data
            data += piece

    def whole(self, dice):
        path, body, expected = dice.choice(self.known)
        with self.send(path, body) as s:
            data = self.read(s)
        head, reply = data.split(b"\r\n\r\n", 1)
        assert head.startswith(b"HTTP/1.1 200"), (head, reply)
        assert texts(json.loads(reply)["choices"]) == expected, (path, body, reply, expected)

    def stream(self, dice, slow=False):
        path, body, expected = dice.choice(self.known)
        with self.send(path, body | {"stream": True}) as s:
            if slow:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            data = self.read(s, dice if slow else None)
        got = of_stream(data)
        assert got == expected, (path, body, got, expected)

    def slow_reader(self, dice):
        self.stream(dice, slow=True)

    def hang_up(self, dice):
        path, body, _ = dice.choice(self.known)
        s = self.send(path, body | {"stream": dice.random() < 0.5, "max_tokens": 200, "ignore_eos": True})
        time.sleep(dice.choice([0, 0.001, 0.01, 0.1, 0.5]) * dice.random())
        if dice.random() < 0.3:
            s.settimeout(2)
            try:
                s.recv(dice.choice([1, 100]))
            except TimeoutError:
                pass
        how = dice.randrange(4)
        if how == 0:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))     # a reset
        elif how == 1:
            s.shutdown(socket.SHUT_WR)
            self.read(s)
        elif how == 2:
            s.sendall(b"GET / HT")
        s.close()

    def nonsense(self, dice):
        path, body, _ = dice.choice(self.known)
        data = bytearray(json.dumps(body).encode())
        how = dice.randrange(5)
        if how == 0:
            data = data[: dice.randrange(len(data))]
        elif how == 1:
            for _ in range(dice.randrange(1, 5)):
                data[dice.randrange(len(data))] = dice.randrange(256)
        elif how == 2:
            data = bytes(dice.randrange(256) for _ in range(dice.randrange(300)))
        elif how == 3:
            key, wrong = dice.choice(list(body)), dice.choice([None, True, -1, 1e300, "x", [], {}, [[]], [None], {"a": 1}, "\ud800"])
            data = json.dumps(body | {key: wrong}).encode()
        else:
            data = b"[" * dice.randrange(1, 20000)
        with self.send(dice.choice([path, "/tokenize", "/detokenize", "/prefix/save", "/prefix/restore"]), bytes(data)) as s:
            status = int(self.read(s).split(b" ", 2)[1])
        assert status < 500, (status, bytes(data)[:300])

    def flood(self, dice):
        with self.connect() as s:
            kind = dice.randrange(4)
            try:
                s.sendall(b"GET /health HTTP/1.1\r\n")
                if kind == 0:
                    s.sendall(b"X: " + b"a" * 100_000 + b"\r\n\r\n")
                elif kind == 1:
                    s.sendall(b"".join(b"X-%d: %d\r\n" % (i, i) for i in range(5000)) + b"\r\n")
                elif kind == 2:
                    s.sendall(bytes(dice.randrange(256) for _ in range(500)))
                else:
                    for _ in range(20):     # a header that never ends
                        s.sendall(b"a")
                        time.sleep(0.02)
            except (BrokenPipeError, ConnectionResetError):
                pass

    def save(self, dice):
        if self.folder is None:
            return
        path, body, _ = dice.choice(self.known)
        text = {"prompt": body["prompt"]} if path == COMPLETIONS and isinstance(body["prompt"][0], int) else {"prompt": [5, 6, 7]}
        name = f"f{dice.randrange(3)}"
        if dice.random() < 0.5:
            assert self.server.request("POST", "/prefix/save", {"filename": name} | text)[0] in (200, 404)
        else:
            assert self.server.request("POST", "/prefix/restore", {"filename": name})[0] in (200, 404)

    def client(self, seed):
        dice = random.Random(seed)
        # Three of ten are given up.
        kinds = [self.whole] * 4 + [self.stream] * 4 + [self.slow_reader] * 2 + [self.hang_up] * 6 + [self.nonsense] * 3 + [self.flood] + [self.save] * 2
        while not self.stop.is_set():
            kind = dice.choice(kinds)
            try:
                kind(dice)
            except (ConnectionResetError, BrokenPipeError) if kind in (self.hang_up, self.nonsense) else ():
                pass
            except Exception:
                with self.lock:
                    self.problems.append(traceback.format_exc())
                self.stop.set()
            self.count(kind.__name__)
            self.stop.wait(0 if self.pause <= 0 else self.pause - time.monotonic() % self.pause if self.bursts else dice.expovariate(1 / self.pause))

    def watch(self):
        m = self.server.metrics()
        pools = {}
        for key, value in m.items():
            if key.startswith("octavo:pages{"):
                pools.setdefault(key.split('"')[1], {})[key.split('"')[3]] = value
        for p in pools.values():
            assert p["free"] + p["cached"] + p["used"] == p["all"], pools
        self.samples += 1
        self.full += m["octavo:num_requests_waiting"] > 0 or pools["full"]["free"] == 0     # there are places for all clients: who waits, waits for pages
        self.rss.append(self.server.rss_bytes())
        return m, pools

    def finish(self):
        """Nothing runs any more: no page is held."""
        end = time.monotonic() + 60
        while True:
            m, pools = self.watch()
            if m["octavo:num_requests_running"] + m["octavo:num_requests_waiting"] == 0:
                break
            assert time.monotonic() < end, m
            time.sleep(0.05)
        assert all(p["used"] == 0 for p in pools.values()), pools
        assert m["octavo:failed_steps_total"] == 0
        return m


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--octavo", required=True)
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--clients", type=int, default=6, help="of each server")
    parser.add_argument("--pause", type=float, default=0.5)
    parser.add_argument("--bursts", action="store_true")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100000)
    parser.add_argument("--memory-growth", type=int, default=48, help="MiB that a server may grow by after the first third")
    parser.add_argument("--full", type=int, default=0, help="of 100 looks, in how many the pool must be full or somebody wait for pages")
    o = parser.parse_args()
    print(f"seed {o.seed}, {o.minutes} minutes, {o.clients} clients of each server, {o.pause} s between requests", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        shared = ["--max-num-seqs", 24, "--deterministic", "--max-num-batched-tokens", 64, "--request-timeout", 20]
        soaks, servers = [], []
        for name, model, more in (
                ("full", tiny_gguf.write(os.path.join(folder, "full.gguf"), chat=True), ["--kv-cache-memory", "400K", "--slot-save-path", folder, "--speculative-config", '{"num_speculative_tokens": 3}']),
                ("window", tiny_gguf.write(os.path.join(folder, "window.gguf"), architecture="gemma3"), ["--kv-cache-memory", "700K", "--swap-space", "1M"])):
            alone = conftest.Server(o.octavo, model, os.path.join(folder, name + "-alone"), *shared, "--no-prefix-cache")
            server = conftest.Server(o.octavo, model, os.path.join(folder, name), *shared, *more)
            soaks.append(Soak(o, server, alone, name == "full", folder if name == "full" else None))
            assert alone.stop() == 0
            servers.append(server)
        threads = [threading.Thread(target=s.client, args=(o.seed * 1000 + i * 100 + k,)) for i, s in enumerate(soaks) for k in range(o.clients)]
        for thread in threads:
            thread.start()
        begin = time.monotonic()
        try:
            while time.monotonic() - begin < o.minutes * 60 and not any(s.stop.is_set() for s in soaks):
                for s in soaks:
                    s.watch()
                time.sleep(0.1 if o.pause < 0.2 else 0.5)
        finally:
            for s in soaks:
                s.stop.set()
            for thread in threads:
                thread.join()
        for s in soaks:
            if s.problems:
                sys.exit(f"{len(s.problems)} problems, the first:\n{s.problems[0]}\nthe server said:\n{s.server.said()[-3000:]}")
        for s in soaks:
            m = s.finish()
            third = max(s.rss[: len(s.rss) // 3 + 1])
            grown = (max(s.rss[len(s.rss) // 3 :]) - third) >> 20
            evicted = sum(value for key, value in m.items() if key.startswith("octavo:prefix_cache_evicted_pages_total"))
            print(f"{dict(sorted(s.counts.items()))}; pool full in {100 * s.full / s.samples:.0f} % of {s.samples} looks, {m['octavo:num_preemptions_total']:.0f} preempted, "
                  f"{m['octavo:swapped_out_total']:.0f} swapped, {m['octavo:prefix_cache_hits_total']:.0f} tokens cached, {evicted:.0f} pages made room, {m['octavo:http_requests_total']:.0f} requests, {third >> 20} MiB, {grown} more later", flush=True)
            assert grown <= o.memory_growth, f"{grown} MiB more"
            assert 100 * s.full >= o.full * s.samples, "the pool was not full often enough"
            swaps = s.folder is None     # that server has room for it on the host
            assert min(m["octavo:num_preemptions_total"], evicted, m["octavo:prefix_cache_hits_total"], m["octavo:swapped_out_total"] if swaps else 1) > 0, "nothing made room"
        for server in servers:
            code = server.stop()
            assert code == 0, (code, server.said()[-3000:])
    print("every page accounted for, every whole answer as by itself")


if __name__ == "__main__":
    main()
