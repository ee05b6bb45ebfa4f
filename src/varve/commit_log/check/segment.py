"""Checks one segment: its data file, and its three indexes against the data, table by table.

Invariant  an offset entry sends a scan to a batch start, early perhaps but never late; a time entry
           names the earliest batch with the largest timestamp so far.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from varve.commit_log.check.batches import BatchCheck, Fault
from varve.commit_log.check.findings import FindingList, Severity
from varve.commit_log.check.producers import EpochCheck, ProducerCheck, find_txn_difference
from varve.commit_log.names import INDEX, LOG, TIME_INDEX, TXN_INDEX, log_name
from varve.commit_log.segment_reader import BatchTable
from varve.commit_log.sparse_index import OffsetIndex, TimeIndex
from varve.commit_log.transaction_index import AbortedTransaction, TransactionIndex
from varve.disk import File, FileSystem
from varve.foundation.errors import Corrupt
from varve.kernels.batch_layout import BatchColumn

REBUILD: Final = "rebuild the index from its segment"

_UNSEEN: Final = -(2**63)
_FAR: Final = 2**62

Integers = npt.NDArray[np.int64]


class OffsetEntryCheck:
    """The entries of one offset index."""

    def __init__(self, entries: Integers) -> None:
        self.offsets = entries[:, 0]
        self.positions = entries[:, 1]
        count = len(entries)
        self._first_offsets = np.full(count, _UNSEEN, np.int64)
        self._last_offsets = np.full(count, _UNSEEN, np.int64)
        self._end_positions = np.full(count, _UNSEEN, np.int64)

    def observe(self, table: BatchTable) -> None:
        """Notes what the table's batches say about the entries."""
        rows = table.rows
        positions = rows[:, BatchColumn.POSITION]
        slots, hits = _matches(self.positions, positions)
        self._first_offsets[slots] = rows[hits, BatchColumn.BASE_OFFSET]
        self._last_offsets[slots] = rows[hits, BatchColumn.LAST_OFFSET]
        slots, hits = _matches(self.offsets, rows[:, BatchColumn.LAST_OFFSET])
        self._end_positions[slots] = positions[hits]

    def judge(self, finding_list: FindingList, path: str, severity: Severity, *, end: int) -> None:
        """Adds what is wrong. Entries from `end` on were not compared and are passed over."""
        self._judge_order(finding_list, path, severity)
        is_start = self._last_offsets != _UNSEEN
        known = self.positions < end
        for slot in np.flatnonzero(known & ~is_start).tolist():
            message = f"entry for offset {self.offsets[slot]}: no batch begins at its position"
            self._add(finding_list, path, severity, "index-position", message, slot)
        next_positions = np.append(self.positions[1:], _FAR)
        ends_here = self._last_offsets == self.offsets
        # An append of several batches is indexed by its first position and its last offset.
        ends_later = (self._end_positions >= self.positions) & (
            self._end_positions < next_positions
        )
        for slot in np.flatnonzero(known & is_start & ~ends_here & ~ends_later).tolist():
            message = (
                f"entry names offset {self.offsets[slot]}, the batch there holds "
                f"{self._first_offsets[slot]}..{self._last_offsets[slot]}"
            )
            self._add(finding_list, path, severity, "index-offset", message, slot)

    def _judge_order(self, finding_list: FindingList, path: str, severity: Severity) -> None:
        falls = (np.diff(self.offsets) <= 0) | (np.diff(self.positions) <= 0)
        for slot in np.flatnonzero(falls).tolist():
            message = (
                f"entry ({self.offsets[slot + 1]}, {self.positions[slot + 1]}) does not ascend "
                f"from ({self.offsets[slot]}, {self.positions[slot]})"
            )
            self._add(finding_list, path, severity, "index-order", message, slot + 1)

    def _add(
        self,
        found: FindingList,
        path: str,
        severity: Severity,
        rule: str,
        message: str,
        slot: int,
    ) -> None:
        found.add(severity, path, rule, message, position=slot * 8, repair=REBUILD)


