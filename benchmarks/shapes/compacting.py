"""Compaction of a shape's log, and what it saves a new client."""

import random
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import Contest, Scale, Ticker
from benchmarks.shapes.entries import append_all, create_storage, make_entries
from benchmarks.sizes import SizeUnit
from benchmarks.workspace import Workspace
from varve.foundation.clock import SystemClock
from varve.shapes.compaction.compactor import Compactor
from varve.shapes.offset import SNAPSHOT_END
from varve.shapes.settings import CompactionSettings
from varve.shapes.storage.log_writer import ShapeEntry
from varve.shapes.storage.shape_storage import ShapeStorage

_ROW_BYTES = 300
_UPDATES_PER_ROW = 5


class HotRowMeasure:
    """Size: updates of one row."""

    name = "hot_row"
    title = "bytes a new client gets of a row updated often, after and before compaction"
    size_unit = SizeUnit.COUNT

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (1_000, 10_000)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        workspace.require(size * _ROW_BYTES * 4)
        with workspace.directory("hot-row") as directory:
            storage = create_storage(directory)
            append_all(storage, make_entries(size, row_bytes=_ROW_BYTES, row_count=1))
            before = _client_bytes(storage)
            _compact(storage)
            after = _client_bytes(storage)
            storage.close()
            yield [
                Contest(
                    self.name,
                    "B",
                    lambda: float(after),
                    lambda: float(before),
                    None,
                    "of the log behind the snapshot",
                    repeat_count_max=1,
                )
            ]


class CompactionMeasure:
    """Size: bytes of the log."""

    name = "compaction"
    title = "a log compacted to a fifth, against a plain copy of its file"
    size_unit = SizeUnit.BYTES

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (4 << 20, 32 << 20) if quick else (16 << 20, 128 << 20)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        count = size // _ROW_BYTES
        workspace.require(size * 6)
        entries = make_entries(
            count, row_bytes=_ROW_BYTES, row_count=max(1, count // _UPDATES_PER_ROW)
        )
        yield [
            Contest(
                self.name,
                "MiB/s",
                lambda: size / _compact_seconds(workspace, entries, scale.ticker) / (1 << 20),
                lambda: size / _copy_seconds(workspace, entries, scale.ticker) / (1 << 20),
                None,
                f"{count:,} updates, {_UPDATES_PER_ROW} of each row; read, merged, written, "
                "synced and put in place",
            )
        ]


def _client_bytes(storage: ShapeStorage) -> int:
    return sum(len(piece) + 1 for piece in storage.read(SNAPSHOT_END, storage.latest))


def _compact(storage: ShapeStorage) -> None:
    compactor = Compactor(CompactionSettings(), random.Random(7))
    compactor.compact(storage, now_ms=SystemClock().now_ms(), is_forced=True)


def _compact_seconds(workspace: Workspace, entries: Sequence[ShapeEntry], ticker: Ticker) -> float:
    with workspace.directory("compaction") as directory:
        storage = create_storage(directory)
        append_all(storage, entries)
        start = ticker()
        _compact(storage)
        seconds = ticker() - start
        storage.close()
    return seconds


def _copy_seconds(workspace: Workspace, entries: Sequence[ShapeEntry], ticker: Ticker) -> float:
    with workspace.directory("copy") as directory:
        storage = create_storage(directory)
        append_all(storage, entries)
        storage.close()
        (log,) = Path(storage.directory).rglob("*.jsonfile.bin")
        start = ticker()
        with log.open("rb") as source, (directory / "copy").open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
        return ticker() - start
