"""Checks one segment: its batches, and its three indexes against them.

Invariant  reads only. Index files of a segment that the next open recovers anyway may lag or be
           missing; what they do say must still be true.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from varve.commit_log.check_batches import BatchCheck, Fault
from varve.commit_log.check_entries import REBUILD, OffsetEntryCheck, TimeEntryCheck
from varve.commit_log.check_epochs import EpochCheck
from varve.commit_log.check_producers import ProducerCheck, find_txn_difference
from varve.commit_log.finding import FindingList, Severity
from varve.commit_log.names import INDEX, LOG, TIME_INDEX, TXN_INDEX, log_name
from varve.commit_log.sparse_index import OffsetIndex, TimeIndex
from varve.commit_log.txn_index import AbortedTransaction, TransactionIndex
from varve.disk import File, FileSystem
from varve.foundation.errors import Corrupt

_NO_ENTRIES: Final = np.empty((0, 2), np.int64)

Integers = npt.NDArray[np.int64]


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
        found: FindingList,
        *,
        producers: ProducerCheck,
        epochs: EpochCheck,
        deep: bool,
        advance: Callable[[int], None],
    ) -> None:
        self._found = found
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
            # What follows a cut goes with it, and tells nothing about what stays.
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


def read_indexes(fs: FileSystem, place: SegmentPlace, found: FindingList) -> SegmentIndexes:
    """The index files of a segment; what cannot be an index is noted and left out."""
    return SegmentIndexes(
        offsets=_read_entries(fs, place, INDEX, OffsetIndex, found),
        times=_read_entries(fs, place, TIME_INDEX, TimeIndex, found),
        aborted=_read_aborted(fs, place, found),
    )


def _read_entries(
    fs: FileSystem,
    place: SegmentPlace,
    kind: str,
    index: type[OffsetIndex] | type[TimeIndex],
    found: FindingList,
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
        found.add(place.severity, path, f"{rule}-length", message, repair=REBUILD)
    count = _count_used(data, entry_size)
    if count < len(data) // entry_size:
        message = f"{len(data) // entry_size - count} unused entries of zeros at the end"
        found.add(place.absence, path, f"{rule}-untrimmed", message, repair=REBUILD)
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
    fs: FileSystem, place: SegmentPlace, found: FindingList
) -> list[AbortedTransaction] | None:
    path = place.path(TXN_INDEX)
    try:
        return list(TransactionIndex.decode(fs.read(path), place.base_offset, where=path).entries())
    except FileNotFoundError:
        return None
    except Corrupt as error:
        message = str(error).removeprefix(f"{path}: ")
        found.add(place.severity, path, "txnindex-corrupt", message, repair=REBUILD)
        return None
