"""The process of a server: its open file limit, garbage collection, stop signals and log.

The log goes to standard error, in lines for people or as JSON for machines. Messages are constant,
and their values are in `extra`; both formats show the values by name. What a program without a
handler of its own has to read is named in the message, as `%(error)s`, and is its argument.

Invariant  no client fills the disk through the log: of one message of the servers or the broker at
           most `LINES_MAX` lines pass within `WINDOW_SECONDS`, and the next line that passes says
           how many were left out. Messages of the store always pass.
Threads    a handler calls its filters outside its lock: a race may let an extra line pass.
"""

import asyncio
import contextlib
import ctypes
import gc
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from varve.foundation.errors import Unavailable

logger = logging.getLogger(__name__)

EXIT_KILLED: Final = 137
TRIM_SECONDS: Final = 5.0
_SAME_SIGNAL_SECONDS: Final = 0.2


def raise_open_file_limit() -> None:
    """Raises the limit of open files to the hard limit of the process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def freeze_garbage_collection(thresholds: tuple[int, int, int] | None = None) -> None:
    """Enables garbage collection, which skips all objects that exist now.

    Few modules and tables become garbage, and a collection of them takes a tenth of a second.
    """
    gc.freeze()
    if thresholds is not None:
        gc.set_threshold(*thresholds)
    gc.enable()


async def trim_memory(run: Callable[[Callable[[], None]], Awaitable[None]]) -> None:
    """Returns freed memory to the system, which the C library keeps after large or slow answers.

    Until it is cancelled; `run` calls a function in a pool and may skip a round with Unavailable.
    """
    while True:
        await asyncio.sleep(TRIM_SECONDS)
        with contextlib.suppress(Unavailable):
            await run(_return_freed_memory)


def _return_freed_memory() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def handle_stop_signals(loop: asyncio.AbstractEventLoop) -> asyncio.Event:
    """An event that the first SIGTERM or SIGINT sets; a second one ends the process at once."""
    stop = asyncio.Event()
    first_at = 0.0

    def handle(number: int) -> None:
        nonlocal first_at
        if not stop.is_set():
            first_at = loop.time()
            stop.set()
        # A supervisor that ends a process group often signals each process twice.
        elif loop.time() - first_at >= _SAME_SIGNAL_SECONDS:
            logger.warning("stopped at once", extra={"signal": signal.Signals(number).name})
            os._exit(EXIT_KILLED)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, handle, number)
    return stop


# Log output

LINES_MAX: Final = 100
WINDOW_SECONDS: Final = 10.0

_LIMITED: Final = ("varve.kafka_server.", "varve.broker.", "asyncio")
_MESSAGES_MAX: Final = 1000
_STANDARD_FIELDS: Final = frozenset(
    (*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "color_message")
)


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class TextFormatter(logging.Formatter):
    """Time, level, logger, message, and its values."""

    def format(self, record: logging.LogRecord) -> str:
        values = "".join(f" {name}={value}" for name, value in _values(record).items())
        line = f"{_time(record)} {record.levelname} {record.name}: {record.getMessage()}{values}"
        # Line breaks in values that clients sent must not look like further log lines.
        line = line.replace("\r", "\\r").replace("\n", "\\n")
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line


class JsonFormatter(logging.Formatter):
    """One object per line."""

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **(record.args if isinstance(record.args, Mapping) else {}),
            **_values(record),
        }
        if record.exc_info:
            document["error"] = self.formatException(record.exc_info)
        return json.dumps(document, default=str, ensure_ascii=False)


def _values(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS}


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(slots=True)
class _Window:
    began: float
    passed: int = 0
    left_out: int = 0


class LogRateLimit(logging.Filter):
    """A filter for a handler; messages are constant, so their text identifies them."""

    def __init__(self) -> None:
        super().__init__()
        self._windows: dict[tuple[str, object], _Window] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith(_LIMITED):
            return True
        window = self._window(record)
        if window.passed >= LINES_MAX:
            window.left_out += 1
            return False
        if window.left_out:
            record.left_out_before = window.left_out
            window.left_out = 0
        window.passed += 1
        return True

    def _window(self, record: logging.LogRecord) -> _Window:
        key = (record.name, record.msg)
        window = self._windows.get(key)
        if window is None:
            if len(self._windows) >= _MESSAGES_MAX:
                self._windows.clear()
            window = self._windows[key] = _Window(record.created)
        # A clock that was set back must not silence the log for long.
        elif not 0 <= record.created - window.began < WINDOW_SECONDS:
            window.began, window.passed = record.created, 0
        return window


def set_up_logging(format: LogFormat, level: LogLevel) -> None:
    """Sends the package's log to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format is LogFormat.JSON else TextFormatter())
    handler.addFilter(LogRateLimit())
    for name in ("varve", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level.upper())
