"""Clients that mean it: of each kind of public fault of serving some that are in no list, against the program."""
import json
import os
import random
import re
import signal
import socket
import threading
import time

import pytest

from conftest import cpu_seconds
from test_server import CHAT, COMPLETIONS, events, post_bytes, raw, read_all, wait_until_idle

HERE = os.path.dirname(os.path.abspath(__file__))
DETERMINISTIC = ("--deterministic", "--max-num-batched-tokens", 64)


def first_line(s):
    return read_all(s).split(b"\r\n")[0]


# ---- bodies ---------------------------------------------------------------------------------------------------------


def test_long_bodies_hold_nobody_up(start):
    """Texts that take seconds to become tokens: meanwhile others are answered, since it is not the thread of all connections that reads them; the answer to each is its own."""
    server = start()
    text = "the quick " * 70_000
    done, http = [], cpu_seconds(server.process.pid, named="MHD")

    def ask(k):
        done.append((k, server.request("POST", "/tokenize", {"prompt": text + "x" * k})[1]["count"]))

    threads = [threading.Thread(target=ask, args=(k,)) for k in range(2)]
    others = cpu_seconds(server.process.pid, others="MHD")
    for thread in threads:
        thread.start()
    between = 0
    while any(thread.is_alive() for thread in threads):
        before = len(done)
        assert server.request("GET", "/health")[0] == 200
        between += before == len(done) < 2
        time.sleep(0.01)
    http, others = cpu_seconds(server.process.pid, named="MHD") - http, cpu_seconds(server.process.pid, others="MHD") - others
    one = server.post("/tokenize", {"prompt": text})["count"]
    assert sorted(done) == [(k, one + k) for k in range(2)]
    assert between > 0 and http < others / 4, (between, http, others)
    for path, body in ((COMPLETIONS, {"prompt": text}), (CHAT, {"messages": [{"role": "user", "content": text}]}), (COMPLETIONS, {"prompt": "a" * 20_000 + "\ud800"}), ("/detokenize", {"tokens": [5] * 20_000 + [-1]})):
        assert server.request("POST", path, body)[0] == 400, path
    assert len(server.post("/detokenize", {"tokens": [70] * 20_000})["prompt"]) == 20_000
    long = server.post(COMPLETIONS, {"prompt": [70, 71, 72], "max_tokens": 2, "user": "u" * 20_000, "stream": True, "ignore_eos": True})
    assert len(events(long)) >= 2


def test_who_leaves_while_his_body_is_read(start):
    server = start("--max-upload", "64M")
    body = json.dumps({"prompt": "the quick " * 50_000, "max_tokens": 5}).encode()
    sockets = [raw(server, post_bytes(COMPLETIONS, body)) for _ in range(4)]
    for i, s in enumerate(sockets):
        if i % 2:
            s.shutdown(socket.SHUT_WR)
        s.close()
    assert server.complete("alive")["choices"]
    wait_until_idle(server)
    # All of it has come back: bodies of the longest kind still find their memory.
    assert server.request("POST", COMPLETIONS, b" " * (8 << 20))[0] == 400


def test_what_a_body_may_become(server):
    """Some bytes of a body may not become a hundred times as many."""
    for body in (b'{"messages": [' + b"{}," * 100_000 + b"{}]}", b'{"prompt": [' + b"[]," * 100_000 + b"[]]}", b'{"x": [' + b'{"a":{"b":[]}},' * 30_000 + b"1]}"):
        for path in (COMPLETIONS, CHAT, "/tokenize", "/detokenize", "/prefix/save"):
            status, reply = server.request("POST", path, body)
            assert status == 400 and "65536" in reply["error"]["message"], (path, reply)
    for path in (COMPLETIONS, "/detokenize"):
        status, reply = server.request("POST", path, b'{"prompt": [' + b"5," * ((1 << 20) + 1) + b"5]}")
        assert status == 400 and "1048576" in reply["error"]["message"], (path, reply)
    # In a text they are text.
    assert server.post("/tokenize", {"prompt": '[{"' * 50_000 + '\\"[' * 20_000})["count"] >= 210_000
    # Texts that end an answer are kept by each of 128 answers.
    status, reply = server.request("POST", COMPLETIONS, {"prompt": ["a"] * 128, "max_tokens": 1, "stop": ["ü" * 1025]})
    assert status == 400 and reply["error"]["param"] == "stop" and "1025" in reply["error"]["message"], reply
    assert server.complete(["a"] * 128, max_tokens=1, stop=["ü" * 1024] * 16)["choices"]
    assert server.request("POST", COMPLETIONS, {"prompt": "a", "logit_bias": {"05": 1, "5": 1}})[0] == 400     # one token twice
    # So are biases: counted before anything is made of them.
    status, reply = server.request("POST", COMPLETIONS, {"prompt": ["a"] * 128, "max_tokens": 1, "logit_bias": {str(i): 1 for i in range(1025)}})
    assert status == 400 and reply["error"]["param"] == "logit_bias" and "1025" in reply["error"]["message"], reply


