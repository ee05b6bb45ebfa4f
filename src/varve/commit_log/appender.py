"""Appends batches to a log: validates, assigns offsets, writes, updates producer state.

Invariant  offsets are assigned under the log's lock and only rise; a rejected batch changes
           nothing.
Crash      the epoch entry is written before its first batch, producer state changes after the
           bytes are written; loading rebuilds both from the log.
Threads    validation runs outside the lock; with `flush=ack` the sync does too, so that waiting
           appends share it.
"""

from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from varve.commit_log.batch_validator import BatchValidator, ValidatedBatch
from varve.commit_log.producer_snapshots import summarize_row
from varve.commit_log.producer_state import AppendOrigin, BatchSummary, ProducerAppendInfo
from varve.commit_log.segment import ActiveSegment, BatchSet
from varve.commit_log.settings import INT_MAX
from varve.commit_log.sparse_index import RELATIVE_OFFSET_MAX
from varve.disk import Buffer
from varve.foundation.errors import (
    Corrupt,
    Fenced,
    InvalidRequest,
    RecordTooLarge,
    UnexpectedOffset,
    UnsupportedFormat,
)
from varve.kernels.batch_layout import CONTROL_BIT, BatchColumn, ScanStatus, status_text
from varve.kernels.batch_scan import batch_table, scan_batches

if TYPE_CHECKING:
    from varve.commit_log.log import Log

# Base offset, batch length, leader epoch: the part of a batch that the log may rewrite freely.
_PREFIX: Final = Struct(">qii")
_TABLE_ROWS: Final = 1024
# A bound on open files: a rolled segment keeps its data file open until it is synced.
_UNSYNCED_SEGMENTS_MAX: Final = 64


class LogAppendResult(NamedTuple):
    """The offsets of an appended batch; a tuple, because every append creates one."""

    base_offset: int
    last_offset: int
    timestamp: int
    log_start_offset: int
    is_duplicate: bool


