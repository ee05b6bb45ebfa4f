"""Checks one segment: its data file, and its three indexes against the data, table by table.

Invariant  an offset entry points to the start of a batch that is not after its offset; a time entry
           names the earliest batch with the largest timestamp so far.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from varve.commit_log.check.batches import BatchCheck, Fault
from varve.commit_log.check.findings import FindingList, Severity
from varve.commit_log.check.producers import EpochCheck, ProducerCheck, find_txn_difference
from varve.commit_log.names import INDEX, LOG, TIME_INDEX, TXN_INDEX, log_name
from varve.commit_log.segment_reader import BatchTable
from varve.commit_log.sparse_index import IndexEntries, OffsetIndex, TimeIndex
from varve.commit_log.transaction_index import AbortedTransaction, TransactionIndex
from varve.disk import File, FileSystem
from varve.foundation.errors import Corrupt
from varve.kernels.batch_layout import BatchColumn

REBUILD: Final = "rebuild the index from its segment"

_NOT_OBSERVED: Final = -(2**63)
_AFTER_ALL_POSITIONS: Final = 2**62

Integers = npt.NDArray[np.int64]


class EntryCheck:
    """Compares the entries of one sparse index with the batches."""

    kind: ClassVar[str]
    index: ClassVar[type[IndexEntries]]

    def __init__(
        self, findings: FindingList, checked: "CheckedSegment", entries: Integers | None
    ) -> None:
        self._findings = findings
        self._checked = checked
        self._path = checked.path(self.kind)
        self.is_missing = entries is None
        self.entries = np.empty((0, 2), np.int64) if entries is None else entries

    def _not_observed(self) -> Integers:
        return np.full(len(self.entries), _NOT_OBSERVED, np.int64)

    def _add(self, rule: str, message: str, slot: int) -> None:
        self._findings.add(
            self._checked.severity,
            self._path,
            f"{self.kind.removeprefix('.')}-{rule}",
            message,
            position=slot * self.index.layout.itemsize,
            repair=REBUILD,
        )

    def _add_missing(self, rule: str, message: str) -> None:
        self._findings.add(
            self._checked.missing_severity, self._path, rule, message, repair=REBUILD
        )

    def _check_order(self) -> None:
        is_fall = (np.diff(self.entries, axis=0) < self.index.least_steps).any(axis=1)
        for slot in np.flatnonzero(is_fall).tolist():
            before, after = map(tuple, self.entries[slot : slot + 2].tolist())
            self._add("order", f"entry {after} does not ascend from {before}", slot + 1)


class OffsetEntryCheck(EntryCheck):
    """The entries of one offset index."""

    kind = INDEX
    index = OffsetIndex

    def __init__(
        self, findings: FindingList, checked: "CheckedSegment", entries: Integers | None
    ) -> None:
        super().__init__(findings, checked, entries)
        self._first_offsets = self._not_observed()
        self._last_offsets = self._not_observed()
        self._end_positions = self._not_observed()

    def observe(self, table: BatchTable) -> None:
        """Records the offsets and positions of batches that the entries point to."""
        rows = table.rows
        positions = rows[:, BatchColumn.POSITION]
        slots, hits = _matches(self.entries[:, 1], positions)
        self._first_offsets[slots] = rows[hits, BatchColumn.BASE_OFFSET]
        self._last_offsets[slots] = rows[hits, BatchColumn.LAST_OFFSET]
        slots, hits = _matches(self.entries[:, 0], rows[:, BatchColumn.LAST_OFFSET])
        self._end_positions[slots] = positions[hits]

    def report(self, *, end: int) -> None:
        """Reports wrong entries; skips entries from position `end` on, which were not compared."""
        if self.is_missing:
            self._add_missing("missing-index", "no offset index")
        self._check_order()
        offsets, positions = self.entries.T
        is_start = self._last_offsets != _NOT_OBSERVED
        is_compared = positions < end
        for slot in np.flatnonzero(is_compared & ~is_start).tolist():
            message = f"entry for offset {offsets[slot]}: no batch begins at its position"
            self._add("position", message, slot)
        next_positions = np.append(positions[1:], _AFTER_ALL_POSITIONS)
        ends_here = self._last_offsets == offsets
        # An append of several batches is indexed by its first position and its last offset.
        ends_later = (self._end_positions >= positions) & (self._end_positions < next_positions)
        for slot in np.flatnonzero(is_compared & is_start & ~ends_here & ~ends_later).tolist():
            message = (
                f"entry names offset {offsets[slot]}, the batch there holds "
                f"{self._first_offsets[slot]}..{self._last_offsets[slot]}"
            )
            self._add("offset", message, slot)


class TimeEntryCheck(EntryCheck):
    """The entries of one time index."""

    kind = TIME_INDEX
    index = TimeIndex

    def __init__(
        self, findings: FindingList, checked: "CheckedSegment", entries: Integers | None
    ) -> None:
        super().__init__(findings, checked, entries)
        self._batch_timestamps = self._not_observed()
        self._earlier_timestamps = self._not_observed()
        self._last_offset = _NOT_OBSERVED
        self.max_timestamp = -1
        self.max_timestamp_offset = -1

    def observe(self, table: BatchTable) -> None:
        rows = table.rows
        timestamps = rows[:, BatchColumn.MAX_TIMESTAMP]
        last_offsets = rows[:, BatchColumn.LAST_OFFSET]
        before = np.empty(len(rows), np.int64)
        before[0] = self.max_timestamp
        np.maximum(np.maximum.accumulate(timestamps[:-1]), self.max_timestamp, out=before[1:])
        slots, hits = _matches(self.entries[:, 1], last_offsets)
        self._batch_timestamps[slots] = timestamps[hits]
        self._earlier_timestamps[slots] = before[hits]
        latest = int(np.argmax(timestamps))
        if timestamps[latest] > self.max_timestamp:
            self.max_timestamp = int(timestamps[latest])
            self.max_timestamp_offset = int(last_offsets[latest])
        self._last_offset = int(last_offsets[-1])

    def report(self, *, is_whole: bool) -> None:
        """Reports wrong entries; with `is_whole` every batch of the segment was observed."""
        if self.is_missing:
            self._add_missing("missing-timeindex", "no time index")
            return
        self._check_order()
        timestamps, offsets = self.entries.T
        is_compared = np.full(len(offsets), is_whole) | (offsets <= self._last_offset)
        is_end = self._batch_timestamps != _NOT_OBSERVED
        for slot in np.flatnonzero(is_compared & ~is_end).tolist():
            message = f"no batch ends at the entry's offset {offsets[slot]}"
            self._add("offset", message, slot)
        is_valid = self._batch_timestamps == timestamps
        is_valid &= self._earlier_timestamps < timestamps
        for slot in np.flatnonzero(is_compared & is_end & ~is_valid).tolist():
            message = (
                f"entry says that {timestamps[slot]} is first reached by the batch that ends "
                f"at offset {offsets[slot]}; that batch reaches "
                f"{self._batch_timestamps[slot]}, those before it {self._earlier_timestamps[slot]}"
            )
            self._add("timestamp", message, slot)
        last_timestamp = int(timestamps[-1]) if len(timestamps) else -1
        if is_whole and last_timestamp < self.max_timestamp:
            message = f"the segment's largest timestamp {self.max_timestamp} is not indexed"
            self._add_missing("timeindex-lags", message)


def _matches(
    values: Integers, ascending: Integers
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The indexes of values that occur in `ascending`, and their indexes there."""
    in_range = np.flatnonzero((values >= ascending[0]) & (values <= ascending[-1]))
    slots = np.minimum(np.searchsorted(ascending, values[in_range]), len(ascending) - 1)
    is_equal = ascending[slots] == values[in_range]
    return in_range[is_equal], slots[is_equal]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSegment:
    """The segment under check: its directory, base offset and whether it is recovered."""

    directory: str
    base_offset: int
    is_recovered: bool
    """Whether the next open rebuilds its indexes."""

    def path(self, kind: str) -> str:
        return f"{self.directory}/{log_name(self.base_offset, kind)}"

    @property
    def severity(self) -> Severity:
        """The severity of a wrong index entry."""
        return Severity.WARNING if self.is_recovered else Severity.ERROR

    @property
    def missing_severity(self) -> Severity:
        """The severity of a missing or short index."""
        return Severity.NOTE if self.is_recovered else Severity.ERROR


