"""One partition's log: append, read, roll, flush, truncate, close.

`Log` owns offsets, locks, producer state and leader epochs. `LogSegments` owns the segments and
their files, `Appender` appends, `LogReader` reads, `Truncation` shortens the log at either end,
`LogLoader` opens it.

Invariant  log start offset <= last stable offset <= high watermark <= log end offset;
           recovery point <= log end offset. The recovery point advances only after data, indexes
           and names below it are synced, except the active segment's indexes: recovery rebuilds
           those of the segment it starts in.
Crash      a failed sync poisons the log: the content of the disk is unknown until recovery.
Threads    every method may be called from any thread. `lock` guards every change; a thread that
           syncs, truncates or replaces segments takes `flush_lock` before it. Single fields may be
           read without a lock. Only one sync runs at a time; appends continue meanwhile, and one
           sync completes all appends that wait for it.
"""

import contextlib
import logging
import posixpath
import threading
from collections.abc import Sequence
from typing import Final

from varve.commit_log.appender import Appender, LogAppendResult
from varve.commit_log.batch_validator import ValidatedBatch
from varve.commit_log.health import DirectoryHealth, LogHealth
from varve.commit_log.leader_epochs import EpochEntry
from varve.commit_log.log_loader import LoadedLog, LoadRequest, LogLoader
from varve.commit_log.log_reader import FetchResult, Isolation, LogReader, RemoteLogReader
from varve.commit_log.log_segments import LogSegments, SegmentView
from varve.commit_log.names import LEADER_EPOCH_FILE
from varve.commit_log.offset_checkpoints import DirectoryCheckpoints
from varve.commit_log.producer_snapshots import ProducerSnapshots, read_snapshot
from varve.commit_log.producer_state import (
    AppendOrigin,
    LastRecord,
    OpenTransaction,
    ProducerStateEntry,
)
from varve.commit_log.segment import Segment
from varve.commit_log.segment_reader import ReadableSegment, TimestampOffset
from varve.commit_log.segment_replacement import SegmentReplacement
from varve.commit_log.settings import LogSettings
from varve.commit_log.transaction_index import AbortedTransaction
from varve.commit_log.truncation import Truncation
from varve.disk import Buffer, write_atomically
from varve.foundation.errors import Corrupt, Unavailable
from varve.records import end_transaction_marker

logger = logging.getLogger(__name__)

DEFAULT_FETCH_BYTES = 1 << 20
# Unsynced bytes of the active segment above which maintenance syncs it, see `_flush_if_due`.
_UNSYNCED_BYTES_MAX: Final = 64 << 20


