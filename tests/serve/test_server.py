"""`octavo serve` from outside, on a tiny random model, over plain sockets."""
import json
import random
import signal
import socket
import struct
import subprocess
import threading
import time

import pytest

from conftest import cpu_seconds

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def raw(server, data, timeout=120):
    s = socket.create_connection(("127.0.0.1", server.port), timeout=timeout)
    s.sendall(data)
    return s


def post_bytes(path, body, more=""):
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body


def read_all(s):
    data = b""
    while True:
        try:
            piece = s.recv(65536)
        except ConnectionResetError:
            break
        if not piece:
            break
        data += piece
    s.close()
    return data


def events(text):
    """The events of a stream, [DONE] checked and left out."""
    lines = [line[len("data: "):] for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def wait_until_idle(server):
    end = time.monotonic() + 120     # far longer than it takes
    while time.monotonic() < end:
        m = server.metrics()
        if m["octavo:num_requests_running"] + m["octavo:num_requests_waiting"] == 0:
            break
        time.sleep(0.02)
    pages = {key.split('"')[3]: value for key, value in m.items() if key.startswith('octavo:pages{pool="full"')}
    assert pages["used"] == 0 and pages["free"] + pages["cached"] == pages["all"], m
    return m


# ---- shapes ------------------------------------------------------------------------------------------------------


def test_routes(server):
    assert server.request("GET", "/health") == (200, {"status": "ok"})
    listed = server.request("GET", "/v1/models")[1]
    assert listed["object"] == "list" and listed["data"][0]["object"] == "model"
    tokens = server.post("/tokenize", {"prompt": "Grüße, 東京"})
    assert tokens["count"] == len(tokens["tokens"]) and tokens["max_model_len"] == 512
    assert server.post("/detokenize", {"tokens": tokens["tokens"]})["prompt"].endswith("Grüße, 東京")
    explained = server.request("GET", "/explain")[1]
    assert explained["full"]["operations"] and explained["window"] is None
    assert server.request("GET", "/nowhere")[0] == 404
    assert server.request("GET", CHAT)[0] == 405


def test_whole_and_streamed_are_equal(server):
    for path, body in ((COMPLETIONS, {"prompt": "It was the first"}), (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]})):
        for more in ({"temperature": 0}, {"temperature": 1.0, "seed": 5, "top_p": 0.9}):
            ask = body | more | {"max_tokens": 12, "ignore_eos": True}
            whole = server.post(path, ask)
            choice = whole["choices"][0]
            text = choice["text"] if path == COMPLETIONS else choice["message"]["content"]
            assert choice["finish_reason"] == "length" and whole["usage"]["completion_tokens"] == 12
            stream = events(server.post(path, ask | {"stream": True, "stream_options": {"include_usage": True}}))
            assert stream[-1]["choices"] == []
            assert stream[-1]["usage"] | {"prompt_tokens_details": 0} == whole["usage"] | {"prompt_tokens_details": 0}
            pieces = [e["choices"][0] for e in stream[:-1]]
            assert "".join(p["text"] if path == COMPLETIONS else p["delta"].get("content", "") for p in pieces) == text
            assert [p["finish_reason"] for p in pieces][-1] == "length" and all(p["finish_reason"] is None for p in pieces[:-1])


