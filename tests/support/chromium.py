"""A page in Chromium, driven through the pipe of its DevTools protocol: no driver, no port.

with Chromium(tmp_path) as page:
    page.open(url)
    page.wait("document.title === 'parcels'")

Invariant  `troubles` has every exception and every error that the page's console got.
"""

import base64
import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Final, Self

from tests.support.web_setup import find_chromium, find_missing

_PATIENCE_SECONDS: Final = 30.0
_OPTIONS: Final = (
    "--headless",
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
    "--window-size=960,800",
)
# The browser takes orders at 3 and answers at 4; both pipes are first put out of the way of those.
_START: Final = """
import fcntl, os, sys
orders, answers = (fcntl.fcntl(int(one), fcntl.F_DUPFD, 10) for one in sys.argv[1:3])
os.dup2(orders, 3)
os.dup2(answers, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Chromium:
    """One page; one thread at a time may use it. `directory` is for the browser's own files."""

    def __init__(self, directory: Path) -> None:
        missing = find_missing().get("browser")
        assert missing is None, f"there is no {missing}: run `make setup`"
        program = find_chromium()
        assert program is not None
        self.troubles: list[str] = []
        self._count = 0
        self._is_loaded = True
        self._told: queue.Queue[bytes] = queue.Queue()
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        # In its own user namespace or as root it has no sandbox; it sees pages of loopback only.
        given = [*_OPTIONS, "--no-sandbox", f"--user-data-dir={directory}", "about:blank"]
        with (directory / "chromium.log").open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, str(orders), str(answers), program, *given],
                pass_fds=(orders, answers),
                stdout=log,
                stderr=log,
            )
        os.close(orders)
        os.close(answers)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._session = ""
        self._session = self._attach()
        for domain in ("Page", "Runtime", "Log"):
            self._order(f"{domain}.enable")

    def _attach(self) -> str:
        targets = self._order("Target.getTargets")["targetInfos"]
        page = next(one["targetId"] for one in targets if one["type"] == "page")
        told = self._order("Target.attachToTarget", targetId=page, flatten=True)
        session: str = told["sessionId"]
        return session

    def open(self, url: str) -> None:
        """Returns when the page and its scripts are loaded."""
        self._is_loaded = False
        told = self._order("Page.navigate", url=url)
        assert "errorText" not in told, f"{url}: {told['errorText']}"
        while not self._is_loaded:
            self._note(self._take())

    def evaluate(self, expression: str) -> Any:
        """What an expression of JavaScript, or the promise that it is, comes to."""
        told = self._order(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def wait(self, condition: str, seconds: float = _PATIENCE_SECONDS) -> None:
        """Returns when an expression is true; raises when it is not in time."""
        looks = round(seconds * 50)
        is_reached = self.evaluate(
            "new Promise((done) => { let looks = 0; const look = () => "
            f"({condition}) ? done(true) : ++looks > {looks} ? done(false) : setTimeout(look, 20);"
            " look() })"
        )
        assert is_reached, f"not after {seconds} s: {condition}; {self.troubles}"

    def screenshot(self, path: Path) -> None:
        told = self._order("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(told["data"]))

    def _order(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        order = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            order["sessionId"] = self._session
        os.write(self._orders, json.dumps(order).encode() + b"\0")
        while (told := self._take()).get("id") != self._count:
            self._note(told)
        assert "error" not in told, f"{method}: {told['error']}"
        result: dict[str, Any] = told["result"]
        return result

    def _take(self) -> dict[str, Any]:
        """The next answer or event."""
        line = self._told.get(timeout=2 * _PATIENCE_SECONDS)
        assert line, "the browser has ended"
        told: dict[str, Any] = json.loads(line)
        return told

    def _note(self, event: dict[str, Any]) -> None:
        given = event.get("params", {})
        match event.get("method"):
            case "Page.loadEventFired":
                self._is_loaded = True
            case "Runtime.exceptionThrown":
                self.troubles.append(json.dumps(given["exceptionDetails"]))
            case "Log.entryAdded" if given["entry"]["level"] == "error":
                self.troubles.append(given["entry"]["text"])
            case "Runtime.consoleAPICalled" if given["type"] in ("error", "assert"):
                self.troubles.append(json.dumps(given["args"]))

    def _read(self) -> None:
        rest = b""
        while piece := os.read(self._answers, 1 << 16):
            *lines, rest = (rest + piece).split(b"\0")
            for line in lines:
                self._told.put(line)
        self._told.put(b"")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._orders)  # the browser ends with its orders
        try:
            self._process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(_PATIENCE_SECONDS)
        os.close(self._answers)
