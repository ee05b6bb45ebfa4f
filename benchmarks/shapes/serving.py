"""Processes of the HTTP measures: `varve shape serve`, and a plain server of static files."""

import http.client
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

_WAIT_SECONDS: Final = 60.0
_READ_BYTES: Final = 1 << 20


@contextmanager
def serve_shapes(data: Path, *options: str) -> Iterator[int]:
    """`varve shape serve` on loopback; the port."""
    command = ["-m", "varve", "shape", "serve", "--data", str(data), "--listen", "127.0.0.1:0"]
    with _started([*command, "--log-level", "warning", *options]) as line:
        yield int(line.rpartition(":")[2].partition("/")[0].split()[0])


@contextmanager
def serve_files(directory: Path) -> Iterator[int]:
    """The same HTTP server with starlette's answer for files; the port."""
    with _started(["-m", "benchmarks.shapes.static_process", str(directory)]) as line:
        yield int(line)


@contextmanager
def _started(arguments: Sequence[str]) -> Iterator[str]:
    """A process that says one line when it is ready, and ends with the context."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{' '.join(arguments)} did not start")
        yield line.strip()
    finally:
        process.terminate()
        try:
            process.wait(_WAIT_SECONDS)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


class ShapeReader:
    """A client with one connection that stays open."""

    def __init__(self, port: int, table: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_WAIT_SECONDS)
        self._table = table
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self.offset = "-1"
        self.handle = ""
        self.cursor = ""

    def close(self) -> None:
        self._connection.close()

    def ask(self, *, live: bool = False) -> tuple[int, bytes]:
        """One answer: its bytes, and the end of its body. The place moves on."""
        wanted = {"table": self._table, "offset": self.offset}
        if self.handle:
            wanted["handle"] = self.handle
        if live:
            wanted |= {"live": "true", "cursor": self.cursor}
        size, end, answer = self.get(f"/v1/shape?{urlencode(wanted)}")
        self.offset = answer.headers["electric-offset"]
        self.handle = answer.headers["electric-handle"]
        self.cursor = answer.headers.get("electric-cursor", "")
        self.is_up_to_date = "electric-up-to-date" in answer.headers
        return size, end

    def get(self, path: str) -> tuple[int, bytes, http.client.HTTPResponse]:
        self._connection.request("GET", path)
        answer = self._connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"{path}: status {answer.status}: {answer.read(500)!r}")
        total, end = 0, b""
        while size := answer.readinto(self._buffer):
            total += size
            end = bytes(self._buffer[max(0, size - 200) : size])
        return total, end, answer

    def sync(self) -> int:
        """All from the beginning to the present; the bytes of the bodies."""
        self.offset, self.handle = "-1", ""
        total = self.ask()[0]
        while not self.is_up_to_date:
            total += self.ask()[0]
        return total
