"""What a log holds, brought into the ids of its partition: the log is their changelog.

Invariant  every record of the log that has an id and a time, and is not from the future, is
           remembered, however it came there, for as long as a window may reach it: also one that
           is late by now, since copies of it need not be. What was aborted is not remembered, and
           what is not decided yet waits.
           Read twice, a record is remembered once.
"""

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from varve.commit_log import Isolation, Log
from varve.dedup.id_store import IdStore
from varve.dedup.ids import fold_chunk
from varve.dedup.rules import Verdict
from varve.foundation.errors import Closed
from varve.kernels.window_spans import classify
from varve.records import CommittedBatches, RecordColumns
from varve.rocks.state_files import NO_STREAM_TIME_MS

_READ_BYTES: Final = 4 << 20


class LogIds:
    """Reads one log for one store of ids; `is_ended` is asked between two reads."""

    def __init__(self, log: Log, store: IdStore, is_ended: Callable[[], bool]) -> None:
        self._log = log
        self._store = store
        self._is_ended = is_ended

    def restore(self, now_ms: int) -> int:
        """Brings in all that the store lacks; gives the offset up to which all is decided."""
        log, store = self._log, self._store
        known = store.changelog_offset
        if known is not None and known > log.end_offset:
            store.reset()
            known = None
        if known is None:
            position = self._restore_tail(now_ms)
        else:
            position = self.learn(max(known, log.log_start_offset), store.stream_time_ms, now_ms)
        self._learn_beyond(position, now_ms)
        return position

    def _restore_tail(self, now_ms: int) -> int:
        """Reads as little of the log as the window needs, by the newest time in it.

        That may be a time which no record has that counts. Then all of the log is read.
        """
        log, rules = self._log, self._store.rules
        newest = max(segment.max_timestamp for segment in log.view)
        slack_ms = rules.retention_ms + rules.before_ms
        found = log.find_offset_by_time(max(0, newest - slack_ms)) if newest >= 0 else None
        start = log.log_start_offset if found is None else found.offset
        position = self.learn(start, NO_STREAM_TIME_MS, now_ms)
        is_short = self._store.stream_time_ms + rules.before_ms < newest
        if is_short and start > log.log_start_offset:
            position = self.learn(log.log_start_offset, NO_STREAM_TIME_MS, now_ms)
        return position

    def learn(self, start: int, stream_time_ms: int, now_ms: int) -> int:
        """Brings in the decided records from an offset on; gives where they end for now."""
        position = start
        for batches in self._read(start, Isolation.READ_COMMITTED):
            columns = batches.columns(start=start)
            if len(columns):
                stream_time_ms = self._take(columns, stream_time_ms, now_ms)
            position = batches.next_offset
        return position

    def _learn_beyond(self, start: int, now_ms: int) -> None:
        """Brings in records that belong to no transaction and stand behind one that is open."""
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
        """Batches as long as there are more."""
        log, where = self._log, str(self._log.topic_partition)
        while True:
            if self._is_ended():
                raise Closed(f"{where}: the ids are no longer wanted")
            read = log.read(start_offset=start, max_bytes=_READ_BYTES, isolation=isolation)
            if read.next_offset <= start:
                return
            yield CommittedBatches(read.data, read.aborted, start_offset=start, where=where)
            start = read.next_offset

    def _take(self, columns: RecordColumns, stream_time_ms: int, now_ms: int) -> int:
        """Remembers what counts; gives the stream time behind it."""
        store, rules = self._store, self._store.rules
        found = fold_chunk([columns], rules.by, store.secret)
        verdicts = np.empty(len(found), np.uint8)
        time_max = now_ms + rules.max_future_ms
        after = int(
            classify(
                found.kinds, found.times, time_max, rules.lateness_ms, stream_time_ms, verdicts
            )
        )
        store.restore(found.take((verdicts == Verdict.KEPT) | (verdicts == Verdict.LATE)))
        store.maintain(after)
        return after
