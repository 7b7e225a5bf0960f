"""A real headless Chromium, driven by WebDriver over HTTP: it opens pages and returns their content."""

import base64
import contextlib
import json
import re
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.harness.deadline import DEADLINE

CODES = {
    "Tab": 9,
    "Enter": 13,
    "Escape": 27,
    " ": 32,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
}
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--no-default-browser-check",
)


class Chromium:
    """A browser with one page.

    Args:
        directory: for its files; new ones are made below it.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        binary = shutil.which("chromium") or shutil.which("chromium-browser")
        driver = shutil.which("chromedriver")
        assert binary and driver, "`deploy/system-packages.sh test` installs chromium and chromium-driver"
        self._process = subprocess.Popen(
            [driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=directory
        )
        self._url = f"http://127.0.0.1:{self._port()}"
        profile = directory / "profile"
        options = {"binary": binary, "args": [*FLAGS, f"--user-data-dir={profile}"]}
        logs = {"browser": "ALL", "performance": "ALL"}
        capabilities = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": logs}
        session = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
        self._url += f"/session/{session['sessionId']}"

    def _port(self) -> int:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := re.search(r"started successfully on port (\d+)", line):
                return int(found[1])
        raise AssertionError("chromedriver did not start")

    def __enter__(self) -> "Chromium":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        with contextlib.suppress(OSError):
            self._ask("DELETE", "")
        self._process.terminate()
        self._process.wait(DEADLINE)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE) as reply:
                return json.load(reply)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from error

    def command(self, name: str, **parameters: object) -> Any:
        """A command of Chromium's own protocol."""
        return self._ask("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def look(self, width: int, height: int = 900, dark: bool = False) -> None:
        """How large the page is shown, and in which colours."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.command("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, page: Path | str) -> None:
        """Open a file, or a URL."""
        self._ask("POST", "/url", {"url": page if isinstance(page, str) else page.resolve().as_uri()})

    def run(self, script: str, *arguments: object) -> Any:
        """The value of a script's `return`."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def move_to(self, x: float, y: float) -> None:
        """The pointer, within what is shown."""
        self.command("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str) -> None:
        """A key."""
        more = {"windowsVirtualKeyCode": CODES[key]} if key in CODES else {}
        text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
        self.command("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, **more, **text)
        self.command("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, **more)

    def type(self, text: str) -> None:
        """Text into what has the focus."""
        self.command("Input.insertText", text=text)

    def until(self, script: str, *arguments: object) -> Any:
        """Wait until a script returns something true; returns that."""
        end = time.monotonic() + DEADLINE / 6
        while not (found := self.run(script, *arguments)):
            shown = self.run("return document.body ? document.body.innerText.slice(0, 3000) : ''")
            assert time.monotonic() < end, f"{script} {arguments}: not so in\n{shown}\n{self.console()}"
            time.sleep(0.03)
        return found

    def console(self) -> list[str]:
        """The lines of the console since it was asked last."""
        return [entry["message"] for entry in self._ask("POST", "/se/log", {"type": "browser"})]

    def requests(self) -> list[str]:
        """The URLs that were asked for since it was asked last."""
        events = [
            json.loads(entry["message"])["message"] for entry in self._ask("POST", "/se/log", {"type": "performance"})
        ]
        return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]

    def screenshot(self, file: Path, whole: bool = True) -> None:
        """The whole page as PNG, or its visible part."""
        shot = self.command("Page.captureScreenshot", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(shot["data"]))

    def clip(self, file: Path, selector: str) -> None:
        """An element as PNG."""
        box = self.run(
            "const b = document.querySelector(arguments[0]).getBoundingClientRect();"
            "return {x: b.x + scrollX, y: b.y + scrollY, width: b.width, height: b.height}",
            selector,
        )
        shot = self.command("Page.captureScreenshot", captureBeyondViewport=True, clip={**box, "scale": 1})
        file.write_bytes(base64.b64decode(shot["data"]))
