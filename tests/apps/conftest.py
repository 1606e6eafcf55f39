"""What the tests of the program share: where it lies, how it is called, the tiny models it is called with."""
import os
import subprocess

import pytest

import tiny_gguf


def pytest_addoption(parser):
    parser.addoption("--octavo", required=True, help="the program under test")
    parser.addoption("--root", required=True, help="the repository")
    parser.addoption("--library", required=True, help="liboctavo.a")
    parser.addoption("--double", default="", help="the double of NVIDIA's driver, where the program has code for its GPUs")
    parser.addoption("--eval-logits", default="", help="the program that prints logits, for octavo eval's tests")
    parser.addoption("--compiler", required=True, help="the C compiler of the build and its instrumentation, separated by '|'")


class Octavo:
    """Calls the program; one thread unless told otherwise, since ggml's threads spin while they wait for each other."""

    def __init__(self, path):
        self.path = path

    def __call__(self, *arguments, check=0, threads=True, **how):
        command = [self.path, *map(str, arguments)]
        if threads and arguments and arguments[0] in ("run", "compare", "eval", "calibrate", "explain") and "-t" not in arguments and "--help" not in arguments:
            command += ["-t", "1"]
        result = subprocess.run(command, capture_output=how.pop("capture_output", True), timeout=how.pop("timeout", 240), stdin=subprocess.DEVNULL, **how)
        result.out = (result.stdout or b"").decode("utf-8")      # strict: what the program says is UTF-8
        result.err = (result.stderr or b"").decode("utf-8")
        assert "Sanitizer" not in result.err, result.err
        if check is not None:
            assert result.returncode == check, f"{command}: exit {result.returncode}\n{result.out}\n{result.err}"
        return result


@pytest.fixture(scope="session")
def octavo(request, tmp_path_factory):
    # Rates that somebody measured on this machine are none of the tests' business.
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    return Octavo(os.path.abspath(request.config.getoption("--octavo")))


@pytest.fixture(scope="session")
def root(request):
    return os.path.abspath(request.config.getoption("--root"))


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def tiny(models):
    return tiny_gguf.write(models / "tiny.gguf")


@pytest.fixture(scope="session")
def tiny_chat(models):
    return tiny_gguf.write(models / "tiny-chat.gguf", chat=True)


@pytest.fixture(scope="session")
def tiny_window(models):
    return tiny_gguf.write(models / "tiny-window.gguf", architecture="gemma3")


@pytest.fixture(scope="session")
def tiny_long(models):
    """A context that takes a while to fill."""
    return tiny_gguf.write(models / "tiny-long.gguf", context=200_000)


@pytest.fixture(scope="session")
def smollm2(root):
    path = os.path.join(root, "build", "models", "SmolLM2-135M-Instruct.Q4_1.gguf")
    assert os.path.exists(path), "tools/setup/models.sh smollm2 fetches it"
    return path
