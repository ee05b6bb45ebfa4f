"""Checks one segment: its data file, and its three indexes against the data, table by table.

Invariant  an offset entry sends a scan to a batch start, early perhaps but never late; a time entry
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

_UNSEEN: Final = -(2**63)
_FAR: Final = 2**62

Integers = npt.NDArray[np.int64]


class EntryCheck:
    """The entries of one sparse index against the batches."""

    kind: ClassVar[str]
    index: ClassVar[type[IndexEntries]]

    def __init__(self, found: FindingList, place: "SegmentPlace", entries: Integers | None) -> None:
        self._found = found
        self._place = place
        self._path = place.path(self.kind)
        self.is_missing = entries is None
        self.entries = np.empty((0, 2), np.int64) if entries is None else entries

    def _unseen(self) -> Integers:
        return np.full(len(self.entries), _UNSEEN, np.int64)

    def _add(self, rule: str, message: str, slot: int) -> None:
        self._found.add(
            self._place.severity,
            self._path,
            f"{self.kind.removeprefix('.')}-{rule}",
            message,
            position=slot * self.index.layout.itemsize,
            repair=REBUILD,
        )

    def _add_absence(self, rule: str, message: str) -> None:
        self._found.add(self._place.absence, self._path, rule, message, repair=REBUILD)

    def _judge_order(self) -> None:
        is_fall = (np.diff(self.entries, axis=0) < self.index.least_steps).any(axis=1)
        for slot in np.flatnonzero(is_fall).tolist():
            before, after = map(tuple, self.entries[slot : slot + 2].tolist())
            self._add("order", f"entry {after} does not ascend from {before}", slot + 1)


class OffsetEntryCheck(EntryCheck):
    """The entries of one offset index."""

    kind = INDEX
    index = OffsetIndex

    def __init__(self, found: FindingList, place: "SegmentPlace", entries: Integers | None) -> None:
        super().__init__(found, place, entries)
        self._first_offsets = self._unseen()
        self._last_offsets = self._unseen()
        self._end_positions = self._unseen()

    def observe(self, table: BatchTable) -> None:
        """Records what the table's batches say about the entries."""
        rows = table.rows
        positions = rows[:, BatchColumn.POSITION]
        slots, hits = _matches(self.entries[:, 1], positions)
        self._first_offsets[slots] = rows[hits, BatchColumn.BASE_OFFSET]
        self._last_offsets[slots] = rows[hits, BatchColumn.LAST_OFFSET]
        slots, hits = _matches(self.entries[:, 0], rows[:, BatchColumn.LAST_OFFSET])
        self._end_positions[slots] = positions[hits]

    def judge(self, *, end: int) -> None:
        """Adds what is wrong. Entries from `end` on were not compared and are passed over."""
        if self.is_missing:
            self._add_absence("missing-index", "no offset index")
        self._judge_order()
        offsets, positions = self.entries.T
        is_start = self._last_offsets != _UNSEEN
        known = positions < end
        for slot in np.flatnonzero(known & ~is_start).tolist():
            message = f"entry for offset {offsets[slot]}: no batch begins at its position"
            self._add("position", message, slot)
        next_positions = np.append(positions[1:], _FAR)
        ends_here = self._last_offsets == offsets
        # An append of several batches is indexed by its first position and its last offset.
        ends_later = (self._end_positions >= positions) & (self._end_positions < next_positions)
        for slot in np.flatnonzero(known & is_start & ~ends_here & ~ends_later).tolist():
            message = (
                f"entry names offset {offsets[slot]}, the batch there holds "
                f"{self._first_offsets[slot]}..{self._last_offsets[slot]}"
            )
            self._add("offset", message, slot)


class TimeEntryCheck(EntryCheck):
    """The entries of one time index."""

    kind = TIME_INDEX
    index = TimeIndex

    def __init__(self, found: FindingList, place: "SegmentPlace", entries: Integers | None) -> None:
        super().__init__(found, place, entries)
        self._batch_timestamps = self._unseen()
        self._earlier_timestamps = self._unseen()
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
        slots, hits = _matches(self.entries[:, 1], last_offsets)
        self._batch_timestamps[slots] = timestamps[hits]
        self._earlier_timestamps[slots] = before[hits]
        latest = int(np.argmax(timestamps))
        if timestamps[latest] > self.max_timestamp:
            self.max_timestamp = int(timestamps[latest])
            self.max_timestamp_offset = int(last_offsets[latest])
        self._last_offset = int(last_offsets[-1])

    def judge(self, *, is_whole: bool) -> None:
        """Adds what is wrong; with `is_whole` every batch of the segment was observed."""
        if self.is_missing:
            self._add_absence("missing-timeindex", "no time index")
            return
        self._judge_order()
        timestamps, offsets = self.entries.T
        known = np.full(len(offsets), is_whole) | (offsets <= self._last_offset)
        is_end = self._batch_timestamps != _UNSEEN
        for slot in np.flatnonzero(known & ~is_end).tolist():
            message = f"no batch ends at the entry's offset {offsets[slot]}"
            self._add("offset", message, slot)
        is_true = self._batch_timestamps == timestamps
        is_true &= self._earlier_timestamps < timestamps
        for slot in np.flatnonzero(known & is_end & ~is_true).tolist():
            message = (
                f"entry says that {timestamps[slot]} is first reached by the batch that ends "
                f"at offset {offsets[slot]}; that batch reaches "
                f"{self._batch_timestamps[slot]}, those before it {self._earlier_timestamps[slot]}"
            )
            self._add("timestamp", message, slot)
        last_timestamp = int(timestamps[-1]) if len(timestamps) else -1
        if is_whole and last_timestamp < self.max_timestamp:
            message = f"the segment's largest timestamp {self.max_timestamp} is not indexed"
            self._add_absence("timeindex-lags", message)


def _matches(
    wanted: Integers, ascending: Integers
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Which of the wanted values stand in the ascending ones, and where."""
    near = np.flatnonzero((wanted >= ascending[0]) & (wanted <= ascending[-1]))
    places = np.minimum(np.searchsorted(ascending, wanted[near]), len(ascending) - 1)
    hit = ascending[places] == wanted[near]
    return near[hit], places[hit]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPlace:
    """Which segment, and what the directory around it says."""

    directory: str
    base_offset: int
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
        offsets = OffsetEntryCheck(self._found, place, indexes.offsets)
        times = TimeEntryCheck(self._found, place, indexes.times)
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
        offsets.judge(end=_FAR if is_whole or batches.seen_end == size else batches.seen_end)
        times.judge(is_whole=is_whole)
        if is_whole:
            self._judge_aborted(place, indexes.aborted, replayed, batches.next_offset)
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

    def _judge_aborted(
        self,
        place: SegmentPlace,
        stored: list[AbortedTransaction] | None,
        replayed: TransactionIndex,
        next_offset: int,
    ) -> None:
        path = place.path(TXN_INDEX)
        if self._found.has("txnindex-corrupt", path):
            return
        true = list(replayed.entries())
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
        finding_list.corrupt(
            path, "txnindex-corrupt", error, severity=place.severity, repair=REBUILD
        )
        return None
