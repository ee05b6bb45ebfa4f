"""The key indexes of one log: opened where they are valid, built where they are not.

Invariant  an index is used only after its checksum was verified or it was built here, and only
           while it marks the same transactions as aborted as the log does: a truncation may have
           removed a marker, and a later one may have decided otherwise. A segment whose data is
           damaged is held: cleaning skips it, and tries again after an interval that doubles.
Invariant  I/O errors of derived files, which are key indexes and segments that are not yet part of
           the log, fail only their partition: the log works without these files. Other I/O errors
           are those of the log (`commit_log/health.py`).
Threads    one at a time, the holder of the partition; any thread may call `find`, which deletes the
           files of unusable indexes, and `needs_run`. `check_key_indexes` reads a directory that
           is not locked; a store may have it open.
"""

import contextlib
import errno
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from varve.cleaning.key_index.batch_tables import aborted_table
from varve.cleaning.key_index.builder import build_key_index
from varve.cleaning.key_index.key_index import (
    BATCH_ABORTED,
    CONTROL_NONE,
    NO_TOPIC_ID,
    REMEDY,
    KeyIndexHeader,
    SegmentKeys,
    Table,
    open_key_index,
)
from varve.cleaning.work_budget import WorkBudget
from varve.commit_log import Log
from varve.commit_log.check import Finding, Severity
from varve.commit_log.check.directory import DirectoryFacts
from varve.commit_log.check.partition import PartitionFacts
from varve.commit_log.log_directory import LogDirectory
from varve.commit_log.names import KEYS, LOG
from varve.commit_log.segment import Segment, SegmentFiles
from varve.commit_log.segment_reader import first_batch_timestamp
from varve.commit_log.transaction_index import AbortedTransaction
from varve.disk import DiskProblem, FileSystem, classify_error, to_store_error
from varve.foundation.backoff import Backoff
from varve.foundation.errors import Corrupt, StoreError, Unavailable, UnsupportedFormat
from varve.kernels.batch_layout import BATCH_COLUMN_COUNT, BatchColumn
from varve.kernels.transaction_marks import find_aborted

logger = logging.getLogger(__name__)

_HELD: Final = "the segment is held: cleaning skips it and everything else goes on"
HELD_REMEDY: Final = (
    f"{_HELD}; restore this file from a copy if there is one: a repair would cut the log at that "
    "batch and drop what follows (`varve check` shows what)"
)


def hold_reason(error: StoreError) -> str:
    """The reason why a segment is held, with the remedy."""
    # The error of an old format has its own remedy; a repair does not change it.
    return f"{error}; {_HELD if isinstance(error, UnsupportedFormat) else HELD_REMEDY}"


CLEANING_RETRY: Final = Backoff(60_000, 3_600_000)
"""Building a key index reads its whole segment, and damaged bytes seldom repair themselves."""


@dataclass(frozen=True, slots=True)
class HeldSegment:
    """A segment that cleaning skips because its bytes are damaged.

    `oldest_ms` is the oldest batch timestamp that could be read, None without one.
    """

    base_offset: int
    bytes_held: int
    oldest_ms: int | None
    reason: str
    since_ms: int
    attempts: int
    retry_ms: int


@dataclass(frozen=True, slots=True)
class _VerifiedIndex:
    """A verified index, and the aborted transactions it was last compared with."""

    header: KeyIndexHeader
    aborted: Sequence[AbortedTransaction] | None = None


