"""The blocks of doc/PYTHON.md run one after the other, and print what the page says."""
import contextlib
import io
import os
import re

PAGE = os.path.join(os.path.dirname(__file__), "..", "..", "doc", "PYTHON.md")


def test_the_page_runs_as_it_stands():
    with open(PAGE, encoding="utf-8") as file:
        text = file.read()
    names, printed, n_blocks = {}, "", 0
    for block, claim in re.findall(r"^```python\n(.*?)^```$|^prints: `(.+?)`$", text, re.M | re.S):
        if claim:
            assert printed.strip() == claim
        else:
            line = text[:text.index(block)].count("\n")
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile("\n" * line + block, PAGE, "exec"), names)
            printed, n_blocks = out.getvalue(), n_blocks + 1
    assert n_blocks >= 5


def test_every_public_name_has_words_and_stubs():
    import octavo
    stub = os.path.join(os.path.dirname(octavo.__file__), "_octavo.pyi")
    with open(stub, encoding="utf-8") as file:
        stubs = file.read()
    for name in octavo.__all__:
        thing = getattr(octavo, name)
        assert name == "__version__" or (thing.__doc__ or "").strip(), name
        if getattr(thing, "__module__", "").endswith("_octavo"):
            assert re.search(rf"^(class|def) {name}\b", stubs, re.M), name
    assert os.path.exists(os.path.join(os.path.dirname(stub), "py.typed"))
