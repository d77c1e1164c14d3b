"""A headless Chromium, spoken to over a pipe in its DevTools protocol. No driver and no network."""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Everything that could reach out is off; --no-sandbox because tests often run as root in a container.
OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-default-apps",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


def find_browser():
    """Its path, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """with Browser() as browser: page = browser.open(path, width)"""

    def __init__(self, timeout=120.0):
        self._timeout = timeout
        self._ids = itertools.count(1)
        self._buffer = b""
        self._events = []
        self._target = None

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        (to_browser, self._write), (self._read, from_browser) = os.pipe(), os.pipe()
        # The protocol wants the pipes as file descriptors 3 and 4.
        script = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        command = [find_browser(), "--remote-debugging-pipe", f"--user-data-dir={self._folder.name}", *OPTIONS]
        self._process = subprocess.Popen(
            ["bash", "-c", script, *command],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        return self

    def __exit__(self, *_):
        try:
            self.call("Browser.close")
            self._process.wait(20)
        except (OSError, TimeoutError, EOFError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)
        self._folder.cleanup()

    def call(self, method, session=None, **parameters):
        """The result of a command. Events that come meanwhile are kept for `take_events`."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + self._timeout
        while True:
            answer = self._receive(deadline)
            if answer.get("id") != number:
                self._events.append(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']['message']}")
            else:
                return answer["result"]

    def take_events(self):
        taken, self._events = self._events, []
        return taken

    def wait_for(self, method):
        deadline = time.monotonic() + self._timeout
        while not any(event.get("method") == method for event in self._events):
            self._events.append(self._receive(deadline))

    def _receive(self, deadline):
        while b"\0" not in self._buffer:
            poll = select.poll()  # select() takes no descriptor above 1023
            poll.register(self._read, select.POLLIN)
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimeoutError("the browser does not answer")
            data = os.read(self._read, 1 << 20)
            if not data:
                raise EOFError("the browser ended")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def open(self, path, width, height=900):
        """The page of a file, as wide as asked, when it has loaded. The page before is closed."""
        if self._target is not None:
            self.call("Target.closeTarget", targetId=self._target)
        target = self._target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 700
        )
        self.take_events()
        page.call("Page.navigate", url=Path(path).resolve().as_uri())
        self.wait_for("Page.loadEventFired")
        page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        page.events = self.take_events()
        return page


class Page:
    def __init__(self, browser, session):
        self._browser, self._session = browser, session
        self.events = []

    def call(self, method, **parameters):
        return self._browser.call(method, self._session, **parameters)

    def evaluate(self, expression):
        """The value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    def complaints(self):
        """Errors and warnings of the console, uncaught exceptions, and requests for anything but the file itself."""
        found = []
        for event in [*self.events, *self._browser.take_events()]:
            method, parameters = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(str(parameters["exceptionDetails"]))
            elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
                found.append(str(parameters["args"]))
            elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
                found.append(parameters["entry"]["text"])
            elif method == "Network.requestWillBeSent":
                url = parameters["request"]["url"]
                if not url.startswith(("file:", "data:")):
                    found.append(f"asks for {url[:200]}")
        return found

    def picture(self, path, height=None):
        """A PNG of the whole page, or of its top."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"], "scale": 1}
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
        Path(path).write_bytes(base64.b64decode(data))
