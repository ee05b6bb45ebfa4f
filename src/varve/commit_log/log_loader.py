"""Loads a partition directory: completes swaps, recovers unsynced segments, rebuilds state.

Crash      loading may be interrupted anywhere and repeated; it only truncates data files after
           their last valid batch, rebuilds indexes and removes files that a completed step made
           obsolete.
"""

import contextlib
import logging
import random
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from varve.commit_log.append_times import (
    UNKNOWN_CHECK,
    AppendSpan,
    AppendTimes,
    read_txn_checks,
    txn_check_of,
)
from varve.commit_log.health import raise_unless_derived
from varve.commit_log.leader_epochs import LeaderEpochs
from varve.commit_log.names import (
    INDEX,
    LEADER_EPOCH_FILE,
    LOG,
    SNAPSHOT,
    SYNC_FAILED_FILE,
    TIME_INDEX,
    TXN_INDEX,
    TopicPartition,
    is_unfinished_key_index,
    parse_file_name,
)
from varve.commit_log.producer_snapshots import (
    ProducerLoad,
    ProducerSnapshots,
    load_producers,
    restore_cached_batches,
)
from varve.commit_log.producer_state import ProducerStateManager
from varve.commit_log.segment import (
    SEGMENT_KINDS,
    ActiveSegment,
    Segment,
    SegmentContents,
    SegmentFiles,
    read_contents,
)
from varve.commit_log.segment_reader import (
    BatchWalk,
    ReadableSegment,
    find_batch_position,
    find_end,
    is_zeros,
)
from varve.commit_log.segment_recovery import assign_epochs, scan_segment, write_recovered
from varve.commit_log.segment_replacement import finish_or_undo_swaps, split_segment
from varve.commit_log.settings import LogSettings
from varve.disk import FileInfo, FileSystem, write_atomically
from varve.foundation.clock import Clock
from varve.foundation.errors import Corrupt, OffsetOverflow, PolicyViolation
from varve.kernels.batch_layout import HEADER_BYTES, INT64_MAX
from varve.records import BatchHeader, decode_header

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """Parameters of loading a partition; offsets come from the directory's checkpoints.

    `is_start_known` is False if the checkpoint lacks the log start offset. With a remote tier, only
    the tier, which may have earlier segments, can then give it. For a partition that `is_new`
    the caller syncs the directory.
    """

    files: SegmentFiles
    directory: str
    topic_partition: TopicPartition
    settings: LogSettings
    clock: Clock
    random: random.Random
    clean: bool = False
    recovery_point: int = 0
    log_start_offset: int = 0
    is_start_known: bool = True
    is_new: bool = False
    producer_expiration_ms: int = 86_400_000
    allowed_losses: Mapping[str, int] | None = None
    """The only data files that may be truncated, each with its lowest position; None allows all."""


@dataclass(slots=True, kw_only=True)
class LoadedLog:
    """The result of loading a partition."""

    closed: list[Segment]
    active: ActiveSegment
    epochs: LeaderEpochs
    producers: ProducerStateManager
    snapshots: ProducerSnapshots
    log_start_offset: int
    is_start_known: bool
    recovery_point: int
    append_times: AppendTimes
    recovered: list[str] = field(default_factory=list)


