"""A stream of events as Parquet files, one for each micro-batch.

Invariant  16-byte ids, a fifth of them copies of an earlier event at most 300,000 events back; a
           millisecond from event to event; the same in every run.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types

from benchmarks.baselines import BASE_TIMESTAMP_MS

COPY_SHARE = 0.2
EVENT_BYTES = 40
_BACK_MAX = 300_000
_JITTER_MS = 500
_SEED = 7


@dataclass(frozen=True, slots=True)
class Events:
    """Where the files are, and how many of the events an exact window of `window_ms` keeps."""

    place: str
    count: int
    window_ms: int
    kept: int


def write_events(directory: Path, count: int, per_file: int, window_ms: int) -> Events:
    """`count` events in files of `per_file`."""
    random = np.random.default_rng(_SEED)
    ids = random.integers(0, 1 << 62, (count, 2), np.int64)
    steps = np.arange(count)
    times = BASE_TIMESTAMP_MS + steps + random.integers(-_JITTER_MS, _JITTER_MS, count)
    back = np.maximum(0, steps - random.integers(1, _BACK_MAX, count))
    for place in np.flatnonzero(random.random(count) < COPY_SHARE).tolist():
        ids[place] = ids[back[place]]
    directory.mkdir()
    for number, start in enumerate(range(0, count, per_file)):
        chosen = slice(start, start + per_file)
        path = directory / f"{number:05}.parquet"
        pq.write_table(_table(ids[chosen], times[chosen], steps[chosen]), path)
        os.utime(path, (number, number))  # Spark reads files in the order of their times
    return Events(str(directory), count, window_ms, _count_kept(ids, times, window_ms))


def _table(
    ids: npt.NDArray[np.int64], times: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]
) -> pa.Table:
    buffers = [None, pa.py_buffer(np.ascontiguousarray(ids))]
    cells = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(ids), buffers)
    return pa.table(
        {
            "id": cells.cast(pa.binary()),
            "timestamp": pa.array(times * 1000, pa.timestamp("us", "UTC")),
            "partition": pa.array(np.zeros(len(ids), np.int32)),
            "offset": pa.array(offsets),
        }
    )


def _count_kept(ids: npt.NDArray[np.int64], times: npt.NDArray[np.int64], window_ms: int) -> int:
    """Record by record, with a dict."""
    seen: dict[bytes, list[int]] = {}
    kept = 0
    for cell, time in zip(ids, times.tolist(), strict=True):
        before = seen.setdefault(cell.tobytes(), [])
        if not any(abs(time - one) <= window_ms for one in before):
            before.append(time)
            kept += 1
    return kept
