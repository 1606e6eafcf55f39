"""Public faults of serving, by name, through the program: K4, L1, L3, L6, L7. (H1, H4, H5: test_faults.c.)"""
import json
import os
import socket
import struct
import subprocess
import time

import pytest

import tiny_gguf
from test_server import CHAT, COMPLETIONS, events, post_bytes, raw, read_all, wait_until_idle

BOS = 256     # of tiny_gguf's vocabulary, which has the bytes before it


def byte_tokens(server):
    """The token of each byte of ASCII."""
    return {chr(b): server.post("/tokenize", {"prompt": chr(b), "add_special_tokens": False})["tokens"][-1] for b in range(33, 127)}


@pytest.mark.parametrize("add_bos", [True, False, None])
def test_fault_K4(start, tmp_path_factory, add_bos):
    """One BOS at most, and none where the model says so; a literal one in a text is text, in a chat it is the only one."""
    server = start(file=tiny_gguf.write(tmp_path_factory.mktemp("bos") / "bos.gguf", chat=True, add_bos=add_bos))
    literal = "<|endoftext|>"
    letters = byte_tokens(server)
    ours = [BOS] if add_bos else []

    def ids(text, **more):
        return server.post("/tokenize", {"prompt": text} | more)["tokens"]

    assert ids("abc") == ours + [letters[c] for c in "abc"]
    assert ids("abc", add_special_tokens=False) == [letters[c] for c in "abc"]
    assert ids(literal + "a") == ours + [letters[c] for c in literal + "a"]

    def asked(path, body):
        return server.post(path, body | {"max_tokens": 1, "ignore_eos": True})["usage"]["prompt_tokens"]

    assert asked(COMPLETIONS, {"prompt": "abc"}) == len(ours) + 3
    assert asked(COMPLETIONS, {"prompt": [BOS, 5, 6]}) == 3
    # <|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n, the marks one token each.
    assert asked(CHAT, {"messages": [{"role": "user", "content": "hi"}]}) == len(ours) + 1 + 5 + 2 + 1 + 1 + 1 + 10
    assert asked(CHAT, {"messages": [{"role": "user", "content": literal}]}) == len(ours) + 1 + 5 + 1 + 1 + 1 + 1 + 10


def test_fault_L1(start, tmp_path_factory):
    """Who hangs up, or closes its own side, after a piece, in its prompt or in the queue, streamed or not, soon holds no page and no slot: 200 times, eight at once. Of what they
    asked for next to nothing is computed; who stays to the end is not counted as one that left."""
    # Of a context whose answers take many seconds, so that none of them ends by itself.
    server = start("--max-num-seqs", 4, "--kv-cache-memory", "128M", file=tiny_gguf.write(tmp_path_factory.mktemp("long") / "long.gguf", context=100_000))
    kinds = 0
    for _ in range(25):
        clients = []
        for _ in range(8):     # four of them wait in the queue
            kinds += 1
            stream, half = kinds % 2 == 0, kinds // 2 % 2 == 0
            body = json.dumps({"prompt": [5 + kinds % 80] * (3000 if kinds % 5 == 0 else 60), "max_tokens": 40_000, "stream": stream, "ignore_eos": True}).encode()
            clients.append((raw(server, post_bytes(COMPLETIONS, body)), stream, half))
        if kinds % 3 == 0:
            s = next(s for s, stream, _ in clients if stream)
            assert s.recv(100)
        for i, (s, _, half) in enumerate(clients):
            if i % 3 == 0:     # bytes of a next request do not hide that nobody is there
                s.sendall(b"GET /health HTTP/1.1\r\n")
            if half:
                s.shutdown(socket.SHUT_WR)
            else:
                if i % 4 == 1:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))     # a reset
                s.close()
        end = time.monotonic() + 120
        while True:
            m = server.metrics()
            if m["octavo:num_requests_running"] + m["octavo:num_requests_waiting"] == 0:
                break
            assert time.monotonic() < end, m
            time.sleep(0.01)
        for s, _, half in clients:
            if half:
                read_all(s)
    m = wait_until_idle(server)
    aborted = m['octavo:request_success_total{finished_reason="abort"}']     # a reset may come before the request was read
    assert kinds == 200 and 100 <= aborted <= 200
    assert m["octavo:generation_tokens_total"] < aborted * 40_000 / 20, m
    for stream in (False, True):
        server.complete("to the end", ignore_eos=True, stream=stream)
    m = wait_until_idle(server)
    assert m['octavo:request_success_total{finished_reason="length"}'] == 2 and m['octavo:request_success_total{finished_reason="abort"}'] == aborted


