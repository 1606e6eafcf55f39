"""What clients may hold: connections whose replies they do not read, jobs, the reader's time, and which of several goes first."""
import json
import os
import random
import re
import socket
import threading
import time

import pytest

from conftest import cpu_seconds
from test_server import CHAT, COMPLETIONS, post_bytes, raw, read_all, wait_until_idle

BOS = 256          # of tiny_gguf's vocabulary: 13 characters, "<|endoftext|>"
PATIENCE = 120     # seconds, for what comes surely: no measure


def wait_for(what):
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


# ---- replies that nobody reads ------------------------------------------------------------------------------------------


def small_window(server):
    """A client that takes little at once, and for which the system keeps little: of segments as small as these the sender may have some forty kilobytes on their way."""
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
    s.settimeout(PATIENCE)
    s.connect(("127.0.0.1", server.port))
    return s


def sockets_of(server):
    n, fds = 0, f"/proc/{server.process.pid}/fd"
    for fd in os.listdir(fds):
        try:
            n += os.readlink(f"{fds}/{fd}").startswith("socket:")
        except OSError:
            pass     # it has been closed
    return n


def test_a_reply_read_a_bit_at_a_time_ends(start):
    """A client that takes a bit now and then keeps its connection, and the reply's memory, for --request-timeout and what the reply's length allows, not for as long as it likes; so does one
    of a stream whose answers have ended."""
    server = start("--request-timeout", 1)
    before = sockets_of(server)     # nobody has asked yet
    clients = []
    # Both far longer than what the system keeps of them.
    for path, ask in (("/detokenize", {"tokens": [BOS] * 40_000}), (COMPLETIONS, {"prompt": "a", "n": 8, "max_tokens": 300, "ignore_eos": True, "logprobs": 20, "stream": True})):
        clients.append(small_window(server))
        clients[-1].sendall(post_bytes(path, json.dumps(ask).encode()))
    got, end = [clients[0].recv(64), clients[1].recv(64)], time.monotonic() + PATIENCE
    while sockets_of(server) > before and time.monotonic() < end:
        for i, s in enumerate(clients):     # so fast that something leaves within each second, and a tenth as fast as is allowed
            s.settimeout(0.005)
            try:
                got[i] += s.recv(256)
            except (TimeoutError, ConnectionResetError):
                pass
        time.sleep(0.005)
    assert sockets_of(server) == before
    for i, s in enumerate(clients):
        s.settimeout(PATIENCE)
        got[i] += read_all(s)
    assert all(g.startswith(b"HTTP/1.1 200") for g in got) and len(got[0]) < 13 * 40_000 and b"[DONE]" not in got[1], [len(g) for g in got]
    wait_until_idle(server)


# ---- jobs ---------------------------------------------------------------------------------------------------------------------


def save_bytes(name, prompt, more="Connection: close\r\n"):
    return post_bytes("/prefix/save", json.dumps({"filename": name, "prompt": prompt}).encode(), more)


@pytest.fixture
def saver(start, tmp_path):
    """A server whose jobs wait: a step of a long prompt, in one chunk, lasts while they come."""
    server = start("--max-num-batched-tokens", 16384, "-c", 16384, "--kv-cache-memory", "64M", "--slot-save-path", tmp_path, file=long_model(tmp_path))
    return server


def long_model(folder):
    import tiny_gguf
    return tiny_gguf.write(folder / "long.gguf", context=16384)


def occupy(server):
    """A client whose step takes a while; returns its socket once the step has begun."""
    s = raw(server, post_bytes(COMPLETIONS, json.dumps({"prompt": [5 + i % 80 for i in range(8000)], "max_tokens": 1, "ignore_eos": True}).encode(), "Connection: close\r\n"), timeout=PATIENCE)
    wait_for(lambda: server.metrics()["octavo:num_requests_running"] + server.metrics()["octavo:num_requests_waiting"] > 0)
    return s