class Appender:
    """Appends to one log; `Log` documents the methods."""

    def __init__(self, log: "Log") -> None:
        settings = log.settings
        self._log = log
        self._segments = log.segments
        self._health = log.health
        self._validator = BatchValidator(settings, str(log.topic_partition))
        self._segment_bytes = settings.segment_bytes
        self._segment_ms = settings.max_segment_ms
        self._flush_messages = settings.flush_messages
        self._syncs_every_append = settings.syncs_every_append
        self._is_visible_when_written = log.is_alone and not self._syncs_every_append
        self._log_append_time = settings.message_timestamp_type == "LogAppendTime"

    def append(
        self, data: Buffer, *, origin: AppendOrigin, leader_epoch: int | None, waits: bool
    ) -> LogAppendResult:
        batch = self.check(data, origin)
        return self.append_checked(batch, origin=origin, leader_epoch=leader_epoch, waits=waits)

    def check(self, data: Buffer, origin: AppendOrigin) -> ValidatedBatch:
        return self._validator.check(data, origin, self._log.clock.now_ms())

    def check_if_quick(self, data: Buffer, origin: AppendOrigin) -> ValidatedBatch | None:
        return self._validator.check_if_quick(data, origin, self._log.clock.now_ms())

    def is_repeated(self, batch: ValidatedBatch) -> bool:
        if not batch.has_producer:
            return False
        summary = batch.summary(0)
        with self._log.lock:
            entry = self._log.producers.entries.get(summary.producer_id)
        return entry is not None and entry.find_duplicate(summary) is not None

    def append_checked(
        self,
        batch: ValidatedBatch,
        *,
        origin: AppendOrigin,
        leader_epoch: int | None = None,
        waits: bool,
    ) -> LogAppendResult:
        log = self._log
        with log.lock:
            result = self._append_locked(batch, origin, leader_epoch, log.clock.now_ms())
        # A duplicate waits too: its original may not be on disk yet.
        if waits:
            self.sync_appends(result.last_offset + 1)
        return result

    def _new_epoch_locked(self, leader_epoch: int | None) -> int:
        """Checks and returns the leader epoch of an append outside the latest epoch of the log."""
        latest = self._log.leader_epochs.latest
        if leader_epoch is not None and not 0 <= leader_epoch <= INT_MAX:
            raise InvalidRequest(
                f"{self._log.topic_partition}: leader epoch {leader_epoch} is outside 0..{INT_MAX}"
            )
        if latest is None:
            return 0 if leader_epoch is None else leader_epoch
        if leader_epoch is None or leader_epoch < latest.epoch:
            raise Fenced(
                f"{self._log.topic_partition}: leader epoch {leader_epoch} is older than epoch "
                f"{latest.epoch}, the latest in the log; a newer leader exists"
            )
        return leader_epoch

    def _append_locked(
        self, batch: ValidatedBatch, origin: AppendOrigin, leader_epoch: int | None, now_ms: int
    ) -> LogAppendResult:
        log = self._log
        self._health.check_usable()
        base_offset = self._segments.view.active.extent[0]
        latest = log.leader_epochs.latest
        epochs: tuple[tuple[int, int], ...] = ()
        if latest is not None and leader_epoch in (None, latest.epoch):
            epoch = latest.epoch
        else:
            epoch = self._new_epoch_locked(leader_epoch)
            epochs = ((epoch, base_offset),)
        last_offset = base_offset + batch.last_delta
        plan: ProducerAppendInfo | None = None
        if batch.has_producer:
            plan = log.producers.check_and_plan([batch.summary(base_offset)], origin)
            if plan.duplicate is not None:
                return LogAppendResult(
                    plan.duplicate.first_offset,
                    plan.duplicate.last_offset,
                    plan.duplicate.timestamp if self._log_append_time else -1,
                    log.log_start_offset,
                    True,
                )
        size, max_timestamp = batch.size, batch.max_timestamp
        buffers = (_PREFIX.pack(base_offset, size - 12, epoch), memoryview(batch.data)[16:])
        self._write_locked(
            BatchSet(buffers, size, base_offset, last_offset, max_timestamp, last_offset),
            epochs,
            now_ms,
        )
        if plan is not None:
            log.producers.apply(plan, self._segments.view.active.txn_index())
        if self._is_visible_when_written:
            # After the producer state: a transaction is open before readers reach it.
            log.advance_high_watermark_locked(last_offset + 1)
        return LogAppendResult(
            base_offset,
            last_offset,
            batch.max_timestamp if self._log_append_time else -1,
            log.log_start_offset,
            False,
        )

    def append_replicated(self, data: Buffer) -> LogAppendResult | None:
        """Appends batches as a follower, with the offsets and epochs that they have.

        Bytes after the last complete batch are ignored; None if no batch is complete.
        """
        rows = self._scan(data)
        if not rows:
            return None
        end = rows[-1][BatchColumn.POSITION] + rows[-1][BatchColumn.SIZE]
        view = memoryview(data)[:end]
        newest = max(rows, key=lambda row: row[BatchColumn.MAX_TIMESTAMP])
        first, last = rows[0][BatchColumn.BASE_OFFSET], rows[-1][BatchColumn.LAST_OFFSET]
        log = self._log
        where = str(log.topic_partition)
        summaries = [
            _summary(row, view, where) for row in rows if row[BatchColumn.PRODUCER_ID] >= 0
        ]
        with log.lock:
            self._health.check_usable()
            self._check_follows_locked(rows)
            plan = log.producers.check_and_plan(summaries, AppendOrigin.REPLICATION)
            newest_ms, newest_offset = (
                newest[BatchColumn.MAX_TIMESTAMP],
                newest[BatchColumn.LAST_OFFSET],
            )
            batches = BatchSet((view,), end, first, last, newest_ms, newest_offset)
            epochs = [(row[BatchColumn.LEADER_EPOCH], row[BatchColumn.BASE_OFFSET]) for row in rows]
            self._write_locked(batches, epochs, log.clock.now_ms())
            log.producers.apply(plan, self._segments.view.active.txn_index())
            if self._is_visible_when_written:
                log.advance_high_watermark_locked(last + 1)
            log_start_offset = log.log_start_offset
        self.sync_appends(last + 1)
        return LogAppendResult(first, last, -1, log_start_offset, False)

    def _scan(self, data: Buffer) -> list[list[int]]:
        buffer = np.frombuffer(data, np.uint8)
        table = batch_table(_TABLE_ROWS)
        rows: list[list[int]] = []
        position, status = 0, int(ScanStatus.FULL)
        while status == ScanStatus.FULL:
            count, position, status = scan_batches(buffer, position, buffer.size, True, table)
            rows += table[:count].tolist()
        if status not in (ScanStatus.END, ScanStatus.INCOMPLETE):
            message = f"{self._log.topic_partition}: position {position}: {status_text(status)}"
            if status == ScanStatus.OLD_MAGIC:
                raise UnsupportedFormat(message)
            raise Corrupt(f"{message}; nothing was appended")
        return rows

    def _check_follows_locked(self, rows: list[list[int]]) -> None:
        where = self._log.topic_partition
        end_offset = self._log.end_offset
        first, last = rows[0][BatchColumn.BASE_OFFSET], rows[-1][BatchColumn.LAST_OFFSET]
        if first < end_offset:
            raise UnexpectedOffset(
                f"{where}: the batches begin at offset {first}, below the log end offset "
                f"{end_offset}"
            )
        if last - first > RELATIVE_OFFSET_MAX:
            raise UnexpectedOffset(
                f"{where}: the batches span offsets {first}..{last}, more than the "
                f"{RELATIVE_OFFSET_MAX} that one segment can hold; send them singly"
            )
        previous = first - 1
        for row in rows:
            base_offset, last_offset = row[BatchColumn.BASE_OFFSET], row[BatchColumn.LAST_OFFSET]
            if not previous < base_offset <= last_offset:
                raise UnexpectedOffset(
                    f"{where}: batch {base_offset}..{last_offset} follows offset {previous}; "
                    "offsets must ascend"
                )
            previous = last_offset

    def _write_locked(
        self, batches: BatchSet, epochs: Sequence[tuple[int, int]], now_ms: int
    ) -> None:
        """Records new epochs, rolls if necessary, writes the bytes, advances the log end offset."""
        log = self._log
        if batches.size > self._segment_bytes:
            raise RecordTooLarge(
                f"{log.topic_partition}: an append of {batches.size} bytes exceeds segment.bytes "
                f"= {self._segment_bytes}; send smaller batches or raise the setting"
            )
        try:
            for epoch, start in epochs:
                if epoch >= 0 and log.leader_epochs.assign(epoch, start):
                    log.write_epochs()
            if self._must_roll(self._segments.view.active, batches, now_ms):
                log.roll_locked(batches.first_offset)
            self._segments.record_append_locked(now_ms)
            self._segments.view.active.append(batches)
        except OSError as error:
            log.leader_epochs.truncate_from_end(log.end_offset)
            raise self._health.failed(error, "append to") from error
        log.producers.map_end_offset = batches.last_offset + 1

    def _must_roll(self, active: ActiveSegment, batches: BatchSet, now_ms: int) -> bool:
        """Whether size, offset range, a full index or age ends the active segment.

        The age counts in record timestamps, or by the clock if the records have none.
        """
        size = active.extent[1]
        if (
            size > self._segment_bytes - batches.size
            or batches.last_offset - active.base_offset > RELATIVE_OFFSET_MAX
            or active.has_full_index
        ):
            return True
        if not size:
            return False
        if active.first_timestamp >= 0:
            age_ms = batches.max_timestamp - active.first_timestamp
        else:
            age_ms = now_ms - active.created_ms
        return age_ms > self._segment_ms - active.jitter_ms

    def sync_appends(self, end_offset: int) -> None:
        """Syncs if `flush=ack`, `flush.messages` or the number of unsynced segments requires it.

        With `flush=ack` the records become visible after the sync.
        """
        log = self._log
        if self._syncs_every_append:
            log.flush(end_offset)
            if log.is_alone:
                with log.lock:
                    log.advance_high_watermark_locked(end_offset)
        elif end_offset - log.recovery_point >= self._flush_messages:
            log.flush(end_offset)
        elif len(self._segments.unsynced) > _UNSYNCED_SEGMENTS_MAX:
            log.flush(self._segments.view.active.base_offset)


def _summary(row: list[int], data: memoryview, where: str) -> BatchSummary:
    is_control = row[BatchColumn.ATTRIBUTES] & CONTROL_BIT
    start = row[BatchColumn.POSITION]
    return summarize_row(
        row, data[start : start + row[BatchColumn.SIZE]] if is_control else None, where
    )