def test_fault_L3(start):
    """Wrong shapes give 4xx and the server lives. (test_wrong_bodies has more of them.)"""
    server = start("--request-timeout", 1)
    nested = b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    for path, body in ((CHAT, b""), (CHAT, b"{:"), (CHAT, b'{"messages": [{"role": "user", "con'), (CHAT, b'{"messages": null}'), (CHAT, b'{"messages": []}'), (CHAT, b'{"messages": [{}]}'),
                       (CHAT, b'{"messages": [{"role": "user", "content": 5}]}'), (CHAT, nested), (CHAT, b"[" * 1_000_000), (CHAT, b'{"a":' * 100_000), (COMPLETIONS, b'{"prompt": "\xff\xc3"}')):
        status, reply = server.request("POST", path, body)
        assert status == 400 and reply["error"]["message"], (body[:40], status)
    assert server.request("GET", CHAT)[0] == 405 and server.request("PUT", COMPLETIONS, b"{}")[0] == 405
    # A hundred megabytes: refused when they are announced, and when they come without being announced.
    huge = raw(server, f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {100 << 20}\r\n\r\n".encode())
    assert b" 413 " in huge.recv(1000).split(b"\r\n")[0]
    huge.close()
    before = server.rss_bytes()
    chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    chunked = raw(server, f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    try:
        for _ in range(100):
            chunked.sendall(chunk)
        chunked.sendall(b"0\r\n\r\n")
    except (BrokenPipeError, ConnectionResetError, TimeoutError):
        pass
    reply = read_all(chunked)
    assert reply == b"" or b" 413 " in reply.split(b"\r\n")[0]
    assert server.rss_bytes() - before < 40 << 20
    body = b'{"prompt": "abc", "max_tokens": 1}'
    # Announced longer than it is: nothing comes back until the time is over. Shorter: cut off, so it is no JSON, and the rest is no request.
    assert b" 200 " not in read_all(raw(server, f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body) + 9}\r\n\r\n".encode() + body))[:20]
    assert b" 400 " in read_all(raw(server, f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body) - 9}\r\n\r\n".encode() + body)).split(b"\r\n")[0]
    for bad in (b"zz\r\n", b"-5\r\nabc\r\n", b"ffffffffffffffffff\r\nabc\r\n", b"5\r\nabcdefgh\r\n0\r\n\r\n"):
        s = raw(server, f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + bad)
        assert b" 200 " not in read_all(s)[:20]
    assert server.complete("alive")["choices"]
    wait_until_idle(server)


def test_fault_L6(server):
    """A prompt that ends within a character: nothing of it comes back, and what is streamed is what comes back whole."""
    partial = server.post("/tokenize", {"prompt": "東", "add_special_tokens": False})["tokens"][:-1]
    assert len(partial) == 2
    for seed in range(6):
        ask = {"prompt": [5, 6, *partial], "temperature": 1.5, "seed": seed, "max_tokens": 40, "ignore_eos": True, "logprobs": 0}
        whole = server.post(COMPLETIONS, ask)["choices"][0]
        pieces = [e["choices"][0]["text"] for e in events(server.post(COMPLETIONS, ask | {"stream": True}))]
        assert "".join(pieces) == whole["text"]
        # The answer's tokens by themselves give the same text: no byte of the prompt is in it.
        data = b"".join(bytes.fromhex(t[len("bytes:"):].replace("\\x", "")) if t.startswith("bytes:") else t.encode() for t in whole["logprobs"]["tokens"] if not t.startswith("<|"))
        assert whole["text"].replace("\ufffd", "") == data.decode("utf-8", "ignore").replace("\0", "")
        assert "東" not in whole["text"]


def test_fault_L7(server):
    """Nothing of a stop text is ever streamed, wherever it lies in the answer, and what only looked like one is."""
    ask = {"prompt": "xyz", "temperature": 0, "max_tokens": 30, "ignore_eos": True}
    whole = server.post(COMPLETIONS, ask)["choices"][0]["text"]
    stops = [whole[i : i + n] for i in (0, 1, 7, len(whole) - 3) for n in (1, 2, 3)]
    for stop in [*stops, whole[2:4] + "\u0001never", [whole[4:7], whole[4:6]]]:
        several = stop if isinstance(stop, list) else [stop]
        at = min((whole.index(s) for s in several if s in whole), default=None)
        streamed = [e["choices"][0] for e in events(server.post(COMPLETIONS, ask | {"stop": stop, "stream": True}))]
        assert "".join(c["text"] for c in streamed) == whole[:at]
        assert streamed[-1]["finish_reason"] == ("length" if at is None else "stop")


# ---- a browser on somebody else's page -------------------------------------------------------------------------------


@pytest.mark.parametrize("listens", ["127.0.0.1", "0.0.0.0", "127.1"])
def test_names_and_pages(start, listens):
    """Without a key a server answers as an address, under this machine's names and those allowed (DNS rebinding), wherever it listens, and to no page of elsewhere."""
    server = start("--host", listens, "--allowed-host", "octavo.test", "--allowed-host", "Other.test.:8000")

    def status(**headers):
        return server.request("GET", "/v1/models", headers=headers)[0]

    port = server.port
    own = socket.gethostname()
    for host in (f"localhost:{port}", "LocalHost", "localhost.", f"localhost.:{port}", f"127.0.0.1:{port}", "127.8.9.1", f"[::1]:{port}", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]", "192.168.3.4", "127.0.0.1.",
                 own, own.split(".")[0] + f":{port}", "octavo.test", f"octavo.test:{port}", "other.test", "other.test:7"):
        assert status(Host=host) == 200, host
        assert status(Host=host, Origin=f"http://{host}") == 200, host
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example", "127.evil.example", "[::1", "[::1].evil.example", "[::1]evil", "[127.0.0.1]", "::1",
                 "localhost:x@evil.example", "localhost:80x", "localhost..", "127........", "127.0.0.1..", "[::1.]", "127.1", "256.0.0.1", "octavo.test.evil", "[octavo.test]", ".", ":80", "", "[]"):
        if host == listens:
            continue     # as it was told to call itself
        code, reply = server.request("GET", "/v1/models", headers={"Host": host})
        assert code == 403 and reply["error"]["code"] == "host_not_allowed", (host, reply)
    for origin in ("http://evil.example", "null", "", f"http://localhost:{port + 1}", "file://", f"ftp://localhost:{port}", f"xhttp://localhost:{port}", f"http://localhost:{port}@evil.example"):
        assert status(Host=f"localhost:{port}", Origin=origin) == 403, origin
    # What a page can send without asking first is refused as well, and computes nothing.
    body = {"prompt": "a", "max_tokens": 1}
    assert server.request("POST", COMPLETIONS, body, headers={"Origin": "http://evil.example", "Content-Type": "text/plain"})[0] == 403
    assert server.metrics()["octavo:generation_tokens_total"] == 0

    def first_line(header):
        with raw(server, f"GET /v1/models {header}Connection: close\r\n\r\n".encode()) as s:
            return read_all(s).split(b"\r\n")[0]

    for header in ("HTTP/1.1\r\n", "HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n", "HTTP/1.1\r\nHost: evil.example\r\nHost: localhost\r\n",
                   "HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\nOrigin: http://evil.example\r\n"):
        assert b" 400 " in first_line(header), header
    # Who is refused is told before a body too long for anybody comes.
    s = raw(server, f"POST {COMPLETIONS} HTTP/1.1\r\nHost: evil.example\r\nContent-Length: {1 << 40}\r\n\r\n".encode())
    assert b" 413 " in s.recv(1000).split(b"\r\n")[0]
    s.close()


def test_names_with_a_key(start, request, model):
    """With a key names don't matter, and what is no name is not allowed."""
    keyed = start("--api-key", "k")
    assert keyed.request("GET", "/v1/models", headers={"Host": "evil.example", "Origin": "http://evil.example", "Authorization": "Bearer k"})[0] == 200
    for name in ("", "http://octavo.test", "octavo.test:x", "[::1"):
        done = subprocess.run([request.config.getoption("--octavo"), "serve", "-m", model, "--port", "0", "--allowed-host", name], capture_output=True, timeout=60)
        assert done.returncode == 2 and b"--allowed-host" in done.stderr, (name, done.stderr)


def test_bodies_that_nobody_reads_take_no_upload(start):
    """Half-sent bodies where none is to be brought, of who has no key, leave the others their room; where long ones fill it, short ones still come in."""
    server = start("--api-key", "k", "--max-body", "1M", "--max-upload", "2M", "--request-timeout", 300)
    key = {"Authorization": "Bearer k"}
    piece = b" " * (600 << 10)

    def half(line, more=""):
        s = raw(server, f"{line} HTTP/1.1\r\nHost: localhost\r\n{more}Content-Length: {1 << 20}\r\n\r\n".encode())
        s.sendall(piece)
        return s

    sockets = [half(line) for line in ("GET /health", "POST /health", "HEAD /", "PUT /health", "POST /nowhere", f"POST {COMPLETIONS}") for _ in range(2)]
    long = json.dumps({"prompt": "a", "max_tokens": 1, "user": "u" * (200 << 10)})
    for _ in range(3):
        assert server.request("POST", COMPLETIONS, long, headers=key)[0] == 200
    sockets += [half(f"POST {COMPLETIONS}", "Authorization: Bearer k\r\n") for _ in range(2)]
    # How much room each takes depends on the pieces in which it comes: more of them, until there is none.
    end = time.monotonic() + 120
    while server.request("POST", COMPLETIONS, b" " * (900 << 10), headers=key)[0] != 503:
        assert time.monotonic() < end
        sockets.append(half(f"POST {COMPLETIONS}", "Authorization: Bearer k\r\n"))
    # Halves of short ones fill what the long ones leave.
    for _ in range(140):
        s = raw(server, f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer k\r\nContent-Length: 16384\r\n\r\n".encode() + b" " * 16000)
        sockets.append(s)
    assert server.request("POST", COMPLETIONS, {"prompt": "a", "max_tokens": 1, "user": "u" * 9000}, headers=key)[0] == 200
    for s in sockets:
        s.close()


def test_uploads_are_bounded(start, monkeypatch, memory_counts):
    """Bodies that never end may take --max-upload together, not --max-body for each connection."""
    # AddressSanitizer keeps what is freed, up to 256 MB of it: here what is given back counts.
    monkeypatch.setenv("ASAN_OPTIONS", os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=1")
    server = start("--max-body", "4M", "--max-upload", "16M", "--request-timeout", 30)
    server.complete("a")
    before = server.rss_bytes()
    sockets = []
    for _ in range(24):     # 72 MB
        s = raw(server, f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {4 << 20}\r\n\r\n".encode())
        s.sendall(b" " * (3 << 20))
        sockets.append(s)
    assert server.complete("b")["choices"]
    assert server.rss_bytes() - before < 32 << 20
    refused = 0
    for s in sockets:
        s.sendall(b" " * (1 << 20))
        refused += b" 503 " in s.recv(100)
        s.close()
    assert refused >= 18
    wait_until_idle(server)
    status, _ = server.request("POST", COMPLETIONS, b" " * (4 << 20))
    assert status == 400     # no JSON, and taken in whole: the memory has come back
