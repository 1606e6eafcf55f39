"""The renderer of chat templates against Python's jinja2, set up as Hugging Face's transformers sets it up; the converter of JSON Schemas against what it must refuse."""
import datetime
import json
import os
import struct
import subprocess
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox
import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import chat_templates  # noqa: E402

DONE, REFUSED, FAILED = 1, 2, 3
MODELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "build", "models")


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


class Generation(jinja2.ext.Extension):
    """transformers' {% generation %}, which only marks what is inside."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        return jinja2.nodes.Scope(parser.parse_statements(["name:endgeneration"], drop_needle=True), lineno=line)


def expected(template, variables):
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    try:
        return DONE, environment.from_string(template).render(**variables)
    except jinja2.exceptions.TemplateError as error:
        return REFUSED, error.message


def run(request, lines):
    program = request.config.getoption("--render")
    out = subprocess.run([program], input="\n".join(json.dumps(line) for line in lines), capture_output=True, text=True, check=True, timeout=60)
    assert "Sanitizer" not in out.stderr and "runtime error" not in out.stderr, out.stderr
    return [json.loads(line) for line in out.stdout.split("\n") if line]


def gguf_template(path):
    """The key tokenizer.chat_template of a GGUF; None: it has none, as this Gemma 3."""
    with open(path, "rb") as file:
        data = file.read(1 << 25)
    at = data.find(b"tokenizer.chat_template") + len(b"tokenizer.chat_template")
    if at < len(b"tokenizer.chat_template"):
        return None
    kind, n = struct.unpack_from("<IQ", data, at)
    assert kind == 8
    return data[at + 12: at + 12 + n].decode()


def chats():
    def turns(*contents, system=None):
        said = [] if system is None else [{"role": "system", "content": system}]
        return said + [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(contents)]

    yield turns("Hello")
    yield turns("Hello", system="Be brief.")
    yield turns("", system="")
    yield turns("  blanks \n around \n\n", "  an answer\n", "\tand more ")
    yield turns("Grüße, 東京 🙂 e\u0301 \u200b\u2028 ß İ ǆ", "日本語\nの文", "ﬁn", system="«système»")
    yield turns('quotes " \' \\ {{ braces }} {% if %} {# no #} <|im_end|> </s> [INST]', "a\\nb", "%s %d")
    yield turns(*(f"turn {i}" for i in range(41)), system="Many turns")
    yield turns("question", "<think>\nreasons\n\n</think>\n\nanswer", "again")
    yield turns("question", "answer ends the chat")
    yield turns("x" * 20000)
    # Wrong orders, which some templates refuse in their own words.
    yield turns("a", "b") + [{"role": "assistant", "content": "c"}]
    yield turns("a") + [{"role": "user", "content": "b"}]
    yield [{"role": "tool", "content": "result"}, {"role": "user", "content": "u", "name": "Ann"}]
    yield [{"role": "assistant", "content": "only me", "reasoning_content": "because"}]
    yield [{"role": "oracle", "content": "who?"}]


def templates():
    for name in ("SmolLM2-135M-Instruct.Q4_1", "gemma-3-270m-q4_k_m"):
        path = os.path.join(MODELS, name + ".gguf")
        if os.path.exists(path) and gguf_template(path) is not None:
            yield name, gguf_template(path)
    yield from chat_templates.ALL.items()


@pytest.mark.parametrize("name, template", list(templates()))
def test_as_jinja2(request, name, template):
    """Every chat, with and without the opening of an answer, and with a switch of the template's."""
    asked = []
    for messages in chats():
        for more in ({"add_generation_prompt": True}, {"add_generation_prompt": False}, {"add_generation_prompt": True, "enable_thinking": False}):
            asked.append({"template": template, "variables": {"messages": messages, "tools": None, "documents": None, "bos_token": "<s>", "eos_token": "</s>"} | more})
    n_done = 0
    for ask, made in zip(asked, run(request, asked), strict=True):
        outcome, text = expected(template, ask["variables"])
        assert (made["outcome"], made["text"]) == (outcome, text), (name, ask["variables"])
        n_done += outcome == DONE
    assert n_done > 0


def test_models_are_there():
    if not any("SmolLM2" in name for name, _ in templates()):
        pytest.skip("no models (tools/setup/models.sh smollm2 gemma3)")
