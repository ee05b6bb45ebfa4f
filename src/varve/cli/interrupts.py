"""How commands that work for long take an interrupt: between two chunks, and with a sentence.

Invariant  the first Ctrl-C is taken at the next chunk, so that it never meets a swap or a rename; a
           second one, for a chunk that does not end, is taken at once.
"""

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import ParamSpec

import typer

P = ParamSpec("P")


@contextlib.contextmanager
def interrupts_between(show: Callable[P, None]) -> Iterator[Callable[P, None]]:
    """Gives a function that raises KeyboardInterrupt if one came since the last call."""
    was_interrupted = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal was_interrupted
        if was_interrupted:
            raise KeyboardInterrupt
        was_interrupted = True

    def check(*args: P.args, **kwargs: P.kwargs) -> None:
        if was_interrupted:
            raise KeyboardInterrupt
        show(*args, **kwargs)

    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield show
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
    if was_interrupted:
        raise KeyboardInterrupt


@contextlib.contextmanager
def told_when_interrupted(sentence: str) -> Iterator[None]:
    """Says what an interrupt left behind; the exit status of 130 is the caller's."""
    try:
        yield
    except KeyboardInterrupt:
        typer.secho(sentence, fg="yellow", err=True)
        raise
