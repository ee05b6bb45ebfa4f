"""`varve shape serve` as its users start it: a process of its own.

Invariant  a server keeps its port over its lives; nobody else can get it in between.
Crash      `kill` is kill -9: nothing is flushed, closed or answered any more.
"""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Final, Self

import httpx

from tests.support.kafka_server import HOST, ReservedPort

_PATIENCE_SECONDS: Final = 60.0
_SERVES: Final = "varve serves shapes"
_KIB: Final = 1024


class ShapeServer:
    """Shapes of the topics of one broker; `options` are further ones of the command."""

    command = (sys.executable, "-m", "varve", "shape", "serve")

    def __init__(self, bootstrap: str, data: Path, *options: str) -> None:
        self._options = ["-b", bootstrap, "--data", str(data / "shapes"), *options]
        self.log = data / "shapes.log"
        self._reserved = ReservedPort()
        self.host = HOST
        self.port = self._reserved.number
        self.base = f"http://{HOST}:{self.port}"
        self.url = f"{self.base}/v1/shape"
        self._process: subprocess.Popen[str] | None = None
        self.start()

    def start(self) -> None:
        """Starts on the same data and port as before; returns when it serves."""
        assert self._process is None
        listen = ["--listen", f"{HOST}:{self.port}"]
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [*self.command, *self._options, *listen],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith(_SERVES):
            code = self._process.wait(_PATIENCE_SECONDS)
            self._close()
            raise AssertionError(f"the server ended with {code}: {self.log.read_text()[-2000:]}")

    def kill(self) -> None:
        """Ends the process as a crash does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ends the process in order; raises where it does not end well."""
        code = self._end(signal.SIGTERM)
        assert code in (0, None), f"the server ended with {code}: {self.log.read_text()[-2000:]}"

    def _end(self, number: signal.Signals) -> int | None:
        if self._process is None:
            return None
        self._process.send_signal(number)
        try:
            return self._process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError(f"the server does not end; see {self.log}") from None
        finally:
            self._close()

    def _close(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None

    def ask_handle(self, **definition: str) -> str:
        """The handle of a shape, which is made where there is none."""
        answer = httpx.get(
            self.url, params={**definition, "offset": "-1"}, timeout=_PATIENCE_SECONDS
        )
        assert answer.status_code == 200, answer.text
        handle: str = answer.headers["electric-handle"]
        return handle

    def rotate(self, handle: str) -> None:
        """Deletes the shape; its clients are sent to another one."""
        answer = httpx.delete(self.url, params={"handle": handle})
        assert answer.status_code == 202, answer.text

    def compact(self, handle: str) -> dict[str, object]:
        """Compacts the shape now, and gives the report."""
        answer = httpx.post(f"{self.base}/v1/shapes/{handle}/compact", timeout=_PATIENCE_SECONDS)
        assert answer.status_code == 200, answer.text
        report: dict[str, object] = answer.json()
        return report

    def rss_bytes(self) -> int:
        """Memory that the process has now."""
        assert self._process is not None
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) * _KIB
        raise AssertionError(f"the process {self._process.pid} does not tell its memory")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            self._reserved.__exit__()