def test_jobs_are_bounded(saver, tmp_path):
    """Sixteen saves and restores may wait; those that come then hear 429 and when to come again. What waited is done."""
    prompt = [7] * 64
    saver.complete(prompt)
    busy = occupy(saver)
    jobs = [raw(saver, save_bytes(f"f{i}", prompt), timeout=PATIENCE) for i in range(40)]
    heads = [read_all(s) for s in jobs]
    statuses = [head.split(b" ", 2)[1] for head in heads]
    refused = [head for head in heads if head.startswith(b"HTTP/1.1 429")]
    assert set(statuses) == {b"200", b"429"} and 16 <= statuses.count(b"200") < 40, statuses
    assert all(b"\r\nRetry-After: " in head and b"at most 16" in head for head in refused)
    assert len([name for name in os.listdir(tmp_path) if name.startswith("f")]) == statuses.count(b"200")
    assert read_all(busy).startswith(b"HTTP/1.1 200")
    assert saver.post("/prefix/save", {"filename": "later", "prompt": prompt})["n_saved"] == 64


def test_jobs_of_who_has_gone_are_dropped(saver, tmp_path):
    """Who hangs up while his job waits makes room for another's, and no file is written for him."""
    prompt = [7] * 64
    saver.complete(prompt)
    busy = occupy(saver)
    for turn in range(3):
        before = saver.metrics()["octavo:http_requests_total"]
        gone = [raw(saver, save_bytes(f"gone{turn}-{i}", prompt)) for i in range(12)]
        own = iter(range(1, 10**6))
        wait_for(lambda: saver.metrics()["octavo:http_requests_total"] - before - next(own) >= 12)
        for i, s in enumerate(gone):
            if i % 2:
                s.shutdown(socket.SHUT_WR)
            else:
                s.close()
        wait_for(lambda: sockets_of(saver) < 12)
        for s in gone:
            s.close()
    stay = raw(saver, save_bytes("stay", prompt), timeout=PATIENCE)
    assert read_all(stay).startswith(b"HTTP/1.1 200") and read_all(busy).startswith(b"HTTP/1.1 200")
    written = [name for name in os.listdir(tmp_path) if name.startswith("gone")]
    # Where a step ended in between some were done before their clients went.
    assert (tmp_path / "stay").exists() and len(written) < 36
    assert saver.complete("alive")["choices"]
    wait_until_idle(saver)


# ---- files of prefixes -------------------------------------------------------------------------------------------------------


def test_names_that_change_hands(start, tmp_path):
    """While a name is now a file, now a link to something else, a pipe or nothing, a save writes to none of those, and a restore reads none."""
    folder, secret = tmp_path / "prefixes", tmp_path / "secret"
    folder.mkdir()
    server = start("--slot-save-path", folder)
    prompt = [5 + i % 80 for i in range(200)]
    server.complete(prompt)
    server.post("/prefix/save", {"filename": "own", "prompt": prompt})
    good = (folder / "own").read_bytes()
    secret.write_bytes(b"kept")
    os.chmod(folder / "own", 0o644)
    stop, dice = threading.Event(), random.Random(4)

    def juggle():
        k = 0
        while not stop.is_set():
            k += 1
            new = folder / f"new{k}"
            if k % 3 == 0:
                new.write_bytes(good)
            elif k % 3 == 1:
                os.symlink(secret, new)
            else:
                os.mkfifo(new)
            os.rename(new, folder / "own")

    thread = threading.Thread(target=juggle)
    thread.start()
    seen, expected = set(), {("/prefix/restore", 200), ("/prefix/restore", 400), ("/prefix/save", 200), ("/prefix/save", 400)}
    try:
        end, n = time.monotonic() + PATIENCE, 0
        while (n < 150 or not expected <= seen) and time.monotonic() < end:
            n += 1
            for path in ("/prefix/restore", "/prefix/save"):
                status, reply = server.request("POST", path, {"filename": "own"} | ({"prompt": prompt} if path.endswith("save") else {}))
                seen.add((path, status))
                assert status in (200, 400) and (status == 200 or reply["error"]["code"] == "bad_file"), reply
                assert str(tmp_path) not in json.dumps(reply)
    finally:
        stop.set()
        thread.join()
    assert secret.read_bytes() == b"kept" and secret.stat().st_mode & 0o777 == 0o644
    assert seen == expected
    # A file that others could read before is its owner's now.
    os.unlink(folder / "own")
    (folder / "own").write_bytes(b"")
    os.chmod(folder / "own", 0o666)
    server.post("/prefix/save", {"filename": "own", "prompt": prompt})
    assert (folder / "own").stat().st_mode & 0o777 == 0o600
    assert server.request("POST", "/prefix/restore", {"filename": "nothing"})[0] == 404
    # Where the folder has gone a client hears that it can't be written, and not where.
    for name in os.listdir(folder):
        os.unlink(folder / name)
    folder.rmdir()
    status, reply = server.request("POST", "/prefix/save", {"filename": "own", "prompt": prompt})
    assert status >= 500 and str(tmp_path) not in json.dumps(reply), reply
    assert server.request("POST", "/prefix/restore", {"filename": "own"})[0] == 404