class TimeEntryCheck:
    """The entries of one time index."""

    def __init__(self, entries: Integers) -> None:
        self.timestamps = entries[:, 0]
        self.offsets = entries[:, 1]
        count = len(entries)
        self._batch_timestamps = np.full(count, _UNSEEN, np.int64)
        self._earlier_timestamps = np.full(count, _UNSEEN, np.int64)
        self._last_offset = _UNSEEN
        self.max_timestamp = -1
        self.max_timestamp_offset = -1

    def observe(self, table: BatchTable) -> None:
        rows = table.rows
        timestamps = rows[:, BatchColumn.MAX_TIMESTAMP]
        last_offsets = rows[:, BatchColumn.LAST_OFFSET]
        before = np.empty(len(rows), np.int64)
        before[0] = self.max_timestamp
        np.maximum(np.maximum.accumulate(timestamps[:-1]), self.max_timestamp, out=before[1:])
        slots, hits = _matches(self.offsets, last_offsets)
        self._batch_timestamps[slots] = timestamps[hits]
        self._earlier_timestamps[slots] = before[hits]
        latest = int(np.argmax(timestamps))
        if timestamps[latest] > self.max_timestamp:
            self.max_timestamp = int(timestamps[latest])
            self.max_timestamp_offset = int(last_offsets[latest])
        self._last_offset = int(last_offsets[-1])

    def judge(
        self, finding_list: FindingList, path: str, severity: Severity, *, is_whole: bool
    ) -> None:
        """Adds what is wrong; with `is_whole` every batch of the segment was observed."""
        falls = (np.diff(self.timestamps) <= 0) | (np.diff(self.offsets) < 0)
        for slot in np.flatnonzero(falls).tolist():
            message = (
                f"entry ({self.timestamps[slot + 1]}, {self.offsets[slot + 1]}) does not ascend "
                f"from ({self.timestamps[slot]}, {self.offsets[slot]})"
            )
            self._add(finding_list, path, severity, "timeindex-order", message, slot + 1)
        known = np.full(len(self.offsets), is_whole) | (self.offsets <= self._last_offset)
        is_end = self._batch_timestamps != _UNSEEN
        for slot in np.flatnonzero(known & ~is_end).tolist():
            message = f"no batch ends at the entry's offset {self.offsets[slot]}"
            self._add(finding_list, path, severity, "timeindex-offset", message, slot)
        is_true = (self._batch_timestamps == self.timestamps) & (
            self._earlier_timestamps < self.timestamps
        )
        for slot in np.flatnonzero(known & is_end & ~is_true).tolist():
            message = (
                f"entry says that {self.timestamps[slot]} is first reached by the batch that ends "
                f"at offset {self.offsets[slot]}; that batch reaches "
                f"{self._batch_timestamps[slot]}, those before it {self._earlier_timestamps[slot]}"
            )
            self._add(finding_list, path, severity, "timeindex-timestamp", message, slot)

    @property
    def lags(self) -> bool:
        """Whether the segment's largest timestamp is not in the index."""
        last = int(self.timestamps[-1]) if len(self.timestamps) else -1
        return last < self.max_timestamp

    def _add(
        self,
        found: FindingList,
        path: str,
        severity: Severity,
        rule: str,
        message: str,
        slot: int,
    ) -> None:
        found.add(severity, path, rule, message, position=slot * 12, repair=REBUILD)