def test_choices_stop_and_logprobs(server):
    reply = server.complete("abc", n=3, temperature=1.0, seed=1, max_tokens=10, ignore_eos=True)
    assert [c["index"] for c in reply["choices"]] == [0, 1, 2] and len({c["text"] for c in reply["choices"]}) > 1
    assert reply["usage"]["completion_tokens"] == 30
    for k in range(3):     # choice k is what seed + k gives
        assert server.complete("abc", temperature=1.0, seed=1 + k, max_tokens=10, ignore_eos=True)["choices"][0]["text"] == reply["choices"][k]["text"]
    whole = server.complete("xyz", max_tokens=24, ignore_eos=True)["choices"][0]["text"]
    assert len(whole) > 6
    stop = whole[3:5]
    cut = server.complete("xyz", max_tokens=24, ignore_eos=True, stop=["never seen", stop])["choices"][0]
    assert cut["finish_reason"] == "stop" and cut["text"] == whole[: whole.index(stop)]
    streamed = events(server.post(COMPLETIONS, {"prompt": "xyz", "temperature": 0, "max_tokens": 24, "ignore_eos": True, "stop": stop, "stream": True}))
    assert "".join(e["choices"][0]["text"] for e in streamed) == cut["text"]
    scored = server.complete("xyz", max_tokens=5, ignore_eos=True, logprobs=3)["choices"][0]["logprobs"]
    assert len(scored["tokens"]) == len(scored["token_logprobs"]) == len(scored["text_offset"]) == 5
    # Offsets count characters, whole and streamed.
    wide = {str(t): 100 for t in server.post("/tokenize", {"prompt": "東", "add_special_tokens": False})["tokens"]}
    ask = {"prompt": "xyz", "temperature": 1.0, "seed": 1, "max_tokens": 60, "ignore_eos": True, "logprobs": 0, "logit_bias": wide}
    whole = server.post(COMPLETIONS, ask)["choices"][0]
    offsets = whole["logprobs"]["text_offset"]
    assert offsets == sorted(offsets) and offsets[-1] <= len(whole["text"]) < len(whole["text"].encode()) and len(offsets) == 60
    assert offsets[-1] >= len(whole["text"]) - 4
    pieces = [e["choices"][0]["logprobs"] for e in events(server.post(COMPLETIONS, ask | {"stream": True}))]
    assert sum((p["text_offset"] for p in pieces if p), []) == offsets
    for value, top in zip(scored["token_logprobs"], scored["top_logprobs"]):
        assert value <= 0 and value == max(top.values())     # greedy: the likeliest
    chat = server.post(CHAT, {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4, "logprobs": True, "top_logprobs": 2, "temperature": 0, "ignore_eos": True})
    content = chat["choices"][0]["logprobs"]["content"]
    assert len(content) == 4 and all(c["top_logprobs"][0]["token"] == c["token"] and c["top_logprobs"][0]["logprob"] >= c["top_logprobs"][1]["logprob"] for c in content)


def test_latencies(start):
    server = start()
    for _ in range(3):
        server.complete("time", max_tokens=5, ignore_eos=True)
    m = server.metrics()
    n_prompt = server.post("/tokenize", {"prompt": "time"})["count"]
    assert m["octavo:prompt_tokens_total"] == m["octavo:request_prompt_tokens_sum"] == 3 * n_prompt and m["octavo:generation_tokens_total"] == m["octavo:request_generation_tokens_sum"] == 15
    for name, count in (("request_prompt_tokens", 3), ("request_generation_tokens", 3)):
        assert m[f"octavo:{name}_count"] == m[f'octavo:{name}_bucket{{le="{5}"}}'] == m[f'octavo:{name}_bucket{{le="+Inf"}}'] == count and m[f'octavo:{name}_bucket{{le="2"}}'] == 0
    for name, count in (("time_to_first_token_seconds", 3), ("inter_token_latency_seconds", 12), ("e2e_request_latency_seconds", 3)):
        buckets = [value for key, value in m.items() if key.startswith(f"octavo:{name}_bucket")]
        assert len(buckets) == 16 and buckets == sorted(buckets) and buckets[-1] == m[f"octavo:{name}_count"] == count
        assert 0 < m[f"octavo:{name}_sum"] < 60
    assert m["octavo:time_to_first_token_seconds_sum"] < m["octavo:e2e_request_latency_seconds_sum"]


def test_bias_and_penalties(server):
    plain = server.complete("bias", max_tokens=12, ignore_eos=True, logprobs=0)["choices"][0]
    allowed = server.post("/tokenize", {"prompt": "Q", "add_special_tokens": False})["tokens"]
    assert server.complete("bias", max_tokens=6, ignore_eos=True, logit_bias={str(allowed[-1]): 100})["choices"][0]["text"].strip() == "QQQQQQ"
    # Two tokens far above all others take turns where each choice costs more than what lies between them.
    pair = {str(server.post("/tokenize", {"prompt": c, "add_special_tokens": False})["tokens"][-1]): 100 for c in "QZ"}
    many = server.complete("bias", max_tokens=60, ignore_eos=True, logit_bias=pair, frequency_penalty=2)["choices"][0]["text"]
    assert set(many) == {"Q", "Z"} and abs(many.count("Q") - many.count("Z")) < 10
    assert server.complete("bias", max_tokens=12, ignore_eos=True, logprobs=0)["choices"][0] == plain


