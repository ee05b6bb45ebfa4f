"""One partition of a topic, as the public face shows it."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from varve.commit_log import AppendResult, Isolation, Log, LogManager, TopicPartition
from varve.embedded.reading import batches_of, columns_of, read_range, records_of
from varve.embedded.stored_record import StoredRecord
from varve.foundation.errors import InvalidRequest
from varve.records import Batch, Buffer, RecordColumns


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """A partition's marks: records stand at `log_start` and up to, not including, the others.

    Those before `local_start` are in the cold tier only.
    """

    log_start: int
    local_start: int
    last_stable: int
    high_watermark: int
    end: int


class Partition:
    """A partition. Made by `Topic.partition`."""

    def __init__(self, topic: str, number: int, logs: LogManager) -> None:
        self.number = number
        self._topic_partition = TopicPartition(topic, number)
        self._logs = logs

    def __repr__(self) -> str:
        return f"<Partition {self._topic_partition}>"

    @property
    def log(self) -> Log:
        """The engine's log, for idempotent producers, transactions and all else it can do."""
        return self._logs.get(self._topic_partition)

    def append_batch(self, batch: Buffer) -> AppendResult:
        """Appends a ready batch of message format 2; the log gives out its offsets."""
        return self.log.append(batch)

    def read(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        isolation: str = Isolation.READ_UNCOMMITTED,
        max_records: int | None = None,
    ) -> Iterator[StoredRecord]:
        """The records from `start` (None: the first there is) to before `end`.

        It ends, at the latest, where the log ended when the read began.
        """
        if max_records is not None and max_records < 0:
            raise InvalidRequest(f"max_records {max_records} is below 0")
        wanted = read_range(self.log, self.number, start=start, end=end, isolation=isolation)
        return islice(records_of(wanted), max_records)

    def read_batches(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        isolation: str = Isolation.READ_UNCOMMITTED,
    ) -> Iterator[Batch]:
        """The batches that hold these records: whole, so the first may begin before `start`."""
        wanted = read_range(self.log, self.number, start=start, end=end, isolation=isolation)
        return batches_of(wanted)

    def columns(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        isolation: str = Isolation.READ_UNCOMMITTED,
    ) -> Iterator[RecordColumns]:
        """The records as numpy columns, a batch at a time."""
        wanted = read_range(self.log, self.number, start=start, end=end, isolation=isolation)
        return columns_of(wanted)

    def offset_for_time(self, timestamp: int) -> int | None:
        """The offset of the first record not older than the timestamp; None without one."""
        offset = self.log.find_offset_by_time(timestamp)
        return None if offset is None else offset.offset

    def offsets(self) -> PartitionOffsets:
        log = self.log
        return PartitionOffsets(
            log_start=log.log_start_offset,
            local_start=max(log.log_start_offset, log.local_start_offset),
            last_stable=log.last_stable_offset,
            high_watermark=log.high_watermark,
            end=log.end_offset,
        )

    def delete_records(self, before: int) -> int:
        """Drops the records before an offset, -1 meaning all there are; gives the log start."""
        return self.log.delete_records(before)

    def flush(self) -> None:
        """Brings everything appended so far to the disk."""
        self.log.flush()
