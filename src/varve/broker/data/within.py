"""Waits for work off the loop, but not for ever."""

import asyncio
from typing import TypeVar

from varve.broker.timers import Timers

T = TypeVar("T")


async def within(timers: Timers, work: "asyncio.Future[T]", timeout_ms: int) -> T:
    """The outcome of the work; raises TimeoutError, and then the work goes on by itself."""
    over: asyncio.Future[T] = work.get_loop().create_future()
    timer = timers.call_later(timeout_ms, lambda: _end(over))
    try:
        await asyncio.wait({work, over}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()
        over.cancel()
    if not work.done():
        work.add_done_callback(_look_away)
        raise TimeoutError
    return work.result()


def _end(over: "asyncio.Future[T]") -> None:
    over.cancel()


def _look_away(work: "asyncio.Future[T]") -> None:
    """Nobody waits any longer to be told of a failure."""
    if not work.cancelled():
        work.exception()
