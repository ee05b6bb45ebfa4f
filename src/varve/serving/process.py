"""The process of a server: its open file limit, its garbage collection, its stop signals."""

import asyncio
import gc
import logging
import os
import resource
import signal
from typing import Final

logger = logging.getLogger(__name__)

EXIT_KILLED: Final = 137
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