def _matches(
    wanted: Integers, ascending: Integers
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Which of the wanted values stand in the ascending ones, and where."""
    near = np.flatnonzero((wanted >= ascending[0]) & (wanted <= ascending[-1]))
    places = np.minimum(np.searchsorted(ascending, wanted[near]), len(ascending) - 1)
    hit = ascending[places] == wanted[near]
    return near[hit], places[hit]


_NO_ENTRIES: Final = np.empty((0, 2), np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPlace:
    """Which segment, and what the directory around it says."""

    directory: str
    base_offset: int
    is_last: bool
    is_recovered: bool
    """Whether the next open rebuilds its indexes anyway."""

    def path(self, kind: str) -> str:
        return f"{self.directory}/{log_name(self.base_offset, kind)}"

    @property
    def severity(self) -> Severity:
        """How much a wrong index entry matters."""
        return Severity.WARNING if self.is_recovered else Severity.ERROR

    @property
    def absence(self) -> Severity:
        """How much a missing or short index matters."""
        return Severity.NOTE if self.is_recovered else Severity.ERROR


@dataclass(frozen=True, slots=True)
class SegmentIndexes:
    """A segment's index entries; None where there is no file."""

    offsets: Integers | None
    times: Integers | None
    aborted: list[AbortedTransaction] | None


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """What a check learned of a segment."""

    base_offset: int
    next_offset: int
    size: int
    good_end: int
    fault: Fault | None
    max_timestamp: int
    max_timestamp_offset: int


class SegmentCheck:
    """Checks segments one after the other; producers and epochs go through all of them."""

    def __init__(
        self,
        finding_list: FindingList,
        *,
        producers: ProducerCheck,
        epochs: EpochCheck,
        deep: bool,
        advance: Callable[[int], None],
    ) -> None:
        self._found = finding_list
        self._producers = producers
        self._epochs = epochs
        self._deep = deep
        self._advance = advance
        self._is_cut = False

    def check(
        self, place: SegmentPlace, file: File, size: int, indexes: SegmentIndexes
    ) -> SegmentFacts:
        """Walks the data once and holds the indexes against it."""
        path = place.path(LOG)
        batches = BatchCheck(
            self._found,
            path,
            base_offset=place.base_offset,
            deep=self._deep,
            advance=self._advance,
        )
        offsets = OffsetEntryCheck(_NO_ENTRIES if indexes.offsets is None else indexes.offsets)
        times = TimeEntryCheck(_NO_ENTRIES if indexes.times is None else indexes.times)
        replayed = TransactionIndex(place.base_offset)
        for table, is_good in batches.tables(file, size):
            offsets.observe(table)
            times.observe(table)
            # What follows a cut goes with it, and says nothing about what stays.
            if is_good and not self._is_cut:
                self._epochs.observe(table, path)
                self._producers.observe(table, replayed, path)
        is_whole = not batches.faults
        if not is_whole:
            self._producers.is_complete = False
            self._is_cut = True
        self._judge_offsets(place, offsets, indexes, size if is_whole else batches.seen_end, size)
        self._judge_times(place, times, indexes, is_whole=is_whole)
        self._judge_aborted(place, indexes, replayed, batches.next_offset, is_whole=is_whole)
        # The first is named with what recovery would do about it.
        for fault in batches.faults[1:]:
            self._found.error(path, fault.rule, fault.message, position=fault.position)
        return SegmentFacts(
            base_offset=place.base_offset,
            next_offset=batches.next_offset,
            size=size,
            good_end=batches.good_end,
            fault=batches.faults[0] if batches.faults else None,
            max_timestamp=times.max_timestamp,
            max_timestamp_offset=times.max_timestamp_offset,
        )

    def _judge_offsets(
        self,
        place: SegmentPlace,
        check: OffsetEntryCheck,
        indexes: SegmentIndexes,
        end: int,
        size: int,
    ) -> None:
        path = place.path(INDEX)
        if indexes.offsets is None:
            self._found.add(place.absence, path, "missing-index", "no offset index", repair=REBUILD)
        check.judge(self._found, path, place.severity, end=2**31 if end == size else end)

    def _judge_times(
        self,
        place: SegmentPlace,
        check: TimeEntryCheck,
        indexes: SegmentIndexes,
        *,
        is_whole: bool,
    ) -> None:
        path = place.path(TIME_INDEX)
        if indexes.times is None:
            self._found.add(
                place.absence, path, "missing-timeindex", "no time index", repair=REBUILD
            )
            return
        check.judge(self._found, path, place.severity, is_whole=is_whole)
        if check.lags and is_whole:
            message = f"the segment's largest timestamp {check.max_timestamp} is not indexed"
            self._found.add(place.absence, path, "timeindex-lags", message, repair=REBUILD)

    def _judge_aborted(
        self,
        place: SegmentPlace,
        indexes: SegmentIndexes,
        replayed: TransactionIndex,
        next_offset: int,
        *,
        is_whole: bool,
    ) -> None:
        path = place.path(TXN_INDEX)
        if self._found.has("txnindex-corrupt", path) or not is_whole:
            return
        true = list(replayed.entries())
        stored = indexes.aborted
        if stored is None:
            if true and self._producers.is_exact:
                message = f"no index of the segment's {len(true)} aborted transactions"
                self._found.add(place.absence, path, "missing-txnindex", message, repair=REBUILD)
            return
        is_behind = place.is_recovered and stored == true[: len(stored)]
        difference = find_txn_difference(
            stored,
            true,
            base_offset=place.base_offset,
            next_offset=next_offset,
            is_exact=self._producers.is_exact,
        )
        if difference is not None and not is_behind:
            self._found.add(place.severity, path, "txnindex-untrue", difference, repair=REBUILD)


def read_indexes(fs: FileSystem, place: SegmentPlace, finding_list: FindingList) -> SegmentIndexes:
    """The index files of a segment; what cannot be an index is noted and left out."""
    return SegmentIndexes(
        offsets=_read_entries(fs, place, INDEX, OffsetIndex, finding_list),
        times=_read_entries(fs, place, TIME_INDEX, TimeIndex, finding_list),
        aborted=_read_aborted(fs, place, finding_list),
    )


def _read_entries(
    fs: FileSystem,
    place: SegmentPlace,
    kind: str,
    index: type[OffsetIndex] | type[TimeIndex],
    finding_list: FindingList,
) -> Integers | None:
    path = place.path(kind)
    try:
        data = fs.read(path)
    except FileNotFoundError:
        return None
    rule = kind.removeprefix(".")
    entry_size = index.layout.itemsize
    if len(data) % entry_size:
        message = f"{len(data)} bytes are not a multiple of the entry size {entry_size}"
        finding_list.add(place.severity, path, f"{rule}-length", message, repair=REBUILD)
    count = _count_used(data, entry_size)
    if count < len(data) // entry_size:
        message = f"{len(data) // entry_size - count} unused entries of zeros at the end"
        finding_list.add(place.absence, path, f"{rule}-untrimmed", message, repair=REBUILD)
    used = data[: count * entry_size]
    return index.decode(used, place.base_offset, max(len(used), 1)).entries()


def _count_used(data: bytes, entry_size: int) -> int:
    """Entries before the zeros at the end; a file of one entry is no preallocated one."""
    count = len(data) // entry_size
    if count == 1:
        return 1
    used = len(data[: count * entry_size].rstrip(b"\0"))
    return -(-used // entry_size)


def _read_aborted(
    fs: FileSystem, place: SegmentPlace, finding_list: FindingList
) -> list[AbortedTransaction] | None:
    path = place.path(TXN_INDEX)
    try:
        return list(TransactionIndex.decode(fs.read(path), place.base_offset, where=path).entries())
    except FileNotFoundError:
        return None
    except Corrupt as error:
        message = str(error).removeprefix(f"{path}: ")
        finding_list.add(place.severity, path, "txnindex-corrupt", message, repair=REBUILD)
        return None
