"""Appends to the log of a shape, against a plain file with the same bytes."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import Contest, Scale, Ticker, at_least
from benchmarks.shapes.entries import TURN, append_all, create_storage, make_entries
from benchmarks.sizes import SizeUnit
from benchmarks.workspace import Workspace
from varve.shapes.kernels.log_entries import encode_entries
from varve.shapes.storage.log_writer import ShapeEntry

ROW_COUNT = 10_000
_WRITE_BYTES = 64 << 10


class AppendMeasure:
    """Size: bytes of a row's message."""

    name = "append"
    title = "rows appended to a shape's log, against a plain file of the same bytes"
    size_unit = SizeUnit.BYTES

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (256, 1 << 10)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        volume = min(scale.volume_bytes, 32 << 20) if scale.is_quick else scale.volume_bytes // 2
        count = max(TURN, volume // size)
        workspace.require(count * (size + 128) * 4)
        entries = make_entries(count, row_bytes=size, row_count=ROW_COUNT)
        encoded = _encode(entries)
        yield [
            Contest(
                self.name,
                "rows/s",
                lambda: count / _append_seconds(workspace, entries, scale.ticker),
                lambda: count / _write_seconds(workspace, encoded, scale.ticker),
                at_least(0.3),
                f"{count:,} rows in turns of {TURN}, durable at the end; the file is written in "
                "64 KiB, joined from the same entries, and synced",
            )
        ]


def _encode(entries: list[ShapeEntry]) -> list[bytes]:
    """The bytes of each entry by itself."""
    encoded = []
    for start in range(len(entries)):
        found = encode_entries(entries, start=start, json_room=1, byte_room=1, last=(0, 0))
        encoded.append(found[2].tobytes())
    return encoded


def _append_seconds(workspace: Workspace, entries: Sequence[ShapeEntry], ticker: Ticker) -> float:
    with workspace.directory("append") as directory:
        storage = create_storage(directory)
        start = ticker()
        append_all(storage, entries)
        seconds = ticker() - start
        storage.close()
    return seconds


def _write_seconds(workspace: Workspace, encoded: Sequence[bytes], ticker: Ticker) -> float:
    with workspace.directory("file") as directory:
        start = ticker()
        _write_file(directory / "log", encoded)
        return ticker() - start


def _write_file(path: Path, encoded: Sequence[bytes]) -> None:
    with path.open("wb", buffering=0) as file:
        waiting: list[bytes] = []
        size = 0
        for one in encoded:
            waiting.append(one)
            size += len(one)
            if size >= _WRITE_BYTES:
                file.write(b"".join(waiting))
                waiting.clear()
                size = 0
        file.write(b"".join(waiting))
        os.fdatasync(file.fileno())
