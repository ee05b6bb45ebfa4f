"""One partition's log: append, read, roll, flush, truncate, close.

`Log` is the interface. Each phase has a module: `log_loader` (open), `appender`, `log_reader`,
`flusher`, `truncation`, `segment_replacement`; `log_state` holds what they share.

Threads    every method may be called from any thread; see the phases for what waits for what.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from varve.commit_log.appender import Appender, AppendResult
from varve.commit_log.batch_validator import ValidatedBatch
from varve.commit_log.flusher import Flusher
from varve.commit_log.leader_epochs import EpochEntry
from varve.commit_log.log_loader import LoadRequest, LogLoader
from varve.commit_log.log_reader import FetchResult, Isolation, LogReader
from varve.commit_log.log_state import LogState
from varve.commit_log.names import TopicPartition
from varve.commit_log.producer_snapshots import ProducerSnapshots, read_snapshot
from varve.commit_log.producer_state import (
    AppendOrigin,
    LastRecord,
    OpenTransaction,
    ProducerStateEntry,
)
from varve.commit_log.remote_reader import RemoteLogReader
from varve.commit_log.rolling import RollRule
from varve.commit_log.segment import Segment
from varve.commit_log.segment_reader import ReadableSegment, TimestampOffset
from varve.commit_log.segment_replacement import SegmentReplacement
from varve.commit_log.segment_view import SegmentView
from varve.commit_log.settings import LogSettings
from varve.commit_log.transaction_index import AbortedTransaction
from varve.commit_log.truncation import LogStart, SegmentDrop, Truncation
from varve.disk import Buffer
from varve.foundation.errors import (
    StoreError,
    Unavailable,
)
from varve.records import end_transaction_marker

logger = logging.getLogger(__name__)

DEFAULT_FETCH_BYTES = 1 << 20


def _nothing() -> None:
    return None


def _ignore(failure: StoreError) -> None:
    return None


def _unmoved(offset: int) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogHooks:
    """What a log needs of its log directory."""

    on_failure: Callable[[StoreError], None] = field(default=_ignore)
    write_recovery_points: Callable[[], None] = field(default=_nothing)
    write_log_starts: Callable[[], None] = field(default=_nothing)
    lower_cleaner_offset: Callable[[int], None] = field(default=_unmoved)


class Log:
    """A partition's log. Make one with `Log.open`."""

    def __init__(
        self, state: LogState, *, request: LoadRequest, hooks: LogHooks, is_alone: bool
    ) -> None:
        self._state = state
        self._hooks = hooks
        self._producer_expiration_ms = request.producer_expiration_ms
        self._is_alone = is_alone
        self._flusher = Flusher(state)
        self._appender = Appender(state, self._flusher, is_alone=is_alone)
        self._reader = LogReader(state)
        self._roll_rule = RollRule(state.settings)
        self._truncation = Truncation(
            state,
            write_recovery_points=hooks.write_recovery_points,
            write_log_starts=hooks.write_log_starts,
            lower_cleaner_offset=hooks.lower_cleaner_offset,
            producer_expiration_ms=request.producer_expiration_ms,
        )
        self._swap = SegmentReplacement(state, self._flusher)
        self._drop = SegmentDrop(state, write_log_starts=hooks.write_log_starts)
        self._start = LogStart(state, write_log_starts=hooks.write_log_starts)
        self.recovered: list[str] = []

    @classmethod
    def open(
        cls,
        request: LoadRequest,
        *,
        high_watermark: int = 0,
        is_alone: bool = True,
        hooks: LogHooks | None = None,
    ) -> "Log":
        """Loads the directory and recovers what must be; an empty directory becomes an empty log.

        `is_alone` says that this is the only replica: the high watermark then follows the log end,
        with `flush=ack` once it is on disk.
        """
        hooks = hooks or LogHooks()
        loaded = LogLoader(request).load()
        end_offset = loaded.active.next_offset
        state = LogState(
            loaded,
            files=request.files,
            directory=request.directory,
            topic_partition=request.topic_partition,
            settings=request.settings,
            clock=request.clock,
            random=request.random,
            high_watermark=end_offset if is_alone else high_watermark,
            on_failure=hooks.on_failure,
        )
        log = cls(state, request=request, hooks=hooks, is_alone=is_alone)
        log.recovered = loaded.recovered
        return log

    @property
    def topic_partition(self) -> TopicPartition:
        return self._state.topic_partition

    @property
    def directory(self) -> str:
        return self._state.directory

    @property
    def settings(self) -> LogSettings:
        return self._state.settings

    @property
    def log_start_offset(self) -> int:
        return self._state.log_start_offset

    @property
    def is_start_known(self) -> bool:
        """False while only the cold tier can tell the log start: the checkpoint does not."""
        return self._state.is_start_known

    @property
    def local_start_offset(self) -> int:
        """Where the local segments begin; what lies before is in the cold tier."""
        return self._state.view.first_base_offset

    @property
    def end_offset(self) -> int:
        """The offset the next record will have."""
        return self._state.end_offset

    @property
    def high_watermark(self) -> int:
        return self._state.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Where readers of committed records must stop."""
        return self._state.last_stable_offset

    @property
    def recovery_point(self) -> int:
        """The first offset not known to be on disk."""
        return self._state.recovery_point

    @property
    def recovery_point_on_disk(self) -> int:
        """The recovery point as far as the files tell of it.

        A truncation inside a batch leaves the log end beyond the last batch until the next append.
        A checkpoint beyond what the files hold would read like lost data.
        """
        active = self._state.view.active
        size, end_offset = active.cut
        recovery_point = self._state.recovery_point
        return min(recovery_point, end_offset) if size == active.size else recovery_point

    @property
    def view(self) -> SegmentView:
        """The segments as they are now."""
        return self._state.view

    @property
    def size(self) -> int:
        """Bytes of all data files."""
        return sum(segment.size for segment in self._state.view)

    @property
    def epochs(self) -> tuple[EpochEntry, ...]:
        """The leader epochs, oldest first, and the offset at which each began."""
        return self._state.epochs.entries

    @property
    def remote(self) -> RemoteLogReader | None:
        """Reads what has left the local disk; None for a log without a remote part."""
        return self._reader.remote

    def attach_remote(self, remote: RemoteLogReader | None) -> None:
        """Reads below the local start go to this reader from now on."""
        self._reader.remote = remote

    def holds(self, segment: Segment) -> bool:
        """Whether a closed segment is still as it was: neither cut nor replaced nor dropped.

        If so, all that was read from its files before is of that segment.
        """
        with self._state.lock:
            return any(one is segment for one in self._state.view.closed)

    def producer_snapshot(self, offset: int) -> bytes:
        """What the file of the producer snapshot at the beginning of a segment holds.

        One that is missing or damaged is rebuilt from an older one and the batches behind it.
        """
        state = self._state
        with state.lock:
            offsets = list(state.snapshots.offsets)
            segments = list(state.view.closed)
        return read_snapshot(
            ProducerSnapshots(state.fs, state.directory, offsets), segments, offset=offset
        )

    def append(
        self,
        batch: Buffer,
        *,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        leader_epoch: int | None = None,
        waits: bool = True,
    ) -> AppendResult:
        """Appends one batch as the leader and gives it its offsets; all or nothing.

        Without a leader epoch the latest one of the log goes on; an earlier one is Fenced.

        With `flush=ack` it returns when the batch is on disk. A batch that an idempotent producer
        sends again is recognised and answered with its first offsets. Without `waits` it returns
        when the batch is written; it may be acknowledged, and with `flush=ack` is read, after
        `settle`.
        """
        return self._appender.append(batch, origin=origin, leader_epoch=leader_epoch, waits=waits)

    def check(self, batch: Buffer) -> ValidatedBatch:
        """A producer's batch as it would be stored; raises what `append` would refuse it for.

        Its sequences are not looked at.
        """
        return self._appender.check(batch)

    def is_repeated(self, batch: ValidatedBatch) -> bool:
        """Whether its idempotent producer has appended it before."""
        return self._appender.is_repeated(batch)

    def append_checked(self, batch: ValidatedBatch, *, waits: bool = True) -> AppendResult:
        """Appends what `check` gave, perhaps with fewer records: their offsets stay unused.

        Else it is as with `append`.
        """
        return self._appender.append_checked(batch, waits=waits)

    def settle(self) -> None:
        """Does for all that is written now what an append waits for: one sync for many."""
        self._appender.settle(self._state.end_offset)

    def append_replicated(self, batches: Buffer) -> AppendResult | None:
        """Appends batches whose offsets and epochs are already given; None when none is whole."""
        return self._appender.append_replicated(batches)

    def end_transaction(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        committed: bool,
        coordinator_epoch: int = 0,
        leader_epoch: int | None = None,
    ) -> AppendResult:
        """Appends the marker that commits or aborts a producer's open transaction."""
        marker = end_transaction_marker(
            committed=committed,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp=self._state.clock.now_ms(),
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
        """Whole batches from an offset on; with `min_one` the first may exceed `max_bytes`.

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

        Their markers may lie behind the end.
        """
        return self._reader.collect_aborted(start, end)

    def active_producers(self) -> dict[int, LastRecord]:
        """The producers the log knows now, by id, and where the last data of each ends."""
        with self._state.lock:
            entries = self._state.producers.entries
            return {producer_id: entry.last_record for producer_id, entry in entries.items()}

    def producer_entries(self) -> list[ProducerStateEntry]:
        """All that the log remembers of its producers, by id."""
        with self._state.lock:
            entries = dict(self._state.producers.entries)
        return [entries[producer_id] for producer_id in sorted(entries)]

    def open_transactions(self) -> list[OpenTransaction]:
        """The transactions without a marker yet, by first offset."""
        with self._state.lock:
            return self._state.producers.ongoing

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int] | None:
        """The largest known epoch up to the asked one, and the offset where it ends."""
        state = self._state
        with state.lock:
            return state.epochs.end_offset_for(epoch, state.end_offset)

    def advance_high_watermark(self, offset: int) -> int:
        """Raises the high watermark to the offset, at most to the log end; it never falls here."""
        state = self._state
        with state.lock:
            state.high_watermark = max(state.high_watermark, min(offset, state.end_offset))
            state.producers.advance_high_watermark(state.high_watermark)
            state.notify_readers_locked()
            return state.high_watermark

    def notify_readers(self, event: threading.Event) -> None:
        """Sets the event whenever the high watermark or the last stable offset may have risen."""
        state = self._state
        with state.lock:
            state.reader_events = (*state.reader_events, event)

    def stop_notifying(self, event: threading.Event) -> None:
        state = self._state
        with state.lock:
            state.reader_events = tuple(
                reader_event for reader_event in state.reader_events if reader_event is not event
            )

    def configure(self, settings: LogSettings) -> None:
        """Takes other settings from the next append on; the active segment keeps its indexes."""
        state = self._state
        with state.lock:
            state.settings = settings
            # An append in flight ends under the rules it began with.
            self._appender = Appender(state, self._flusher, is_alone=self._is_alone)
            self._roll_rule = RollRule(settings)
        if settings.remote_storage_enable:
            # From now on the first segment's name does not tell where the log starts.
            with state.io("checkpoint of"):
                self._hooks.write_log_starts()

    def roll(self) -> None:
        """Begins a new segment at the log end, unless the active one is empty."""
        state = self._state
        with state.lock:
            state.check_usable()
            with state.io("roll"):
                state.roll_locked(state.end_offset)

    def flush(self) -> None:
        """Brings everything appended so far to the disk."""
        self._flusher.flush()

    def truncate_to(self, offset: int) -> bool:
        """Drops every batch that reaches the offset or beyond; False when there is none."""
        return self._truncation.truncate_to(offset)

    def reset_at(self, offset: int) -> None:
        """Drops everything and starts again, empty, at the offset."""
        self._truncation.reset_at(offset)

    def replace_segments(
        self, old: Sequence[Segment], *, base_offset: int, size: int, has_txn_index: bool
    ) -> Segment | None:
        """Puts a new segment in the place of closed ones that follow each other.

        Its files are there as `<base_offset>.{log,index,timeindex,txnindex,keys}.cleaned`, synced;
        `base_offset` is that of the first old one. None, and the `.cleaned` files are removed, when
        one of `old` has left the log meanwhile. A full disk, or an error before the first old file
        is touched, leaves the old segments in use and removes the `.cleaned` files.
        """
        return self._swap.replace(
            old, base_offset=base_offset, size=size, has_txn_index=has_txn_index
        )

    def drop_segments_before(self, offset: int, *, now_ms: int) -> list[Segment]:
        """Drops the segments below an offset at which a segment begins; gives the dropped ones.

        At the log end offset the active one goes too: a new one is begun before. The log start
        offset is raised on disk first; the files go `file.delete.delay.ms` after `now_ms`. Raises
        InvalidRequest where no segment begins, OffsetOutOfRange above the high watermark.
        """
        return self._drop.drop_before(offset, now_ms=now_ms)

    def drop_local_segments_before(self, offset: int, *, now_ms: int) -> list[Segment]:
        """As `drop_segments_before`, of segments that the cold tier holds: the log start stays.

        Their records are read from there. The active segment never goes.
        """
        return self._drop.drop_local_before(offset, now_ms=now_ms)

    def appended_ms(self, segment: ReadableSegment) -> tuple[int, int]:
        """When the first and the last record of a segment were appended, by our clock.

        Where neither is known, both are the time its data file was last changed. Raises Unavailable
        for a segment that has left the log.
        """
        try:
            return self._state.appended(segment)
        except FileNotFoundError:
            raise Unavailable(
                f"{self.topic_partition}: segment {segment.base_offset} has left the log; look at "
                "its segments again"
            ) from None

    def delete_records(self, before_offset: int) -> int:
        """Raises the log start offset, -1 meaning the high watermark; gives the new one.

        It is on disk before this returns. Files go with the next retention pass. Raises
        PolicyViolation for a topic that is only compacted.
        """
        return self._start.delete_records(before_offset)

    def raise_log_start(self, offset: int) -> int:
        """Raises the log start offset whatever the topic's policy says, durably; gives it.

        From then on it is known.
        """
        return self._start.raise_to(offset)

    def maintain(self, now_ms: int) -> None:
        """The work that is due without an append.

        Flushes, files past their delay, a segment that has waited for too long.
        """
        state = self._state
        if state.failure is not None:
            return
        self._flusher.flush_if_due(now_ms)
        self.delete_expired_files(now_ms)
        self._write_rebuilt_indexes()
        if self._roll_rule.should_roll_idle(state.view.active, now_ms):
            self._roll_idle(now_ms)

    def delete_expired_files(self, now_ms: int) -> None:
        """Removes the files of segments that left the log, those whose delay is over by then."""
        with self._state.io("remove files of"):
            self._state.delete_expired_files(now_ms)

    def _write_rebuilt_indexes(self) -> None:
        """Replaces the index files that reading found to be missing or wrong.

        Readers have the right ones in memory, so a disk that refuses the write stops nothing.
        """
        state = self._state
        for opened in state.files.take_rebuilt(state.directory):
            with state.flush_lock:
                if not self.holds(opened.segment):
                    continue
                try:
                    opened.write_indexes()
                except OSError as error:
                    logger.warning(
                        "cannot write a rebuilt index",
                        extra={"partition": str(self.topic_partition), "error": str(error)},
                    )

    def _roll_idle(self, now_ms: int) -> None:
        state = self._state
        with state.lock:
            state.check_usable()
            if self._roll_rule.should_roll_idle(state.view.active, now_ms):
                with state.io("roll"):
                    state.roll_locked(state.end_offset)

    def expire_producers(self, now_ms: int) -> int:
        """Forgets producers that have been silent for too long; gives how many."""
        with self._state.lock:
            return self._state.producers.expire(now_ms, self._producer_expiration_ms)

    def close(self) -> None:
        """Brings everything to the disk, so that the next open need not recover."""
        state = self._state
        with state.flush_lock:
            state.check_usable()
            with state.lock, state.io("close"):
                active = state.view.active
                active.close_indexes()
                state.record_closing_locked(active)
                state.producers.map_end_offset = active.next_offset
                state.snapshots.write(state.producers)
                state.unsynced.append(active)
                state.has_new_files = True
                # No append may slip in behind the indexes just written.
                state.close()
            self._flusher.sync_locked(state.end_offset)

    def retire(self) -> None:
        """Stops using the log for good, once what other threads are doing to its files is done.

        Its directory may then go, and another log take its name.
        """
        state = self._state
        with state.flush_lock, state.lock:
            state.close()
            # A read in flight would find the other log's files; it retries and fails.
            state.generation += 2

    def abandon(self, reason: StoreError | None = None) -> None:
        """Stops using the log without touching its files."""
        state = self._state
        if reason is not None and state.failure is None:
            state.failure = reason
        state.close()