class Log:
    """A partition's log. Create it with `Log.open`."""

    def __init__(
        self,
        request: LoadRequest,
        loaded: LoadedLog,
        *,
        high_watermark: int,
        is_alone: bool,
        checkpoints: DirectoryCheckpoints,
    ) -> None:
        self.topic_partition = request.topic_partition
        self.directory = request.directory
        self.settings = request.settings
        self.clock = request.clock
        self.producer_expiration_ms = request.producer_expiration_ms
        self.is_alone = is_alone
        self.checkpoints = checkpoints
        self.recovered = loaded.recovered
        self.lock = threading.Lock()
        self.flush_lock = threading.Lock()
        self.cleaning_lock = threading.Lock()
        """Held while key indexes or compacted segments are written."""
        self.removal_lock = threading.RLock()
        """Held from taking a removal's id until it is carried out: one removal at a time."""
        self.is_retiring = False
        self.health = LogHealth(
            request.files.fs, self.directory, self.topic_partition, checkpoints.health
        )
        self.segments = LogSegments(request, loaded, health=self.health, lock=self.lock)
        self.leader_epochs = loaded.epochs
        self.producers = loaded.producers
        self.snapshots = loaded.snapshots
        self.snapshots.mark_unsynced_from(loaded.recovery_point)
        self.log_start_offset = loaded.log_start_offset
        # False while only the remote tier can give the log start: the checkpoint lacks it.
        self.is_start_known = loaded.is_start_known
        self.recovery_point = loaded.recovery_point  # the first offset not known to be on disk
        self.high_watermark = min(max(high_watermark, self.log_start_offset), self.end_offset)
        self.producers.advance_high_watermark(self.high_watermark)
        self._last_flush_ms = self.clock.now_ms()
        self._reader_events: tuple[threading.Event, ...] = ()  # replaced under lock
        self._appender = Appender(self)
        self._reader = LogReader(self)
        self._truncation = Truncation(self)

    @classmethod
    def open(
        cls,
        request: LoadRequest,
        *,
        high_watermark: int = 0,
        is_alone: bool = True,
        checkpoints: DirectoryCheckpoints | None = None,
    ) -> "Log":
        """Loads the directory, with recovery if needed; an empty directory becomes an empty log.

        `is_alone` means that this is the only replica: the high watermark then follows the log end
        offset, with `flush=ack` after the sync. `checkpoints` are those of the log directory;
        without them, as during a restore, the log writes none.
        """
        if checkpoints is None:
            health = DirectoryHealth(posixpath.dirname(request.directory))
            checkpoints = DirectoryCheckpoints(None, health)
        loaded = LogLoader(request).load()
        return cls(
            request,
            loaded,
            high_watermark=loaded.active.next_offset if is_alone else high_watermark,
            is_alone=is_alone,
            checkpoints=checkpoints,
        )

    @property
    def view(self) -> SegmentView:
        """The current segments."""
        return self.segments.view

    @property
    def local_start_offset(self) -> int:
        """The base offset of the first local segment; earlier records are in the remote tier."""
        return self.view.first_base_offset

    @property
    def end_offset(self) -> int:
        """The log end offset: that of the next record."""
        return self.segments.view.active.extent[0]

    @property
    def last_stable_offset(self) -> int:
        """The end of what `read_committed` may read: all transactions below are decided."""
        # Appends raise the high watermark last, so a transaction opened after this line lies above.
        high_watermark = self.high_watermark
        unstable = self.producers.first_unstable_offset
        if unstable is None:
            return high_watermark
        return min(max(unstable, self.log_start_offset), high_watermark)

    @property
    def size(self) -> int:
        """Bytes of all data files."""
        return sum(segment.size for segment in self.view)

    @property
    def epochs(self) -> tuple[EpochEntry, ...]:
        """The leader epochs, oldest first, and the offset at which each began."""
        return self.leader_epochs.entries

    @property
    def remote(self) -> RemoteLogReader | None:
        """The reader of segments in the remote tier; None for a log without one."""
        return self._reader.remote

    def attach_remote(self, remote: RemoteLogReader | None) -> None:
        """Sets the reader for offsets before the local start."""
        self._reader.remote = remote

    def holds(self, segment: Segment) -> bool:
        """Whether a closed segment is still in the log: not truncated, replaced or dropped.

        If so, everything read from its files before this call belongs to that segment.
        """
        with self.lock:
            return self.segments.find([segment]) is not None

    def producer_snapshot(self, offset: int) -> bytes:
        """The bytes of the producer snapshot at the base offset of a segment.

        A missing or damaged snapshot is rebuilt from an older one and the batches after it.
        """
        with self.lock:
            offsets = list(self.snapshots.offsets)
            segments = list(self.view.closed)
        snapshots = ProducerSnapshots(self.segments.fs, self.directory, offsets)
        return read_snapshot(snapshots, segments, offset=offset)

    def append(
        self,
        batch: Buffer,
        *,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        leader_epoch: int | None = None,
        waits: bool = True,
    ) -> LogAppendResult:
        """Appends one batch as the leader and assigns its offsets; all or nothing.

        Without a leader epoch the append uses the latest of the log; an older one raises Fenced.

        With `flush=ack` it returns when the batch is on disk. A batch that an idempotent producer
        repeats is not appended; the result has the offsets of the first append. Without `waits` it
        returns when the batch is written: acknowledge it only after `sync_appends`, which with
        `flush=ack` also makes it visible.
        """
        return self._appender.append(batch, origin=origin, leader_epoch=leader_epoch, waits=waits)

    def check(self, batch: Buffer, *, origin: AppendOrigin = AppendOrigin.CLIENT) -> ValidatedBatch:
        """A batch as it would be stored; raises the error that `append` would raise.

        It does not check sequences.
        """
        return self._appender.check(batch, origin)

    def check_if_quick(self, batch: Buffer, *, origin: AppendOrigin) -> ValidatedBatch | None:
        """As `check`; None for a batch whose check takes much longer than its size suggests."""
        return self._appender.check_if_quick(batch, origin)

    def is_repeated(self, batch: ValidatedBatch) -> bool:
        """Whether the idempotent producer of the batch has appended it before."""
        return self._appender.is_repeated(batch)

    def append_checked(
        self,
        batch: ValidatedBatch,
        *,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        waits: bool = True,
    ) -> LogAppendResult:
        """As `append`, for a batch that `check` returned.

        Records may have been removed from it since; their offsets stay unused.
        """
        return self._appender.append_checked(batch, origin=origin, waits=waits)

    def sync_appends(self) -> None:
        """Completes all appends made without `waits` so far, with one sync."""
        self._appender.sync_appends(self.end_offset)

    def append_replicated(self, batches: Buffer) -> LogAppendResult | None:
        """Appends batches that already have offsets and epochs; None if no batch is complete."""
        return self._appender.append_replicated(batches)

    def end_transaction(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        committed: bool,
        leader_epoch: int | None = None,
    ) -> LogAppendResult:
        """Appends the marker that commits or aborts a producer's open transaction."""
        marker = end_transaction_marker(
            committed=committed,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=0,
            timestamp=self.clock.now_ms(),
        )
        return self.append(marker, origin=AppendOrigin.COORDINATOR, leader_epoch=leader_epoch)

    def read(
        self,
        *,
        start_offset: int,
        max_bytes: int = DEFAULT_FETCH_BYTES,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        min_one: bool = True,
    ) -> FetchResult:
        """Whole batches from an offset; with `min_one` the first may exceed `max_bytes`.

        An empty result means that nothing more is visible. Batches that compaction emptied, and a
        first batch that begins before `start_offset`, are returned as stored.
        """
        return self._reader.read(
            start_offset=start_offset, max_bytes=max_bytes, isolation=isolation, min_one=min_one
        )

    def find_offset_by_time(self, timestamp: int) -> TimestampOffset | None:
        """The first record not older than the timestamp."""
        return self._reader.find_offset_by_time(timestamp)

    def find_max_timestamp(self) -> TimestampOffset | None:
        """The first record with the largest timestamp."""
        return self._reader.find_max_timestamp()

    def aborted_transactions(self) -> list[AbortedTransaction]:
        return self._reader.aborted_transactions()

    def collect_aborted(self, start: int, end: int) -> list[AbortedTransaction]:
        """The aborted transactions with an offset in [start, end), in the order of their markers.

        A marker may lie after the end.
        """
        return self._reader.collect_aborted(start, end)

    # Producers, epochs and visible offsets

    def active_producers(self) -> dict[int, LastRecord]:
        """The producers in producer state, by id, each with the end of its last data."""
        with self.lock:
            entries = self.producers.entries
            return {producer_id: entry.last_record for producer_id, entry in entries.items()}

    def producer_entries(self) -> list[ProducerStateEntry]:
        """The producer state, sorted by producer id."""
        with self.lock:
            entries = dict(self.producers.entries)
        return [entries[producer_id] for producer_id in sorted(entries)]

    def open_transactions(self) -> list[OpenTransaction]:
        """The transactions without a marker yet, by first offset."""
        with self.lock:
            return self.producers.ongoing

    def expire_producers(self, now_ms: int) -> int:
        """Removes producers that have been idle for too long; returns how many."""
        with self.lock:
            return self.producers.expire(now_ms, self.producer_expiration_ms)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int] | None:
        """The largest epoch up to the requested one, and its end offset."""
        with self.lock:
            return self.leader_epochs.end_offset_for(epoch, self.end_offset)

    def write_epochs(self) -> None:
        path = f"{self.directory}/{LEADER_EPOCH_FILE}"
        write_atomically(self.segments.fs, path, self.leader_epochs.encode())

    def trim_epochs_locked(self) -> None:
        """Drops epochs before the log start offset, once that is on disk; loading does the same."""
        if self.leader_epochs.truncate_from_start(self.log_start_offset):
            self.write_epochs()

    def advance_high_watermark(self, offset: int) -> int:
        """Raises the high watermark to the offset, at most to the log end; never lowers it."""
        with self.lock:
            self.advance_high_watermark_locked(offset)
            return self.high_watermark

    def advance_high_watermark_locked(self, offset: int) -> None:
        if offset > self.high_watermark:
            self.high_watermark = min(offset, self.end_offset)
        self.producers.advance_high_watermark(self.high_watermark)
        for event in self._reader_events:
            event.set()

    def notify_readers(self, event: threading.Event) -> None:
        """Sets the event whenever the high watermark or the last stable offset may have risen."""
        with self.lock:
            self._reader_events = (*self._reader_events, event)

    def stop_notifying(self, event: threading.Event) -> None:
        with self.lock:
            self._reader_events = tuple(
                reader_event for reader_event in self._reader_events if reader_event is not event
            )

    # The checkpoints of the log directory

    @property
    def recovery_point_on_disk(self) -> int:
        """The recovery point according to the files.

        A truncation inside a batch leaves the log end beyond the last batch until the next append.
        A checkpoint beyond what the files hold would read like lost data.
        """
        active = self.view.active
        size, end_offset = active.truncated
        recovery_point = self.recovery_point
        return min(recovery_point, end_offset) if size == active.size else recovery_point

    @property
    def log_start_on_disk(self) -> int | None:
        """The log start for the checkpoint; None if the first segment's base offset gives it.

        For a log with a remote tier that never holds: its first segments may have left the disk.
        """
        start = self.log_start_offset
        if self.settings.remote_storage_enable:
            return start if self.is_start_known else None
        return start if start > self.local_start_offset else None

    def write_recovery_point(self) -> None:
        self.checkpoints.recovery_points.write(self.topic_partition, self.recovery_point_on_disk)

    def write_log_start(self) -> None:
        self.checkpoints.log_starts.write(self.topic_partition, self.log_start_on_disk)

    # Roll and flush

    def configure(self, settings: LogSettings) -> None:
        """Applies settings from the next append on; the active segment keeps its indexes."""
        with self.lock:
            self.settings = self.segments.settings = settings
            # An append in flight ends under the rules it began with.
            self._appender = Appender(self)
        if settings.remote_storage_enable:
            # From now on the first local segment does not give the log start offset.
            with self.health.io("checkpoint of"):
                self.write_log_start()

    def roll(self) -> None:
        """Starts a new segment at the log end, unless the active one is empty."""
        with self.lock:
            self.health.check_usable()
            with self.health.io("roll"):
                self.roll_locked(self.end_offset)

    def roll_locked(self, expected_offset: int) -> None:
        """Closes the active segment and starts one at the later of offset and log end."""
        segments, active = self.segments, self.view.active
        base_offset = max(expected_offset, self.end_offset)
        if base_offset == active.base_offset and active.size == 0:
            return
        active.close_indexes()
        try:
            # Otherwise a power loss could lose the end of this segment and keep the next one.
            if self.recovery_point < base_offset:
                active.writer.sync()
            else:
                # Recovery starts in the next segment and would not rebuild lost indexes of this.
                active.sync()
                segments.fs.sync_directory(self.directory)
        except OSError as error:
            raise self.health.poison(error) from error
        self.producers.map_end_offset = base_offset
        self.snapshots.write(self.producers)
        segments.record_closing_locked()
        segments.add_active_locked(base_offset)

    def flush(self, end_offset: int | None = None) -> None:
        """Syncs everything below an offset, by default everything appended so far."""
        with self.flush_lock:
            self.health.check_usable()
            self._sync_locked(self.end_offset if end_offset is None else end_offset)

    def _sync_locked(self, end_offset: int) -> None:
        """As `flush`, for callers that hold `flush_lock`; works on a closed log too."""
        segments = self.segments
        if end_offset <= self.recovery_point and not segments.has_new_files:
            return
        with self.lock:
            rolled = list(segments.unsynced)
            snapshots = self.snapshots.take_unsynced()
            active = segments.view.active
            (active_end, active_size), has_new_files = active.extent, segments.has_new_files
            segments.has_new_files = False
        try:
            for segment in rolled:
                segment.sync()
            missing = [offset for offset in snapshots if not self.snapshots.sync(offset)]
            if rolled:
                segments.append_times.sync()
            if end_offset > active.base_offset:
                active.writer.sync()
                active.synced_size = active_size
            if has_new_files:
                segments.fs.sync_directory(self.directory)
        except OSError as error:
            raise self.health.poison(error) from error
        with self.lock:
            for offset in missing:
                self.snapshots.forget(offset)
            segments.unsynced = segments.unsynced[len(rolled) :]
            # A segment that rolled meanwhile has unsynced indexes: recovery must start in it.
            is_active = segments.view.active is active
            is_active_synced = end_offset > active.base_offset and is_active
            synced_end = active_end if is_active_synced else active.base_offset
            self.recovery_point = max(self.recovery_point, synced_end)
            self._last_flush_ms = self.clock.now_ms()

    # Shorten and replace

    def truncate_to(self, offset: int) -> bool:
        """Drops every batch whose last offset is at or above the offset; False if there is none."""
        return self._truncation.truncate_to(offset)

    def reset_at(self, offset: int) -> None:
        """Drops all records; the empty log starts at the offset."""
        self._truncation.reset_at(offset)

    def replace_segments(
        self, old: Sequence[Segment], *, base_offset: int, size: int, has_txn_index: bool
    ) -> Segment | None:
        """Replaces consecutive closed segments by a new one.

        Its files, written and synced by the caller, are
        `<base_offset>.{log,index,timeindex,txnindex,keys}.cleaned`; `base_offset` is that of the
        first old segment. Returns None and removes the `.cleaned` files if one of `old` has left
        the log meanwhile. A full disk, or an error before the first old file is touched, leaves the
        old segments in use and removes the `.cleaned` files.
        """
        assert old
        assert base_offset == old[0].base_offset
        new = Segment(
            self.segments.files,
            self.directory,
            base_offset=base_offset,
            size=size,
            has_txn_index=has_txn_index,
            settings=self.settings,
        )
        replacement = SegmentReplacement(self.segments, self.health, old, new)
        with self.flush_lock:
            self.health.check_usable()
            if self.segments.find(old) is None:
                with self.health.io("remove files of"):
                    replacement.discard()
                return None
            self._sync_locked(self.view.active.base_offset)
            replacement.commit()
            with self.lock:
                self.health.check_usable()
                replacement.exchange_locked(self.snapshots)
            replacement.sync_names()
            with contextlib.suppress(OSError):  # without it the index is used unchecked
                self.segments.record_txn_check(new)
        return new

    def drop_segments_before(self, offset: int, *, now_ms: int) -> list[Segment]:
        """Drops the segments before an offset at which a segment begins; returns them.

        At the log end offset the log rolls, so that the active segment is dropped too. The log
        start offset is raised on disk first; the files are removed `file.delete.delay.ms` after
        `now_ms`. Raises InvalidRequest if no segment begins at the offset, OffsetOutOfRange above
        the high watermark.
        """
        return self._truncation.drop_before(offset, now_ms=now_ms, is_local=False)

    def drop_local_segments_before(self, offset: int, *, now_ms: int) -> list[Segment]:
        """As `drop_segments_before`, for segments in the remote tier: the log start stays.

        Reads then use the remote tier. The active segment is never dropped.
        """
        return self._truncation.drop_before(offset, now_ms=now_ms, is_local=True)

    def delete_records(self, before_offset: int) -> int:
        """Raises the log start offset, -1 meaning the high watermark; returns the new one.

        It is on disk before this returns. The next retention pass removes the files. Raises
        PolicyViolation for a topic that is only compacted.
        """
        return self._truncation.delete_records(before_offset)

    def raise_log_start(self, offset: int) -> int:
        """Raises the log start offset, whatever the topic's policy; durable. Returns it.

        `is_start_known` is then True. Raises OffsetOutOfRange above the high watermark; a lower
        offset changes nothing.
        """
        return self._truncation.raise_log_start(offset)

    def raise_log_start_locked(self, offset: int) -> None:
        """Takes effect for readers; the caller writes the checkpoint, then trims the epochs."""
        self.is_start_known = True
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.recovery_point = max(self.recovery_point, offset)
            self.producers.raise_log_start(offset)

    def appended_ms(self, segment: ReadableSegment) -> tuple[int, int]:
        """When the first and the last record of a segment were appended, by the local clock.

        If unknown, both are the modification time of its data file. Raises Unavailable for a
        segment that has left the log.
        """
        try:
            return self.segments.appended(segment)
        except FileNotFoundError:
            raise Unavailable(
                f"{self.topic_partition}: segment {segment.base_offset} is no longer in the log; "
                "list the segments again"
            ) from None

    # Maintain and close

    def maintain(self, now_ms: int) -> None:
        """Does due work: flush, remove expired files, write rebuilt indexes, roll when idle."""
        if not self.health.is_usable:
            return
        self._flush_if_due(now_ms)
        self.delete_expired_files(now_ms)
        self._write_rebuilt_indexes()
        if self.view.active.is_idle(now_ms, self.settings):
            with self.lock:
                self.health.check_usable()
                if self.view.active.is_idle(now_ms, self.settings):
                    with self.health.io("roll"):
                        self.roll_locked(self.end_offset)

    def _flush_if_due(self, now_ms: int) -> None:
        """Syncs rolled segments, and the active one after `flush.ms` or `_UNSYNCED_BYTES_MAX`.

        The limit in bytes keeps rolls short: a roll syncs the unsynced end of its segment.
        """
        active = self.view.active
        is_due = now_ms - self._last_flush_ms >= self.settings.flush_ms
        is_large = active.size - active.synced_size > _UNSYNCED_BYTES_MAX
        if self.end_offset > self.recovery_point and (is_due or is_large):
            self.flush()
        elif self.segments.unsynced:
            self.flush(active.base_offset)

    def delete_expired_files(self, now_ms: int) -> None:
        """Removes the files of dropped segments whose deletion delay has passed at `now_ms`."""
        with self.health.io("remove files of"):
            self.segments.delete_expired_files(now_ms)

    def _write_rebuilt_indexes(self) -> None:
        """Replaces index files that readers found missing or wrong.

        Readers have the rebuilt ones in memory, so a failed write is only logged.
        """
        for opened in self.segments.files.take_rebuilt(self.directory):
            with self.flush_lock:
                if not self.holds(opened.segment):
                    continue
                try:
                    opened.write_indexes()
                    self.segments.record_txn_check(opened.segment)
                except (OSError, Corrupt) as error:
                    logger.warning(
                        "%(partition)s: cannot write a rebuilt index: %(error)s",
                        {"partition": str(self.topic_partition), "error": str(error)},
                    )

    def close(self) -> None:
        """Syncs everything, so that the next open needs no recovery."""
        segments = self.segments
        if self.health.is_usable:
            self._write_rebuilt_indexes()
        with self.flush_lock:
            self.health.check_usable()
            with self.lock, self.health.io("close"):
                active = self.view.active
                active.close_indexes()
                segments.record_closing_locked()
                self.producers.map_end_offset = active.next_offset
                self.snapshots.write(self.producers)
                segments.unsynced.append(active)
                segments.has_new_files = True
                # No append may follow the indexes just written.
                self.health.close()
            self._sync_locked(self.end_offset)

    def retire(self) -> None:
        """Closes the log for good, after other threads have finished changing its files.

        Its directory may then be removed, and another log may use its name. Cleaning ends early.
        """
        self.is_retiring = True
        with self.cleaning_lock, self.removal_lock, self.flush_lock, self.lock:
            self.health.close()
            # A read in flight might see the files of that other log: it retries and fails.
            self.segments.generation += 2

    def abandon(self) -> None:
        """Stops using the log without touching its files."""
        self.health.close()
