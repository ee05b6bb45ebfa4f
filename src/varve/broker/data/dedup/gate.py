"""The gate of a partition that takes no duplicates: judge, append what is new, remember it.

Invariant  what is remembered is in the log: ids follow an append, never the other way. A batch that
           its producer sends again is told by its sequences, before ids are asked.
           A checkpoint claims nothing of the log that is not on disk.
Crash      ids are a copy of what the log holds. What they lack is read from there; where they may
           know of records that the log has lost, all of them are.
Threads    one at a time, by the gate's lock; it is taken before those of the log.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from varve.broker.data.dedup.gate_place import GatePlace
from varve.broker.data.dedup.log_ids import LogIds
from varve.broker.data.dedup.state_directory import NOTE_SUFFIX, remove_state
from varve.broker.data.dedup.state_note import (
    SECRET_BYTES,
    StateNote,
    describe_rules,
    find_note,
    write_note,
)
from varve.broker.data.dedup.thinning import empty, thin
from varve.commit_log import AppendResult, Isolation, Log
from varve.commit_log.append_rules import CheckedBatch
from varve.dedup.id_store import IdStore
from varve.dedup.ids import Arrivals, Numbers, fold_chunk
from varve.dedup.judge import Judge, Judgement
from varve.dedup.rules import Counts, DedupRules
from varve.disk import Buffer, to_store_error
from varve.foundation.errors import Closed, Corrupt, InvalidRecord, StoreError, Unavailable
from varve.kernels import window_ids, window_spans
from varve.kernels.window_spans import DUPLICATE
from varve.records import Batch, RecordColumns, decode_header
from varve.rocks.state_files import NO_STREAM_TIME_MS

logger = logging.getLogger(__name__)

_STAMPED: Final = "LogAppendTime"


@dataclass(frozen=True, slots=True)
class _Arrived:
    """A batch, its records, and their ids under the offsets they are to have."""

    checked: CheckedBatch
    batch: Batch
    columns: RecordColumns
    ids: Arrivals
    base_offset: int


class Gate:
    """One partition; `open` comes first. `on_failed` is called in the thread of the failure."""

    def __init__(
        self,
        log: Log,
        rules: DedupRules,
        directory: str,
        place: GatePlace,
        *,
        is_ended: Callable[[], bool],
        on_failed: Callable[[StoreError], None],
    ) -> None:
        self.rules = rules
        self.counts = Counts()
        """Of what came since the gate was made; read in any thread."""
        self._log = log
        self._where = str(log.topic_partition)
        self._directory = directory
        self._note_path = directory + NOTE_SUFFIX
        self._place = place
        self._is_ended = is_ended
        self._on_failed = on_failed
        self._lock = threading.Lock()
        self._note: StateNote | None = None  # guarded by _lock, as all below
        self._store: IdStore | None = None
        self._judging: Judge | None = None
        self._position = 0
        """All before it is remembered, as far as it was decided when it came."""
        self._is_dirty = False

    # Open and close

    def open(self) -> None:
        """Restores what is not there; raises StoreError, and may be called again then."""
        with self._lock:
            if self._store is not None:
                return
            try:
                self._open_locked()
            except OSError as error:
                raise to_store_error(error, f"open of {self._directory}") from error
            except Corrupt:
                self._forget_note()
                raise
            finally:
                if self._store is None:
                    self._note = None

    def _open_locked(self) -> None:
        place = self._place
        window_ids.warm()
        window_spans.warm()
        found = self._find_usable_note()
        self._note = self._write_note(found)
        store = IdStore.open(
            directory=self._directory,
            rules=self.rules,
            secret=self._note.secret_words,
            databases=place.databases(),
            file_system=place.file_system,
        )
        try:
            if found is None:
                store.reset()
            restored = LogIds(self._log, store, self._is_ended)
            self._position = restored.restore(place.clock.now_ms())
        except BaseException:
            with contextlib.suppress(StoreError):
                store.close()
            raise
        self._store, self._judging, self._is_dirty = store, Judge(self.rules, store), True

    def _find_usable_note(self) -> StateNote | None:
        """None where the ids that lie there, if any, are not to be used."""
        place = self._place
        found = find_note(place.file_system, self._note_path)
        if found is None or not found.allows(self.rules, place.boot):
            return None
        # A log that was cut may have lost what is remembered of it.
        return None if self._log.recovered else found

    def _write_note(self, found: StateNote | None) -> StateNote:
        """Notes that the ids are open, under the secret they had or a new one."""
        place = self._place
        secret = place.random.randbytes(SECRET_BYTES).hex() if found is None else found.secret
        note = StateNote(describe_rules(self.rules), secret, place.boot)
        place.file_system.make_directory(self._directory)
        write_note(place.file_system, self._note_path, note)
        return note

    def close(self) -> None:
        """Brings all to the disk, so that the next opening restores nothing."""
        with self._lock:
            store, note = self._store, self._note
            self._store = None
            if store is None or note is None:
                return
            try:
                self._log.flush()
                store.checkpoint(self._position)
            finally:
                store.close()
            closed = StateNote(note.rules, note.secret, boot="")
            write_note(self._place.file_system, self._note_path, closed)

    def remove(self) -> None:
        """Forgets everything, on disk too; raises OSError where the disk refuses."""
        with self._lock:
            self._drop_locked()
            remove_state(self._place.file_system, self._directory)

    def abandon(self) -> None:
        """Stops without writing, as a crash does."""
        with self._lock:
            self._drop_locked()

    def _drop_locked(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            with contextlib.suppress(StoreError):
                store.close()

    # Work

    def append(self, batch: Buffer) -> AppendResult:
        """Appends what is no duplicate; a batch of duplicates is told the first one's original."""
        with self._lock:
            if self._store is None:
                raise Closed(f"{self._log.topic_partition}: its ids are being opened: try again")
            checked = self._log.check(batch)
            if self._log.is_repeated(checked):
                return self._repeat(checked, self._store)
            arrived = self._read(checked, self._store, self._log.end_offset)
            now_ms = self._place.clock.now_ms()
            try:
                self._follow_others(now_ms)
                judged = self._judge(arrived, now_ms)
            except StoreError as error:
                raise self._failed(error) from error
            counts = judged.counts
            result = self._append(arrived, judged, counts)
            try:
                self._remember(arrived, judged, counts, result, now_ms)
            except StoreError as error:
                # It is in the log, from which all is restored.
                self._failed(error)
            self.counts += counts
            return result

    def _repeat(self, checked: CheckedBatch, store: IdStore) -> AppendResult:
        """A batch that was sent before: one of duplicates alone is told the original again.

        Where nobody remembers the original any more it is told where the batch stands.
        """
        assert self._judging is not None
        result = self._log.append_checked(checked, waits=self._waits)
        if not self._stands_empty(result.base_offset):
            return result
        arrived = self._read(checked, store, result.base_offset)
        try:
            # By the stream time of now it may be late.
            judged = self._judging.judge(arrived.ids, self._place.clock.now_ms(), NO_STREAM_TIME_MS)
        except StoreError as error:
            raise self._failed(error) from error
        if judged.counts.duplicates < len(arrived.ids):
            return result
        return result._replace(base_offset=int(judged.witness_offsets[0]))

    def _stands_empty(self, base_offset: int) -> bool:
        """Whether nothing of a batch was taken; one that was late may be a copy by now."""
        if base_offset < self._log.log_start_offset:
            return False
        read = self._log.read(start_offset=base_offset, max_bytes=1, isolation=Isolation.LOG_END)
        header = decode_header(read.data)
        return header.base_offset == base_offset and header.records_count == 0

    @property
    def _waits(self) -> bool:
        """Who syncs every append does so for many at once, later."""
        return not self._log.settings.syncs_every_append

    def _read(self, checked: CheckedBatch, store: IdStore, base_offset: int) -> _Arrived:
        """The batch with the offsets that it has, or is to have."""
        batch = Batch(checked.data, self._where)
        try:
            columns = batch.columns()
            ids = fold_chunk([columns], self.rules.by, store.secret)
        except Corrupt as error:
            raise InvalidRecord(str(error)) from error
        offsets = ids.offsets + (base_offset - batch.header.base_offset)
        ids = Arrivals(ids.words, ids.kinds, ids.times, offsets)
        return _Arrived(checked, batch, columns, ids, base_offset)

    def _follow_others(self, now_ms: int) -> None:
        """Brings in what came into the log another way, or was decided since."""
        assert self._store is not None
        log = self._log
        if log.end_offset < self._position:
            raise Corrupt(
                f"{log.topic_partition}: the log ends at {log.end_offset} and was remembered up to "
                f"{self._position}: it was cut, and the ids are restored"
            )
        if self._position < log.last_stable_offset:
            ids = LogIds(log, self._store, self._is_ended)
            start = max(self._position, log.log_start_offset)
            self._position = ids.learn(start, self._store.stream_time_ms, now_ms)

    def _judge(self, arrived: _Arrived, now_ms: int) -> Judgement:
        assert self._store is not None
        assert self._judging is not None
        return self._judging.judge(arrived.ids, now_ms, self._store.stream_time_ms)

    def _append(self, arrived: _Arrived, judged: Judgement, counts: Counts) -> AppendResult:
        log, checked = self._log, arrived.checked
        if not counts.duplicates:
            return log.append_checked(checked, waits=self._waits)
        if counts.duplicates < len(judged.verdicts):
            is_kept = judged.verdicts != DUPLICATE
            chosen = thin(checked, arrived.batch, arrived.columns, is_kept)
            return log.append_checked(chosen, waits=self._waits)
        original = int(judged.witness_offsets[0])
        if checked.has_producer:
            left = empty(checked, arrived.batch)
            return log.append_checked(left, waits=self._waits)._replace(base_offset=original)
        is_stamped = log.settings.message_timestamp_type == _STAMPED
        time_ms = checked.max_timestamp if is_stamped else -1
        return AppendResult(original, original, time_ms, log.log_start_offset, True)

    def _remember(
        self,
        arrived: _Arrived,
        judged: Judgement,
        counts: Counts,
        result: AppendResult,
        now_ms: int,
    ) -> None:
        if result.is_duplicate:
            return
        assert self._store is not None
        base_offset = result.last_offset - arrived.checked.last_delta
        stream_time_ms = judged.stream_time_after
        if counts.duplicates:
            # The stream time is a function of the log, so that a restore comes to the same.
            stream_time_ms = self._newest_ms(arrived.ids.times, judged, now_ms)
        if base_offset == arrived.base_offset:
            self._store.apply(judged.news, stream_time_ms)
        else:
            self._store.restore(_moved(judged.news.entries, base_offset - arrived.base_offset))
            self._store.maintain(stream_time_ms)
        if self._position == base_offset:
            self._position = result.last_offset + 1
        self._is_dirty = True

    def _newest_ms(self, times: Numbers, judged: Judgement, now_ms: int) -> int:
        """The largest time that counts of what is in the log, with the batch less its copies."""
        assert self._store is not None
        is_present = times <= now_ms + self.rules.max_future_ms
        counted = times[is_present & (judged.verdicts != DUPLICATE)]
        return max(self._store.stream_time_ms, int(counted.max(initial=NO_STREAM_TIME_MS)))

    def checkpoint(self) -> None:
        """Brings the ids to the disk, and before them the log; harmless where nothing is new."""
        if not self._is_dirty:
            return
        try:
            # What takes long is done while appends go on.
            self._log.flush()
            with self._lock:
                if self._store is not None:
                    self._log.flush()
                    self._store.checkpoint(self._position)
                    self._is_dirty = False
        except StoreError as error:
            with self._lock:
                if self._store is not None:
                    self._failed(error)

    def _failed(self, error: StoreError) -> Unavailable:
        """Closes the gate until it is opened again; gives what a client is told."""
        logger.error(
            "the ids of a partition failed",
            extra={"partition": str(self._log.topic_partition), "error": str(error)},
        )
        self._drop_locked()
        if isinstance(error, Corrupt):
            self._forget_note()
        self._on_failed(error)
        return Unavailable(f"{self._log.topic_partition}: its ids failed: {error}")

    def _forget_note(self) -> None:
        """Without it the ids are made anew."""
        with contextlib.suppress(OSError):
            self._place.file_system.remove(self._note_path)


def _moved(entries: Arrivals, by: int) -> Arrivals:
    """Entries of a batch that came to stand behind another's."""
    moved = np.asarray(entries.offsets + by)
    return Arrivals(entries.words, entries.kinds, entries.times, moved)
