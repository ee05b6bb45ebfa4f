"""Replaces segments atomically: by a cleaned segment, or by the parts of a segment that is split.

Layout     new files are first named `<base>.{log,index,timeindex,txnindex,keys}.cleaned`.
           docs/reference/formats/directory.md
Invariant  readers see the old segments or the new one, never parts of both. Everything appended
           before is synced when the new segment is committed: a record that supersedes one left out
           of the new segment must not be lost. A `.swap` set without `.cleaned` files is committed;
           with `.cleaned` files it is not, and the old segments stay.
Crash      step 1 renames `.cleaned` to `.swap`; its last rename commits. Before it the old segments
           stay, after it `finish_or_undo_swaps` removes every plain file from the base offset up
           to the end of the new data. That end may lie before the last old segment, since batches
           without records are dropped, and that old segment would then survive beside the new one.
           In this case an empty `.log.swap` at the last old base offset marks the end of the swap;
           it is renamed to `.swap` first, and removed after the renames of the old segments are
           durable (step 2), before the new files get their names (step 3). A failure in step 1 is
           undone by renaming back, the new segment before the mark: one `.cleaned` file at the base
           offset shows that nothing is committed. Every step may be repeated: swaps stay until all
           files they replace are removed.
Threads    holds the flush lock throughout, so that only a roll can change the segments meanwhile;
           the log's lock only for steps 2 and 3. Readers retry after them.
"""

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from varve.commit_log.append_times import AppendSpan
from varve.commit_log.names import (
    CLEANED,
    DELETED,
    INDEX,
    LOG,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    SegmentFileName,
    log_name,
    parse_file_name,
)
from varve.commit_log.producer_snapshots import ProducerSnapshots
from varve.commit_log.segment import SEGMENT_KINDS, Segment, SegmentFiles, rename_segment_files
from varve.commit_log.segment_reader import BatchWalk, find_end
from varve.commit_log.sparse_index import RELATIVE_OFFSET_MAX
from varve.disk import (
    DiskProblem,
    File,
    FileSystem,
    classify_error,
    copy_range,
    describe_error,
)
from varve.foundation.errors import Corrupt, InvalidRequest, StoreError, Unavailable
from varve.kernels.batch_layout import BatchColumn

if TYPE_CHECKING:
    from varve.commit_log.health import LogHealth
    from varve.commit_log.log_segments import LogSegments

logger = logging.getLogger(__name__)

_METADATA_SNAPSHOT: Final = ".checkpoint.deleted"


def finish_or_undo_swaps(fs: FileSystem, directory: str, names: list[str]) -> bool:
    """Leaves only plain files in the directory; True if anything changed."""
    marked = [name for name in names if name.endswith((DELETED, CLEANED, SWAP))]
    parsed = {name: file for name in marked if (file := parse_file_name(name))}
    deleted = [n for n in marked if n.endswith(DELETED) and not n.endswith(_METADATA_SNAPSHOT)]
    if not parsed and not deleted:
        return False
    cleaned = {name: file for name, file in parsed.items() if file.state == CLEANED}
    swaps = {name: file for name, file in parsed.items() if file.state == SWAP}
    first_cleaned = min((file.offset for file in cleaned.values()), default=None)
    undone = [
        name
        for name, file in swaps.items()
        if first_cleaned is not None and file.offset >= first_cleaned
    ]
    # Swaps are removed, durably, before the cleaned files that show them to be uncommitted.
    _remove(fs, directory, undone)
    _remove(fs, directory, [*cleaned, *deleted])
    committed = {name: file for name, file in swaps.items() if name not in undone}
    _remove(fs, directory, _find_replaced(fs, directory, names, committed))
    marks = _find_marks(fs, directory, committed)
    _remove(fs, directory, marks)
    for name in _swap_order(committed):
        if name in marks:
            continue
        fs.rename(f"{directory}/{name}", f"{directory}/{name.removesuffix(SWAP)}")
    fs.sync_directory(directory)
    logger.info(
        "resolved leftovers",
        extra={
            "directory": directory,
            "deleted": len(deleted),
            "uncommitted": len(undone) + len(cleaned),
            "swapped": len(committed),
        },
    )
    return True


def _remove(fs: FileSystem, directory: str, names: list[str]) -> None:
    """Removes files durably: a crash must not keep a later step and undo this one."""
    for name in names:
        fs.remove(f"{directory}/{name}")
    if names:
        fs.sync_directory(directory)


