"""The work of `varve log append`: lines in, batches out, and what happened in a sentence."""

import contextlib
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import typer

from varve.cli.log_input import Chunk, ParseLine, Parts, read_chunks
from varve.commit_log import Log
from varve.embedded import Topic
from varve.foundation.errors import InvalidRecord, StoreError


@dataclass(slots=True)
class _Lines:
    """The records of a chunk's lines; stops before the first bad one and keeps its error."""

    chunk: Chunk
    parse: ParseLine
    error: InvalidRecord | None = None

    def __iter__(self) -> Iterator[Parts]:
        for number, line in enumerate(self.chunk.lines, start=self.chunk.first):
            try:
                parts = self.parse(line)
            except InvalidRecord as error:
                self.error = InvalidRecord(f"line {number}: {error}")
                return
            if parts is not None:
                yield parts


def append_lines(
    topic: Topic, stream: BinaryIO, parse: ParseLine, *, partition: int | None, codec: str
) -> int:
    """Appends a record per line and gives their count.

    A failure, or the user's, says how many were appended before it.
    """
    # Taken once: a log that went offline still knows its end.
    logs = [partition.log for partition in topic.partitions]
    start = _end_sum(logs)
    try:
        with _progress(stream) as advance:
            for chunk in read_chunks(stream):
                lines = _Lines(chunk, parse)
                topic.append_many(lines, partition=partition, codec=codec)
                if lines.error is not None:
                    raise lines.error
                advance(len(chunk.lines), chunk.size)
    except StoreError as error:
        raise type(error)(f"{error}\n{_told(_end_sum(logs) - start)} appended before it") from error
    except KeyboardInterrupt:
        typer.echo(f"interrupted: {_told(_end_sum(logs) - start)} appended", err=True)
        raise
    return _end_sum(logs) - start


def _told(count: int) -> str:
    return "1 record was" if count == 1 else f"{count} records were"


def _end_sum(logs: Sequence[Log]) -> int:
    """Nobody else appends to a directory that is open here, so the difference is what we did."""
    return sum(log.end_offset for log in logs)


@contextlib.contextmanager
def _progress(stream: BinaryIO) -> Iterator[Callable[[int, int], None]]:
    """Gives the function that takes how many lines and bytes more are done."""
    if not sys.stderr.isatty() or _is_terminal(stream):
        yield lambda lines, size: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (
        TextColumn("appending"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TextColumn("{task.fields[records]:,} records"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=_size_of(stream), records=0)
        total = 0

        def advance(lines: int, size: int) -> None:
            nonlocal total
            total += lines
            progress.update(task, advance=size, records=total)

        yield advance


def _is_terminal(stream: BinaryIO) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return stream.isatty()
    return False


def _size_of(stream: BinaryIO) -> int | None:
    """The bytes of a file on standard input; None for a pipe."""
    with contextlib.suppress(OSError, ValueError):
        status = os.fstat(stream.fileno())
        if stat.S_ISREG(status.st_mode):
            return status.st_size
    return None
