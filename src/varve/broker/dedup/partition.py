"""Deduplication of one partition: judge a batch, append what is new, remember its ids.

Invariant  every remembered id is in the log: ids follow an append, never the other way round. A
           batch that its producer sends again is recognized by its sequences, before its ids are
           looked up. A checkpoint covers nothing of the log that is not on disk.
Crash      the ids are a copy of what the log has, which is their changelog. Missing ids are read
           from there; where they may include records that the log has lost, all are rebuilt. A
           checkpoint names the batch before it, so that a log which lost its end and grew
           again is recognized.
Threads    one at a time, under the lock, which is taken before those of the log.
"""

import contextlib
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from varve.broker.dedup.state import (
    SECRET_BYTES,
    DedupEnvironment,
    DedupStateFile,
    describe_rules,
    find_state_file,
    write_state_file,
)
from varve.commit_log import Isolation, Log, LogAppendResult
from varve.commit_log.batch_validator import ValidatedBatch
from varve.dedup.directories import STATE_FILE_SUFFIX, remove_state
from varve.dedup.id_store import IdStore
from varve.dedup.ids import Arrivals, Numbers, fold_chunk
from varve.dedup.judge import Judge, Judgement
from varve.dedup.kernels import id_words, time_spans
from varve.dedup.kernels.time_spans import DUPLICATE, classify
from varve.dedup.rules import Counts, DedupRules, Verdict
from varve.disk import Buffer, to_store_error
from varve.foundation.errors import (
    Closed,
    Corrupt,
    InvalidRecord,
    StoreError,
    Unavailable,
    without_frames,
)
from varve.records import (
    Batch,
    BatchHeader,
    CommittedBatches,
    RecordColumns,
    build_batch_of,
    decode_header,
    empty_batch,
    fields_of,
    find_header,
)
from varve.rocks.state_files import NO_STREAM_TIME_MS
from varve.topics.cluster import HistoryMark

logger = logging.getLogger(__name__)

_LOG_APPEND_TIME: Final = "LogAppendTime"
_READ_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class _ArrivedBatch:
    """A batch, its records, and their ids with the offsets they will have."""

    checked: ValidatedBatch
    batch: Batch
    columns: RecordColumns
    ids: Arrivals
    base_offset: int


