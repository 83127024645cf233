"""A headless Chromium driven over its debugging pipe, as a person would use a page: click, type, read, look."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)
# Chromium reads orders from its descriptor 3 and answers on 4.
_LAUNCH = (
    "import os, sys; r, w = map(int, sys.argv[1:3]); os.dup2(r, 3); os.dup2(w, 4); os.execv(sys.argv[3], sys.argv[3:])"
)


def needed() -> bool:
    """Whether a test that wants a browser may be skipped: not where a missing one would go unseen."""
    return CHROMIUM is None and not os.environ.get("CI")


def chromium() -> str:
    assert CHROMIUM is not None, (
        "Chromium is not installed, and tests of the dashboard are never skipped here (CI is set)"
    )
    return CHROMIUM


class Page:
    """One page. Every method waits for the browser; `errors` has what the page told its console as errors."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive = send, receive
        self._number = 0
        self._buffer = b""
        self._session: str | None = None
        self.errors: list[str] = []

    def __repr__(self) -> str:
        return f"<Page after {self._number} orders, {len(self.errors)} errors>"

    def order(self, method: str, **params: Any) -> dict[str, Any]:
        """Give the browser an order of its protocol, and return what it says."""
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            told = self._next()
            if told.get("id") == number:
                assert "error" not in told, f"{method}: {told['error']}"
                result: dict[str, Any] = told["result"]
                return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = os.read(self._receive, 1 << 16)
            assert data, "the browser is gone"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        told: dict[str, Any] = json.loads(line)
        self._note(told)
        return told

    def _note(self, told: dict[str, Any]) -> None:
        params = told.get("params", {})
        if told.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"])[:500])
        if told.get("method") == "Runtime.consoleAPICalled" and params["type"] == "error":
            self.errors.append(json.dumps(params["args"])[:500])
        if told.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    def open(self, url: str, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """Load a page in a window of so many CSS pixels."""
        if self._session is None:
            target = self.order("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.order("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log"):
                self.order(f"{domain}.enable")
        self.resize(width, height)
        self.scheme(scheme)
        self.order("Page.navigate", url=url)
        self.until("location.href !== 'about:blank' && document.readyState === 'complete'")

    def resize(self, width: int, height: int = 900) -> None:
        self.order(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def scheme(self, scheme: str) -> None:
        """Prefer "light" or "dark"."""
        self.order("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def js(self, expression: str) -> Any:
        """The value of an expression in the page, awaited if it is a promise."""
        found = self.order("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, expression: str, within: float = 20.0) -> Any:
        """Wait until an expression is true; fails loudly when it does not become so."""
        end = time.monotonic() + within
        while not (found := self.js(expression)):
            assert time.monotonic() < end, (
                f"not true within {within} s: {expression}\n{self.js('document.body.innerText')}"
            )
            time.sleep(0.05)
        return found

    def text(self, selector: str) -> str:
        found = self.js(f"document.querySelector({json.dumps(selector)}).textContent")
        assert isinstance(found, str)
        return found

    def texts(self, selector: str) -> list[str]:
        found: list[str] = self.js(f"[...document.querySelectorAll({json.dumps(selector)})].map((n) => n.textContent)")
        return found

    def click(self, selector: str) -> None:
        self.js(f"document.querySelector({json.dumps(selector)}).click()")

    def key(self, key: str, code: int, text: str = "") -> None:
        """Press and release a key, as a keyboard does."""
        keys = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.order("Input.dispatchKeyEvent", type="keyDown", text=text, **keys)
        self.order("Input.dispatchKeyEvent", type="keyUp", **keys)

    def picture(self, path: Path, whole: bool = True) -> None:
        """A PNG of the page, or of what the window shows of it."""
        data = self.order("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))


@contextmanager
def browsing(profile: Path) -> Iterator[Page]:
    """A page of a new browser, which is gone when the block ends."""
    orders, send = os.pipe()
    receive, answers = os.pipe()
    program = [sys.executable, "-c", _LAUNCH, str(orders), str(answers), chromium(), *FLAGS]
    command = [*program, f"--user-data-dir={profile}", "--remote-debugging-pipe"]
    process = subprocess.Popen(
        command,
        pass_fds=(orders, answers),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(orders)
    os.close(answers)
    try:
        yield Page(send, receive)
    finally:
        os.close(send)
        os.close(receive)
        _end(process)


def _end(process: subprocess.Popen[bytes], kill: Callable[[int, int], None] = os.killpg) -> None:
    """Without its pipe the browser ends by itself."""
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        kill(process.pid, 9)
        process.wait()
