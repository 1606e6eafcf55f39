"""Options of the number tests: where the programs under test lie."""


def pytest_addoption(parser):
    parser.addoption("--program", help="number_rows as the library is built")
    parser.addoption("--program-fast-math", help="number_rows built with -ffast-math")
    parser.addoption("--random-count", type=int, default=10_000_000, help="random f32 bit patterns per format")
    parser.addoption("--seed", type=int, default=20240611)


def pytest_report_header(config):
    return f"number: seed {config.getoption('--seed')}, {config.getoption('--random-count')} random patterns per format"
