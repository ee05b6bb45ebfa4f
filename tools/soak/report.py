"""What a soak tells on the way and at its end."""

import sys
import time
from typing import Final

from tools.soak.run import Result

_QUIET_SECONDS: Final = 15.0
_WIDTH: Final = 120
_ERRORS_SHOWN: Final = 3


class Screen:
    """One line that changes on a terminal; elsewhere a line now and then. On standard error."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._told_at = float("-inf")

    def say(self, line: str) -> None:
        self.end()
        print(line, file=sys.stderr, flush=True)

    def progress(self, line: str) -> None:
        if self._is_terminal:
            print(f"\r{line:<{_WIDTH}.{_WIDTH}}", end="", file=sys.stderr, flush=True)
            return
        now = time.monotonic()
        if now - self._told_at >= _QUIET_SECONDS:
            self._told_at = now
            print(line, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leaves the line that changes."""
        if self._is_terminal:
            print(f"\r{'':<{_WIDTH}}\r", end="", file=sys.stderr, flush=True)


def show(result: Result, seed: int) -> None:
    """The table, then what is wrong."""
    width = max(map(len, result.figures))
    for name, figure in result.figures.items():
        print(f"{name:<{width}}  {figure:>12,}")
    for name, errors in result.client_errors.items():
        print(f"{name} was told {len(errors)} errors and went on:")
        for error in sorted(set(errors))[:_ERRORS_SHOWN]:
            print(f"  {error}")
    for finding in result.findings:
        print(f"FOUND {finding}")
    verdict = f"{len(result.findings)} findings" if result.findings else "all is well"
    print(f"{verdict}; seed {seed}")
