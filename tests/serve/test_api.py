"""The description of the API, lists of prompts, and prefixes in files."""
import http.client
import json
import os
import random
import re
import signal
import subprocess
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SERVE = os.path.join(HERE, "..", "..", "apps", "serve")
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def test_description(server):
    """Every route is described and every description is a route; the served one has this model's numbers."""
    with open(os.path.join(SERVE, "routes.def"), encoding="utf-8") as text:
        routes = {(path, method) for path, method in re.findall(r'^ROUTE\("(\S+)", "([A-Z]+)", \w+\)$', text.read(), re.M)}
    with open(os.path.join(SERVE, "openapi.json"), encoding="utf-8") as text:
        kept = json.load(text)
    assert len(routes) > 10 and routes == {(path, method.upper()) for path, operations in kept["paths"].items() for method in operations}
    status, served = server.request("GET", "/openapi.json")
    assert status == 200 and served["paths"] == kept["paths"] and served["info"]["version"] != kept["info"]["version"]
    for path, method in routes:
        status = server.request(method, path, b"{}" if method == "POST" else None)[0]
        assert status == (200 if method == "GET" else 400), (path, status)
        other = "POST" if method == "GET" else "GET"
        assert server.request(other, path)[0] == 405
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    for method, status, allow in (("HEAD", 200, None), ("PUT", 405, "GET, HEAD")):
        connection.request(method, "/v1/models")
        response = connection.getresponse()
        assert response.status == status and response.getheader("Allow") == allow and (len(response.read()) > 0) == (method == "PUT")
    connection.close()
    # The highest token of the description is taken, the next one is not.
    most = served["components"]["schemas"]["Token"]["maximum"]
    assert server.complete([5, most], max_tokens=1)["choices"]
    assert server.request("POST", COMPLETIONS, {"prompt": [5, most + 1]})[0] == 400


def test_bounds_of_the_description(server):
    """Of each field of the completions, described bounds are taken and what lies next to them is not, nor is another type."""
    schemas = server.request("GET", "/openapi.json")[1]["components"]["schemas"]
    n_bounds = 0
    for path, name, ask in ((COMPLETIONS, "CompletionRequest", {"prompt": "a"}), (CHAT, "ChatRequest", {"messages": [{"role": "user", "content": "a"}]})):
        for field, p in schemas[name]["properties"].items():
            kinds = p.get("type", [])
            fine, wrong = [], []
            if "integer" in kinds or "number" in kinds:
                fine = [p["minimum"], p["maximum"], None]
                wrong = [p["minimum"] - 1, p["maximum"] + 1, "1", [], {}, True] + ([p["minimum"] + 0.5] if "integer" in kinds else [])
                n_bounds += 2
            elif "boolean" in kinds:
                fine, wrong = [True, False, None], [0, 1, "true", []]
            elif "string" in kinds:
                fine, wrong = [None], [5, [], {}, True]
            elif "object" in kinds:
                fine, wrong = [None, {}], [5, "a", [], True]
            elif "enum" in p:
                fine, wrong = p["enum"], [True, 2, "a"]
            for value in fine:
                status, reply = server.request("POST", path, {"max_tokens": 1} | ask | {field: value})
                excused = status == 400 and (field == "top_logprobs" or reply["error"]["message"].endswith("the context holds 512"))
                assert status == 200 or excused, (path, field, value, reply)
            for value in wrong:
                status, reply = server.request("POST", path, {"max_tokens": 1} | ask | {field: value})
                assert status == 400 and reply["error"]["param"] in (field, None), (path, field, value, reply)
    assert n_bounds > 40


