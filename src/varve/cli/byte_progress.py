"""A progress bar on standard error for work over many bytes.

Invariant  shown on a terminal only; standard output is never touched.
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


@contextlib.contextmanager
def phase_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Gives the function that takes what is being done, the bytes done of it and all its bytes."""
    if not sys.stderr.isatty():
        yield lambda title, done_bytes, total_bytes: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("", total=None)

        def show(title: str, done_bytes: int, total_bytes: int) -> None:
            bars.update(task, description=title, completed=done_bytes, total=total_bytes)

        yield show