def test_json_object(server):
    """A random model, held to JSON: what it ends by itself is an object, what is cut off is the beginning of one."""
    ended = 0
    for seed in range(12):
        choice = server.post(CHAT, {"messages": [{"role": "user", "content": "JSON"}], "response_format": {"type": "json_object"}, "seed": seed, "temperature": 1.0,
                                    "max_tokens": 300, "logit_bias": {str(server.post("/tokenize", {"prompt": c, "add_special_tokens": False})["tokens"][-1]): 3 for c in '"}'}})["choices"][0]
        text = choice["message"]["content"]
        assert text.startswith("{")
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(text), dict)
            ended += 1
    assert ended > 3


def test_cached_tokens(start):
    server = start()
    prompt = [5 + i % 90 for i in range(200)]
    first, second = server.complete(prompt), server.complete(prompt + [7, 8])
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 200
    off = start("--no-prefix-cache")
    assert [off.complete(prompt)["usage"]["prompt_tokens_details"]["cached_tokens"] for _ in range(2)] == [0, 0]


def test_speculation(start):
    """Guesses from the text change no answer, greedy or drawn, and are counted; a request may do without."""
    config = json.dumps({"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 3, "prompt_lookup_min": 1})
    arguments = ("--deterministic", "--max-num-batched-tokens", 64)
    plain, guessing = start(*arguments), start(*arguments, "--speculative-config", config)
    few = {str(b): 60 for b in (70, 71, 72)}     # few words repeat themselves
    asked = [{"prompt": [70, 71, 72, 70] * 9, "max_tokens": 60, "ignore_eos": True, "logit_bias": few, "logprobs": 2} | more
             for more in ({"temperature": 0}, {"temperature": 1.0, "seed": 3}, {"temperature": 0, "stop": ["never"], "n": 2}, {"temperature": 0, "presence_penalty": 1.0})]
    for ask in asked:
        without, reply = plain.post(COMPLETIONS, ask), guessing.post(COMPLETIONS, ask)
        assert reply["choices"] == without["choices"] and "completion_tokens_details" not in without["usage"]
        details = reply["usage"]["completion_tokens_details"]
        assert details["accepted_prediction_tokens"] > 0, ask
    m = guessing.metrics()
    accepted = [m[f'octavo:spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}}'] for i in range(5)]
    assert sum(accepted) == m["octavo:spec_decode_num_accepted_tokens_total"] < m["octavo:spec_decode_num_draft_tokens_total"]
    # Tokens that came together share their step's time; each but an answer's first is counted.
    assert m["octavo:inter_token_latency_seconds_count"] == m["octavo:generation_tokens_total"] - 5
    assert accepted == sorted(accepted, reverse=True) and accepted[0] <= m["octavo:spec_decode_num_drafts_total"]
    off = guessing.post(COMPLETIONS, asked[0] | {"num_speculative_tokens": 0})
    assert off["usage"]["completion_tokens_details"] == {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}
    one = guessing.post(COMPLETIONS, asked[0] | {"num_speculative_tokens": 1})
    assert one["choices"] == off["choices"] and one["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] > 0
    assert guessing.metrics()['octavo:spec_decode_num_accepted_tokens_per_pos_total{position="1"}'] == accepted[1]
    assert not any("spec_decode" in key for key in plain.metrics())


def test_wrong_speculation(request, model):
    for config in ("", "[]", "{}", '{"method": "eagle", "num_speculative_tokens": 3}', '{"num_speculative_tokens": 16}', '{"num_speculative_tokens": 3, "prompt_lookup_min": 5}',
                   '{"num_speculative_tokens": 3, "surprise": 1}', '{"num_speculative_tokens": "3"}', '{"method": 5, "num_speculative_tokens": 3}', '{"method": null, "num_speculative_tokens": 3}',
                   '{"num_speculative_tokens": 3, "prompt_lookup_max": 0}', '{"num_speculative_tokens": 3, "prompt_lookup_max": 1, "prompt_lookup_min": 2}'):
        done = subprocess.run([request.config.getoption("--octavo"), "serve", "-m", model, "--port", "0", "--speculative-config", config], capture_output=True, timeout=60)
        assert done.returncode == 2 and b"--speculative-config" in done.stderr, (config, done.stderr)


def test_shortest_lookup(start):
    """The least match left out is 2, or the most where that is less."""
    server = start("--speculative-config", '{"num_speculative_tokens": 3, "prompt_lookup_max": 1}')
    assert server.complete([70, 71, 72, 70] * 9, max_tokens=20, ignore_eos=True, logit_bias={"70": 60, "71": 60})["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] > 0


# ---- what is refused ------------------------------------------------------------------------------------------------


WRONG = [
    (COMPLETIONS, b"", 400), (COMPLETIONS, b"{", 400), (COMPLETIONS, b"[]", 400), (COMPLETIONS, b"nul", 400), (COMPLETIONS, b"{}", 400), (COMPLETIONS, b'{"prompt": 5}', 400),
    (COMPLETIONS, b'{"prompt": "a", "prompt": "b"}', 400), (COMPLETIONS, b'{"prompt": "a\xff\xfe"}', 400), (COMPLETIONS, b'{"prompt": "\\ud800"}', 400),
    (COMPLETIONS, b'{"prompt": "\xc0\xaf"}', 400), (COMPLETIONS, b'{"prompt": []}', 400), (COMPLETIONS, b'{"prompt": [-1]}', 400), (COMPLETIONS, b'{"prompt": [1e9]}', 400),
    (COMPLETIONS, b'{"prompt": [99999999]}', 400), (COMPLETIONS, b'{"prompt": "a", "max_tokens": 0}', 400), (COMPLETIONS, b'{"prompt": "a", "max_tokens": 1.5}', 400),
    (COMPLETIONS, b'{"prompt": "a", "temperature": -1}', 400), (COMPLETIONS, b'{"prompt": "a", "temperature": "hot"}', 400), (COMPLETIONS, b'{"prompt": "a", "top_p": 2}', 400),
    (COMPLETIONS, b'{"prompt": "a", "n": 0}', 400), (COMPLETIONS, b'{"prompt": "a", "n": 1000}', 400), (COMPLETIONS, b'{"prompt": "a", "stop": [1]}', 400),
    (COMPLETIONS, b'{"prompt": "a", "stop": ""}', 400), (COMPLETIONS, b'{"prompt": "a", "stream": "yes"}', 400), (COMPLETIONS, b'{"prompt": "a", "seed": -4}', 400),
    (COMPLETIONS, b'{"prompt": "a", "logprobs": 21}', 400), (COMPLETIONS, b'{"prompt": "a", "model": "other"}', 404), (COMPLETIONS, b'{"prompt": "a", "model": 3}', 400),
    (COMPLETIONS, b'{"prompt": "a", "logit_bias": {"x": 2}}', 400), (COMPLETIONS, b'{"prompt": "a", "presence_penalty": 3}', 400),
    (COMPLETIONS, b'{"prompt": "a", "logit_bias": {"999999": 2}}', 400), (COMPLETIONS, b'{"prompt": "a", "logit_bias": [1]}', 400), (COMPLETIONS, b'{"prompt": "a", "suffix": "b"}', 400),
    (COMPLETIONS, b'{"prompt": "a", "ignore_eos": true, "response_format": {"type": "json_object"}}', 400), (COMPLETIONS, b'{"prompt": "a", "user": 1}', 400),
    (COMPLETIONS, b'{"prompt": "a", "priority": 100000}', 400), (COMPLETIONS, b"[" * 100_000, 400), (COMPLETIONS, b"{:", 400), (COMPLETIONS, b'{"prompt": "a", "stream_options": 1}', 400),
    (CHAT, b"{}", 400), (CHAT, b'{"messages": null}', 400), (CHAT, b'{"messages": [{}]}', 400), (CHAT, b'{"messages": []}', 400), (CHAT, b'{"messages": "hi"}', 400), (CHAT, b'{"messages": [5]}', 400), (CHAT, b'{"messages": [{"role": "user"}]}', 400),
    (CHAT, b'{"messages": [{"role": 1, "content": "a"}]}', 400), (CHAT, b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', 400),
    (CHAT, b'{"messages": [{"role": "user", "content": "a"}], "tools": [{}]}', 400), (CHAT, b'{"messages": [{"role": "user", "content": "a"}], "top_logprobs": 2}', 400),
    (CHAT, b'{"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json_schema"}}', 400), ("/tokenize", b'{"prompt": 1}', 400),
    ("/detokenize", b'{"tokens": [-1]}', 400), ("/detokenize", b'{"tokens": "a"}', 400), ("/detokenize", b"\xff", 400),
]


UNBUILT = [("repetition_penalty", 1.1, 1), ("repetition_penalty", "x", 1.0), ("min_tokens", 5, 0), ("stop_token_ids", [5], []), ("structured_outputs", {"regex": "a"}, {}), ("grammar", "root ::= x", ""),
           ("json_schema", {"type": "object"}, None), ("guided_json", {"type": "object", "not": {}}, None), ("guided_regex", "a", ""), ("guided_grammar", "x", ""),
           ("include_stop_str_in_output", True, False), ("prompt_logprobs", 0, None), ("truncate_prompt_tokens", 5, None), ("chat_template", "x", ""), ("tool_choice", "required", "auto"),
           ("tool_choice", {"type": "function"}, "none"), ("function_call", {"name": "f"}, "none"), ("continue_final_message", True, False)]


def test_unbuilt_fields(server):
    """What would change an answer is refused by name; what says that nothing is to change is not."""
    for path, ask in ((COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": [{"role": "user", "content": "a"}]})):
        for name, value, neutral in UNBUILT:
            status, reply = server.request("POST", path, {"max_tokens": 1} | ask | {name: value})
            assert status == 400 and (reply["error"]["param"], reply["error"]["code"]) == (name, "unsupported"), (name, value, reply)
            assert server.request("POST", path, {"max_tokens": 1} | ask | {name: neutral})[0] == 200, (name, neutral)


def test_wrong_bodies(server):
    for path, body, expected in WRONG:
        status, reply = server.request("POST", path, body)
        assert status == expected, (body, status, reply)
        assert set(reply) == {"error"} and set(reply["error"]) == {"message", "type", "param", "code"}, (body, reply)
        assert reply["error"]["type"] == "invalid_request_error" and reply["error"]["message"]
    wait_until_idle(server)


def test_words_that_are_no_utf8(server):
    """An error always has a body, whatever it quotes and wherever it cuts it off."""
    for line in (b"GET /%ff HTTP/1.1", b"GET /" + b"%c3%a9" * 80 + b" HTTP/1.1"):
        head, _, body = read_all(raw(server, line + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n")).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 404") and json.loads(body.decode("utf-8"))["error"]["message"]
    for k in range(3):
        status, reply = server.request("POST", COMPLETIONS, {"prompt": "a", "model": "a" * k + "é" * 200})
        assert status == 404 and "é" in reply["error"]["message"]


def test_values_at_the_edge(server):
    """libllama takes one seed for none, and divides by the temperature."""
    seeds = [server.complete("It was", temperature=1.5, seed=4294967295, ignore_eos=True)["choices"][0]["text"] for _ in range(3)]
    assert len(set(seeds)) == 1
    assert server.complete("It was", temperature=1e-38)["choices"] == server.complete("It was", temperature=0)["choices"]


def test_no_body_holds_the_others_up(server):
    """Texts of special tokens alone, and as many biases as there are tokens: refused or done, with the work of any other request."""
    begin = cpu_seconds(server.process.pid)
    status, reply = server.request("POST", CHAT, {"messages": [{"role": "user", "content": "<|im_end|>" * 100_000}]})
    assert status == 400 and "special" in reply["error"]["message"], reply
    assert server.request("POST", "/tokenize", {"prompt": "<|im_end|>" * 100_000})[0] == 400
    n_vocab = max(server.post("/tokenize", {"prompt": "a"})["tokens"]) + 1
    server.complete("a", max_tokens=1, ignore_eos=True, logit_bias={str(i): 0.5 for i in range(n_vocab)})
    assert cpu_seconds(server.process.pid) - begin < 10     # minutes, were they looked for


def test_too_long(start, server):
    status, reply = server.request("POST", COMPLETIONS, {"prompt": [5] * 500, "max_tokens": 13})
    assert status == 400 and reply["error"]["code"] == "context_length_exceeded"
    assert "500" in reply["error"]["message"] and "513" in reply["error"]["message"] and "512" in reply["error"]["message"]
    status, reply = server.request("POST", COMPLETIONS, {"prompt": [5] * 512})
    assert status == 400 and "512" in reply["error"]["message"]
    # The first that is too long ends it: the one behind it, wrong in another way, is not looked at.
    status, reply = server.request("POST", COMPLETIONS, {"prompt": ["a", [5] * 512, [-1]]})
    assert status == 400 and reply["error"]["code"] == "context_length_exceeded", reply
    small = start("--max-body", "2K", "--max-open", 2)
    assert small.request("POST", COMPLETIONS, b" " * 3000)[0] == 413
    s = raw(small, b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + (b"400\r\n" + b" " * 1024 + b"\r\n") * 4 + b"0\r\n\r\n")
    assert b" 413 " in read_all(s).split(b"\r\n")[0]
    assert small.request("POST", COMPLETIONS, {"prompt": "a", "n": 32, "max_tokens": 400, "ignore_eos": True})[0] == 429     # the first two are given up again
    wait_until_idle(small)
    assert small.complete("a")["choices"]


def test_key(start):
    server = start("--api-key", "s3cret")
    assert server.request("GET", "/health")[0] == 200
    for headers in ({}, {"Authorization": "Bearer wrong!"}, {"Authorization": "Bearer s3cre"}, {"Authorization": "s3cret"}):
        assert server.request("POST", COMPLETIONS, {"prompt": "a"}, headers=headers)[0] == 401
        assert server.request("GET", "/metrics", headers=headers)[0] == 401
    assert server.request("GET", "/v1/models", headers={"Authorization": "Bearer s3cret"})[0] == 200


# ---- together ----------------------------------------------------------------------------------------------------------


def asks(count, seed):
    generator = random.Random(seed)
    beginnings = [[generator.randrange(3, 90) for _ in range(180)] for _ in range(3)]
    return [{"prompt": beginnings[i % 3][: generator.randrange(1, 180)] + [generator.randrange(3, 90) for _ in range(generator.randrange(1, 60))], "logprobs": 2,
             "max_tokens": generator.randrange(1, 60), "seed": i, "temperature": generator.choice([0, 0.7, 1.5]), "ignore_eos": generator.random() < 0.5, "user": f"user {i % 4}",
             "priority": generator.randrange(-1, 2)} for i in range(count)]


@pytest.mark.parametrize("kind", ["full", "window"])
def test_each_answer_equals_its_solo_run(start, model, model_window, kind):
    file = model if kind == "full" else model_window
    arguments = ("--deterministic", "--max-num-batched-tokens", 64, "-ctk", "i8+rot", "-ctv", "e4m3", "--max-num-seqs", 6)
    alone, together = start(*arguments, "--no-prefix-cache", file=file), start(*arguments, "--kv-cache-memory", "256K" if kind == "full" else "384K", "--swap-space", "0" if kind == "full" else "1M", file=file)
    work = asks(28, 11)
    expected = [alone.post(COMPLETIONS, ask)["choices"] for ask in work]
    replies = [None] * len(work)

    def run(i):
        replies[i] = together.post(COMPLETIONS, work[i])["choices"]

    for _ in range(2):     # the second time over a cache that is full
        threads = [threading.Thread(target=run, args=(i,)) for i in range(len(work))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for i, reply in enumerate(replies):
            assert reply == expected[i], (i, work[i])
    m = wait_until_idle(together)
    assert m["octavo:prefix_cache_hits_total"] > 0
    assert m["octavo:num_preemptions_total"] > 0 and (m["octavo:swapped_out_total"] > 0) == (kind == "window")


def test_aborts(start):
    """Clients that go away at any moment, politely or not: their pages come back and the others' answers are right."""
    server = start("--deterministic", "--max-num-batched-tokens", 64)
    generator = random.Random(3)
    expected = server.complete("steady", max_tokens=40, ignore_eos=True)["choices"]
    for i in range(40):
        body = json.dumps({"prompt": [generator.randrange(3, 90) for _ in range(100)], "max_tokens": 300, "stream": i % 3 != 0, "ignore_eos": True}).encode()
        data = post_bytes(COMPLETIONS, body)
        s = raw(server, data[: generator.choice([len(data), len(data), len(data) // 2])])
        if generator.random() < 0.5:
            time.sleep(generator.random() * 0.02)
            s.setblocking(False)
            try:
                s.recv(100)
            except BlockingIOError:
                pass
        if generator.random() < 0.5:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))     # a reset
        s.close()
        if i % 8 == 0:
            assert server.complete("steady", max_tokens=40, ignore_eos=True)["choices"] == expected
    m = wait_until_idle(server)
    assert m['octavo:request_success_total{finished_reason="abort"}'] > 0
    assert server.complete("steady", max_tokens=40, ignore_eos=True)["choices"] == expected


def test_slow_reader(start):
    """A stream that nobody reads holds up nobody, and is whole when it is read at last."""
    server = start()
    body = json.dumps({"prompt": "slow", "temperature": 0, "max_tokens": 400, "ignore_eos": True, "stream": True, "logprobs": 20}).encode()
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    s.settimeout(120)
    s.connect(("127.0.0.1", server.port))
    s.sendall(post_bytes(COMPLETIONS, body, "Connection: close\r\n"))
    for _ in range(3):
        assert server.complete("quick")["choices"]
    assert b"data: [DONE]" in read_all(s)
    wait_until_idle(server)


# ---- abuse ------------------------------------------------------------------------------------------------------------------


def test_headers(start):
    server = start("--request-timeout", 1)
    flood = raw(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
    try:
        for i in range(2000):
            flood.sendall(b"X-Flood-%d: " % i + b"y" * 100 + b"\r\n")
        flood.sendall(b"\r\n")
    except (BrokenPipeError, ConnectionResetError):
        pass
    assert b" 200 " not in read_all(flood)[:20]
    for junk in (b"\0\0\0\0\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00", b"GET /health HTTP/9.9\r\n\r\n",
                 b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n", b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"):
        s = raw(server, junk)
        assert b" 200 " not in read_all(s)[:20]
    # A byte of a header now and then is no request: it is closed all the same.
    slow = raw(server, b"GET /health HTTP/1.1\r\n")
    begin = time.monotonic()
    closed = False
    while not closed and time.monotonic() - begin < 120:     # each byte is sooner than the second that an idle one would have
        try:
            slow.sendall(b"X")
            slow.settimeout(0.1)
            closed = slow.recv(100) == b""
        except TimeoutError:
            pass
        except (BrokenPipeError, ConnectionResetError):
            closed = True
    assert closed
    assert server.request("GET", "/health")[0] == 200


def test_idle_connections(start, memory_counts):
    """A thousand of them may cost 100 MB: four hundred cost less than 40."""
    server = start()
    assert server.complete("a")["choices"]
    before = server.rss_bytes()
    idle = [raw(server, b"") for _ in range(400)]
    assert server.complete("b")["choices"]
    assert server.rss_bytes() - before < 40e6
    for s in idle:
        s.close()


def test_drain(start):
    """SIGTERM: what is being answered is answered, nobody else gets in, the program ends well."""
    server = start()
    body = json.dumps({"prompt": "last words", "temperature": 0, "max_tokens": 450, "ignore_eos": True, "stream": True}).encode()
    s = raw(server, post_bytes(COMPLETIONS, body, "Connection: close\r\n"))
    first = s.recv(10)
    server.process.send_signal(signal.SIGTERM)
    data = first + read_all(s)
    # A stream that is cut off ends with [DONE], too.
    assert b"data: [DONE]" in data and b'"error"' not in data and b'"finish_reason":"length"' in data
    assert server.stop(told=True) == 0
    with pytest.raises(ConnectionRefusedError):
        raw(server, b"")


def test_drain_answers_what_came_whole(start):
    """A long body that has come whole before SIGTERM, and waits to be read behind another one, is answered."""
    server = start("--drain-timeout", 60)
    own = server.metrics()["octavo:http_requests_total"]     # this one
    # Ahead of it so many long texts that they last beyond the signal.
    bodies = [("/tokenize", {"prompt": "the quick " * 120_000})] * 5 + [(COMPLETIONS, {"prompt": "a", "max_tokens": 2, "ignore_eos": True, "user": "u" * 20_000})]
    waiting = [raw(server, post_bytes(path, json.dumps(body).encode(), "Connection: close\r\n"), timeout=120) for path, body in bodies]
    end = time.monotonic() + 60
    while server.metrics()["octavo:http_requests_total"] - (own := own + 1) < 6:
        assert time.monotonic() < end
    server.process.send_signal(signal.SIGTERM)
    assert [read_all(s).split(b"\r\n")[0] for s in waiting] == [b"HTTP/1.1 200 OK"] * 6
    assert server.stop(told=True) == 0


def test_drain_is_bounded(start):
    """What takes too long is told so and ended."""
    server = start("--drain-timeout", 0)
    body = json.dumps({"prompt": [5] * 20, "temperature": 0, "max_tokens": 480, "ignore_eos": True, "n": 16}).encode()
    s = raw(server, post_bytes(COMPLETIONS, body, "Connection: close\r\n"))
    while server.metrics()["octavo:num_requests_running"] == 0:
        pass
    server.process.send_signal(signal.SIGTERM)
    reply = read_all(s)
    assert server.stop(told=True) == 0
    assert b" 503 " in reply.split(b"\r\n")[0] and b"stopping" in reply


def test_cache_file(start, model, request, tmp_path):
    """What one run has computed the next one finds; a killed run leaves the file as it was; a damaged file is refused."""
    path = tmp_path / "pages"
    arguments = ("--deterministic", "--max-num-batched-tokens", 64, "-ctk", "i8+rot", "--cache-file", path)
    prompt = [5 + i % 90 for i in range(200)]
    first = start(*arguments)
    expected = first.complete(prompt, logprobs=1)
    first.process.send_signal(signal.SIGTERM)
    assert first.stop(told=True) == 0
    assert path.stat().st_mode & 0o077 == 0     # it has everybody's prompts in it
    kept = path.read_bytes()
    second = start(*arguments)
    found = second.complete(prompt, logprobs=1)
    assert found["choices"] == expected["choices"] and found["usage"]["prompt_tokens_details"]["cached_tokens"] == 192
    second.complete([9] * 100)
    second.process.kill()
    second.process.wait()
    assert path.read_bytes() == kept and list(tmp_path.iterdir()) == [path]
    octavo = request.config.getoption("--octavo")
    for wrong in (kept[:-1], kept[:5000] + b"!" + kept[5001:], b"", b"OCTPAGE2" + kept[8:]):
        path.write_bytes(wrong)
        done = subprocess.run([octavo, "serve", "-m", model, "--port", "0", "-t", "1", "--kv-cache-memory", "1M", *map(str, arguments)], capture_output=True, timeout=60)
        assert done.returncode == 1 and str(path).encode()[-20:] in done.stderr, done.stderr
        assert path.read_bytes() == wrong
    # One that is there and can't be read is no absent one. (A folder, since root reads every file.)
    path.unlink()
    path.mkdir()
    done = subprocess.run([octavo, "serve", "-m", model, "--port", "0", "-t", "1", "--kv-cache-memory", "1M", *map(str, arguments)], capture_output=True, timeout=60)
    assert done.returncode == 1 and path.is_dir(), done.stderr


def test_guesses_cost_no_pages(start, model_window):
    """Deterministic, each guess is a part of a step by itself; the pools, of windows too, are those of a server that guesses nothing."""
    pools = []
    for more in ([], ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 15}']):
        server = start("--deterministic", "--kv-cache-memory", "16M", *more, file=model_window)
        m = server.metrics()
        pools.append([m[f'octavo:pages{{pool="{pool}",state="all"}}'] for pool in ("full", "window")])
        assert server.complete("abcabcabcabc", max_tokens=40, ignore_eos=True)["usage"]["completion_tokens"] == 40
    assert pools[0] == pools[1] and min(pools[0]) > 0