def test_lists_of_prompts(server):
    """Each prompt of a list has what it has alone: texts and tokens, choices, streams, and a usage that adds up."""
    texts = ["one", "another one", "a third prompt of more tokens"]
    tokens = [server.post("/tokenize", {"prompt": t})["tokens"] for t in texts]
    alone = [server.complete(t, max_tokens=6, ignore_eos=True, logprobs=1) for t in texts]
    for prompts in (texts, tokens, [texts[0], tokens[1], texts[2]]):
        together = server.complete(prompts, max_tokens=6, ignore_eos=True, logprobs=1)
        assert [c["index"] for c in together["choices"]] == [0, 1, 2]
        assert [(c["text"], c["logprobs"]) for c in together["choices"]] == [(a["choices"][0]["text"], a["choices"][0]["logprobs"]) for a in alone]
        assert together["usage"]["prompt_tokens"] == sum(a["usage"]["prompt_tokens"] for a in alone) and together["usage"]["completion_tokens"] == 18
    several = server.complete(texts, n=2, temperature=1.0, seed=7, max_tokens=5, ignore_eos=True)
    for p, text in enumerate(texts):
        for k in range(2):
            assert several["choices"][2 * p + k]["text"] == server.complete(text, temperature=1.0, seed=7 + k, max_tokens=5, ignore_eos=True)["choices"][0]["text"]
    assert several["usage"]["prompt_tokens"] == sum(a["usage"]["prompt_tokens"] for a in alone)
    stream = server.post(COMPLETIONS, {"prompt": texts, "temperature": 0, "max_tokens": 6, "ignore_eos": True, "stream": True})
    pieces = ["", "", ""]
    for line in stream.split("\n\n"):
        if line.startswith("data: {"):
            choice = json.loads(line[6:])["choices"][0]
            pieces[choice["index"]] += choice["text"]
    assert pieces == [a["choices"][0]["text"] for a in alone]
    assert len(server.complete(["a"] * 128, max_tokens=1)["choices"]) == 128
    for wrong in (["a"] * 129, ["a", 5], [5, "a"], ["a", None], [[5], [99999]], [[]], [["a"]], ["a", [5, [6]]], [{}]):
        status, reply = server.request("POST", COMPLETIONS, {"prompt": wrong})
        assert status == 400 and reply["error"]["message"], wrong
    assert server.request("POST", COMPLETIONS, {"prompt": ["a"] * 65, "n": 2})[0] == 400