# ---- the thread that reads long bodies -----------------------------------------------------------------------------------------


def test_bodies_of_who_has_gone_are_not_read(start):
    """Of long bodies whose clients hang up while they wait their turn none is read: the reader's time is that of the one ahead of them and of the one behind."""
    server = start()
    body = post_bytes("/tokenize", json.dumps({"prompt": "the quick " * 40_000}).encode(), "Connection: close\r\n")
    assert read_all(raw(server, body, PATIENCE)).startswith(b"HTTP/1.1 200")
    one = cpu_seconds(server.process.pid, others="MHD")
    assert read_all(raw(server, body, PATIENCE)).startswith(b"HTTP/1.1 200")
    one = cpu_seconds(server.process.pid, others="MHD") - one
    before = cpu_seconds(server.process.pid, others="MHD")
    ahead = raw(server, body, PATIENCE)
    gone = [raw(server, body, PATIENCE) for _ in range(12)]
    for s in gone:
        s.close()
    behind = raw(server, body, PATIENCE)
    assert read_all(ahead).startswith(b"HTTP/1.1 200") and read_all(behind).startswith(b"HTTP/1.1 200")
    taken = cpu_seconds(server.process.pid, others="MHD") - before
    assert taken < 7 * one, (taken, one)     # fourteen, were they read
    wait_until_idle(server)


def test_special_tokens_of_all_texts_count(start, tmp_path):
    """What takes the square of special tokens is bounded for a body, not for each of its texts."""
    server = start("-c", 16384, "--kv-cache-memory", "64M", file=long_model(tmp_path))
    text = "<|" * 7000     # each fits in the context, and begins as many special tokens
    assert server.request("POST", "/tokenize", {"prompt": text})[0] == 200
    status, reply = server.request("POST", COMPLETIONS, {"prompt": [text] * 3, "max_tokens": 1})
    assert status == 400 and "21000 special tokens" in reply["error"]["message"], reply
    assert len(server.complete(["<|" * 400] * 50, max_tokens=1)["choices"]) == 50     # short ones are not counted


# ---- fields -----------------------------------------------------------------------------------------------------------------------


def test_unknown_fields(server):
    """What nobody knows is refused, as OpenAI does it: an answer without it would look like one with it. What changes no answer is taken."""
    schemas = server.request("GET", "/openapi.json")[1]["components"]["schemas"]
    for path, name, ask in ((COMPLETIONS, "CompletionRequest", {"prompt": "a"}), (CHAT, "ChatRequest", {"messages": [{"role": "user", "content": "a"}]})):
        for field in ("temprature", "max_new_tokens", "repetition_penaltys", "n_predict", "penalty_alpha", "", "é" * 300, "messages" if path == COMPLETIONS else "prompt"):
            for value in (1, None, "x"):
                status, reply = server.request("POST", path, {"max_tokens": 1} | ask | {field: value})
                assert status == 400 and reply["error"]["code"] == "unknown_parameter" and field[:40] in reply["error"]["message"], (field, reply)
        for field in schemas[name]["properties"]:
            status, reply = server.request("POST", path, {"max_tokens": 1} | ask | ({} if field in ask else {field: None}))
            assert status == 200 or reply["error"]["code"] != "unknown_parameter", (field, reply)
        assert schemas[name]["additionalProperties"] is False
        plain = server.post(path, {"max_tokens": 4, "temperature": 0, "ignore_eos": True} | ask)["choices"]
        idle = {"metadata": {"a": "b"}, "store": True, "service_tier": "flex", "safety_identifier": "x", "prompt_cache_key": "k", "request_id": "r", "cache_prompt": False}
        assert server.post(path, {"max_tokens": 4, "temperature": 0, "ignore_eos": True} | ask | idle)["choices"] == plain
        for options, status in (({"include_usage": True, "include_obfuscation": False, "continuous_usage_stats": False}, 200), ({"continuous_usage_stats": True}, 400), ({"other": 1}, 400)):
            got, reply = server.request("POST", path, {"max_tokens": 1, "stream": True, "stream_options": options} | ask)
            assert got == status and (status == 200 or reply["error"]["param"] == "stream_options"), (options, reply)


