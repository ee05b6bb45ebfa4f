"""A program that runs beside the tests, on loopback: started, waited for, stopped or killed.

Crash      one that does not start or stop in time is killed; the error ends with what it wrote.
"""

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

PATIENCE_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.05


class ProgramFailed(Exception):
    """The program did not start or stop; the message ends with its output."""


class Program:
    """One process at a time; what they write is appended to a file."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process, which must run."""
        assert self._process is not None
        return self._process

    def start(
        self,
        command: Sequence[object],
        is_ready: Callable[[], bool],
        *,
        seconds: float = PATIENCE_SECONDS,
        **options: Any,
    ) -> None:
        """Returns when the program is ready; `options` are those of Popen."""
        assert self._process is None
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **options,
            )
        deadline = time.monotonic() + seconds
        while self._process.poll() is None and time.monotonic() < deadline:
            if is_ready():
                return
            pause(_POLL_SECONDS)
        self.kill()
        raise ProgramFailed(f"{command[0]} did not start: {self._tail()}")

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ends the program in order; harmless when it does not run."""
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise ProgramFailed(f"no end after {PATIENCE_SECONDS} s: {self._tail()}") from error
        finally:
            self.kill()

    def kill(self) -> None:
        """Ends the program as a crash does; harmless when it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_SECONDS)
            self._process = None

    def _tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


def pause(seconds: float) -> None:
    """Waits for an outside process to make progress."""
    threading.Event().wait(seconds)