def test_trees_of_guesses(request, start, model):
    server = start("--speculative-config", '{"num_speculative_tokens": 8, "prompt_lookup_min": 1, "num_speculative_branches": 3}')
    plain = start()
    # The model that repeats one letter: both agree whatever rounds.
    bias = {str(plain.post("/tokenize", {"prompt": "Q", "add_special_tokens": False})["tokens"][-1]): 100}
    ask = {"logit_bias": bias, "max_tokens": 60, "ignore_eos": True}
    reply = server.complete("Qa Qb Qc Q", **ask)
    assert reply["choices"] == plain.complete("Qa Qb Qc Q", **ask)["choices"]
    details = reply["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > 20 and details["rejected_prediction_tokens"] > 0
    for branches in (0, 5, "x"):
        done = subprocess.run([request.config.getoption("--octavo"), "serve", "-m", model, "--port", "0", "--speculative-config", json.dumps({"num_speculative_tokens": 4, "num_speculative_branches": branches})],
                              capture_output=True, timeout=60)
        assert done.returncode == 2 and b"num_speculative_branches" in done.stderr


def prefix_server(start, folder, *more, **how):
    return start("--deterministic", "--max-num-batched-tokens", 64, "--slot-save-path", folder, *more, **how)


def test_prefix_files(start, tmp_path, model_window):
    """A saved beginning gives another server its pages: the same answer, and so many tokens cached as were saved. Damaged, foreign or badly named files are refused."""
    for file in (None, model_window):
        how = {} if file is None else {"file": file}
        folder = tmp_path / ("window" if file else "full")
        folder.mkdir()
        first = prefix_server(start, folder, **how)
        prompt = [5 + i % 80 for i in range(200)]
        answer = first.complete(prompt, ignore_eos=True, logprobs=2)
        saved = first.post("/prefix/save", {"filename": "a.bin", "prompt": prompt})
        assert saved["n_saved"] >= 64 and saved["n_saved"] % 16 == 0 and saved["n_written"] == os.path.getsize(folder / "a.bin") and os.stat(folder / "a.bin").st_mode & 0o77 == 0
        second = prefix_server(start, folder, **how)
        assert second.post("/prefix/restore", {"filename": "a.bin"}) == {"filename": "a.bin", "n_restored": saved["n_saved"], "n_read": saved["n_written"]}
        assert second.post("/prefix/restore", {"filename": "a.bin"})["n_restored"] == saved["n_saved"]     # again: it was there
        again = second.complete(prompt, ignore_eos=True, logprobs=2)
        assert again["choices"] == answer["choices"] and again["usage"]["prompt_tokens_details"]["cached_tokens"] == saved["n_saved"]
        assert second.request("POST", "/prefix/save", {"filename": "b.bin", "prompt": [9] * 100})[0] == 404 and not (folder / "b.bin").exists()
        for name in ("", ".", "..", "../a.bin", "/etc/passwd", "a/b", ".hidden", "a\u0000b", "ä", "x" * 101, 5, None):
            assert second.request("POST", "/prefix/restore", {"filename": name})[0] == 400, name
        assert second.request("POST", "/prefix/restore", {"filename": "none"})[0] == 404
        for more in ({}, {"prompt": 5}, {"prompt": [99999]}, {"prompt": "a", "messages": []}, {"messages": []}):
            assert second.request("POST", "/prefix/save", {"filename": "c"} | more)[0] == 400, more
        whole = (folder / "a.bin").read_bytes()
        for i in range(12):
            (folder / "bad").write_bytes(whole[: len(whole) * i // 12] if i % 2 else whole[: 7 + 991 * i] + bytes([whole[7 + 991 * i] ^ 1]) + whole[8 + 991 * i :])
            status, reply = second.request("POST", "/prefix/restore", {"filename": "bad"})
            assert status == 400 and reply["error"]["code"] == "bad_file"
    # Of the other model.
    (folder / "foreign").write_bytes((tmp_path / "full" / "a.bin").read_bytes())
    assert second.request("POST", "/prefix/restore", {"filename": "foreign"})[0] == 400
    status, reply = start().request("POST", "/prefix/save", {"filename": "a", "prompt": "a"})
    assert status == 400 and reply["error"]["code"] == "unsupported"


def test_prefix_of_a_chat(start, tmp_path):
    server = prefix_server(start, tmp_path)
    messages = [{"role": "system", "content": "You are brief. " * 8}, {"role": "user", "content": "Hello"}]
    server.post(CHAT, {"messages": messages, "max_tokens": 2})
    assert server.post("/prefix/save", {"filename": "chat", "messages": messages[:1]})["n_saved"] >= 64


def test_saving_while_answers_run(start, tmp_path):
    """Saves and restores beside answers in a pool too small for all: every answer is what it is alone."""
    alone = start("--deterministic", "--max-num-batched-tokens", 64)
    prompts = [[5 + (i * 7 + k) % 80 for k in range(100)] for i in range(4)]
    expected = [alone.complete(p, max_tokens=20, ignore_eos=True)["choices"][0]["text"] for p in prompts]
    server = prefix_server(start, tmp_path, "--kv-cache-memory", "256K")
    stop, problems = threading.Event(), []

    def work(i):
        dice = random.Random(i)
        while not stop.is_set():
            k = dice.randrange(4)
            if server.complete(prompts[k], max_tokens=20, ignore_eos=True)["choices"][0]["text"] != expected[k]:
                problems.append(k)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    n_saved = 0
    for i in range(40):
        status, reply = server.request("POST", "/prefix/save", {"filename": f"f{i % 4}", "prompt": prompts[i % 4]})
        assert status == 200 or (status == 404 and reply["error"]["code"] == "not_cached"), reply
        n_saved += status == 200
        status, reply = server.request("POST", "/prefix/restore", {"filename": f"f{i % 4}"})
        assert status in (200, 404), reply
    stop.set()
    for thread in threads:
        thread.join()
    assert problems == [] and n_saved > 0
    m = server.metrics()
    pages = {key.split('"')[3]: value for key, value in m.items() if key.startswith('octavo:pages{pool="full"')}
    assert pages["free"] + pages["cached"] + pages["used"] == pages["all"]


def test_killed_while_saving(start, tmp_path):
    """kill -9 at any moment of a save leaves the old file or the new one: it is read back whole by the next server, and what is left beside it is in nobody's way."""
    prompt = [5 + i % 80 for i in range(400)]
    for turn in range(8):
        server = prefix_server(start, tmp_path)
        if turn > 0:
            restored = server.post("/prefix/restore", {"filename": "p"})
            assert restored["n_restored"] == saved, turn
        answer = server.complete(prompt, ignore_eos=True)["choices"]
        assert turn == 0 or answer == first
        first = answer
        saved = server.post("/prefix/save", {"filename": "p", "prompt": prompt})["n_saved"]
        thread = threading.Thread(target=lambda: [save_quietly(server, prompt) for _ in range(20)])
        thread.start()
        time.sleep(0.002 * turn)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        thread.join()


def save_quietly(server, prompt):
    try:
        server.request("POST", "/prefix/save", {"filename": "p", "prompt": prompt})
    except (OSError, http.client.HTTPException):
        pass     # it was killed
