"""A line of progress on standard error while records go to a broker or come from one.

Invariant  shown on a terminal only, and not where the records themselves come from it or go to it.
"""

import contextlib
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, Final

_STEP: Final = 256
"""Records between two looks at the screen, which cost more than a record does."""


@contextlib.contextmanager
def record_progress(title: str, streams: Sequence[BinaryIO]) -> Iterator[Callable[[int], None]]:
    """Gives the function that is told the bytes of every record."""
    if not sys.stderr.isatty() or any(_is_terminal(stream) for stream in streams):
        yield lambda size: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (
        TextColumn(title),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TextColumn("{task.fields[records]:,} records"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=_total_bytes(streams), records=0)
        count = waiting = 0

        def advance(size: int) -> None:
            nonlocal count, waiting
            count, waiting = count + 1, waiting + size
            if count % _STEP == 0:
                progress.update(task, advance=waiting, records=count)
                waiting = 0

        yield advance


def _is_terminal(stream: BinaryIO) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return stream.isatty()
    return False


def _total_bytes(streams: Sequence[BinaryIO]) -> int | None:
    """The bytes of files; None where one is no file."""
    total = 0
    for stream in streams:
        try:
            status = os.fstat(stream.fileno())
        except (OSError, ValueError):
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        total += status.st_size
    return total
