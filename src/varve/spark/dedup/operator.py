"""The stateful operator of a deduplication: runs in Spark's Python workers, on packed rows.

Cache      a worker process keeps the windows of the buckets it saw, up to _CACHE_BYTES. They only
           spare reads: each is compared with the state store before it is used.
Memory     the rows of a batch that fall to a bucket are held until they are judged.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd  # type: ignore[import-untyped]  # its stubs are not installed
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from varve.spark.dedup.judge import Arrivals, Forwarding, Judge, Moment, Verdict, Verdicts
from varve.spark.dedup.rows import (
    PARTITION,
    ROWS,
    choose,
    decode_batch,
    encode_batch,
    read_ids,
    read_places,
    split_by_partition,
)
from varve.spark.dedup.state import IdWindow, Reach

COUNTS: Final = ("kept", "duplicates", "late", "future", "no_id")
"""Columns of counts, in the order of Verdict."""
LATE: Final = "is_late"
RESULT_TYPES: Final = f"{PARTITION} int, {LATE} boolean, {ROWS} binary, " + ", ".join(
    f"{name} long" for name in COUNTS
)
_CACHE_BYTES: Final = 2 << 30


class WindowCache:
    """Windows that a worker process holds between batches, the least used let go first."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._windows: OrderedDict[tuple[Reach, int], IdWindow] = OrderedDict()

    def take(self, reach: Reach, bucket: int) -> IdWindow:
        """The window, or a new one; it is not in the cache until it is given back."""
        return self._windows.pop((reach, bucket), None) or IdWindow(reach)

    def give(self, reach: Reach, bucket: int, window: IdWindow) -> None:
        self._windows[reach, bucket] = window
        size = sum(one.size for one in self._windows.values())
        while size > self._size_max:
            size -= self._windows.popitem(last=False)[1].size


_cache = WindowCache(_CACHE_BYTES)  # of this process: Spark makes a processor for every batch


class SparkChunks:
    """The state of the bucket that Spark has chosen for this processor."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._head = handle.getValueState("head", "data binary")
        self._chunks = handle.getMapState("chunks", "number long", "data binary")

    def find_head(self) -> bytes | None:
        row = self._head.get()
        return None if row is None else bytes(row[0])

    def put_head(self, data: bytes) -> None:
        self._head.update((data,))

    def find_chunk(self, number: int) -> bytes | None:
        row = self._chunks.getValue((number,))
        return None if row is None else bytes(row[0])

    def put_chunk(self, number: int, data: bytes) -> None:
        self._chunks.updateValue((number,), (data,))

    def remove_chunk(self, number: int) -> None:
        self._chunks.removeKey((number,))


class DedupProcessor(StatefulProcessor):
    """Judges the rows of one bucket after the other."""

    def __init__(self, judge: Judge, forwarding: Forwarding) -> None:
        self._judge = judge
        self._forwarding = forwarding

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._store = SparkChunks(handle)

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Spark passes the arguments by these names; one row of RESULT_TYPES comes for each group
        of rows that goes on, and one with the counts."""
        bucket = int(key[0])
        batches = [decode_batch(cell) for frame in rows for cell in frame[ROWS]]
        moment = Moment(
            timerValues.getCurrentWatermarkInMs(), timerValues.getCurrentProcessingTimeInMs()
        )
        reach = self._judge.reach
        window = _cache.take(reach, bucket)
        arrivals = Arrivals.join(
            [Arrivals(read_ids(batch), *read_places(batch)) for batch in batches]
        )
        verdicts = self._judge.judge(arrivals, moment, window, self._store)
        _cache.give(reach, bucket, window)
        yield make_result(batches, verdicts, self._forwarding)

    def close(self) -> None:
        """Nothing is open."""


def make_result(
    batches: Sequence[pa.RecordBatch], verdicts: Verdicts, forwarding: Forwarding
) -> pd.DataFrame:
    """Rows of RESULT_TYPES: the counts, and then what goes on and aside of each batch."""
    found: list[tuple[Any, ...]] = [
        (-1, False, None, *np.bincount(verdicts, minlength=len(Verdict)).tolist())
    ]
    none = (0,) * len(COUNTS)
    ends = np.cumsum([batch.num_rows for batch in batches])
    for batch, part in zip(batches, np.split(verdicts, ends[:-1]), strict=True):
        chosen = (False, forwarding.choose(part)), (True, forwarding.choose_aside(part))
        found += (
            (partition, is_late, encode_batch(rows), *none)
            for is_late, flags in chosen
            for partition, rows in split_by_partition(choose(batch, flags))
        )
    return pd.DataFrame(found, columns=[PARTITION, LATE, ROWS, *COUNTS])
