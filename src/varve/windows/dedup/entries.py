"""What is remembered of an id, as records of the changelog topic.

Layout     key: the sixteen bytes of the id, its kind, the time (i64) and a sequence number that is
           always 0 (i32). Value: the offset of the record that was kept (i64). All big-endian but
           the id, which is bytes. The record's timestamp is the time. docs/formats/dedup-ids.md
Invariant  an entry says that a time was remembered; the order of entries does not matter, nor does
           one that is applied twice.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from varve.foundation.errors import Corrupt
from varve.kernels.window_ids import LONG
from varve.records import RecordColumns
from varve.records.columns import BinaryColumn
from varve.windows.dedup.ids import Arrivals, Numbers

_KEY: Final = np.dtype([("words", "<u8", 2), ("kind", "u1"), ("time", ">i8"), ("seq", ">i4")])
_VALUE: Final = np.dtype(">i8")


@dataclass(frozen=True, slots=True)
class EntryColumns:
    """Records of the changelog, ready to build a batch of."""

    keys: BinaryColumn
    values: BinaryColumn
    timestamps: Numbers

    def __len__(self) -> int:
        return len(self.timestamps)


def encode_entries(news: Arrivals) -> EntryColumns:
    """One record for each id and time."""
    keys = np.zeros(len(news), _KEY)
    keys["words"], keys["kind"], keys["time"] = news.words, news.kinds, news.times
    values = news.offsets.astype(_VALUE)
    return EntryColumns(_column(keys), _column(values), news.times)


def decode_entries(columns: RecordColumns, where: str) -> Arrivals:
    """The ids, times and offsets of records; raises Corrupt for others.

    `where` names topic and partition.
    """
    key_rows = _rows(columns.keys_column(), _KEY, columns, where, "key")
    value_rows = _rows(columns.values_column(), _VALUE, columns, where, "value")
    times = key_rows["time"].astype(np.int64)
    offsets = value_rows.astype(np.int64)
    kinds = key_rows["kind"].copy()
    is_wrong = (kinds > LONG) | (times < 0) | (key_rows["seq"] != 0) | (offsets < 0)
    if is_wrong.any():
        row = int(is_wrong.argmax())
        fields = f"kind {int(kinds[row])}, time {int(times[row])}, offset {int(offsets[row])}"
        raise _foreign(columns, row, where, fields)
    return Arrivals(key_rows["words"].astype(np.uint64), kinds, times, offsets)


def _foreign(columns: RecordColumns, row: int, where: str, what: str) -> Corrupt:
    return Corrupt(
        f"{where}, offset {int(columns.offsets[row])}: the record is no entry of a deduplication "
        f"({what}): another program writes to this topic; end that, and begin anew with another "
        "--name"
    )


def _column(rows: npt.NDArray[np.generic]) -> BinaryColumn:
    size = rows.dtype.itemsize
    starts = np.arange(len(rows), dtype=np.int64) * size
    sizes = np.full(len(rows), size, np.int64)
    return BinaryColumn.at(rows.tobytes(), starts=starts, sizes=sizes)


def _rows(
    column: BinaryColumn,
    dtype: np.dtype[np.void] | np.dtype[np.int64],
    columns: RecordColumns,
    where: str,
    what: str,
) -> npt.NDArray[np.void]:
    wrong = np.flatnonzero(column.sizes != dtype.itemsize)
    if wrong.size:
        row = int(wrong[0])
        sizes = f"its {what} has {int(column.sizes[row])} bytes, not {dtype.itemsize}"
        raise _foreign(columns, row, where, sizes)
    places = column.starts[:, None] + np.arange(dtype.itemsize)
    rows: npt.NDArray[np.void] = column.data[places].view(dtype)[:, 0]
    return rows
