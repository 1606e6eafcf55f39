"""The HTML report: well-formed, with nothing fetched and every number of the JSON in it, always; and as headless Chromium shows it where there is one, wide, at 360 px,
in print and by keyboard. Keeps report.png, report-360.png and report.pdf in the test's folder."""
import base64
import json
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree

import pytest

NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


@pytest.fixture(scope="module")
def made(request, tmp_path_factory):
    """page.html and result.json of a made-up evaluation with hostile texts."""
    folder = tmp_path_factory.mktemp("report")
    helper = pathlib.Path(request.config.getoption("--octavo")).parent / "tests" / "apps" / "apps_html"
    subprocess.run([helper, folder], check=True, timeout=60)
    return folder


def numbers_of(page):
    root = xml.etree.ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>\n"))
    numbers = set()
    for element in root.iter():
        if element.tag == "data":
            numbers.add(float(element.get("value")))
        for text in (element.text, element.tail):
            numbers.update(float(match) for match in NUMBER.findall(text or ""))
    return numbers


def missing(value, numbers, path="result"):
    if isinstance(value, dict):
        return [m for key, inner in value.items() for m in missing(inner, numbers, f"{path}.{key}")]
    if isinstance(value, list):
        return [m for i, inner in enumerate(value) for m in missing(inner, numbers, f"{path}[{i}]")]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return [f"{path} = {value}"] if is_number and float(value) not in numbers else []


def check_structure(page, result):
    root = xml.etree.ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>\n"))     # well-formed, or this raises
    identifiers = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(identifiers) == len(set(identifiers))
    for element in root.iter():
        assert element.tag not in ("script", "img", "link", "iframe", "object", "embed", "base", "form", "audio", "video"), element.tag
        for name, value in element.items():
            assert not name.startswith("on") and name not in ("src", "srcset", "action", "poster"), (element.tag, name)
            assert "http:" not in value and "https:" not in value and "url(" not in value, (element.tag, name, value)
            if name == "href":
                assert value.startswith("#") and value[1:] in identifiers, value
            if name.startswith("aria-labelledby"):
                assert set(value.split()) <= set(identifiers)
    for table in root.iter("table"):
        assert table.find("caption") is not None
    for svg in root.iter("svg"):
        assert svg.find("title").text and svg.find("desc").text and svg.get("role") == "img"
    style = root.find("head/style").text
    assert "url(" not in style and "@import" not in style and "@media print" in style
    assert not missing(result, numbers_of(page))


def test_structure(made):
    page, result = (made / "page.html").read_text(encoding="utf-8"), json.loads((made / "result.json").read_text(encoding="utf-8"))
    check_structure(page, result)
    assert "inside" in result["passes"][0]
    # The check itself sees a number that is gone.
    assert missing({"a": [1.0, {"b": 987654.3}]}, numbers_of(page)) == ["result.a[1].b = 987654.3"]


@pytest.fixture(scope="module")
def browser(request, tmp_path_factory):
    sys.path.insert(0, str(pathlib.Path(request.config.getoption("--root")) / "tests" / "serve"))
    from test_page import CHROMIUM, Browser
    if CHROMIUM is None:
        pytest.skip("the HTML report in a browser: there is no chromium (apt-get install chromium-headless-shell)")
    b = Browser(tmp_path_factory.mktemp("chromium"))
    yield b
    b.close()


def test_in_a_browser(made, browser):
    browser.size(1200, 900)
    browser("Page.navigate", url=(made / "page.html").as_uri())
    browser.wait_for("document.readyState == 'complete' && document.querySelectorAll('svg').length >= 6")
    # Hostile texts made no elements, and their words are there.
    assert browser.evaluate("document.querySelectorAll('script, img').length") == 0
    assert browser.evaluate("document.title").startswith("What 8 bits do to tiny </title>")
    assert browser.evaluate("document.body.textContent.includes('<script>alert(1)</script>')")
    # Squares and signs are drawn, and grow with what they show.
    assert browser.evaluate("[...document.querySelectorAll('svg')].every(s => s.getBoundingClientRect().width > 100 && s.getBoundingClientRect().height > 50)")
    assert browser.evaluate("document.querySelectorAll('svg path.cell').length") >= 8
    # Nothing of a picture sticks out of it.
    out = browser.evaluate("""[...document.querySelectorAll('svg text')].filter(t => { const a = t.getBoundingClientRect(), b = t.ownerSVGElement.getBoundingClientRect();
        return a.left < b.left - 2 || a.right > b.right + 2 || a.top < b.top - 2 || a.bottom > b.bottom + 2; }).map(t => t.textContent)""")
    assert out == [], out
    browser.picture(made / "report.png")
    # By keyboard: links first, then what scrolls, which has a name.
    browser.press("Tab", 9)
    seen = []
    for _ in range(12):
        seen.append(browser.evaluate("document.activeElement.tagName + ' ' + (document.activeElement.getAttribute('aria-label') || document.activeElement.textContent)"))
        browser.press("Tab", 9)
    assert any(s.startswith("DIV what was evaluated") for s in seen) and any(s.startswith("A Sensitivity") for s in seen), seen
    nodes = browser("Accessibility.getFullAXTree")["nodes"]
    names = [n["name"]["value"] for n in nodes if n.get("role", {}).get("value") in ("image", "img") and n.get("name")]
    assert any("Quality against bytes" in n for n in names) and all(names), names
    # Narrow: the page itself never scrolls sideways.
    browser.size(360, 740)
    assert browser.evaluate("document.documentElement.scrollWidth") <= 360
    browser.evaluate("document.querySelector('svg').scrollIntoView()")
    browser.picture(made / "report-360.png")
    # In print every table is whole.
    browser("Emulation.setEmulatedMedia", media="print")
    assert browser.evaluate("[...document.querySelectorAll('.wide')].every(w => getComputedStyle(w).overflowY == 'visible')")
    browser("Emulation.setEmulatedMedia", media="")
    pdf = base64.b64decode(browser("Page.printToPDF")["data"])
    assert pdf.startswith(b"%PDF") and len(pdf) > 20000
    (made / "report.pdf").write_bytes(pdf)
    urls = [e["params"]["request"]["url"] for e in browser.events if e["method"] == "Network.requestWillBeSent"]
    assert all(url.startswith("file:") or url == "about:blank" for url in urls), urls
    wrong = [e for e in browser.events if e["method"] == "Runtime.exceptionThrown" or (e["method"] == "Log.entryAdded" and e["params"]["entry"]["level"] == "error")]
    assert not wrong, wrong


def test_of_an_evaluation(octavo, tiny, tmp_path):
    """What octavo eval writes itself: page and JSON of one run, as whole and as well-formed."""
    page, result, words = tmp_path / "page.html", tmp_path / "result.json", tmp_path / "report.md"
    octavo("eval", "-m", tiny, "-t", "1", "--tasks", "tokens,greedy,inside,copy", "--tokens", "96", "--chunk", "96", "--partial", "none", "--no-floor", "--kv-cache-dtype", "f16,e4m3:layer,i8+rot/i8",
           "-o", "html", "--output", page, "--save", result, "--save", words)
    found = json.loads(result.read_text())
    check_structure(page.read_text(encoding="utf-8"), found)
    inside = found["passes"][0]["inside"]
    assert [f["format"] for f in inside["formats"]] == [0, 1, 2] and not [f for f in inside["findings"] if "alone costs" not in f["text"]]
    for row in inside["sensitivities"][0]["alone"]:
        assert f"| {row['layer']} | {row['kl']:.2e} |" in words.read_text(encoding="utf-8")
