"""What test_render.py takes."""


def pytest_addoption(parser):
    parser.addoption("--render", required=True, help="the program render_lines")
