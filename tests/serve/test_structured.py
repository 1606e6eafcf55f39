"""Answers that are held to a JSON Schema or a choice, and chats through the model's own template. Random weights say what a grammar lets them say, at random."""
import json
import os

import pytest
import tiny_gguf
from structured import SCHEMAS, is_valid

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "Hello"}]
SMOLLM2 = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "build", "models", "SmolLM2-135M-Instruct.Q4_1.gguf")


def is_built(server):
    return "llama-jinja" not in server.said()


def held_to(schema):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}}


@pytest.fixture(scope="session")
def built(server):
    if not is_built(server):
        status, reply = server.request("POST", CHAT, {"messages": MESSAGES} | held_to({}))
        assert status == 400 and reply["error"]["code"] == "unsupported", reply
        pytest.skip("the program was built without llama-jinja")
    return server


def check(name, text, finish):
    """Whole answers are valid. Random weights say bytes that are no characters, too: libllama's grammar counts several of them as one, and each becomes a U+FFFD."""
    if finish == "stop":
        try:
            value = json.loads(text)
        except ValueError:
            pytest.fail(f"{name}: no JSON: {text!r}")
        assert "\ufffd" in text or is_valid(value, SCHEMAS[name]), (name, text)
    return finish == "stop" and "\ufffd" not in text


def streamed_of(server, path, ask):
    """Texts and ends of a stream's choices."""
    status, text = server.request("POST", path, ask | {"stream": True})
    assert status == 200, text
    texts, ends, n_logprobs = {}, {}, 0
    for line in text.split("\n\n"):
        if line.startswith("data: {"):
            for choice in json.loads(line[len("data: "):])["choices"]:
                texts[choice["index"]] = texts.get(choice["index"], "") + (choice["delta"].get("content") or "")
                ends[choice["index"]] = choice["finish_reason"] or ends.get(choice["index"])
                n_logprobs += len((choice.get("logprobs") or {}).get("content") or [])
    return texts, ends, n_logprobs


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas(built, name):
    ended = 0
    for more in ({"temperature": 0}, {"temperature": 1, "seed": 3}, {"temperature": 2, "seed": 8}):
        ask = {"messages": MESSAGES, "max_tokens": 240, "n": 2, "logprobs": True, "top_logprobs": 2} | more | held_to(SCHEMAS[name])
        whole = built.post(CHAT, ask)
        texts, ends, n_logprobs = streamed_of(built, CHAT, ask)
        assert n_logprobs == sum(len(choice["logprobs"]["content"]) for choice in whole["choices"])
        for choice in whole["choices"]:
            assert (texts[choice["index"]], ends[choice["index"]]) == (choice["message"]["content"], choice["finish_reason"])
            ended += check(name, choice["message"]["content"], choice["finish_reason"])
    assert ended > 0, name


def test_other_names(built):
    """vLLM's, for both routes; a schema may be a text."""
    schema = {"enum": ["a", "b"]}
    for path, ask in ((CHAT, {"messages": MESSAGES}), (COMPLETIONS, {"prompt": "x"})):
        for more in ({"guided_json": schema}, {"guided_json": json.dumps(schema)}, {"structured_outputs": {"json": schema}}, {"guided_choice": ['"a"', '"b"']},
                     {"structured_outputs": {"choice": ['"a"', '"b"'], "regex": None}}, held_to(schema)):
            choice = built.post(path, {"max_tokens": 9, "temperature": 1} | ask | more)["choices"][0]
            assert (choice["message"]["content"] if path == CHAT else choice["text"]) in ('"a"', '"b"') and choice["finish_reason"] == "stop"
        odd = ["é \"\\\n\t\x7f", "\U0001F642]"]
        for seed in range(3):
            assert built.post(CHAT, {"messages": MESSAGES, "max_tokens": 30, "seed": seed, "guided_choice": odd})["choices"][0]["message"]["content"] in odd


