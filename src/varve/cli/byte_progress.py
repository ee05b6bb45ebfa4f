"""A progress bar on standard error for work over many bytes.

Invariant  shown on a terminal only, and only when there is enough to do; standard output is never
           touched.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

LONG_BYTES: Final = 64 << 20


def _ignore(size: int) -> None:
    return None


@contextlib.contextmanager
def byte_progress(
    title: str, total_bytes: int, *, is_wanted: bool = True
) -> Iterator[Callable[[int], None]]:
    """Gives the function that takes how many bytes more are done."""
    if not is_wanted or total_bytes < LONG_BYTES or not sys.stderr.isatty():
        yield _ignore
        return
    columns = (TextColumn(title), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=total_bytes)

        def advance(size: int) -> None:
            progress.advance(task, size)

        yield advance