class PartitionDedup:
    """The ids of one partition; `open` comes first."""

    def __init__(
        self, log: Log, rules: DedupRules, directory: str, environment: DedupEnvironment
    ) -> None:
        self.rules = rules
        self.counts = Counts()
        """Of all records since the start; read in any thread."""
        self.is_ended = False
        """Set in any thread: a restore in progress stops."""
        self.failure: StoreError | None = None
        """Why the ids were closed, until they are opened again; read in any thread."""
        self._log = log
        self._where = str(log.topic_partition)
        self._directory = directory
        self._state_path = directory + STATE_FILE_SUFFIX
        self._environment = environment
        self._lock = threading.Lock()
        self._state_file: DedupStateFile | None = None  # guarded by _lock, as all below
        self._store: IdStore | None = None
        self._judge: Judge | None = None
        self._position = 0
        """All records before it that were committed when they came are remembered."""
        self._is_dirty = False

    # Open and close

    def open(self) -> None:
        """Restores missing ids; raises StoreError, and may be called again then."""
        with self._lock:
            if self._store is not None:
                return
            self.failure = None
            try:
                self._open_locked()
            except OSError as error:
                raise to_store_error(error, f"open of {self._directory}") from error
            except Corrupt:
                self._remove_state_file()
                raise
            finally:
                if self._store is None:
                    self._state_file = None

    def _open_locked(self) -> None:
        environment = self._environment
        id_words.warm()
        time_spans.warm()
        usable = self._find_usable_state()
        self._state_file = self._write_open_state(usable)
        store = IdStore.open(
            directory=self._directory,
            rules=self.rules,
            secret=self._state_file.secret_words,
            databases=environment.databases(),
            file_system=environment.file_system,
            erasure=self._log.settings.varve_erasure_last,
        )
        try:
            if usable is None:
                store.reset()
            self._position = self._replay(store).restore(environment.clock.now_ms())
        except BaseException:
            with contextlib.suppress(StoreError):
                store.close()
            raise
        self._store, self._judge, self._is_dirty = store, Judge(self.rules, store), True

    def _replay(self, store: IdStore) -> "DedupReplay":
        return DedupReplay(self, self._log, store)

    def _find_usable_state(self) -> DedupStateFile | None:
        """None where the ids on disk, if any, are not to be used."""
        environment = self._environment
        state = find_state_file(environment.file_system, self._state_path)
        if state is None or not state.allows(self.rules, environment.boot_id):
            return None
        # A log that was truncated may have lost records whose ids are remembered.
        return None if self._log.recovered else state

    def _write_open_state(self, usable: DedupStateFile | None) -> DedupStateFile:
        """Marks the ids as open, with the secret they had or a new one."""
        environment = self._environment
        if usable is None:
            secret = environment.random.randbytes(SECRET_BYTES).hex()
        else:
            secret = usable.secret
        state = DedupStateFile(describe_rules(self.rules), secret, environment.boot_id)
        environment.file_system.make_directory(self._directory)
        write_state_file(environment.file_system, self._state_path, state)
        return state

    def close(self) -> None:
        """Writes everything to disk, so that the next open restores nothing."""
        with self._lock:
            store, state = self._store, self._state_file
            self._store = None
            if store is None or state is None:
                return
            try:
                self._checkpoint_locked(store)
            finally:
                store.close()
            closed = DedupStateFile(state.rules, state.secret, boot="")
            write_state_file(self._environment.file_system, self._state_path, closed)

    def remove(self) -> None:
        """Removes the ids, on disk too; raises OSError."""
        with self._lock:
            self._drop_locked()
            remove_state(self._environment.file_system, self._directory)

    def abandon(self) -> None:
        """Stops without writing, as a crash does."""
        self.is_ended = True
        with self._lock:
            self._drop_locked()

    def _drop_locked(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            with contextlib.suppress(StoreError):
                store.close()

    # Append

    def append(self, batch: Buffer) -> LogAppendResult:
        """Appends all but duplicates; a batch of duplicates gets the first original's offset."""
        with self._lock:
            if self._store is None:
                raise Closed(f"{self._where}: its ids are being restored: try again")
            checked = self._log.check(batch)
            if self._log.is_repeated(checked):
                return self._append_repeated(checked, self._store)
            arrived = self._decode_batch(checked, self._store, self._log.end_offset)
            now_ms = self._environment.clock.now_ms()
            assert self._judge is not None
            try:
                self._learn_other_records(now_ms)
                judged = self._judge.judge(arrived.ids, now_ms, self._store.stream_time_ms)
            except StoreError as error:
                raise self._fail(error) from error
            result = self._append_judged(arrived, judged)
            try:
                self._remember(arrived, judged, result, now_ms)
            except StoreError as error:
                # The batch is in the log, from which its ids are restored.
                self._fail(error)
            self.counts += judged.counts
            return result

    def _append_repeated(self, checked: ValidatedBatch, store: IdStore) -> LogAppendResult:
        """A batch that was sent before: one of duplicates alone gets the original's offset again.

        Where the original is no longer remembered, it gets the offset of the batch.
        """
        assert self._judge is not None
        result = self._log.append_checked(checked, waits=self._waits)
        if not self._is_stored_empty(result.base_offset):
            return result
        arrived = self._decode_batch(checked, store, result.base_offset)
        now_ms = self._environment.clock.now_ms()
        try:
            # By the current stream time it may be late.
            judged = self._judge.judge(arrived.ids, now_ms, NO_STREAM_TIME_MS)
        except StoreError as error:
            raise self._fail(error) from error
        if judged.counts.duplicates < len(arrived.ids):
            return result
        return result._replace(base_offset=int(judged.witness_offsets[0]))

    def _is_stored_empty(self, base_offset: int) -> bool:
        """Whether no record of a batch was kept; one that was late may be a duplicate by now."""
        header = self.find_header(base_offset)
        return header is not None and (header.base_offset, header.records_count) == (base_offset, 0)

    @property
    def _waits(self) -> bool:
        """A log that is synced for every append is synced later, for many appends at once."""
        return not self._log.settings.syncs_every_append

    def _decode_batch(
        self, checked: ValidatedBatch, store: IdStore, base_offset: int
    ) -> _ArrivedBatch:
        """The batch with the offsets that it has, or will have."""
        batch = Batch(checked.data, self._where)
        try:
            columns = batch.columns()
            ids = fold_chunk([columns], self.rules.by, store.secret)
        except Corrupt as error:
            raise InvalidRecord(str(error)) from error
        offsets = ids.offsets + (base_offset - batch.header.base_offset)
        ids = Arrivals(ids.words, ids.kinds, ids.times, offsets)
        return _ArrivedBatch(checked, batch, columns, ids, base_offset)

    def _learn_other_records(self, now_ms: int) -> None:
        """Remembers records that were appended another way, or committed since."""
        assert self._store is not None
        log = self._log
        if log.end_offset < self._position:
            raise Corrupt(
                f"{self._where}: the log ends at {log.end_offset}, and its ids reach to "
                f"{self._position}: it was truncated, and the ids are rebuilt"
            )
        if self._position < log.last_stable_offset:
            start = max(self._position, log.log_start_offset)
            replay = self._replay(self._store)
            self._position = replay.learn(start, self._store.stream_time_ms, now_ms)

    def _append_judged(self, arrived: _ArrivedBatch, judged: Judgement) -> LogAppendResult:
        log, checked, counts = self._log, arrived.checked, judged.counts
        if not counts.duplicates:
            return log.append_checked(checked, waits=self._waits)
        if counts.duplicates < len(judged.verdicts):
            is_kept = judged.verdicts != DUPLICATE
            kept = without_duplicates(checked, arrived.batch, arrived.columns, is_kept)
            return log.append_checked(kept, waits=self._waits)
        original = int(judged.witness_offsets[0])
        if checked.has_producer:
            # A batch without records, from which the producer's sequences continue.
            header = arrived.batch.header
            empty = checked.with_records(empty_batch(header), header.max_timestamp)
            return log.append_checked(empty, waits=self._waits)._replace(base_offset=original)
        is_stamped = log.settings.message_timestamp_type == _LOG_APPEND_TIME
        time_ms = checked.max_timestamp if is_stamped else -1
        return LogAppendResult(original, original, time_ms, log.log_start_offset, True)

    def _remember(
        self, arrived: _ArrivedBatch, judged: Judgement, result: LogAppendResult, now_ms: int
    ) -> None:
        if result.is_duplicate:
            return
        assert self._store is not None
        base_offset = result.last_offset - arrived.checked.last_delta
        stream_time_ms = judged.stream_time_after
        if judged.counts.duplicates:
            # The stream time is a function of the log, so that a restore computes the same.
            stream_time_ms = self._newest_ms(arrived.ids.times, judged, now_ms)
        if base_offset == arrived.base_offset:
            self._store.apply(judged.new_ids, stream_time_ms)
        else:
            self._store.restore(_moved(judged.new_ids.entries, base_offset - arrived.base_offset))
            self._store.maintain(stream_time_ms)
        if self._position == base_offset:
            self._position = result.last_offset + 1
        self._is_dirty = True

    def _newest_ms(self, times: Numbers, judged: Judgement, now_ms: int) -> int:
        """The largest time in the log that counts, the batch without its duplicates included."""
        assert self._store is not None
        is_present = times <= now_ms + self.rules.max_future_ms
        counted = times[is_present & (judged.verdicts != DUPLICATE)]
        return max(self._store.stream_time_ms, int(counted.max(initial=NO_STREAM_TIME_MS)))

    # Maintain

    def checkpoint(self) -> None:
        """Writes the log and then the ids to disk; does nothing where nothing is new."""
        if not self._is_dirty:
            return
        try:
            # Most of the log is synced while appends continue.
            self._log.flush()
            with self._lock:
                if self._store is not None:
                    self._checkpoint_locked(self._store)
                    self._is_dirty = False
        except StoreError as error:
            with self._lock:
                if self._store is not None:
                    self._fail(error)

    def _checkpoint_locked(self, store: IdStore) -> None:
        self._log.flush()
        header = self.find_header(self._position - 1)
        store.checkpoint(self._position, None if header is None else HistoryMark.of(header))

    def find_header(self, offset: int) -> BatchHeader | None:
        """The header of the batch with an offset; None where the log does not have it any more."""
        if not self._log.log_start_offset <= offset < self._log.end_offset:
            return None
        read = self._log.read(start_offset=offset, max_bytes=1, isolation=Isolation.LOG_END)
        return find_header(read.data, offset)

    def _fail(self, error: StoreError) -> Unavailable:
        """Closes the ids until they are opened again; returns the error for the client."""
        logger.error("dedup ids failed", extra={"partition": self._where, "error": str(error)})
        self._drop_locked()
        if isinstance(error, Corrupt):
            self._remove_state_file()
        self.failure = without_frames(error)
        return Unavailable(f"{self._where}: its dedup ids failed: {error}")

    def _remove_state_file(self) -> None:
        """Without it the ids are rebuilt."""
        with contextlib.suppress(OSError):
            self._environment.file_system.remove(self._state_path)


def _moved(entries: Arrivals, by: int) -> Arrivals:
    """The entries of a batch that was appended behind another."""
    moved = np.asarray(entries.offsets + by)
    return Arrivals(entries.words, entries.kinds, entries.times, moved)


def without_duplicates(
    checked: ValidatedBatch, batch: Batch, columns: RecordColumns, kept: npt.NDArray[np.bool_]
) -> ValidatedBatch:
    """The batch with the kept records alone, at least one.

    Offsets stay: dropped records leave holes, as compaction does, and first and last offset,
    producer and sequences are those of the batch as it was sent.
    """
    header = batch.header
    chosen = RecordColumns(columns.payload, columns.table[kept])
    fields = fields_of(header)
    fields["offset_deltas"] = chosen.offsets - header.base_offset
    fields["last_offset_delta"] = header.last_offset_delta
    data = build_batch_of(chosen, **fields)
    return checked.with_records(data, decode_header(data).max_timestamp)


class DedupReplay:
    """Reads a log into the ids of its partition.

    Every record with an id and a time that is not in the future is remembered, however it was
    appended, for as long as a window may reach it: also one that is late by now, because its
    duplicates need not be. Aborted records are not remembered; undecided ones wait. A record that
    is read twice is remembered once.
    """

    def __init__(self, dedup: PartitionDedup, log: Log, store: IdStore) -> None:
        self._dedup = dedup
        self._log = log
        self._store = store

    def restore(self, now_ms: int) -> int:
        """Remembers all that the store lacks; returns the offset up to which all is decided."""
        log, store = self._log, self._store
        restored_offset = store.changelog_offset
        if restored_offset is not None and self._has_other_history(restored_offset):
            store.reset()
            restored_offset = None
        if restored_offset is None:
            position = self._restore_tail(now_ms)
        else:
            position = self.learn(
                max(restored_offset, log.log_start_offset), store.stream_time_ms, now_ms
            )
        self._learn_beyond(position, now_ms)
        return position

    def _has_other_history(self, restored_offset: int) -> bool:
        """Whether the log has lost its end since the ids were written; it may have grown again."""
        if restored_offset > self._log.end_offset:
            return True
        mark, header = self._store.changelog_mark, self._dedup.find_header(restored_offset - 1)
        return mark is not None and header is not None and mark.find_break(header) is not None

    def _restore_tail(self, now_ms: int) -> int:
        """Reads as little of the log as the window needs, by the newest timestamp in it.

        No record that counts may have that timestamp; then the whole log is read.
        """
        log, rules = self._log, self._store.rules
        newest = max(segment.max_timestamp for segment in log.view)
        slack_ms = rules.retention_ms + rules.before_ms
        oldest = log.find_offset_by_time(max(0, newest - slack_ms)) if newest >= 0 else None
        start = log.log_start_offset if oldest is None else oldest.offset
        position = self.learn(start, NO_STREAM_TIME_MS, now_ms)
        is_short = self._store.stream_time_ms + rules.before_ms < newest
        if is_short and start > log.log_start_offset:
            position = self.learn(log.log_start_offset, NO_STREAM_TIME_MS, now_ms)
        return position

    def learn(self, start: int, stream_time_ms: int, now_ms: int) -> int:
        """Remembers the committed records from an offset on; returns the offset after them."""
        position = start
        for batches in self._read(start, Isolation.READ_COMMITTED):
            for columns in batches.columns(start=start):
                if len(columns):
                    stream_time_ms = self._take(columns, stream_time_ms, now_ms)
            position = batches.next_offset
        return position

    def _learn_beyond(self, start: int, now_ms: int) -> None:
        """Remembers records without a transaction that are after the start of an open one."""
        for batches in self._read(start, Isolation.LOG_END):
            for batch in batches:
                if batch.header.is_transactional:
                    continue
                columns = batch.columns()
                inside = columns.offsets >= start
                self._take(
                    RecordColumns(columns.payload, columns.table[inside]),
                    self._store.stream_time_ms,
                    now_ms,
                )

    def _read(self, start: int, isolation: Isolation) -> Iterator[CommittedBatches]:
        """Batches up to the end of the log."""
        log, where = self._log, str(self._log.topic_partition)
        while True:
            if self._dedup.is_ended:
                raise Closed(f"{where}: its dedup ids are no longer needed")
            read = log.read(start_offset=start, max_bytes=_READ_BYTES, isolation=isolation)
            if read.next_offset <= start:
                return
            yield CommittedBatches(read.data, read.aborted, start_offset=start, where=where)
            start = read.next_offset

    def _take(self, columns: RecordColumns, stream_time_ms: int, now_ms: int) -> int:
        """Remembers the records that count; returns the stream time after them."""
        store, rules = self._store, self._store.rules
        arrivals = fold_chunk([columns], rules.by, store.secret)
        verdicts = np.empty(len(arrivals), np.uint8)
        time_max = now_ms + rules.max_future_ms
        after = int(
            classify(
                arrivals.kinds,
                arrivals.times,
                time_max,
                rules.lateness_ms,
                stream_time_ms,
                verdicts,
            )
        )
        store.restore(arrivals.take((verdicts == Verdict.KEPT) | (verdicts == Verdict.LATE)))
        store.maintain(after)
        return after
