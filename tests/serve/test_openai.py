"""OpenAI's own Python client against `octavo serve`, on a tiny random model: what it reads must be what plain HTTP gives."""
import json

import openai
import pytest

MESSAGES = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="unused", max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture(scope="module")
def name(client):
    models = client.models.list().data
    assert len(models) == 1 and models[0].object == "model" and client.models.list().data[0].id == models[0].id
    return models[0].id


def test_chat(server, client, name):
    ask = {"messages": MESSAGES, "temperature": 0, "max_tokens": 12}
    reply = client.chat.completions.create(model=name, **ask, extra_body={"ignore_eos": True})
    plain = server.post("/v1/chat/completions", ask | {"ignore_eos": True})
    choice = reply.choices[0]
    assert reply.object == "chat.completion" and choice.message.role == "assistant" and choice.finish_reason == "length"
    assert choice.message.content == plain["choices"][0]["message"]["content"]
    assert reply.usage.completion_tokens == 12 and reply.usage.total_tokens == reply.usage.prompt_tokens + 12
    assert reply.usage.prompt_tokens_details.cached_tokens >= 0
    several = client.chat.completions.create(model=name, messages=MESSAGES, n=3, seed=3, temperature=1.2, max_tokens=6)
    assert [c.index for c in several.choices] == [0, 1, 2]
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]}]
    again = client.chat.completions.create(model=name, messages=parts, temperature=0, max_completion_tokens=12, extra_body={"ignore_eos": True})
    assert again.choices[0].message.content == choice.message.content


def test_stream(client, name):
    ask = {"model": name, "messages": MESSAGES, "temperature": 1.0, "seed": 11, "max_tokens": 20, "extra_body": {"ignore_eos": True}}
    whole = client.chat.completions.create(**ask)
    pieces = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    assert "".join(p.choices[0].delta.content or "" for p in pieces if p.choices) == whole.choices[0].message.content
    assert pieces[0].choices[0].delta.role == "assistant" and pieces[-1].usage.completion_tokens == 20 and pieces[-1].choices == []
    assert [p.choices[0].finish_reason for p in pieces if p.choices][-1] == "length" and len({p.id for p in pieces}) == 1
    text = client.completions.create(model=name, prompt="It was", temperature=0, max_tokens=10)
    stream = client.completions.create(model=name, prompt="It was", temperature=0, max_tokens=10, stream=True)
    assert "".join(p.choices[0].text for p in stream) == text.choices[0].text
    # Left in its middle: the connection is closed, and the next request is answered.
    stream = client.completions.create(model=name, prompt="It was", max_tokens=200, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    assert client.completions.create(model=name, prompt="a", max_tokens=1).choices


def test_stream_helper(client, name):
    """The client's own accumulation of a stream. It takes an answer of full length for an error, so this one stops."""
    whole = client.chat.completions.create(model=name, messages=MESSAGES, temperature=0, max_tokens=24, extra_body={"ignore_eos": True}).choices[0].message.content
    with client.chat.completions.stream(model=name, messages=MESSAGES, temperature=0, max_tokens=24, stop=whole[6:8], extra_body={"ignore_eos": True}) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    assert any(e.type == "content.delta" for e in events)
    assert final.choices[0].message.content == whole[: whole.index(whole[6:8])] and final.choices[0].finish_reason == "stop"


def test_stop(client, name):
    whole = client.completions.create(model=name, prompt="xyz", temperature=0, max_tokens=24, extra_body={"ignore_eos": True}).choices[0].text
    stop = whole[3:5]
    for stops in (stop, ["never seen", stop]):
        cut = client.completions.create(model=name, prompt="xyz", temperature=0, max_tokens=24, stop=stops, extra_body={"ignore_eos": True}).choices[0]
        assert cut.finish_reason == "stop" and cut.text == whole[: whole.index(stop)]


def test_logprobs(client, name):
    content = client.chat.completions.create(model=name, messages=MESSAGES, temperature=0, max_tokens=5, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert len(content) >= 1 and all(t.top_logprobs[0].token == t.token and t.logprob <= 0 and len(t.top_logprobs) == 3 and bytes(t.bytes) is not None for t in content)
    scored = client.completions.create(model=name, prompt="abc", temperature=0, max_tokens=5, logprobs=2, extra_body={"ignore_eos": True}).choices[0].logprobs
    assert len(scored.tokens) == len(scored.token_logprobs) == len(scored.top_logprobs) == len(scored.text_offset) == 5


def test_lists_and_json(client, name):
    replies = client.completions.create(model=name, prompt=["one", "two"], n=2, max_tokens=3, seed=1)
    assert [c.index for c in replies.choices] == [0, 1, 2, 3]
    tokens = client.completions.create(model=name, prompt=[[5, 6, 7], [8, 9]], max_tokens=2)
    assert len(tokens.choices) == 2 and tokens.usage.prompt_tokens == 5
    made = client.chat.completions.create(model=name, messages=MESSAGES, response_format={"type": "json_object"}, seed=1, max_tokens=200, logit_bias={"5": -100}, frequency_penalty=0.5).choices[0]
    assert made.finish_reason == "length" or isinstance(json.loads(made.message.content), dict)


def test_errors(start, client, name):
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(model=name, messages=MESSAGES, temperature=9)
    assert e.value.param == "temperature" and e.value.type == "invalid_request_error" and e.value.status_code == 400
    with pytest.raises(openai.BadRequestError) as e:
        client.completions.create(model=name, prompt=[5] * 5000)
    assert e.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(model=name, messages=MESSAGES, tools=[{"type": "function", "function": {"name": "f"}}])
    assert e.value.code == "unsupported"
    with pytest.raises(openai.NotFoundError) as e:
        client.chat.completions.create(model="another", messages=MESSAGES)
    assert e.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model=name, input="a")
    keyed = start("--api-key", "secret")
    for key, fits in (("wrong", False), ("secret", True)):
        with openai.OpenAI(base_url=f"http://127.0.0.1:{keyed.port}/v1", api_key=key, max_retries=0) as other:
            if fits:
                assert other.chat.completions.create(model=name, messages=MESSAGES, max_tokens=1).choices
            else:
                with pytest.raises(openai.AuthenticationError):
                    other.chat.completions.create(model=name, messages=MESSAGES)
    busy = start("--max-open", 1, "--max-num-seqs", 1)
    with openai.OpenAI(base_url=f"http://127.0.0.1:{busy.port}/v1", api_key="k", max_retries=0) as other, pytest.raises(openai.RateLimitError):
        other.completions.create(model=name, prompt=["a", "b"], max_tokens=400)