def _swap_order(committed: dict[str, SegmentFileName]) -> list[str]:
    """Names by base offset, each data file before its indexes."""
    return sorted(committed, key=lambda n: (committed[n].offset, committed[n].kind != LOG, n))


def _find_marks(fs: FileSystem, directory: str, committed: dict[str, SegmentFileName]) -> list[str]:
    logs = [name for name in _swap_order(committed) if committed[name].kind == LOG]
    return [name for name in logs[1:] if not fs.info(f"{directory}/{name}").size]


def _find_replaced(
    fs: FileSystem, directory: str, names: list[str], committed: dict[str, SegmentFileName]
) -> list[str]:
    """The plain files whose offsets the committed swaps cover, highest first."""
    logs = [file.offset for file in committed.values() if file.kind == LOG]
    if not logs:
        return []
    start = min(logs)
    ends = [_next_offset(fs, directory, offset) for offset in logs]
    end = max(*ends, max(logs) + 1)
    return [
        name
        for name in sorted(names, reverse=True)
        if (file := parse_file_name(name)) is not None
        and not file.state
        and start <= file.offset < end
    ]


def _next_offset(fs: FileSystem, directory: str, base_offset: int) -> int:
    path = f"{directory}/{log_name(base_offset, LOG)}{SWAP}"
    next_offset = base_offset
    with fs.open(path) as file:
        walk = BatchWalk(file, start=0, end=file.size(), verify_crc=False)
        for table in walk:
            next_offset = int(table.rows[-1, BatchColumn.LAST_OFFSET]) + 1
        walk.check_ended(path)
    return next_offset


@dataclass(frozen=True, slots=True)
class _Part:
    base_offset: int
    start: int
    end: int


def split_segment(fs: FileSystem, directory: str, base_offset: int) -> list[int]:
    """Replaces one segment by several and returns their base offsets; recovery builds indexes."""
    path = f"{directory}/{log_name(base_offset, LOG)}"
    with fs.open(path) as file:
        parts = _plan_parts(file, base_offset)
        for part in parts:
            _copy_part(fs, directory, file, part)
    fs.sync_directory(directory)
    for part in reversed(parts):
        name = f"{directory}/{log_name(part.base_offset, LOG)}"
        fs.rename(name + CLEANED, name + SWAP)
    fs.sync_directory(directory)
    finish_or_undo_swaps(fs, directory, fs.names(directory))
    return [part.base_offset for part in parts]


def _plan_parts(file: File, base_offset: int) -> list[_Part]:
    """Consecutive ranges of batches, each within the 32-bit range of its base offset.

    The first part keeps the old base offset, even if it has no batch: its swap file replaces the
    old segment.
    """
    parts: list[_Part] = []
    base, start, end = base_offset, 0, 0
    for table in BatchWalk(file, start=0, end=file.size(), verify_crc=False):
        for row in table.rows.tolist():
            if row[BatchColumn.LAST_OFFSET] - base > RELATIVE_OFFSET_MAX:
                parts.append(_Part(base, start, end))
                base, start = row[BatchColumn.BASE_OFFSET], end
            end += row[BatchColumn.SIZE]
    return [*parts, _Part(base, start, end)]


def _copy_part(fs: FileSystem, directory: str, source: File, part: _Part) -> None:
    with fs.open_writable(f"{directory}/{log_name(part.base_offset, LOG)}{CLEANED}") as target:
        target.truncate(0)
        copy_range(source, target, start=part.start, end=part.end)
        target.sync()


class _CleanedSegment(Segment):
    """The new segment before the swap, with its `.cleaned` file names."""

    __slots__ = ()

    def path(self, kind: str) -> str:
        return super().path(kind) + CLEANED


