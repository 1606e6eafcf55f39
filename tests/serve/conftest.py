"""What the tests of the server share: a tiny model, servers on free ports, requests by hand."""
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "apps"))
import tiny_gguf  # noqa: E402


def pytest_addoption(parser):
    parser.addoption("--octavo", required=True, help="the program under test")
    parser.addoption("--models", action="store_true", help="on real models, too")


def cpu_seconds(pid, named=None, others=None):
    """CPU time of the program's threads whose name begins with `named`, or does not with `others`: it counts work, whatever else the machine does."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/stat", encoding="ascii") as stat:
                text = stat.read()
        except FileNotFoundError:
            continue     # it has ended
        name = text[text.index("(") + 1 : text.rindex(")")]
        if (named is None or name.startswith(named)) and (others is None or not name.startswith(others)):
            fields = text[text.rindex(")") + 2 :].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


class Server:
    """One `octavo serve`. Its standard error must hold no complaint of a sanitizer when it ends."""

    def __init__(self, octavo, model, log, *arguments):
        self.log = log
        with open(log, "wb") as out:
            self.process = subprocess.Popen([octavo, "serve", "-m", model, "--port", "0", "-t", "1", "--kv-cache-memory", "1M", *map(str, arguments)], stderr=out,
                                            stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        self.port = None
        end = time.monotonic() + 120
        while self.port is None:
            assert self.process.poll() is None and time.monotonic() < end, self.said()
            time.sleep(0.01)
            self.port = next((int(line.split("http://")[1].split(",")[0].rsplit(":", 1)[1]) for line in self.said().splitlines() if "http://" in line and line.endswith("pages")), None)

    def said(self):
        with open(self.log, encoding="utf-8") as text:
            return text.read()

    def request(self, method, path, body=None, headers=None, timeout=300):
        """(status, parsed JSON or text)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        data = response.read()
        connection.close()
        is_json = response.getheader("Content-Type", "").startswith("application/json")
        return response.status, json.loads(data) if is_json else data.decode("utf-8")

    def post(self, path, body, **how):
        status, reply = self.request("POST", path, body, **how)
        assert status == 200, reply
        return reply

    def complete(self, prompt, **more):
        return self.post("/v1/completions", {"prompt": prompt, "temperature": 0, "max_tokens": 8} | more)

    def metrics(self):
        """Samples by name and labels, without the two that each has."""
        text = self.request("GET", "/metrics")[1]
        found = {}
        for line in text.splitlines():
            if not line.startswith("#"):
                name, number = line.rsplit(" ", 1)
                plain, n = re.subn(r'\{engine="0",model_name="(?:[^"\\]|\\.)*"(?:,(?=.)|(?=\}))', "{", name)
                assert n == 1, line
                found[plain.removesuffix("{}")] = float(number)
        return found

    def rss_bytes(self):
        with open(f"/proc/{self.process.pid}/statm", encoding="ascii") as numbers:
            return int(numbers.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def stop(self, told=False):
        """The exit code; a second signal would end it at once, so one that was told to go down is only waited for."""
        if self.process.poll() is None and not told:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=300)
        said = self.said()
        assert "Sanitizer" not in said and "runtime error" not in said, said
        return code


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return tiny_gguf.write(tmp_path_factory.mktemp("models") / "tiny.gguf", chat=True)


@pytest.fixture(scope="session")
def model_window(tmp_path_factory):
    return tiny_gguf.write(tmp_path_factory.mktemp("models") / "tiny-window.gguf", architecture="gemma3")


@pytest.fixture(scope="session")
def start(request, model, tmp_path_factory):
    # Rates that somebody measured on this machine are none of the tests' business.
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    servers = []

    def begin(*arguments, file=model):
        log = tmp_path_factory.mktemp("log") / "err"
        servers.append(Server(os.path.abspath(request.config.getoption("--octavo")), file, log, *arguments))
        return servers[-1]

    yield begin
    for server in servers:
        assert server.process.poll() == -signal.SIGKILL or server.stop() == 0, server.said()


@pytest.fixture
def memory_counts(request):
    """For tests of what the program takes: the thread sanitizer keeps several bytes for each of ours."""
    with open(request.config.getoption("--octavo"), "rb") as program:
        if b"__tsan_init" in program.read():
            pytest.skip("memory under the thread sanitizer, which keeps several bytes for each of ours")


@pytest.fixture(scope="session")
def server(start):
    return start("--deterministic", "--max-num-batched-tokens", 64)
