"""Ctrl-C during long work: it takes effect between two chunks, with a note on standard error.

Invariant  the first Ctrl-C takes effect at the next chunk, so that it never interrupts a swap or a
           rename; a second one, for a chunk that does not end, takes effect at once.
"""

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import ParamSpec

from varve.cli.output import Output

P = ParamSpec("P")


@contextlib.contextmanager
def interrupts_between(show: Callable[P, None]) -> Iterator[Callable[P, None]]:
    """A `show` that raises KeyboardInterrupt if one arrived since the last call."""
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
def interruptible_progress(output: Output) -> Iterator[Callable[[str, int, int], None]]:
    """A bar that shows a title, bytes done and bytes in total, and stops at an interrupt."""
    with output.progress("") as bar, interrupts_between(bar.show) as show:
        yield show


@contextlib.contextmanager
def note_interrupt(output: Output, sentence: str) -> Iterator[None]:
    """Print what an interrupt left behind; `main` turns it into an exit status."""
    try:
        yield
    except KeyboardInterrupt:
        output.warn(sentence)
        raise
