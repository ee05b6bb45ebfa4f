"""Verifies key indexes of remote segments: against the data of their segments and each other.

Invariant  reads only. Below its first dirty offset a partition has one record of each key, except
           in segments that were not worth rewriting, whose stale bytes the manifest records.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from varve.cleaning.compaction.key_plan import HashRange, KeyPlan
from varve.cleaning.compaction.segment_plan import RunRules
from varve.cleaning.key_index.key_index import (
    BATCH,
    BATCH_ABORTED,
    ENTRY,
    HEADER_BYTES,
    MARK,
    KeyIndex,
    KeyIndexHeader,
)
from varve.commit_log.transaction_index import AbortedTransaction
from varve.disk import FileSystem
from varve.foundation.errors import Corrupt, Unavailable, UnsupportedFormat
from varve.foundation.settings import LONG_MAX
from varve.jobs.compact.tasks import RangeInputs
from varve.kernels.batch_layout import HEADER_BYTES as BATCH_HEADER_BYTES
from varve.kernels.key_merge import Tally

_CHUNK_ROWS: Final = 1 << 16
_CONTROL: Final = 0x20
"""The bit of a control batch in its attributes."""
LATEST_RULES: Final = RunRules(
    now_ms=-1, delete_retention_ms=0, first_uncleanable_offset=LONG_MAX, producers={}
)
"""Rules under which no tombstone has expired: an expired one is still the latest record."""

Rows = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class KeysDifference:
    """The first difference between a key index and the data of its segment."""

    message: str
    expected: str
    found: str
    position: int | None = None
    offset: int | None = None


def find_claimed(fs: FileSystem, path: str, *, from_offset: int) -> tuple[AbortedTransaction, ...]:
    """Returns the batches from an offset on that a key index marks as aborted."""
    if from_offset == LONG_MAX:
        return ()
    try:
        with KeyIndex(fs.open(path)) as index:
            base, batches, marks = index.header.base_offset, index.batches(), index.marks()
    except (Corrupt, UnsupportedFormat):
        return ()
    rows = batches[marks["batch"]]
    producers = marks["producer_id"].tolist()
    return tuple(
        AbortedTransaction(producer, first, last, first)
        for producer, first, last, flags in zip(
            producers,
            (base + rows["base"].astype(np.int64)).tolist(),
            (base + rows["last"].astype(np.int64)).tolist(),
            rows["flags"].tolist(),
            strict=True,
        )
        if flags & BATCH_ABORTED and first >= from_offset
    )


def find_difference(fs: FileSystem, stored: str, built: str) -> KeysDifference | None:
    """Compares a stored key index with one built from the same data; None if they are equal."""
    with fs.open(stored) as file, fs.open(built) as other:
        try:
            stored_header = KeyIndexHeader.decode(file.read_at(0, HEADER_BYTES), "key index")
        except (Corrupt, UnsupportedFormat) as error:
            return KeysDifference(str(error), "a readable header", "an unreadable one", 0)
        built_header = KeyIndexHeader.decode(other.read_at(0, HEADER_BYTES), "built")
        difference = _compare_headers(stored_header, built_header)
        for name, layout, start, end in (
            ("entry", ENTRY, HEADER_BYTES, built_header.batches_at),
            ("batch", BATCH, built_header.batches_at, built_header.marks_at),
            ("mark", MARK, built_header.marks_at, built_header.file_size),
        ):
            for position in range(start, end, _CHUNK_ROWS * layout.itemsize):
                if difference is None:
                    size = min(_CHUNK_ROWS * layout.itemsize, end - position)
                    rows = _decode_rows(file.read_at(position, size), layout)
                    built_rows = _decode_rows(other.read_at(position, size), layout)
                    number = (position - start) // layout.itemsize
                    difference = _compare_rows(
                        rows, built_rows, name, number, position, built_header
                    )
    if difference is None:
        with KeyIndex(fs.open(stored)) as index:
            try:
                index.verify()
            except Corrupt as error:
                return KeysDifference(str(error), "the checksum of its content", "another one", 0)
    return difference


def _compare_headers(stored: KeyIndexHeader, built: KeyIndexHeader) -> KeysDifference | None:
    """Compares all fields of the headers except the checksum of the sections."""
    for name in KeyIndexHeader.__slots__:
        found, expected = getattr(stored, name), getattr(built, name)
        if found != expected and name != "sections_crc":
            words = name.replace("_", " ")
            return KeysDifference(f"the header has another {words}", str(expected), str(found), 0)
    return None


def _decode_rows(data: bytes, layout: np.dtype[Any]) -> Rows:
    """Decodes complete rows; clears the flags of batches without records, which are irrelevant."""
    rows = np.frombuffer(data, layout, len(data) // layout.itemsize)
    if layout == BATCH:
        rows = rows.copy()
        rows["flags"][rows["count"] == 0] = 0
    return rows


def _compare_rows(
    rows: Rows, built_rows: Rows, name: str, number: int, position: int, header: KeyIndexHeader
) -> KeysDifference | None:
    """Finds the first differing row; `number` and `position` are those of the first row."""
    differs = np.flatnonzero(rows != built_rows[: len(rows)])
    if not differs.size and len(rows) == len(built_rows):
        return None
    slot = int(differs[0]) if differs.size else len(rows)
    position += slot * built_rows.dtype.itemsize
    built_row = built_rows[slot]
    if slot == len(rows):
        return KeysDifference(
            f"ends within {name} {number + slot}", _show(built_row), "nothing", position
        )
    if name == "entry":
        return _describe_entry(rows[slot], built_row, header.base_offset, position)
    message = f"{name} {number + slot} differs from the data"
    return KeysDifference(message, _show(built_row), _show(rows[slot]), position)


def _describe_entry(row: Any, built_row: Any, base_offset: int, position: int) -> KeysDifference:
    hashes = [(int(entry["hash_high"]), int(entry["hash_low"])) for entry in (row, built_row)]
    offset = base_offset + int(built_row["offset"])
    if hashes[0] < hashes[1]:
        message = "lists a key that no committed record of the segment has"
        offset = base_offset + int(row["offset"])
    elif hashes[0] > hashes[1]:
        message = "does not list the key of a committed record"
    else:
        message = "lists another record than the latest of its key"
    return KeysDifference(message, _show(built_row), _show(row), position, offset)


def _show(row: Any) -> str:
    return ", ".join(
        f"{name} {int(row[name]):016x}" if name.startswith("hash") else f"{name} {row[name]}"
        for name in row.dtype.names
    )


@dataclass(frozen=True, slots=True)
class SupersededKeys:
    """The superseded records of one range of keys, by segment: counts and an example offset.

    `total_bytes` is the size of all records of a segment, markers and aborted records included, the
    base of its stale bytes; it is the same in every range.
    """

    counts: tuple[int, ...]
    kept_bytes: tuple[int, ...]
    examples: tuple[int | None, ...]
    total_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class UniqueTask:
    """Finds the keys of a range of hashes that occur twice below the first dirty offset."""

    hashes: HashRange

    def run(self, shared: RangeInputs) -> SupersededKeys:
        try:
            return self._find_superseded(shared)
        except FileNotFoundError as error:
            raise Unavailable(f"{error.filename}: changed while it was read") from error

    def _find_superseded(self, clean: RangeInputs) -> SupersededKeys:
        numbers = range(len(clean.segments))
        with clean.find_latest(self.hashes) as (sources, plan):
            counts = tuple(plan.tally(number, Tally.SUPERSEDED) for number in numbers)
            examples, totals = [], []
            for number, source in enumerate(sources):
                assert source.keys is not None
                with source.keys.open() as index:
                    totals.append(_count_record_bytes(index))
                    examples.append(
                        self._find_example(index, plan, number) if counts[number] else None
                    )
        kept = tuple(plan.tally(number, Tally.KEPT_BYTES) for number in numbers)
        return SupersededKeys(counts, kept, tuple(examples), tuple(totals))

    def _find_example(self, index: KeyIndex, plan: KeyPlan, number: int) -> int | None:
        """Finds the offset of a superseded record of the range."""
        low, high = self.hashes
        kept = np.unpackbits(plan.bits_of(number, plan.keep), bitorder="little").view(np.bool_)
        start = index.lower_bound(low) if low else 0
        rows = np.empty((_CHUNK_ROWS, ENTRY.itemsize // 8), np.uint64)
        for first in range(start, index.header.entry_count, _CHUNK_ROWS):
            end = min(first + _CHUNK_ROWS, index.header.entry_count)
            index.read_entries(first, end, rows)
            entries = rows[: end - first].view(ENTRY)[:, 0]
            inside = entries["hash_high"] <= np.uint64(high - 1)
            stale = np.flatnonzero(inside & ~kept[entries["record"]])
            if stale.size:
                return index.header.base_offset + int(entries["offset"][stale[0]])
        return None


def _count_record_bytes(index: KeyIndex) -> int:
    batches = index.batches()
    is_other = (batches["flags"] & BATCH_ABORTED != 0) | (batches["attributes"] & _CONTROL != 0)
    batch_bytes = np.maximum(batches["size"].astype(np.int64) - BATCH_HEADER_BYTES, 0)
    return index.header.record_bytes + int(batch_bytes[is_other].sum())