class SegmentKeyIndexes:
    """Key indexes and held segments of one log."""

    def __init__(self, fs: FileSystem, log: Log, *, topic_id: bytes, buffer_bytes: int) -> None:
        self._fs = fs
        self._log = log
        self._topic_id = topic_id
        self._buffer_bytes = buffer_bytes
        self._verified: dict[Segment, _VerifiedIndex] = {}
        self.holds: dict[int, HeldSegment] = {}
        self.recovered: set[int] = set()
        """Base offsets of segments that were held, until a run has cleaned them too."""

    def find(self, segment: Segment, next_offset: int) -> SegmentKeys | None:
        """The index of a segment without open transactions, if there is a valid one; never builds.

        An index that is damaged, or marks other transactions as aborted than the log does, is
        removed. `next_offset` is where the next segment begins.
        """
        path = segment.path(KEYS)
        index = self._verified.get(segment)
        try:
            if index is None or not self._fs.exists(path):
                index = self._open(segment)
            if index is None:
                return None
            if index.header.mark_count:
                index = self._compare(segment, next_offset, index)
        except (Corrupt, UnsupportedFormat) as error:
            logger.warning(
                "%(path)s: key index removed: %(error)s", {"path": path, "error": str(error)}
            )
            self._remove(segment)
            return None
        self._verified[segment] = index
        return SegmentKeys(self._fs, path, index.header)

    def _open(self, segment: Segment) -> _VerifiedIndex | None:
        index = open_key_index(self._fs, segment, topic_id=self._topic_id)
        if index is None:
            return None
        with index:
            index.verify()
            index.check_tables()
            return _VerifiedIndex(index.header)

    def _compare(
        self, segment: Segment, next_offset: int, verified: _VerifiedIndex
    ) -> _VerifiedIndex:
        """The index compared with the log's aborted transactions; raises Corrupt if they differ."""
        aborted = self._log.collect_aborted(segment.base_offset, next_offset)
        if aborted == verified.aborted:
            return verified
        with SegmentKeys(self._fs, segment.path(KEYS), verified.header).open() as index:
            batches, marks = index.batches(), index.marks()
        if not _flags_same_batches(batches, marks, segment.base_offset, aborted):
            raise Corrupt("other transactions are aborted now than when it was built")
        return _VerifiedIndex(verified.header, aborted)

    def _remove(self, segment: Segment) -> None:
        self._verified.pop(segment, None)
        with contextlib.suppress(FileNotFoundError):
            self._fs.remove(segment.path(KEYS))

    def ensure(
        self, segment: Segment, next_offset: int, now_ms: int, budget: WorkBudget
    ) -> SegmentKeys | None:
        """The index of a segment without open transactions, built if necessary; None while held."""
        keys = self.find(segment, next_offset)
        if keys is not None:
            self._release(segment)
            return keys
        hold = self.holds.get(segment.base_offset)
        if hold is not None and now_ms < hold.retry_ms:
            return None
        aborted = self._log.collect_aborted(segment.base_offset, next_offset)
        try:
            header = build_key_index(
                self._fs,
                segment,
                topic_id=self._topic_id,
                aborted=aborted,
                buffer_bytes=self._buffer_bytes,
                budget=budget,
            )
        except (Corrupt, UnsupportedFormat) as error:
            self.hold(segment, hold_reason(error), now_ms)
            return None
        self._verified[segment] = _VerifiedIndex(header, aborted)
        self._release(segment)
        return SegmentKeys(self._fs, segment.path(KEYS), header)

    def _release(self, segment: Segment) -> None:
        if self.holds.pop(segment.base_offset, None) is not None:
            self.recovered.add(segment.base_offset)

    def hold(self, segment: Segment, reason: str, now_ms: int) -> None:
        """Holds a damaged segment until the next attempt is due.

        Its key index is deleted, as a valid key index proves that the segment is intact.
        """
        earlier = self.holds.get(segment.base_offset)
        attempts = earlier.attempts + 1 if earlier else 1
        wait_ms = CLEANING_RETRY.wait_ms(attempts)
        self._remove(segment)
        oldest_ms: int | None = None
        with contextlib.suppress(Corrupt, UnsupportedFormat):
            oldest_ms = first_batch_timestamp(segment, size=segment.size)
        self.holds[segment.base_offset] = HeldSegment(
            base_offset=segment.base_offset,
            bytes_held=segment.size,
            oldest_ms=oldest_ms if oldest_ms is not None and oldest_ms >= 0 else None,
            reason=reason,
            since_ms=earlier.since_ms if earlier else now_ms,
            attempts=attempts,
            retry_ms=now_ms + wait_ms,
        )
        logger.warning(
            "%(path)s: segment held: cleaning skips it: %(error)s",
            {"path": segment.path(LOG), "error": reason, "attempts": attempts},
        )

    def add(self, segment: Segment, header: KeyIndexHeader) -> None:
        """Adds the index that was written with a new segment."""
        self._verified[segment] = _VerifiedIndex(header)

    def delete_all(self) -> None:
        """Deletes all indexes, because a plan based on them was wrong; they are rebuilt."""
        for segment in self._log.view.closed:
            self._remove(segment)

    def forget(self) -> None:
        """Forgets which indexes were verified: each is verified again at its next use."""
        self._verified = {}

    def forget_vanished(self) -> None:
        """Forgets the indexes and holds of segments that are no longer in the log."""
        closed = set(self._log.view.closed)
        bases = {segment.base_offset for segment in closed}
        verified = list(self._verified.items())  # a copy, because a look-up may add to it meanwhile
        self._verified = {segment: index for segment, index in verified if segment in closed}
        self.holds = {base: hold for base, hold in self.holds.items() if base in bases}
        self.recovered &= bases

    def needs_run(self, now_ms: int) -> bool:
        """Whether a segment that was held can be cleaned, or may be by now."""
        holds = list(self.holds.values())
        return bool(self.recovered) or any(hold.retry_ms <= now_ms for hold in holds)