def test_what_is_refused(built):
    for name, value, unsupported in (
            ("response_format", held_to({"oneOf": [{}]})["response_format"], True), ("response_format", {"type": "json_schema"}, False), ("response_format", {"type": "json_schema", "json_schema": {}}, False),
            ("response_format", {"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}}, False), ("response_format", {"type": "structural_tag"}, True),
            ("response_format", {"type": "json_schema", "json_schema": {"schema": {}, "name": 3}}, False), ("response_format", held_to(True)["response_format"], False),
            ("guided_json", "{", False), ("guided_json", {"type": "number", "multipleOf": 2}, True), ("guided_json", 5, False), ("guided_choice", "a", False), ("guided_choice", [""], False),
            ("guided_choice", [1], False), ("guided_choice", ["a"] * 1001, False), ("structured_outputs", {"regex": "a"}, True), ("structured_outputs", {"grammar": "root ::= [a]"}, True),
            ("structured_outputs", 5, False), ("structured_outputs", {"json": {"type": "null"}, "choice": ["a"]}, False), ("guided_regex", "a", True), ("guided_grammar", "root ::= [a]", True)):
        status, reply = built.request("POST", CHAT, {"messages": MESSAGES, name: value})
        assert status == 400 and reply["error"]["param"] == name and (reply["error"]["code"] == "unsupported") == unsupported, (name, value, reply)
    status, reply = built.request("POST", CHAT, {"messages": MESSAGES, "guided_choice": ["a"]} | held_to({"type": "null"}))
    assert status == 400 and "exclude" in reply["error"]["message"]
    status, reply = built.request("POST", CHAT, {"messages": MESSAGES, "ignore_eos": True} | held_to({"type": "null"}))
    assert status == 400 and reply["error"]["param"] == "ignore_eos"


def test_hostile_schemas(built):
    """Neither long nor the end of anything: others are answered beside."""
    deep = {}
    for _ in range(400):
        deep = {"items": deep}
    ladder = {"$ref": "#/$defs/d0", "$defs": {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]} for i in range(60)} | {"d60": {}}}
    for schema in (deep, ladder, {"enum": list(range(5000))}, {"properties": {str(i): {} for i in range(5000)}}, {"anyOf": [{"$ref": "#"}]}, {"pattern": "^" + "(a?)" * 60 + "{9}$"},
                   {"pattern": "^" + "(" * 200 + ")" * 200 + "$"}, {"properties": {"x" * 100000: {}}}, {"const": "x" * 100000}, {"$ref": "#/$defs/" + "a/" * 5000}, {"items": {"$ref": "#"}, "minItems": 1}):
        status, reply = built.request("POST", CHAT, {"messages": MESSAGES, "max_tokens": 4} | held_to(schema))
        assert status in (200, 400) and (status == 400) == (schema != {"items": {"$ref": "#"}, "minItems": 1}), (str(schema)[:99], reply)
    assert built.request("GET", "/health")[0] == 200


def test_templates(built, start, tmp_path):
    """What the template sees and says."""
    def prompt_of(server, body, **more):
        return server.post(CHAT, {"messages": body, "max_tokens": 1} | more)["usage"]["prompt_tokens"]

    template = "{% for m in messages %}{% if m.role == 'bad' %}{{ raise_exception('no role ' ~ m.role ~ '!') }}{% endif %}{{ m.content }}{{ m.name }}{% endfor %}{% if add_generation_prompt %}+++{% endif %}{{ x }}"
    server = start(file=tiny_gguf.write(tmp_path / "own.gguf", chat=template))
    said = [{"role": "user", "content": [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}], "name": "NAME"}]
    assert prompt_of(server, said) == 10 and prompt_of(server, said, add_generation_prompt=False) == 7 and prompt_of(server, said, chat_template_kwargs={"x": "12345"}) == 15
    status, reply = server.request("POST", CHAT, {"messages": [{"role": "bad", "content": ""}]})
    assert status == 400 and reply["error"]["message"].endswith("refuses: no role bad!") and reply["error"]["param"] == "messages"
    for wrong in ({"chat_template_kwargs": 5}, {"chat_template_kwargs": {"messages": []}}, {"chat_template_kwargs": {"bos_token": ""}}, {"add_generation_prompt": 5},
                  {"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]}):
        assert server.request("POST", CHAT, {"messages": said, "max_tokens": 1} | wrong)[0] == 400, wrong
    # Endless: an error after two seconds of the processor's, and everybody else is answered before and after.
    server = start(file=tiny_gguf.write(tmp_path / "endless.gguf", chat="{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"))
    status, reply = server.request("POST", CHAT, {"messages": said})
    assert status == 400 and "seconds" in reply["error"]["message"]
    assert server.complete("x")["usage"]["prompt_tokens"] == 1
    # What can't be read is said at the beginning.
    server = start(file=tiny_gguf.write(tmp_path / "odd.gguf", chat="{% nonsense %}"))
    assert "chat template" in server.said() and server.request("POST", CHAT, {"messages": said})[0] == 400


def test_smollm2(request, start):
    """A model that can speak: whole and streamed, greedy and drawn, and the default system message of its template."""
    if not request.config.getoption("--models"):
        pytest.skip("for serve_structured_smollm2")
    if not os.path.exists(SMOLLM2):
        pytest.skip("no SmolLM2 (tools/setup/models.sh smollm2)")
    server = start("-t", 2, "--kv-cache-memory", "64M", "-c", 1024, file=SMOLLM2)
    if not is_built(server):
        pytest.skip("the program was built without llama-jinja")
    plain, own = ([{"role": "user", "content": "Name a person and an age."}], [{"role": "system", "content": "You are a helpful AI assistant named SmolLM, trained by Hugging Face"}])
    assert server.post(CHAT, {"messages": plain, "max_tokens": 1})["usage"]["prompt_tokens"] == server.post(CHAT, {"messages": own + plain, "max_tokens": 1})["usage"]["prompt_tokens"]
    for name in ("person", "list"):
        ended = 0
        for more in ({"temperature": 0}, {"temperature": 1, "n": 2, "seed": 1}):
            ask = {"messages": plain, "max_tokens": 60, "logprobs": True} | more | held_to(SCHEMAS[name])
            for choice in server.post(CHAT, ask)["choices"]:
                ended += check(name, choice["message"]["content"], choice["finish_reason"])
        texts, ends, _ = streamed_of(server, CHAT, {"messages": plain, "max_tokens": 60, "temperature": 1, "seed": 4} | held_to(SCHEMAS[name]))
        ended += check(name, texts[0], ends[0])
        assert ended > 0, name
