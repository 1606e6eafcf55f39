"""`octavo bench serve` against the server, and against servers that misbehave."""
import http.server
import json
import os
import statistics
import subprocess
import threading

import numpy
import pytest

from test_server import wait_until_idle

# Of `vllm bench serve --save-result`.
KEYS = ("date endpoint_type backend model_id num_prompts request_rate burstiness max_concurrency duration completed failed total_input_tokens total_output_tokens request_throughput "
        "output_throughput total_token_throughput max_concurrent_requests").split()


@pytest.fixture(scope="module")
def bench(request):
    def run(*arguments, code=0):
        done = subprocess.run([os.path.abspath(request.config.getoption("--octavo")), "bench", "serve", *map(str, arguments)], capture_output=True, timeout=120, encoding="utf-8")
        assert done.returncode == code, (done.stdout, done.stderr)
        return done
    return run


SMALL = ("--random-vocab", 90, "--random-input-len", 30, "--random-output-len", 12, "--ignore-eos", "-o", "json")


def test_sums_and_percentiles(start, bench):
    server = start("--max-num-seqs", 8)
    before = server.metrics()
    r = json.loads(bench("--port", server.port, *SMALL, "--num-prompts", 20, "--max-concurrency", 5, "--random-prefix-len", 64, "--num-warmups", 1, "--metric-percentiles", "50,90,99.5",
                         "--goodput", "ttft:100000", "--goodput", "e2el:0.001", "--save-detailed").stdout)
    assert all(key in r for key in KEYS) and r["model_id"] == 'tiny "model"'
    assert (r["completed"], r["failed"], r["num_prompts"], r["request_rate"], r["max_concurrency"], r["max_concurrent_requests"]) == (20, 0, 20, "inf", 5, 5)
    assert r["total_input_tokens"] == 20 * 94 and r["total_output_tokens"] == 20 * 12 and r["total_cached_tokens"] >= 20 * 64
    assert r["request_goodput"] == 0
    m = wait_until_idle(server)
    assert m["octavo:generation_tokens_total"] - before["octavo:generation_tokens_total"] == 21 * 12
    assert r["total_token_throughput"] == pytest.approx((r["total_input_tokens"] + r["total_output_tokens"]) / r["duration"])
    itls = [gap * 1e3 for gaps in r["itls"] for gap in gaps]
    for name, values in (("ttft", [t * 1e3 for t in r["ttfts"]]), ("itl", itls)):
        assert r[f"mean_{name}_ms"] == pytest.approx(statistics.fmean(values), rel=1e-4)
        assert r[f"std_{name}_ms"] == pytest.approx(statistics.pstdev(values), rel=1e-4)
        for p in ("50", "90", "99.5"):
            assert r[f"p{p}_{name}_ms"] == pytest.approx(float(numpy.percentile(values, float(p))), rel=1e-4)
        assert r[f"median_{name}_ms"] == r[f"p50_{name}_ms"]
    assert 0 < r["mean_ttft_ms"] < r["mean_e2el_ms"] and r["input_lens"] == [94] * 20 and r["output_lens"] == [12] * 20 and set(r["errors"]) == {""}


def test_times_and_lengths(start, bench):
    """A rate spreads the requests; lengths vary as asked; the same seed gives the same load; chats work."""
    server = start()
    one = json.loads(bench("--port", server.port, *SMALL, "--num-prompts", 40, "--request-rate", 80, "--random-range-ratio", 0.5, "--seed", 3, "--save-detailed").stdout)
    assert 0.25 < one["duration"] and one["request_rate"] == 80
    assert min(one["input_lens"]) >= 15 and max(one["input_lens"]) <= 45 and len(set(one["input_lens"])) > 10 and len(set(one["output_lens"])) > 5
    two = json.loads(bench("--port", server.port, *SMALL, "--num-prompts", 40, "--random-range-ratio", 0.5, "--seed", 3, "--save-detailed").stdout)
    assert two["input_lens"] == one["input_lens"] and two["output_lens"] == one["output_lens"]
    many = json.loads(bench("--base-url", f"http://localhost:{server.port}", *SMALL, "--num-prompts", 12, "--dataset-name", "prefix_repetition", "--prefix-repetition-num-prefixes", 3,
                            "--prefix-repetition-prefix-len", 48, "--max-concurrency", 1).stdout)
    assert 9 * 48 <= many["total_cached_tokens"] < 9 * 48 + 40     # and what of each one's own tokens happens to be equal
    text = bench("--port", server.port, *SMALL[:-2], "--num-prompts", 4, "--backend", "openai-chat").stdout
    assert "Successful requests:                     4\n" in text and "P99 TTFT (ms):" in text


class Bad(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    kind = "status"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        data = {"status": b'{"error": {"message": "no"}}\n', "early": b'data: {"choices": [{"text": "a"}]}\n\n', "error": b'data: {"error": {"message": "broke"}}\n\ndata: [DONE]\n\n',
                "junk": b"data: {{{\n\ndata: 5\n\n: comment\n\n" + b"x" * 70000 + b"\n\ndata: [DONE]\n\n"}[self.kind]
        self.send_response(500 if self.kind == "status" else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        pass


@pytest.mark.parametrize("kind,said", [("status", "no"), ("early", "ended early"), ("error", "broke"), ("junk", None)])
def test_bad_servers(bench, kind, said):
    Bad.kind = kind
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Bad)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    done = bench("--port", server.server_port, "--model", "m", *SMALL, "--num-prompts", 3, code=0 if said is None else 1)
    r = json.loads(done.stdout)
    assert r["failed"] == (0 if said is None else 3) and (said is None or said in done.stderr)
    server.shutdown()
    server.server_close()


def test_refusals(bench):
    for arguments in (("--request-rate", "0"), ("--request-rate", "x"), ("--request-rate", "5x"), ("--metric-percentiles", "101"), ("--metric-percentiles", "50,"), ("--goodput", "itl:5"),
                      ("--goodput", "ttft:"), ("--num-prompts", "0"), ("--backend", "other")):
        assert arguments[0] in bench(*arguments, code=2).stderr
    assert "names no model" in bench("--port", 1, code=1).stderr
    assert "request has failed" in bench("--port", 1, "--model", "m", *SMALL, "--num-prompts", 2, code=1).stderr