@dataclass(frozen=True, slots=True)
class SegmentIndexes:
    """A segment's index entries; None where there is no file."""

    offsets: Integers | None
    times: Integers | None
    aborted: list[AbortedTransaction] | None


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """The result of checking a segment."""

    base_offset: int
    next_offset: int
    size: int
    good_end: int
    fault: Fault | None
    max_timestamp: int
    max_timestamp_offset: int


class SegmentCheck:
    """Checks segments in order; the state of producers and epochs spans all of them."""

    def __init__(
        self,
        finding_list: FindingList,
        *,
        producers: ProducerCheck,
        epochs: EpochCheck,
        deep: bool,
        advance: Callable[[int], None],
    ) -> None:
        self._findings = finding_list
        self._producers = producers
        self._epochs = epochs
        self._deep = deep
        self._advance = advance
        self._is_cut = False

    def check(
        self, checked: CheckedSegment, file: File, size: int, indexes: SegmentIndexes
    ) -> SegmentFacts:
        """Walks the data once and compares the indexes with it."""
        path = checked.path(LOG)
        batches = BatchCheck(
            self._findings,
            path,
            base_offset=checked.base_offset,
            deep=self._deep,
            advance=self._advance,
        )
        offsets = OffsetEntryCheck(self._findings, checked, indexes.offsets)
        times = TimeEntryCheck(self._findings, checked, indexes.times)
        replayed = TransactionIndex(checked.base_offset)
        for table, is_good in batches.tables(file, size):
            offsets.observe(table)
            times.observe(table)
            # Recovery drops everything after a fault, so it proves nothing about the rest.
            if is_good and not self._is_cut:
                self._epochs.observe(table, path)
                self._producers.observe(table, replayed, path)
        is_whole = not batches.faults
        if not is_whole:
            self._producers.is_complete = False
            self._is_cut = True
        offsets.report(
            end=_AFTER_ALL_POSITIONS if is_whole or batches.seen_end == size else batches.seen_end
        )
        times.report(is_whole=is_whole)
        if is_whole:
            self._check_aborted(checked, indexes.aborted, replayed, batches.next_offset)
        # `PartitionCheck` reports the first fault together with its repair.
        for fault in batches.faults[1:]:
            self._findings.error(path, fault.rule, fault.message, position=fault.position)
        return SegmentFacts(
            base_offset=checked.base_offset,
            next_offset=batches.next_offset,
            size=size,
            good_end=batches.good_end,
            fault=batches.faults[0] if batches.faults else None,
            max_timestamp=times.max_timestamp,
            max_timestamp_offset=times.max_timestamp_offset,
        )

    def _check_aborted(
        self,
        checked: CheckedSegment,
        stored: list[AbortedTransaction] | None,
        replayed: TransactionIndex,
        next_offset: int,
    ) -> None:
        path = checked.path(TXN_INDEX)
        if self._findings.has("txnindex-corrupt", path):
            return
        expected = list(replayed.entries())
        if stored is None:
            if expected and self._producers.is_exact:
                message = f"no index of the segment's {len(expected)} aborted transactions"
                self._findings.add(
                    checked.missing_severity, path, "missing-txnindex", message, repair=REBUILD
                )
            return
        is_prefix = checked.is_recovered and stored == expected[: len(stored)]
        difference = find_txn_difference(
            stored,
            expected,
            base_offset=checked.base_offset,
            next_offset=next_offset,
            is_exact=self._producers.is_exact,
        )
        if difference is not None and not is_prefix:
            self._findings.add(
                checked.severity, path, "txnindex-untrue", difference, repair=REBUILD
            )


