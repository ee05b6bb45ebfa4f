"""What the demos share: a directory of their own, and how far the writing is."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from varve.foundation.errors import InvalidRequest


@contextlib.contextmanager
def demo_directory(asked: Path | None) -> Iterator[Path]:
    """The directory that is asked for, which must be new or empty; else one that goes again."""
    if asked is None:
        with tempfile.TemporaryDirectory(prefix="varve-demo-") as made:
            yield Path(made) / "data"
        return
    if asked.exists() and (not asked.is_dir() or any(asked.iterdir())):
        raise InvalidRequest(f"{asked} exists already; name a new or an empty directory")
    yield asked


@contextlib.contextmanager
def writing_progress(console: Console, total: int) -> Iterator[Callable[[int], None]]:
    """Gives the function that is told how many records are written."""
    if not console.is_terminal or console.quiet:
        yield lambda done: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("   writing"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda done: progress.update(task, completed=done)
