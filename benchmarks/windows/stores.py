"""Segments and stores on RocksDB, filled for a figure."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from varve.disk import RealFileSystem
from varve.foundation.clock import SystemClock
from varve.rocks.database import Put, RocksDatabases
from varve.rocks.segments import Segments
from varve.rocks.state_files import StoreMeta
from varve.windows.changelog import WindowSettings
from varve.windows.entries import encode_window_key
from varve.windows.window_store import LAYOUT, WindowStore

KEY_BYTES: Final = 16
VALUE_BYTES: Final = 16
ENTRY_BYTES: Final = KEY_BYTES + 12 + VALUE_BYTES
SEGMENT_MS: Final = 1_000
_BATCH_COUNT: Final = 2_000


def make_entries(count: int, *, start_ms: int, seed: int) -> list[Put]:
    """Entries with random keys, spread over one segment's interval."""
    source = random.Random(seed)
    value = bytes(VALUE_BYTES)
    return [
        (
            encode_window_key(source.randbytes(KEY_BYTES), start_ms + at * SEGMENT_MS // count),
            value,
        )
        for at in range(count)
    ]


@contextmanager
def open_segments(directory: Path, *, retention_ms: int) -> Iterator[Segments]:
    databases = RocksDatabases()
    segments = Segments(
        name="s",
        directory=str(directory),
        databases=databases,
        file_system=RealFileSystem(),
        segment_ms=SEGMENT_MS,
        retention_ms=retention_ms,
    )
    meta = StoreMeta(
        engine=databases.name, layout=LAYOUT, segment_ms=SEGMENT_MS, retention_ms=retention_ms
    )
    segments.open(meta, -1)
    try:
        yield segments
    finally:
        segments.close()


@contextmanager
def open_store(directory: Path, *, retention_ms: int, segment_ms: int) -> Iterator[WindowStore]:
    store = WindowStore(
        WindowSettings(name="s", retention_ms=retention_ms, segment_ms=segment_ms),
        directory=str(directory),
        databases=RocksDatabases(),
        file_system=RealFileSystem(),
        clock=SystemClock(),
    )
    with store.open():
        yield store


def fill_segment(segments: Segments, id: int, count: int) -> None:
    """Puts so many entries into a segment, a batch at a time."""
    segment = segments.get_or_create_if_live(id, id * SEGMENT_MS)
    assert segment is not None
    entries = make_entries(count, start_ms=segment.start_ms, seed=id)
    for start in range(0, count, _BATCH_COUNT):
        segment.database.write(entries[start : start + _BATCH_COUNT])
