"""schemathesis against the description at /openapi.json: requests that keep to it and requests that break it, of which no one may bring the server down, be
answered in a shape that is not described, or be taken though it breaks what is described."""
import json
import os

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance, unsupported_method

EXAMPLES = int(os.environ.get("OCTAVO_SCHEMA_EXAMPLES", "15"))     # of each operation, kept and broken each

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "apps", "serve", "openapi.json"), encoding="utf-8") as kept:
    OPERATIONS = [(path, method) for path, methods in json.load(kept)["paths"].items() for method in methods]

# Of what the description allows one by one, what excludes each other, is no schema, or none that is supported, or depends on lengths and tokens of the model: the server says which.
EXCUSED = {"logit_bias", "top_logprobs", "ignore_eos", "response_format", "structured_outputs", "guided_json", "guided_choice", "chat_template_kwargs"}
LENGTHS = ("the context holds", "the prompt has 0 tokens", "special tokens", "at most 128 are answered", "too big")


@pytest.fixture(scope="module")
def described(start, tmp_path_factory):
    return start("--max-num-batched-tokens", 256, "--slot-save-path", tmp_path_factory.mktemp("prefixes"))


@pytest.fixture(scope="module")
def schema(described):
    config = schemathesis.Config.from_dict({"generation": {"allow-x00": False}})
    return schemathesis.openapi.from_url(f"http://127.0.0.1:{described.port}/openapi.json", config=config)


def excused(reply):
    error = reply.json()["error"]
    return error["param"] in EXCUSED or any(text in error["message"] for text in LENGTHS)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["kept", "broken"])
@pytest.mark.parametrize("path,method", OPERATIONS)
def test_operation(path, method, mode, described, schema):
    if mode == GenerationMode.NEGATIVE and method == "get":
        return     # nothing can be broken
    seen = {}

    @given(case=schema[path][method].as_strategy(generation_mode=mode))
    @settings(max_examples=EXAMPLES if method == "post" else 2, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate], derandomize=True, database=None)
    def check(case):
        reply = case.call(timeout=120)
        case.validate_response(reply, excluded_checks=[positive_data_acceptance, unsupported_method])
        seen[reply.status_code] = seen.get(reply.status_code, 0) + 1
        if mode == GenerationMode.POSITIVE and reply.status_code == 400:
            assert excused(reply), (reply.json(), case.body)

    check()
    assert described.process.poll() is None
    print(path, method, mode, seen)
    # What is found must have been looked for: the route's work was done with what keeps to the description.
    assert mode == GenerationMode.NEGATIVE or seen.get(200, 0) > 0 or (path.startswith("/prefix/") and seen.get(404, 0) > 0)
