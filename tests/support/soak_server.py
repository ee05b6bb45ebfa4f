"""`varve serve` as its users start it: a process of its own, whose log and memory are looked at.

Invariant  a server keeps its port over its lives; nobody else can get it in between.
Crash      `kill` is kill -9: nothing is flushed, closed or answered any more.
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from tests.support.kafka_server import HOST, ReservedPort

_PATIENCE_SECONDS: Final = 180.0
_SERVES: Final = "varve serves"
_KIB: Final = 1024
_PEAK_OF_MEMORY: Final = "5"
"""The word of proc(5) for what is to be cleared."""


class ServedProcess:
    """A server on a directory; `listener` is the name and protocol of the port that all use."""

    def __init__(
        self, directory: Path, settings: Mapping[str, str], *, log: Path, port_count: int = 1
    ) -> None:
        self.directory = directory
        self.log = log
        self._settings = settings
        self._process: subprocess.Popen[str] | None = None
        self._reserved = [ReservedPort() for _ in range(port_count)]
        self.ports = [one.number for one in self._reserved]
        self.bootstrap = f"{HOST}:{self.ports[0]}"
        self.start_count = 0

    def start(self) -> float:
        """Starts on the same directory and ports as before; the seconds until it serves."""
        assert self._process is None
        command = [sys.executable, "-m", "varve", "serve", "-d", str(self.directory)]
        command += ["--log-format=json", "--log-level=warning"]
        command += [f"--set={name}={value}" for name, value in self._given().items()]
        began = time.monotonic()
        with self.log.open("a") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith(_SERVES):
            code = self._process.wait(_PATIENCE_SECONDS)
            self._close()
            raise AssertionError(f"the server ended with {code}; see {self.log}")
        self.start_count += 1
        return time.monotonic() - began

    def _given(self) -> dict[str, str]:
        listeners = self._settings.get("listeners", f"PLAINTEXT://{HOST}:{{0}}")
        return {**self._settings, "listeners": listeners.format(*self.ports)}

    def kill(self) -> None:
        """Ends the process as a crash does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ends the process in order; raises where it does not end well."""
        code = self._end(signal.SIGTERM)
        assert code in (0, None), f"the server ended with {code}; see {self.log}"

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

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def rss_bytes(self) -> int:
        """Memory that the process has now."""
        return self._memory("VmRSS")

    def peak_bytes(self) -> int:
        """The most memory that the process has had since `forget_peak`."""
        return self._memory("VmHWM")

    def forget_peak(self) -> None:
        """Lets the peak begin with the memory of now."""
        assert self._process is not None
        Path(f"/proc/{self._process.pid}/clear_refs").write_text(_PEAK_OF_MEMORY)

    def _memory(self, name: str) -> int:
        assert self._process is not None
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * _KIB
        raise AssertionError(f"the process {self._process.pid} does not tell its {name}")

    def troubles(self) -> list[dict[str, Any]]:
        """Errors of the log, and lines that are none of its own: tracebacks."""
        found = []
        for line in self.log.read_text().splitlines():
            try:
                told = json.loads(line)
            except ValueError:
                told = {"level": "error", "message": line}
            if told["level"] in ("error", "critical"):
                found.append(told)
        return found

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            for one in self._reserved:
                one.__exit__()