def _flags_same_batches(
    batches: Table, marks: Table, base_offset: int, aborted: Sequence[AbortedTransaction]
) -> bool:
    """Whether the batches flagged as aborted are those of the aborted transactions.

    Empty batches are ignored: their flag has no effect.
    """
    numbers = marks["batch"]
    if len(numbers) and int(numbers.max()) >= len(batches):
        return False
    candidates = (marks["control"] == CONTROL_NONE) & (batches["count"][numbers] > 0)
    rows = np.zeros((len(marks), BATCH_COLUMN_COUNT), np.int64)
    rows[:, BatchColumn.PRODUCER_ID] = marks["producer_id"]
    rows[:, BatchColumn.BASE_OFFSET] = base_offset + batches["base"][numbers].astype(np.int64)
    is_aborted = np.empty(len(marks), np.uint8)
    find_aborted(rows, candidates.view(np.uint8), aborted_table(aborted), is_aborted)
    is_flagged = batches["flags"][numbers] & BATCH_ABORTED != 0
    return not bool(np.any(candidates & (is_flagged != (is_aborted != 0))))


# Key indexes, their temporary and spill files, and a new segment until it is swapped in.
_DERIVED: Final = re.compile(r".*\.(keys|cleaned)(\.tmp|\.run)?")


def is_of_derived_file(error: OSError) -> bool:
    """Whether the error is of a file that the log does not need.

    A missing file is not a failure: it was deleted with its segment.
    """
    if isinstance(error, FileNotFoundError) or not isinstance(error.filename, str):
        return False
    return _DERIVED.fullmatch(error.filename) is not None


@contextlib.contextmanager
def partition_io(directory: LogDirectory, doing: str) -> Iterator[None]:
    """Raises I/O errors of the files of one partition as store errors.

    A missing file means that the log changed meanwhile: Unavailable. An error of a derived file
    fails only the partition, any other error takes the log directory offline.
    """
    with directory.health.io(doing):
        try:
            yield
        except FileNotFoundError as error:
            raise Unavailable(
                f"{doing}: {error.filename} was removed from the log meanwhile; try again"
            ) from error
        except OSError as error:
            # A limit of the process on file sizes refuses the write and leaves all as it was.
            if not is_of_derived_file(error) and error.errno != errno.EFBIG:
                raise
            then = "try again, the log is as it was"
            if classify_error(error) in (DiskProblem.DENIED, DiskProblem.BROKEN):
                then = f"{then}; or delete the file: it is rebuilt"
            raise to_store_error(error, doing, then=then) from error


_NEXT_USE: Final = "rebuilt at the next use"


def check_key_indexes(fs: FileSystem, facts: DirectoryFacts) -> list[Finding]:
    """Findings about key indexes; a segment without one is not a finding."""
    return [
        finding
        for partition_facts in facts.partitions.values()
        for finding in _check_partition(fs, partition_facts)
    ]


def _check_partition(fs: FileSystem, facts: PartitionFacts) -> Iterator[Finding]:
    topic_id = NO_TOPIC_ID if facts.topic_id is None else facts.topic_id.bytes
    files = SegmentFiles(fs)
    for info in facts.segments:
        segment = Segment(files, facts.directory, base_offset=info.base_offset, size=info.size)
        path = segment.path(KEYS)
        # The directory is not locked: an index that vanishes was replaced with its segment.
        with contextlib.suppress(FileNotFoundError):
            if not fs.info(path).is_directory:
                yield from _check_index(fs, segment, path, topic_id)


def _check_index(fs: FileSystem, segment: Segment, path: str, topic_id: bytes) -> Iterator[Finding]:
    try:
        index = open_key_index(fs, segment, topic_id=topic_id)
        if index is None:
            message = f"built from another generation of the data file; {_NEXT_USE}"
            yield Finding(Severity.NOTE, path, None, "key-index-stale", message)
            return
        with index:
            index.verify()
    except Corrupt as error:
        text = str(error).removeprefix(f"{path}: ").removesuffix(f": {REMEDY}")
        message = f"{text}; {_NEXT_USE}"
        yield Finding(Severity.NOTE, path, None, "key-index-corrupt", message)
