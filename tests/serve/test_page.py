"""The page at / in headless Chromium, through the DevTools protocol over pipes: chat, picture of the pool, keyboard, names for screen readers, 360 px, nothing fetched from elsewhere. Keeps
page.png and page-360.png in the test's folder."""
import base64
import json
import os
import select
import shutil
import subprocess
import time

import pytest

import tiny_gguf

CHROMIUM = next((path for name in ("chromium-headless-shell", "chromium", "google-chrome") if (path := shutil.which(name))), None)
# Of a mark pytest ends well; a file that skips itself has no tests, which counts as a failure.
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="the page at / in a browser: there is no chromium (apt-get install chromium-headless-shell)")


class Browser:
    """Commands and events as JSON with a zero behind each."""

    def __init__(self, folder):
        self.next, self.rest, self.events = 0, b"", []
        command_read, self.out = os.pipe()
        self.into, event_write = os.pipe()

        def place():     # where Chromium looks for them; through high numbers first, that none is closed by another
            high = [os.dup2(command_read, 103), os.dup2(event_write, 104)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self.process = subprocess.Popen([CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"],
                                        preexec_fn=place, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(command_read)
        os.close(event_write)
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self.session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "Accessibility"):
            self(domain + ".enable")

    session = None

    def receive(self, timeout=20):
        end = time.monotonic() + timeout
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.into], [], [], max(0, end - time.monotonic()))
            assert ready, "Chromium says nothing"
            data = os.read(self.into, 1 << 20)
            assert data, "Chromium has gone"
            self.rest += data
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def __call__(self, method, **params):
        self.next += 1
        ask = {"id": self.next, "method": method, "params": params} | ({"sessionId": self.session} if self.session else {})
        os.write(self.out, json.dumps(ask).encode() + b"\0")
        while True:
            message = self.receive()
            if message.get("id") == self.next:
                assert "error" not in message, message
                return message["result"]
            self.events.append(message)

    def evaluate(self, expression):
        reply = self("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in reply, reply
        return reply["result"].get("value")

    def wait_for(self, expression, timeout=20):
        end = time.monotonic() + timeout
        # While a page is being loaded there may be none, or another one.
        while not self("Runtime.evaluate", expression=f"(() => {{ try {{ return !!({expression}) }} catch {{ return false }} }})()", returnByValue=True)["result"].get("value"):
            assert time.monotonic() < end, expression
            time.sleep(0.05)

    def press(self, key, code, text=None):
        for kind in ("keyDown", "keyUp"):
            self("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **({"text": text} if text and kind == "keyDown" else {}))

    def size(self, width, height):
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def picture(self, path):
        size = self("Page.getLayoutMetrics")["cssContentSize"]
        path.write_bytes(base64.b64decode(self("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=size | {"scale": 1})["data"]))
        assert path.stat().st_size > 5000

    def close(self):
        self.process.terminate()
        self.process.wait(timeout=20)
        os.close(self.out)
        os.close(self.into)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    b = Browser(tmp_path_factory.mktemp("chromium"))
    yield b
    b.close()


def tab_to(browser, identifier):
    for _ in range(20):
        browser.press("Tab", 9)
        if browser.evaluate("document.activeElement.id") == identifier:
            return
    pytest.fail(f"Tab never comes to {identifier}")


def test_page(start, browser, tmp_path):
    server = start("--max-num-seqs", 4, file=tiny_gguf.write(tmp_path / "page.gguf", chat=True, context=2048))
    here = f"http://127.0.0.1:{server.port}"
    browser.size(1200, 900)
    browser("Page.navigate", url=here + "/")
    browser.wait_for("document.querySelector('#pools .bar') && document.querySelector('#kernels details')")
    # By keyboard alone: to the message, a text, Enter; then an answer comes, and a second one.
    for n, text in ((1, "Hello"), (2, "again")):
        tab_to(browser, "text")
        browser("Input.insertText", text=text)
        browser.press("Enter", 13, "\r")
        browser.wait_for(f"document.querySelectorAll('#log p').length >= {2 * n} && !document.getElementById('send').disabled")
    assert browser.evaluate("document.querySelectorAll('#log p')[0].textContent") == "YouHello"
    assert browser.evaluate("[...document.querySelectorAll('#log p')].some(p => p.textContent.startsWith('Model') && p.textContent.length > 6)")
    assert server.metrics()["octavo:generation_tokens_total"] > 1
    browser.wait_for("Number(document.getElementById('computed').textContent) >= 0")
    assert "pages used" in browser.evaluate("document.querySelector('#pools .bar').getAttribute('aria-label')")
    # Which kernels run, and why not others; what somebody has opened stays open when it is looked up again.
    kernels = browser.evaluate("[...document.querySelectorAll('#kernels summary')].map(s => s.textContent)")
    chosen = [v["name"] for op in server.request("GET", "/explain")[1]["full"]["operations"] for v in op["variants"] if v["state"] == "chosen"]
    assert len(chosen) >= 2 and [k.split(" ")[0] for k in kernels] == chosen and all("full layers" in k for k in kernels)
    whys = browser.evaluate("document.getElementById('kernels').textContent")
    assert "runs, the fastest that can" in whys and "can't run: needs" in whys and "undefined" not in whys and "NaN" not in whys, whys
    browser.evaluate("document.querySelectorAll('#kernels summary')[1].click()")
    browser.evaluate("get('/explain').then(e => { e.full.operations[0].rows += 1; explain(e) })")
    assert browser.evaluate("[...document.querySelectorAll('#kernels details')].map(d => d.open)") == [i == 1 for i in range(len(chosen))]
    browser.evaluate("document.querySelectorAll('#kernels summary')[1].click()")
    browser.picture(tmp_path / "page.png")
    # What a screen reader hears: everything that takes the focus has a name.
    nodes = browser("Accessibility.getFullAXTree")["nodes"]
    roles = {}
    for node in nodes:
        name, role = node.get("name", {}).get("value", ""), node.get("role", {}).get("value", "")
        roles.setdefault(role, []).append(name)
        focusable = any(p["name"] == "focusable" and p["value"]["value"] for p in node.get("properties", []))
        assert name or not focusable or node.get("ignored") or role in ("RootWebArea", "generic"), node
    assert {"Send", "Stop", "New chat"} <= set(roles["button"]) and "Chat" in roles["log"] and any("pages used" in name for name in roles["image"])
    # Narrow: nothing sticks out.
    browser.size(360, 740)
    assert browser.evaluate("document.documentElement.scrollWidth") <= 360
    browser.picture(tmp_path / "page-360.png")
    # A new chat begun within an answer is empty; what is refused goes back to be sent again, and is no part of the chat.
    browser.evaluate("void answer('gone'); document.getElementById('clear').click()")
    browser.wait_for("!document.getElementById('send').disabled")
    assert browser.evaluate("talk.length === 0 && document.querySelectorAll('#log p').length === 0")
    browser.evaluate("document.getElementById('text').value = ''; document.getElementById('most').value = 999999; void answer('too long')")
    browser.wait_for("!document.getElementById('send').disabled && !document.getElementById('trouble').hidden")
    assert browser.evaluate("talk.length === 0 && document.getElementById('text').value === 'too long' && document.querySelectorAll('#log p').length === 0")
    assert "999999" in browser.evaluate("document.getElementById('trouble').textContent")
    urls = [e["params"]["request"]["url"] for e in browser.events if e["method"] == "Network.requestWillBeSent"]
    assert urls and all(url.startswith(here) or url == "about:blank" for url in urls), urls
    wrong = [e for e in browser.events if e["method"] == "Runtime.exceptionThrown" or (e["method"] == "Log.entryAdded" and e["params"]["entry"]["level"] == "error" and
             "favicon" not in str(e) and "400 (Bad Request)" not in str(e))]
    assert not wrong, wrong


def test_page_stops_and_asks_for_the_key(start, browser, tmp_path):
    server = start("--api-key", "s3cret")
    browser("Page.navigate", url=f"http://127.0.0.1:{server.port}/")
    browser.wait_for("!document.getElementById('key-box').hidden && !document.getElementById('trouble').hidden")
    browser.evaluate("document.getElementById('key').focus()")
    browser("Input.insertText", text="s3cret")
    browser.wait_for("document.getElementById('key-box').hidden && document.querySelector('#pools .bar')")
    tab_to(browser, "text")
    browser("Input.insertText", text="<img src=x onerror=alert(1)>")
    browser.press("Enter", 13, "\r")
    browser.evaluate("document.getElementById('stop').click()")
    browser.wait_for("!document.getElementById('send').disabled")
    assert browser.evaluate("document.querySelectorAll('#log img').length") == 0     # texts are texts
    assert server.request("GET", "/status")[0] == 401
