"""`varve shape serve` as its users start it: a process of its own.

Invariant  a server keeps its port over its lives; nobody else can get it in between.
Crash      `kill` is kill -9: nothing is flushed, closed or answered any more.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final, Self

import httpx

from tests.support.kafka_server import HOST, ReservedPort

_SCRIPT: Final = Path(__file__).with_name("shape_forked_server.py")
_PATIENCE_SECONDS: Final = 120.0
_SERVES: Final = "varve serves shapes"
_KIB: Final = 1024


class ShapeServer:
    """Shapes of the topics of one broker; `options` are further ones of the command."""

    def __init__(self, bootstrap: str, data: Path, *options: str) -> None:
        self._reserved = ReservedPort()
        self.host = HOST
        self.port = self._reserved.number
        self.base = f"http://{HOST}:{self.port}"
        self.url = f"{self.base}/v1/shape"
        self.log = data / "shapes.log"
        given = ["-b", bootstrap, "--data", str(data / "shapes"), "--listen", f"{HOST}:{self.port}"]
        self._arguments = [*given, *options]
        self._pid: int | None = None
        with self.log.open("a") as log:
            self._forker = subprocess.Popen(
                [sys.executable, str(_SCRIPT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.start()

    def _read(self) -> None:
        assert self._forker.stdout is not None
        for line in self._forker.stdout:
            self._lines.put(line.strip())
        self._lines.put("dead with its parent")

    def start(self) -> None:
        """Starts on the same data and port as before; returns when it serves."""
        assert self._pid is None
        assert self._forker.stdin is not None
        print(json.dumps(self._arguments), file=self._forker.stdin, flush=True)
        self._pid = int(self._expect("pid ").split()[1])
        self._expect(_SERVES)

    def _expect(self, start: str) -> str:
        """The next line that starts so; raises when the server has ended before."""
        while not (line := self._lines.get(timeout=_PATIENCE_SECONDS)).startswith(start):
            if line.startswith("dead"):
                self._pid = None
                raise AssertionError(f"the server is {line}: {self.log.read_text()[-2000:]}")
        return line

    def kill(self) -> None:
        """Ends the process as a crash does."""
        assert self._end(signal.SIGKILL) == -signal.SIGKILL

    def stop(self) -> None:
        """Ends the process in order; raises where it does not end well."""
        code = self._end(signal.SIGTERM)
        assert code == 0, f"the server ended with {code}: {self.log.read_text()[-2000:]}"

    def _end(self, number: signal.Signals) -> int:
        assert self._pid is not None
        pid, self._pid = self._pid, None
        os.kill(pid, number)
        return int(self._expect("dead ").split()[1])

    def ask_handle(self, **definition: str) -> str:
        """The handle of a shape, which is made where there is none."""
        answer = httpx.get(
            self.url, params={**definition, "offset": "-1"}, timeout=_PATIENCE_SECONDS
        )
        assert answer.status_code == 200, answer.text
        handle: str = answer.headers["electric-handle"]
        return handle

    def wait_gone(self, table: str) -> None:
        """Returns when the server has noticed that a topic with shapes is gone."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while httpx.get(self.url, params={"table": table, "offset": "-1"}).status_code != 503:
            assert time.monotonic() < deadline, f"{table} is still served"
            threading.Event().wait(0.05)

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
        for line in Path(f"/proc/{self._pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) * _KIB
        raise AssertionError(f"the process {self._pid} does not tell its memory")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._forker.stdin is not None
        assert self._forker.stdout is not None
        try:
            if self._pid is not None:
                self.stop()
        finally:
            self._forker.stdin.close()
            self._forker.wait(_PATIENCE_SECONDS)
            self._reader.join(_PATIENCE_SECONDS)
            self._forker.stdout.close()
            self._reserved.__exit__()
