"""One partition of a topic in the public API: visible records, in order, with CRCs checked.

Invariant  a read ends where the log ended, for its isolation, when it began; it never returns a
           record outside [start, end), of an aborted transaction, or of a batch with a wrong CRC.
Threads    any; reads share no state.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import islice

from varve.commit_log import Isolation, Log, LogAppendResult, LogManager, TopicPartition
from varve.foundation.errors import InvalidRecord, OffsetOutOfRange
from varve.foundation.settings import LONG_MAX
from varve.foundation.topic_records import (
    PartitionOffsets,
    StoredRecord,
    check_int,
    check_isolation,
    check_limit,
)
from varve.records import Batch, Buffer, CommittedBatches, RecordColumns


class Partition:
    """A partition, returned by `Topic.partition`."""

    def __init__(self, topic: str, number: int, logs: LogManager) -> None:
        self.number = number
        self._topic_partition = TopicPartition(topic, number)
        self._logs = logs

    def __repr__(self) -> str:
        return f"<Partition {self._topic_partition}>"

    @property
    def log(self) -> Log:
        """The log of the partition, for idempotent producers, transactions and other operations."""
        return self._logs.get(self._topic_partition)

    def append_batch(self, batch: Buffer) -> LogAppendResult:
        """Appends a ready batch of message format 2; the log gives out its offsets.

        Raises InvalidRecord for what is no bytes.
        """
        try:
            memoryview(batch)
        except TypeError:
            raise InvalidRecord(
                f"a batch of type {type(batch).__name__}; give the bytes of a batch"
            ) from None
        return self.log.append(batch)

    def read(
        self,
        *,
        start: int | None = None,
        end: int | None = None,
        isolation: str = Isolation.READ_UNCOMMITTED,
        limit: int | None = None,
    ) -> Iterator[StoredRecord]:
        """The records from `start` (None: the log start offset) to before `end`.

        The read ends, at the latest, where the visible log ended when it began.
        """
        limit = check_limit(limit)
        columns = self.columns(start=start, end=end, isolation=isolation)
        records = (record for part in columns for record in stored_records(part, self.number))
        return islice(records, limit)

    def batches(
        self,
        *,
        start: int | None = None,
        end: int | None = None,
        isolation: str = Isolation.READ_UNCOMMITTED,
    ) -> Iterator[Batch]:
        """The batches that hold these records: whole, so the first may begin before `start`."""
        return LogRange(self.log, start, end, isolation).batches()

    def columns(
        self,
        *,
        start: int | None = None,
        end: int | None = None,
        isolation: str = Isolation.READ_UNCOMMITTED,
    ) -> Iterator[RecordColumns]:
        """The records as numpy columns, a batch at a time."""
        return LogRange(self.log, start, end, isolation).columns()

    def offset_for_time(self, timestamp_ms: int) -> int | None:
        """The offset of the first record not older than the timestamp; None without one."""
        timestamp_ms = check_int(timestamp_ms, "timestamp_ms")
        offset = self.log.find_offset_by_time(timestamp_ms)
        return None if offset is None else offset.offset

    def offsets(self) -> PartitionOffsets:
        """Where the partition's records begin and end."""
        log = self.log
        return PartitionOffsets(
            log_start=log.log_start_offset,
            local_start=max(log.log_start_offset, log.local_start_offset),
            last_stable=log.last_stable_offset,
            high_watermark=log.high_watermark,
            end=log.end_offset,
        )

    def delete_records(self, before: int) -> int:
        """Deletes the records before an offset, -1 for all; returns the log start offset."""
        before = check_int(before, "before")
        return self.log.delete_records(before)

    def flush(self) -> None:
        """Syncs everything appended so far to disk."""
        self.log.flush()


class ReadRange(ABC):
    """The offsets [start, end) of one partition, to be read under an isolation level."""

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end

    @abstractmethod
    def fetch(self, offset: int) -> CommittedBatches | None:
        """The next batches from an offset on; None when the log has no more."""

    def batches(self) -> Iterator[Batch]:
        """The batches that hold its records, whole and as stored, without control batches."""
        offset = self.start
        while offset < self.end:
            fetched = self.fetch(offset)
            if fetched is None:
                return
            for batch in fetched:
                if batch.header.base_offset >= self.end:
                    return
                yield batch
            offset = fetched.next_offset

    def columns(self) -> Iterator[RecordColumns]:
        """The records as columns, a batch at a time; none is empty."""
        for batch in self.batches():
            columns = columns_within(batch, start=self.start, end=self.end)
            if len(columns):
                yield columns


class LogRange(ReadRange):
    """A range of a log in this process, limited to the records visible now.

    Raises OffsetOutOfRange for a start outside the log.
    """

    def __init__(self, log: Log, start: int | None, end: int | None, isolation: str) -> None:
        check_isolation(isolation)
        start = None if start is None else check_int(start, "start")
        end = None if end is None else check_int(end, "end")
        log_start, log_end = log.log_start_offset, log.end_offset
        if start is None:
            start = log_start
        elif not log_start <= start <= log_end:
            raise OffsetOutOfRange(
                f"{log.topic_partition}: offset {start} is outside the log, which begins "
                f"at {log_start} and whose records end before {log_end}; read from there"
            )
        self._log = log
        self._isolation = Isolation(isolation)
        is_committed = self._isolation is Isolation.READ_COMMITTED
        visible = log.last_stable_offset if is_committed else log.high_watermark
        super().__init__(start, visible if end is None else min(end, visible))

    def fetch(self, offset: int) -> CommittedBatches | None:
        read = self._log.read(start_offset=offset, isolation=self._isolation)
        if not read.data:
            return None
        where = str(self._log.topic_partition)
        return CommittedBatches(read.data, read.aborted, start_offset=offset, where=where)


def columns_within(batch: Batch, *, start: int, end: int = LONG_MAX) -> RecordColumns:
    """The records of a batch with offsets [start, end)."""
    columns = batch.columns()
    if start <= batch.header.base_offset and batch.header.last_offset < end:
        return columns
    inside = (columns.offsets >= start) & (columns.offsets < end)
    return RecordColumns(columns.payload, columns.table[inside])


def stored_records(columns: RecordColumns, partition: int) -> Iterator[StoredRecord]:
    """The records in the columns, as objects."""
    payload = columns.payload.tobytes()
    for index, row in enumerate(columns.table.tolist()):
        offset, timestamp, key, key_size, value, value_size, _, header_count, _, _ = row
        yield StoredRecord(
            partition,
            offset,
            timestamp,
            None if key_size < 0 else payload[key : key + key_size],
            None if value_size < 0 else payload[value : value + value_size],
            columns.headers(index) if header_count else (),
        )
