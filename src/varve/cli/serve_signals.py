"""SIGTERM and Ctrl-C of a server: the first ends in order, a second one at once."""

import asyncio
import logging
import os
import signal
from typing import Final

logger = logging.getLogger(__name__)

KILLED: Final = 137
_SAME_SIGNAL_SECONDS: Final = 0.2


def take_signals(loop: asyncio.AbstractEventLoop) -> asyncio.Event:
    """An event that the first signal sets."""
    end = asyncio.Event()
    first_at = 0.0

    def note(number: int) -> None:
        nonlocal first_at
        if end.is_set():
            # Whoever ends a group of processes often tells each of them twice.
            if loop.time() - first_at < _SAME_SIGNAL_SECONDS:
                return
            logger.warning("stopped at once", extra={"signal": signal.Signals(number).name})
            os._exit(KILLED)
        first_at = loop.time()
        end.set()

    for signals in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signals, note, signals)
    return end
