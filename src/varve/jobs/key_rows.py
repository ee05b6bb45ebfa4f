"""Row operations by key, for outputs with the newest row of each key: snapshots, keyed tables."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]  # ships no types


def keep_newest(rows: pa.Table, keys: Sequence[str], *, offset: str) -> pa.Table:
    """Keeps the row with the highest offset of each key, ordered by offset.

    A key may consist of several columns.
    """
    order = pc.sort_indices(rows[offset])
    numbered = rows.select(keys).take(order)
    numbered = numbered.append_column("number", pa.array(np.arange(len(rows))))
    last = numbered.group_by(list(keys)).aggregate([("number", "max")])["number_max"]
    return rows.take(order.take(pa.array(np.sort(last.to_numpy()))))


def split_by_bucket(
    rows: pa.Table, buckets: npt.NDArray[np.integer[Any]]
) -> Iterator[tuple[int, pa.Table]]:
    """Yields each non-empty bucket in ascending order, with its rows in their original order."""
    order = np.argsort(buckets, kind="stable")
    rows = rows.take(pa.array(order))
    numbers, starts = np.unique(buckets[order], return_index=True)
    ends = [*starts[1:].tolist(), len(rows)]
    for bucket, start, end in zip(numbers.tolist(), starts.tolist(), ends, strict=True):
        yield bucket, rows.slice(start, end - start)
