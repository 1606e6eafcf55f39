import numpy as np
import pytest


def pytest_addoption(parser):
    parser.addoption("--seed", type=int, default=20260 + 7)
    parser.addoption("--cases", type=int, default=0, help="random cases beyond those that cover all pairs of features")


def pytest_report_header(config):
    import octavo
    return f"octavo {octavo.__version__} from {octavo.__file__}, seed {config.getoption('seed')}"


@pytest.fixture
def rng(request):
    return np.random.default_rng(request.config.getoption("seed"))
