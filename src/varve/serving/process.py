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
    """Allows as many open files as the system lets the process have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def freeze_garbage_collection(thresholds: tuple[int, int, int] | None = None) -> None:
    """Enables garbage collection, without ever visiting what was imported and loaded so far.

    Little of that is garbage, and finding it takes a tenth of a second.
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
        # Whoever ends a group of processes often signals each of them twice.
        elif loop.time() - first_at >= _SAME_SIGNAL_SECONDS:
            logger.warning("stopped at once", extra={"signal": signal.Signals(number).name})
            os._exit(EXIT_KILLED)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, handle, number)
    return stop