class SegmentReplacement:
    """Replaces consecutive closed segments of an open log by a new one."""

    def __init__(
        self, segments: "LogSegments", health: "LogHealth", old: Sequence[Segment], new: Segment
    ) -> None:
        self._segments = segments
        self._fs = segments.fs
        self._directory = segments.directory
        self._health = health
        self._old = old
        self._new = new
        # Base offsets of the `.swap` files, highest first.
        self._bases: tuple[int, ...] = (new.base_offset,)

    def commit(self) -> None:
        """Step 1, durable."""
        times, base_offset = self._segments.append_times, self._new.base_offset
        span = times.find(base_offset)
        try:
            self._write_append_times()
            last_base = self._old[-1].base_offset
            if self._check_new() <= last_base > base_offset:
                self._bases = (last_base, base_offset)
                self._write_mark(last_base)
            for base in self._bases:
                self._rename(base, CLEANED, SWAP)
            self._fs.sync_directory(self._directory)
        except OSError as error:
            times.set_in_memory(base_offset, span)
            self._undo()
            raise self._to_error(error) from error
        except StoreError:
            times.set_in_memory(base_offset, span)
            with self._health.io("remove files of"):
                self.discard()
            raise

    def _write_append_times(self) -> None:
        """Runs before the commit: after a crash, a time that is too late for the first old segment
        does less harm than one that is too early for the new segment.
        """
        spans = [self._segments.appended(segment) for segment in self._old]
        first_ms = min(span.first_ms for span in spans)
        last_ms = max(span.last_ms for span in spans)
        times = self._segments.append_times
        times.write(self._new.base_offset, AppendSpan(first_ms, last_ms))
        times.sync()

    def _check_new(self) -> int:
        """The offset after its last batch; raises unless all files exist and are complete."""
        new = self._new
        cleaned = _CleanedSegment(
            SegmentFiles(self._fs),
            self._directory,
            base_offset=new.base_offset,
            size=new.size,
            has_txn_index=new.has_txn_index,
        )
        for kind in (LOG, INDEX, TIME_INDEX):
            self._check_exists(cleaned.path(kind), expected=True)
        self._check_exists(cleaned.path(TXN_INDEX), expected=new.has_txn_index)
        end_offset, position = find_end(cleaned, size=new.size)
        if position != new.size or cleaned.file().size() != new.size:
            raise Corrupt(
                f"{cleaned.path(LOG)}: {cleaned.file().size()} bytes with whole batches up to "
                f"{position}, not {new.size}; nothing was replaced, clean the log again"
            )
        return end_offset

    def _check_exists(self, path: str, *, expected: bool) -> None:
        if self._fs.exists(path) != expected:
            state = "is missing" if expected else "exists, but is not expected"
            raise InvalidRequest(f"{path} {state}; nothing was replaced, clean the log again")

    def _write_mark(self, base_offset: int) -> None:
        path = f"{self._directory}/{log_name(base_offset, LOG)}{CLEANED}"
        with self._fs.open_writable(path) as file:
            file.truncate(0)
            file.sync()

    def _rename(self, base_offset: int, old: str, new: str) -> None:
        rename_segment_files(self._segments.files, self._directory, base_offset, old, new)

    def _undo(self) -> None:
        """Undoes step 1, durably: at the next load a remaining swap would remove later changes."""
        try:
            for base in reversed(self._bases):
                self._rename(base, SWAP, CLEANED)
            self._fs.sync_directory(self._directory)
            self.discard()
        except OSError as error:
            raise self._health.offline(error, "undo the swap of") from error

    def discard(self) -> None:
        """Removes the `.cleaned` files."""
        for base in self._bases:
            for kind in SEGMENT_KINDS:
                with contextlib.suppress(FileNotFoundError):
                    self._fs.remove(f"{self._directory}/{log_name(base, kind)}{CLEANED}")

    def _to_error(self, error: OSError) -> StoreError:
        problem = classify_error(error)
        if problem in (DiskProblem.FULL, DiskProblem.NO_DESCRIPTORS):
            return self._health.failed(error, "replace segments of")
        return Unavailable(
            f"{self._health.prefix}replace segments of {describe_error(error, self._directory)}; "
            f"the old segments stay, {problem.remedy} and clean the log again"
        )

    def exchange_locked(self, snapshots: ProducerSnapshots) -> None:
        """Steps 2 and 3: renames the old files `.deleted`, durably, then the new ones."""
        segments, old = self._segments, self._old
        number = segments.find(old)
        assert number is not None
        with segments.changing_files_locked("replace segments of"):
            for segment in old:
                segments.mark_deleted_locked(segment)
            self._fs.sync_directory(self._directory)
            for mark in self._bases[:-1]:
                self._fs.remove(f"{self._directory}/{log_name(mark, LOG)}{SWAP}")
            self._rename(self._new.base_offset, SWAP, "")
            for segment in old[1:]:
                # Recovery starts at the newest snapshot, which stays.
                if segment.base_offset in snapshots.offsets[:-1]:
                    snapshots.set_aside(segment.base_offset)
                segments.append_times.forget(segment.base_offset)
            view = segments.view
            closed = [*view.closed[:number], self._new, *view.closed[number + len(old) :]]
            segments.set_view_locked(closed, view.active)

    def sync_names(self) -> None:
        """Syncs the names of the new files; after a crash before it, loading repeats step 3."""
        try:
            self._fs.sync_directory(self._directory)
        except OSError as error:
            raise self._health.offline(error, "replace segments of") from error