class LogLoader:
    """One loading of one partition; the steps follow each other in `load`."""

    def __init__(self, request: LoadRequest) -> None:
        self._request = request
        self._files = request.files
        self._fs: FileSystem = request.files.fs
        self._directory = request.directory
        self._segments: list[Segment] = []
        self._recovered: dict[int, SegmentContents] = {}
        self._messages: list[str] = []
        self._txn_checks: dict[int, int] = {}
        self._must_rebuild_epochs = False
        self._epoch_file: bytes | None = None
        self._overflowing: Segment | None = None
        self._without_time_index: set[int] = set()

    def load(self) -> LoadedLog:
        """Raises Corrupt or UnsupportedFormat for damage that recovery cannot repair."""
        request = self._request
        entries = self._list_segments()
        self._epochs = self._read_epochs()
        while True:
            try:
                self._open_segments(entries)
                wiped = self._recover()
                break
            except OffsetOverflow as error:
                self._split_overflowing(error)
                entries = self._list_segments()
        self._create_missing_time_indexes()
        self._rebuild_epochs()
        last = self._read_last_segment()
        next_offset = request.log_start_offset
        if last is not None and last.next_offset >= next_offset:
            next_offset = last.next_offset
        else:
            last, wiped = None, self._drop_all_segments() or wiped
        first_base = self._segments[0].base_offset if self._segments else next_offset
        log_start_offset = request.log_start_offset
        is_tiered = request.settings.remote_storage_enable and bool(self._segments)
        if not is_tiered:
            log_start_offset = max(log_start_offset, first_base)
        active = self._activate(next_offset, last)
        if last is None and not request.is_new:
            # Appended records are durable only if the name of their file is.
            self._fs.sync_directory(self._directory)
        segments: list[ReadableSegment] = [*self._segments, active]
        is_empty = not any(segment.size for segment in segments)
        self._trim_epochs(next_offset, request.log_start_offset, is_empty=is_empty)
        # Recovery writes a snapshot after each segment, even if the next starts further on.
        self._snapshots.remove_stray([segment.base_offset for segment in segments])
        producers = load_producers(
            self._snapshots,
            segments,
            end_offset=next_offset,
            load=self._producer_load(log_start_offset),
        )
        restore_cached_batches(segments[-2:], producers)
        if self._snapshots.has_removed:
            # A removed snapshot that reappears after a crash could be taken for a later one.
            self._fs.sync_directory(self._directory)
        for segment in self._segments:
            self._files.release(segment)
        clean = request.clean and not wiped
        return LoadedLog(
            closed=self._segments,
            active=active,
            epochs=self._epochs,
            producers=producers,
            snapshots=self._snapshots,
            log_start_offset=log_start_offset,
            is_start_known=request.is_start_known or not is_tiered,
            recovery_point=next_offset if clean else min(request.recovery_point, next_offset),
            append_times=self._load_append_times(segments, active),
            recovered=self._messages,
        )

    def _list_segments(self) -> list[FileInfo]:
        entries = self._fs.scan(self._directory)
        for entry in entries:
            if is_unfinished_key_index(entry.name):
                self._fs.remove(f"{self._directory}/{entry.name}")
        if finish_or_undo_swaps(self._fs, self._directory, [entry.name for entry in entries]):
            entries = self._fs.scan(self._directory)
        return entries

    def _read_epochs(self) -> LeaderEpochs:
        path = f"{self._directory}/{LEADER_EPOCH_FILE}"
        try:
            self._epoch_file = self._fs.read(path)
            if not self._epoch_file:
                raise Corrupt(f"{path} is empty")
            return LeaderEpochs.decode(self._epoch_file, where=path)
        except FileNotFoundError:
            self._must_rebuild_epochs = not self._request.is_new
        except (Corrupt, OSError) as error:
            raise_unless_derived(error)
            self._log_recovery(f"rebuilding the leader epochs: {error}")
            self._must_rebuild_epochs = True
        return LeaderEpochs()

    def _rebuild_epochs(self) -> None:
        """Reads the epochs of all batches if the file is lost or contradicts a batch."""
        segments = [segment for segment in self._segments if segment.size]
        if not segments:
            return
        end_offset = find_end(segments[-1], size=segments[-1].size)[0]
        if not self._must_rebuild_epochs and not self._contradicts_batches(segments, end_offset):
            return
        latest, self._epochs = self._epochs.latest, LeaderEpochs()
        for segment in segments:
            for table in BatchWalk(segment.file(), start=0, end=segment.size, verify_crc=False):
                assign_epochs(table, self._epochs)
        if latest is not None and latest.start_offset >= end_offset:
            self._epochs.assign(*latest)  # no record of it was appended, or all were lost

    def _contradicts_batches(self, segments: Sequence[Segment], end_offset: int) -> bool:
        """Whether a batch next to the start of a late epoch, or the last one, has another epoch."""
        newest = self._epochs.entries[-_EPOCHS_CHECKED_MAX:]
        starts = [min(entry.start_offset, end_offset) for entry in newest]
        offsets = {offset for start in starts for offset in (start - 1, start)} | {end_offset - 1}
        bases = [segment.base_offset for segment in segments]
        for offset in sorted(offset for offset in offsets if bases[0] <= offset < end_offset):
            segment = segments[bisect_right(bases, offset) - 1]
            try:
                header = _find_header(segment, offset)
            except Corrupt:
                continue  # reads and checks report the damage
            if header is None:
                continue
            known = self._epochs.epoch_for_offset(header.base_offset)
            if header.partition_leader_epoch not in (NO_EPOCH, known):
                return True
        return False

    @property
    def _latest_epoch(self) -> int:
        return -1 if self._epochs.latest is None else self._epochs.latest.epoch

    def _producer_load(self, log_start_offset: int) -> ProducerLoad:
        return ProducerLoad(
            log_start_offset=log_start_offset,
            now_ms=self._request.clock.now_ms(),
            expiration_ms=self._request.producer_expiration_ms,
            where=str(self._request.topic_partition),
        )

    def _open_segments(self, entries: Sequence[FileInfo]) -> None:
        """Opens every data file.

        Removes indexes without a data file; recovers segments with a missing or damaged index.
        """
        sizes: dict[int, int] = {}
        offsets: dict[str, set[int]] = {kind: set() for kind in (*SEGMENT_KINDS, SNAPSHOT)}
        for entry in entries:
            name = parse_file_name(entry.name)
            if name is not None:
                offsets[name.kind].add(name.offset)
                if name.kind == LOG:
                    sizes[name.offset] = entry.size
        self._snapshots = ProducerSnapshots(self._fs, self._directory, offsets.pop(SNAPSHOT))
        self._snapshots.remove_stray(sorted(sizes))
        self._remove_orphans(offsets, sizes)
        self._recovered.clear()
        self._txn_checks = read_txn_checks(self._fs, self._directory)
        self._segments = [
            self._segment(base, size=sizes[base], has_txn_index=base in offsets[TXN_INDEX])
            for base in sorted(sizes)
        ]
        self._without_time_index = sizes.keys() - offsets[TIME_INDEX]
        for number, segment in enumerate(self._segments[: self._first_to_recover()]):
            has_index = segment.base_offset in offsets[INDEX]
            if not has_index or (segment.has_txn_index and not self._has_valid_txn_index(segment)):
                self._recover_segment(number, is_final=True)

    def _segment(self, base_offset: int, *, size: int, has_txn_index: bool = False) -> Segment:
        return Segment(
            self._files,
            self._directory,
            base_offset=base_offset,
            size=size,
            has_txn_index=has_txn_index,
            txn_check=self._txn_checks.get(base_offset, UNKNOWN_CHECK),
            settings=self._request.settings,
        )

    def _create_missing_time_indexes(self) -> None:
        """A missing time index is created empty; readers then scan the segment."""
        for segment in self._segments:
            base = segment.base_offset
            if base in self._without_time_index and base not in self._recovered:
                self._fs.open_writable(segment.path(TIME_INDEX)).close()

    def _remove_orphans(self, offsets: dict[str, set[int]], sizes: dict[int, int]) -> None:
        for kind, kind_offsets in offsets.items():
            for offset in sorted(kind_offsets - sizes.keys()):
                self._fs.remove(self._segment(offset, size=0).path(kind))

    def _has_valid_txn_index(self, segment: Segment) -> bool:
        try:
            segment.txn_index().check(segment.path(TXN_INDEX))
        except Corrupt as error:
            self._log_recovery(f"rebuilding the indexes of segment {segment.base_offset}: {error}")
            return False
        return True

    def _recover(self) -> bool:
        """Recovers the segment with the recovery point and all later ones.

        True when segments were dropped.
        """
        first, count = self._first_to_recover(), len(self._segments)
        for number in range(first, count):
            # A recovery may drop all segments after it.
            if number < len(self._segments):
                self._recover_segment(number, is_final=False)
        self._drop_segment_of_failed_roll()
        if self._fs.exists(f"{self._directory}/{SYNC_FAILED_FILE}"):
            self._log_recovery("rewriting the data that an earlier sync failed to write")
            rewrite_unsynced(self._fs, self._directory, self._segments[first:])
        return len(self._segments) < count

    def _drop_segment_of_failed_roll(self) -> None:
        """Drops an empty last segment that begins inside the one before.

        A failed roll creates one and removes it, but a power loss may undo the removal.
        """
        if len(self._segments) < 2 or self._segments[-1].size:
            return
        before = self._recovered.get(self._segments[-2].base_offset)
        if before is not None and before.next_offset > self._segments[-1].base_offset:
            reason = "is empty and begins inside the segment before"
            self._drop_segments_after(len(self._segments) - 2, reason)

    def _first_to_recover(self) -> int:
        """The index of the segment with the recovery point; past the last one when clean."""
        if self._request.clean:
            return len(self._segments)
        bases = [segment.base_offset for segment in self._segments]
        return max(bisect_right(bases, self._request.recovery_point) - 1, 0)

    def _recover_segment(self, number: int, *, is_final: bool) -> None:
        segment = self._segments[number]
        producers = load_producers(
            self._snapshots,
            self._segments[:number],
            end_offset=segment.base_offset,
            load=self._scratch_load(number),
        )
        self._overflowing = segment
        recovered = scan_segment(
            self._fs,
            self._directory,
            base_offset=segment.base_offset,
            settings=self._request.settings,
            producers=producers,
            epochs=self._epochs,
        )
        contents = recovered.contents
        if recovered.bytes_cut:
            self._check_loss(segment, contents.size)
            if not is_final:
                self._drop_segments_after(number)
        write_recovered(self._fs, self._directory, recovered, is_final=is_final)
        self._files.forget(segment)
        self._txn_checks[segment.base_offset] = txn_check_of(contents.txn_index.encode())
        self._segments[number] = self._segment(
            segment.base_offset, size=contents.size, has_txn_index=bool(contents.txn_index.count)
        )
        self._recovered[segment.base_offset] = contents
        if recovered.bytes_cut:
            self._log_recovery(
                f"cut {recovered.bytes_cut} bytes off {segment.path(LOG)} ({recovered.reason})"
            )
        producers.map_end_offset = contents.next_offset
        self._snapshots.write(producers)

    def _scratch_load(self, number: int) -> ProducerLoad:
        log_start_offset = self._request.log_start_offset
        if not self._request.settings.remote_storage_enable:
            log_start_offset = max(log_start_offset, self._segments[0].base_offset)
        # With a remote tier, earlier producers are known only by the snapshot at the first segment.
        return self._producer_load(min(log_start_offset, self._segments[number].base_offset))

    def _check_loss(self, segment: Segment, position: int) -> None:
        """Raises PolicyViolation unless the end of a data file may be lost or is all zeros."""
        losses = self._request.allowed_losses
        path = segment.path(LOG)
        if losses is None or losses.get(path, INT64_MAX) <= position:
            return
        with self._fs.open(path) as file:
            size = file.size()
            if not is_zeros(file, position, size):
                raise PolicyViolation(
                    f"{path}: {size - position} bytes from position {position} on would be lost, "
                    "which the check did not report; nothing was cut"
                )

    def _drop_segments_after(
        self, number: int, reason: str = "follows a segment that lost bytes"
    ) -> None:
        """Removes all later segments, the last first, so that a crash leaves no gap.

        This comes before the truncation: without the bad bytes nothing would show that later
        segments must be dropped.
        """
        if number + 1 == len(self._segments):
            return
        for segment in self._segments[number + 1 :]:
            self._check_loss(segment, 0)
        for segment in reversed(self._segments[number + 1 :]):
            self._log_recovery(f"dropped {segment.path(LOG)}: it {reason}")
            segment.mark_deleted()
            if segment.base_offset in self._snapshots.offsets:
                self._snapshots.remove(segment.base_offset)
        self._fs.sync_directory(self._directory)
        self._remove_marked()
        self._segments = self._segments[: number + 1]

    def _remove_marked(self) -> None:
        finish_or_undo_swaps(self._fs, self._directory, self._fs.names(self._directory))

    def _split_overflowing(self, error: OffsetOverflow) -> None:
        assert self._overflowing is not None
        self._log_recovery(f"splitting a segment: {error}")
        split_segment(self._fs, self._directory, self._overflowing.base_offset)
        self._files.forget(self._overflowing)

    def _read_last_segment(self) -> SegmentContents | None:
        if not self._segments:
            return None
        last = self._segments[-1]
        recovered = self._recovered.get(last.base_offset)
        return recovered or read_contents(last, self._request.settings)

    def _drop_all_segments(self) -> bool:
        """Removes every segment of a log that ends before its log start offset; False if none."""
        had_segments = bool(self._segments)
        if had_segments:
            self._log_recovery(
                f"the log ends before its log start offset {self._request.log_start_offset}: "
                "all segments dropped"
            )
        for segment in self._segments:
            self._check_loss(segment, 0)
        for segment in reversed(self._segments):
            segment.mark_deleted()
        for offset in list(self._snapshots.offsets):
            self._snapshots.remove(offset)
        self._remove_marked()
        self._segments = []
        self._recovered.clear()
        return had_segments

    def _activate(self, next_offset: int, last: SegmentContents | None) -> ActiveSegment:
        """Opens the last segment for appends, or creates the first one."""
        request = self._request
        active = ActiveSegment(
            self._files,
            self._directory,
            request.settings,
            base_offset=next_offset if last is None else last.base_offset,
            clock=request.clock,
            random=request.random,
        )
        if last is not None:
            active.resume(last)
            self._files.forget(self._segments.pop())
        return active

    def _load_append_times(
        self, segments: Sequence[ReadableSegment], active: ActiveSegment
    ) -> AppendTimes:
        """Loads the append times, extended by modification times where the last append is missing.

        The file has only the first append of the active segment. After a crash, segments beyond the
        recovery point may have lost their last entry.
        """
        bases = [segment.base_offset for segment in segments]
        times = AppendTimes.load(self._fs, self._directory, bases)
        if not self._request.clean:
            for segment, end in zip(segments, bases[1:], strict=False):
                span = times.find(segment.base_offset)
                if span is not None and end > self._request.recovery_point:
                    extended = self._extend_to_modified(segment, span)
                    times.set_in_memory(segment.base_offset, extended)
        for segment in self._segments:
            span = times.find(segment.base_offset)
            if span is not None and segment.base_offset in self._recovered:
                # A stale check costs another rebuild: no reason to fail on a full disk.
                with contextlib.suppress(OSError):
                    times.write(segment.base_offset, span, txn_check=segment.txn_check)
        if active.size:
            active.appended = self._extend_to_modified(active, times.find(active.base_offset))
        return times

    def _extend_to_modified(self, segment: ReadableSegment, span: AppendSpan | None) -> AppendSpan:
        """Extends a span to the modification time of the data file, but not into the future."""
        modified_ms = self._fs.info(segment.path(LOG)).modified_ms
        last_ms = min(modified_ms, self._request.clock.now_ms())
        if span is None:
            return AppendSpan(last_ms, last_ms)
        return AppendSpan(span.first_ms, max(span.last_ms, last_ms))

    def _trim_epochs(self, next_offset: int, log_start_offset: int, *, is_empty: bool) -> None:
        """As Kafka does, but a log whose records are gone keeps its latest epoch."""
        latest_epoch = self._latest_epoch
        self._epochs.truncate_from_end(next_offset)
        self._epochs.truncate_from_start(log_start_offset)
        if is_empty and latest_epoch > self._latest_epoch:
            # The remote tier and clients would fence a lower epoch.
            self._epochs.assign(latest_epoch, next_offset)
        if self._request.is_new:
            return  # the first append creates the file
        data = self._epochs.encode()
        if data != self._epoch_file:
            write_atomically(self._fs, f"{self._directory}/{LEADER_EPOCH_FILE}", data)

    def _log_recovery(self, message: str) -> None:
        logger.warning(
            "recovery: %s", message, extra={"partition": str(self._request.topic_partition)}
        )
        self._messages.append(message)


def _find_header(segment: Segment, offset: int) -> BatchHeader | None:
    batch = find_batch_position(segment, offset, size=segment.size)
    if batch is None:
        return None
    return decode_header(segment.file().read_at(batch[0], HEADER_BYTES), where=segment.path(LOG))


_EPOCHS_CHECKED_MAX: Final = 8
"""Leader epochs that loading compares with batches: it opens their segments."""
NO_EPOCH: Final = -1
_CHUNK_BYTES: Final = 4 << 20


def rewrite_unsynced(fs: FileSystem, directory: str, segments: Iterable[Segment]) -> None:
    """Rewrites the data of the segments in place, syncs it and removes `varve-sync-failed`."""
    for segment in segments:
        with fs.open_writable(segment.path(LOG)) as file:
            for position in range(0, segment.size, _CHUNK_BYTES):
                size = min(_CHUNK_BYTES, segment.size - position)
                file.write_at(position, file.read_at(position, size))
            file.sync()
    fs.remove(f"{directory}/{SYNC_FAILED_FILE}")