def test_bodies_announced_twice(server):
    """What a proxy before this server may read in another way is not read at all."""
    body = b'{"prompt": "abc", "max_tokens": 1}'
    chunked = b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"
    length = b"Content-Length: %d\r\n" % len(body)
    for headers, rest, status in ((length + length, body, 400), (length + b"Content-Length: 5\r\n", body, 400), (length + b"Transfer-Encoding: chunked\r\n", chunked, 400),
                                  (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", chunked, 400), (b"Transfer-Encoding: gzip, chunked\r\n", chunked, 501),
                                  (b"Transfer-Encoding: identity\r\n", body, 501), (b"Content-Length: +34\r\n", body, 400), (b"Content-Length: 0x22\r\n", body, 400),
                                  (b"Content-Length: %d\r\n" % (2**64 + len(body)), body, 413), (b"Transfer-Encoding: Chunked\r\n", chunked, 200), (length, body, 200),
                                  # Names that are none here, and may be one there.
                                  (b"Content-Length : %d\r\n" % len(body), body, 400), (b"Content-Length\t: %d\r\n" % len(body), body, 400), (length + b"Transfer-Encoding : chunked\r\n", body, 400),
                                  (b"X Y: 1\r\n" + length, body, 400), (b"Content-Length\x0b: %d\r\n" % len(body), body, 400), (b"\xa0Content-Length: %d\r\n" % len(body), body, 400)):
        # What would be the next request, where the end is seen elsewhere, is none.
        data = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n" + headers + (b"Connection: close\r\n" if status == 200 else b"") + b"\r\n" + rest + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        replies = read_all(raw(server, data))
        assert replies.startswith(b"HTTP/1.1 %d " % status) and replies.count(b"HTTP/1.1 200") == (status == 200), (headers, replies[:200])


VALUES = ["1e400", "-1e400", "1e308", "-0", "-0.0", "1e-400", "NaN", "Infinity", "9223372036854775807", "9223372036854775808", "-9223372036854775809", "4294967296", "0x10", "01", "1.", ".5", "+1", "1e", "true", "null",
          "\"\"", "\"1\"", "[]", "{}", "[[]]", "\"\\u0000\"", "\"\\ud800\"", "\"\\udc00\\ud800\"", "\"\xff\"", "\"\xed\xa0\x80\"", "\"\xc0\x80\"", "\"\xf4\x90\x80\x80\"", "\"\x00\"", "\"\n\""]


def test_each_field_takes_nothing_else(server):
    """Every field of the description with numbers at the edge, other types and bytes that are no text: an answer or a refusal, never more; what is no JSON is never taken."""
    schemas = server.request("GET", "/openapi.json")[1]["components"]["schemas"]
    seen = {}
    for path, name, ask in ((COMPLETIONS, "CompletionRequest", '"prompt": "a", "max_tokens": 1'), (CHAT, "ChatRequest", '"messages": [{"role": "user", "content": "a"}], "max_tokens": 1'),
                            ("/tokenize", "TokenizeRequest", None), ("/detokenize", "DetokenizeRequest", None)):
        for field in schemas.get(name, {"properties": {"prompt": 0, "tokens": 0, "content": 0, "add_special_tokens": 0}})["properties"]:
            fields = dict(re.findall(r'"(\w+)": (\[.*?\]|"\w+"|\d+)(?:, |$)', ask)) if ask else {}
            for value in VALUES:
                body = "{" + ", ".join(f'"{k}": {v}' for k, v in (fields | {field: value}).items()) + "}"
                status, reply = server.request("POST", path, body.encode("latin-1"))
                assert status in (200, 400, 404), (path, body, status, reply)
                assert status != 200 or isinstance(json.loads(body)[field], (int, float, str, list, dict, type(None))), (path, body)     # Python reads NaN and Infinity
                assert status != 200 or not re.search("NaN|Inf|e400|\\\\u0000|\\\\ud800|[\x80-\xff]|\x00|\n", value), (path, body)
                seen[status] = seen.get(status, 0) + 1
    assert seen[200] > 50 and seen[400] > 1000, seen
    wait_until_idle(server)


def test_mangled_bodies(server):
    """Bodies with bytes changed, doubled and left out."""
    dice = random.Random(5)
    whole = [json.dumps({"prompt": [[5, 6], [7]], "n": 2, "stop": ["a", "é"], "logit_bias": {"5": 1.5}, "logprobs": 2, "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 2}).encode(),
             json.dumps({"messages": [{"role": "user", "content": [{"type": "text", "text": "東\\"}]}], "response_format": {"type": "json_object"}, "top_p": 0.5, "max_tokens": 2}, ensure_ascii=False).encode()]
    for i in range(200):
        body = bytearray(whole[i % 2])
        for _ in range(dice.randrange(1, 4)):
            at, how = dice.randrange(len(body)), dice.randrange(4)
            if how == 0:
                body[at] = dice.randrange(256)
            elif how == 1:
                del body[at : at + dice.randrange(1, 9)]
            elif how == 2:
                body[at:at] = body[at : at + dice.randrange(1, 30)]
            else:
                body[at:at] = dice.choice([b"{", b"}", b"[", b"]", b'"', b"\\", b",", b":", b"\0", b"\xff", b"1e9", b"null"])
            body = body or bytearray(b" ")
        status, reply = server.request("POST", (COMPLETIONS, CHAT)[i % 2], bytes(body))
        assert status in (200, 400, 404), (bytes(body), status, reply)
    wait_until_idle(server)


# ---- who may ask --------------------------------------------------------------------------------------------------------


def test_every_route_asks_for_the_key(start):
    server = start("--api-key", "k")
    with open(os.path.join(HERE, "..", "..", "apps", "serve", "routes.def"), encoding="utf-8") as text:
        routes = re.findall(r'^ROUTE\("(\S+)", "([A-Z]+)", \w+\)$', text.read(), re.M)
    assert len(routes) > 10
    for path, method in [*routes, ("/nowhere", "GET"), ("/status?x=/health", "GET"), ("/status/", "GET"), ("//", "GET"), ("/health/../status", "GET")]:
        is_open = path in ("/", "/health")     # the page asks for the key
        for header in (None, "", "k", "Bearer", "Bearer ", "Bearer x", "Bearer kk", "Bearer k k", "Basic k", "Bearerk"):
            status = server.request(method, path, b"{}" if method == "POST" else None, headers={} if header is None else {"Authorization": header})[0]
            assert status == (200 if is_open else 401), (path, header, status)
        for header in ("Bearer k", "bearer k", "BEARER k"):
            status = server.request(method, path, b"{}" if method == "POST" else None, headers={"Authorization": header})[0]
            assert status in ((200,) if (path, method) in routes and method == "GET" else (400, 404, 200)) and status != 401, (path, header, status)


# ---- streams -----------------------------------------------------------------------------------------------------------------


def test_streams_of_many_choices(server):
    """Choices of one stream are what they are whole, text and log-probabilities, whatever stops them: texts over tokens, within characters, what stands for no character."""
    for seed in range(6):
        ask = {"prompt": "It was", "max_tokens": 24, "ignore_eos": True, "n": 6, "seed": seed, "temperature": 1.4, "logprobs": 1}
        plain = [c["text"] for c in server.post(COMPLETIONS, ask)["choices"]]
        for stop in (["never"], [t[3:5] for t in plain], ["\ufffd"], ["\ufffd\ufffd", plain[0][2:3]], plain[:2], [plain[0] + "x"]):
            whole = server.post(COMPLETIONS, ask | {"stop": stop})["choices"]
            texts, tokens, values, reasons = [""] * 6, [[] for _ in range(6)], [[] for _ in range(6)], [None] * 6
            for event in events(server.post(COMPLETIONS, ask | {"stop": stop, "stream": True})):
                for c in event["choices"]:
                    assert reasons[c["index"]] is None
                    texts[c["index"]] += c["text"]
                    reasons[c["index"]] = c["finish_reason"]
                    tokens[c["index"]] += c["logprobs"]["tokens"] if c["logprobs"] else []
                    values[c["index"]] += c["logprobs"]["token_logprobs"] if c["logprobs"] else []
            for i, c in enumerate(whole):
                assert (texts[i], reasons[i], tokens[i], values[i]) == (c["text"], c["finish_reason"], c["logprobs"]["tokens"], c["logprobs"]["token_logprobs"]), (seed, stop, i)


# ---- prefixes -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["full", "window"])
def test_restores_of_what_is_being_evicted(start, tmp_path, model, model_window, kind):
    """Several restore the same beginnings while answers drive them out: every answer stays what it is alone, and every page is accounted for."""
    file = model if kind == "full" else model_window
    first = start(*DETERMINISTIC, "--slot-save-path", tmp_path, file=file)
    prompts = [[5 + (i * 3 + k) % 80 for k in range(300)] for i in range(2)]
    ask = {"max_tokens": 12, "ignore_eos": True, "logprobs": 1}
    expected = [first.complete(p, **ask)["choices"] for p in prompts]
    for i, p in enumerate(prompts):
        assert first.post("/prefix/save", {"filename": f"p{i}", "prompt": p})["n_saved"] == 256
    server = start(*DETERMINISTIC, "--slot-save-path", tmp_path, "--kv-cache-memory", "400K" if kind == "full" else "800K", file=file)
    problems, n_cached = [], []

    def work(seed):
        dice = random.Random(seed)
        for _ in range(25):
            k = dice.randrange(2)
            if dice.random() < 0.5:
                status, reply = server.request("POST", "/prefix/restore", {"filename": f"p{k}"})
                if status != 200 or reply["n_restored"] > 256:
                    problems.append(reply)
            else:
                reply = server.complete(prompts[k], **ask)
                n_cached.append(reply["usage"]["prompt_tokens_details"]["cached_tokens"])
                if reply["choices"] != expected[k]:
                    problems.append(reply["choices"])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == [] and max(n_cached) == 256
    m = wait_until_idle(server)
    assert all(sum(m[f'octavo:pages{{pool="{pool}",state="{state}"}}'] for state in ("free", "cached", "used")) == m[f'octavo:pages{{pool="{pool}",state="all"}}']
               for pool in ("full", "window") if f'octavo:pages{{pool="{pool}",state="all"}}' in m)


def test_files_of_others(start, tmp_path, model_window):
    """Pages of another format, mode or model are no pages here; what is no regular file is neither read nor written; a refusal does not tell where the directory is."""
    folder = tmp_path / "prefixes"
    folder.mkdir()
    server = start(*DETERMINISTIC, "--slot-save-path", folder)
    prompt = [5 + i % 80 for i in range(200)]
    server.complete(prompt)
    server.post("/prefix/save", {"filename": "own", "prompt": prompt})
    victim = tmp_path / "victim"
    victim.write_text("kept")
    os.symlink(victim, folder / "link")
    os.symlink(tmp_path / "nothing", folder / "dangling")
    os.mkfifo(folder / "fifo")
    (folder / "folder").mkdir()
    for name in ("link", "dangling", "fifo", "folder"):
        for path in ("/prefix/restore", "/prefix/save"):
            status, reply = server.request("POST", path, {"filename": name, "prompt": prompt})
            assert status == 400 and reply["error"]["code"] == "bad_file", (name, path, reply)
    assert victim.read_text() == "kept" and not (tmp_path / "nothing").exists() and (folder / "link").is_symlink()
    (folder / "empty").write_bytes(b"")
    assert server.request("POST", "/prefix/restore", {"filename": "empty"})[0] == 400
    for arguments, file in (((*DETERMINISTIC, "-ctk", "i8+rot"), None), ((*DETERMINISTIC, "-ctv", "e5m2"), None), ((), None), (("--deterministic", "--max-num-batched-tokens", 128), None), (DETERMINISTIC, model_window)):
        other = start(*arguments, "--slot-save-path", folder, **({"file": file} if file else {}))
        status, reply = other.request("POST", "/prefix/restore", {"filename": "own"})
        assert status == 400 and reply["error"]["code"] == "bad_file" and str(folder) not in reply["error"]["message"], (arguments, reply)
        assert "another model, cache format or mode" in reply["error"]["message"]


# ---- going down ---------------------------------------------------------------------------------------------------------------------


def test_going_down_beside_everything(start):
    """SIGTERM beside streams, a slow reader, half a body, long bodies and an idle connection: streams end whole, who is too late hears it, and the program ends well."""
    server = start("--drain-timeout", 1)
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    slow.connect(("127.0.0.1", server.port))
    slow.sendall(post_bytes(COMPLETIONS, json.dumps({"prompt": "a", "max_tokens": 300, "ignore_eos": True, "stream": True, "logprobs": 20, "n": 4}).encode()))
    streams = [raw(server, post_bytes(COMPLETIONS, json.dumps({"prompt": "b", "max_tokens": 100, "ignore_eos": True, "stream": True}).encode(), "Connection: close\r\n")) for _ in range(3)]
    half = raw(server, post_bytes(COMPLETIONS, b" " * 1000)[:500])
    idle = raw(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert idle.recv(1000).startswith(b"HTTP/1.1 200")
    begun = [s.recv(20) for s in streams]
    long = [raw(server, post_bytes("/tokenize", json.dumps({"prompt": "the quick " * 100_000}).encode(), "Connection: close\r\n")) for _ in range(3)]
    server.process.send_signal(signal.SIGTERM)
    assert all(b"data: [DONE]" in read_all(s) or not b for s, b in zip(streams, begun))
    statuses = {first_line(s)[:12] for s in long}
    assert statuses <= {b"HTTP/1.1 200", b"HTTP/1.1 503", b""}, statuses
    assert server.stop(told=True) == 0
    for s in (slow, half, idle):
        s.close()