# ---- what Prometheus reads -----------------------------------------------------------------------------------------------------------


def test_metrics_have_labels(start):
    """Each sample has vLLM's labels, of a name that needs marks too; each histogram adds up."""
    name = 'a"b\\c'
    server = start("--served-model-name", name)
    for _ in range(2):
        server.complete("a", max_tokens=5, ignore_eos=True)
    text = server.request("GET", "/metrics")[1]
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(samples) > 150 and all('{engine="0",model_name="a\\"b\\\\c"' in line for line in samples)
    typed = re.findall(r"^# TYPE (\S+) (\w+)$", text, re.M)
    assert len(typed) == len({n for n, _ in typed}) and {re.sub("_(bucket|sum|count)$", "", line.split("{")[0]) for line in samples} <= {n for n, _ in typed}
    m = server.metrics()
    for part in ("queue", "inference", "prefill", "decode"):
        assert m[f"octavo:request_{part}_time_seconds_count"] == 2, part
    seconds = {part: m[f"octavo:request_{part}_time_seconds_sum"] for part in ("queue", "inference", "prefill", "decode")}
    assert all(value >= 0 for value in seconds.values()) and seconds["inference"] > 0
    assert abs(seconds["prefill"] + seconds["decode"] - seconds["inference"]) < 1e-6
    assert seconds["queue"] + seconds["inference"] <= m["octavo:e2e_request_latency_seconds_sum"] + 1e-6
    assert abs(seconds["queue"] + seconds["prefill"] - m["octavo:time_to_first_token_seconds_sum"]) < 1e-6


# ---- who goes first --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("priorities", [[3, 1, 5, 2, 4, 0], [0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [2, 2, -7, 900, 0, -1000]])
def test_order_follows_priority(start, tmp_path, priorities):
    """Six that wait go by their priority, and those of one priority as they came. What each finds in the cache of what the ones before it have left tells the order, whatever a busy machine does to the times."""
    server = start("--max-num-seqs", 1, "--kv-cache-memory", "64M", file=long_model(tmp_path))
    text = [5 + (i * i) % 83 for i in range(400)]
    blocker = raw(server, post_bytes(COMPLETIONS, json.dumps({"prompt": [3] * 20, "max_tokens": 15_000, "ignore_eos": True, "priority": -1000, "stream": True}).encode()))
    assert blocker.recv(10)
    replies = [None] * 6

    def ask(i):
        replies[i] = server.complete(text[: 64 * (i + 1)] + [2], max_tokens=1, ignore_eos=True, priority=priorities[i])

    threads = []
    for i in range(6):     # one after the other, so that those of one priority have an order
        threads.append(threading.Thread(target=ask, args=(i,)))
        threads[-1].start()
        wait_for(lambda: server.metrics()["octavo:num_requests_waiting"] == i + 1 or not blocker_runs(server))
    assert blocker_runs(server), "the one ahead ended before all had come"
    blocker.close()
    for thread in threads:
        thread.join()
    expected, most = [None] * 6, 0
    for i in sorted(range(6), key=lambda k: (priorities[k], k)):
        expected[i] = min(most, 64 * (i + 1))
        most = max(most, 64 * (i + 1))
    assert [r["usage"]["prompt_tokens_details"]["cached_tokens"] for r in replies] == expected, (priorities, replies)


def blocker_runs(server):
    return server.metrics()["octavo:request_success_total{finished_reason=\"length\"}"] == 0