def read_indexes(
    fs: FileSystem, checked: CheckedSegment, finding_list: FindingList
) -> SegmentIndexes:
    """Reads the index files of a segment; reports invalid ones and leaves them out."""
    return SegmentIndexes(
        offsets=_read_entries(fs, checked, INDEX, OffsetIndex, finding_list),
        times=_read_entries(fs, checked, TIME_INDEX, TimeIndex, finding_list),
        aborted=_read_aborted(fs, checked, finding_list),
    )


def _read_entries(
    fs: FileSystem,
    checked: CheckedSegment,
    kind: str,
    index: type[OffsetIndex] | type[TimeIndex],
    finding_list: FindingList,
) -> Integers | None:
    path, entry_size, rule = checked.path(kind), index.layout.itemsize, kind.removeprefix(".")
    try:
        data = fs.read(path)
    except FileNotFoundError:
        return None
    if len(data) % entry_size:
        message = f"{len(data)} bytes are not a multiple of the entry size {entry_size}"
        finding_list.add(checked.severity, path, f"{rule}-length", message, repair=REBUILD)
    total = count = len(data) // entry_size
    if total > 1:  # a file of one entry is not preallocated
        count = -(-len(data[: total * entry_size].rstrip(b"\0")) // entry_size)
    if count < total:
        message, severity = (
            f"{total - count} unused entries of zeros at the end",
            checked.missing_severity,
        )
        finding_list.add(severity, path, f"{rule}-untrimmed", message, repair=REBUILD)
    used = data[: count * entry_size]
    return index.decode(used, checked.base_offset, max(len(used), 1)).entries()


def _read_aborted(
    fs: FileSystem, checked: CheckedSegment, finding_list: FindingList
) -> list[AbortedTransaction] | None:
    path = checked.path(TXN_INDEX)
    try:
        return list(
            TransactionIndex.decode(fs.read(path), checked.base_offset, where=path).entries()
        )
    except FileNotFoundError:
        return None
    except Corrupt as error:
        finding_list.add_corrupt(
            path, "txnindex-corrupt", error, severity=checked.severity, repair=REBUILD
        )
        return None
