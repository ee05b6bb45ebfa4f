"""A log as a plain list of stored batches, and what follows from it by brute force.

The model knows nothing of segments, indexes or snapshots: whatever a log answers from those must
equal what this computes from the bytes alone.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from varve.commit_log import Isolation, Log
from varve.commit_log.transaction_index import AbortedTransaction
from varve.records import Batch, BatchHeader, Record, decode_control_record, decode_header
from varve.records.building import ControlType


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """One batch as the log gave it out."""

    data: bytes
    header: BatchHeader
    records: tuple[Record, ...]

    @staticmethod
    @lru_cache(maxsize=4096)
    def of(data: bytes) -> "StoredBatch":
        batch = Batch(data)
        assert batch.is_valid_crc()
        return StoredBatch(data, batch.header, tuple(batch.records()))

    @property
    def base_offset(self) -> int:
        return self.header.base_offset

    @property
    def last_offset(self) -> int:
        return self.header.last_offset

    @property
    def is_abort(self) -> bool:
        return self.is_marker and bool(self.records) and _marker_type(self) is ControlType.ABORT

    @property
    def is_marker(self) -> bool:
        return self.header.is_control


def _marker_type(batch: StoredBatch) -> ControlType:
    record = batch.records[0]
    assert record.key is not None
    return decode_control_record(record.key, record.value).type


class Producer(NamedTuple):
    """What the batches say of one producer."""

    epoch: int
    last_sequence: int
    transaction_first_offset: int | None


@dataclass(slots=True)
class LogModel:
    """The batches of a log from its first stored one on."""

    batches: list[StoredBatch] = field(default_factory=list)
    log_start_offset: int = 0
    end_offset: int = 0

    def copy(self) -> "LogModel":
        return LogModel(list(self.batches), self.log_start_offset, self.end_offset)

    def append(self, data: bytes) -> StoredBatch:
        batch = StoredBatch.of(data)
        assert batch.base_offset >= self.end_offset
        self.batches.append(batch)
        self.end_offset = batch.last_offset + 1
        return batch

    def truncate_to(self, offset: int) -> None:
        if offset >= self.end_offset:
            return
        self.batches = [batch for batch in self.batches if batch.last_offset < offset]
        self.end_offset = offset
        self.log_start_offset = min(self.log_start_offset, offset)

    def reset_at(self, offset: int) -> None:
        self.batches = []
        self.end_offset = self.log_start_offset = offset

    def kept_end(self, offset: int) -> int:
        """The end of the last batch that ends at or before an offset."""
        return max((b.last_offset + 1 for b in self.batches if b.last_offset < offset), default=0)

    def visible(self) -> list[StoredBatch]:
        """The batches that a read from the log start offset returns."""
        return [batch for batch in self.batches if batch.last_offset >= self.log_start_offset]

    def records(self) -> list[Record]:
        """The records at or above the log start offset, markers too: they have a time as well."""
        return [
            record
            for batch in self.batches
            for record in batch.records
            if record.offset >= self.log_start_offset
        ]

    def producers(self, *, with_deleted: bool = True) -> dict[int, Producer]:
        known: dict[int, Producer] = {}
        for batch in self.batches if with_deleted else self.visible():
            header = batch.header
            if header.producer_id < 0:
                continue
            last = known.get(header.producer_id, Producer(-1, -1, None))
            if batch.is_marker:
                sequence = last.last_sequence if header.producer_epoch == last.epoch else -1
                known[header.producer_id] = Producer(header.producer_epoch, sequence, None)
                continue
            first = last.transaction_first_offset
            if first is None and header.is_transactional:
                first = batch.base_offset
            known[header.producer_id] = Producer(header.producer_epoch, header.last_sequence, first)
        return known

    def is_deleted(self, producer_id: int) -> bool:
        """Whether no record of a producer is left at or above the log start offset."""
        return not any(
            batch.header.producer_id == producer_id and not batch.is_marker
            for batch in self.visible()
        )

    def aborted(self) -> list[AbortedTransaction]:
        """The aborted transactions in the order of their markers."""
        ongoing: dict[int, int] = {}
        found = []
        for batch in self.batches:
            header = batch.header
            if header.producer_id < 0:
                continue
            if not batch.is_marker:
                if header.is_transactional:
                    ongoing.setdefault(header.producer_id, batch.base_offset)
                continue
            first = ongoing.pop(header.producer_id, None)
            if first is not None and batch.is_abort:
                stable = min(ongoing.values(), default=batch.base_offset + 1)
                found.append(
                    AbortedTransaction(header.producer_id, first, batch.base_offset, stable)
                )
        return found

    def last_stable_offset(self, high_watermark: int, *, with_deleted: bool = True) -> int:
        firsts = [
            producer.transaction_first_offset
            for producer in self.producers(with_deleted=with_deleted).values()
            if producer.transaction_first_offset is not None
        ]
        return min(max(min(firsts, default=high_watermark), self.log_start_offset), high_watermark)

    def committed_records(self, end_offset: int) -> list[Record]:
        """What a reader of committed records sees below an offset."""
        voids = [(one.producer_id, one.first_offset, one.last_offset) for one in self.aborted()]
        return [
            record
            for batch in self.visible()
            if batch.last_offset < end_offset and not batch.is_marker
            if not any(
                batch.header.is_transactional
                and batch.header.producer_id == producer_id
                and first <= batch.base_offset < last
                for producer_id, first, last in voids
            )
            for record in batch.records
            if record.offset >= self.log_start_offset
        ]

    def first_at_or_after(self, timestamp: int) -> tuple[int, int] | None:
        for record in self.records():
            if record.timestamp >= timestamp:
                return record.timestamp, record.offset
        return None

    def newest(self) -> tuple[int, int] | None:
        """The first record with the largest timestamp, whether deleted or not; None without one."""
        records = [record for batch in self.batches for record in batch.records]
        newest = max(records, key=lambda record: (record.timestamp, -record.offset), default=None)
        return (newest.timestamp, newest.offset) if newest and newest.timestamp >= 0 else None


def split_batches(data: memoryview | bytes) -> list[bytes]:
    """The whole batches of a fetched range."""
    found, position = [], 0
    while position < len(data):
        size = decode_header(data, position).size
        found.append(bytes(data[position : position + size]))
        position += size
    return found


def read_all(
    log: Log,
    *,
    max_bytes: int = 700,
    isolation: Isolation = Isolation.LOG_END,
) -> list[bytes]:
    """Every stored batch from the log start offset on, as fetches return them."""
    found: list[bytes] = []
    offset = log.log_start_offset
    while True:
        fetched = log.read(start_offset=offset, max_bytes=max_bytes, isolation=isolation)
        if not len(fetched.data):
            return found
        found += split_batches(fetched.data)
        assert fetched.next_offset > offset
        offset = fetched.next_offset


def read_committed(log: Log, *, start_offset: int, max_bytes: int = 700) -> list[Record]:
    """What a client that filters by the aborted list makes of read-committed fetches."""
    found: list[Record] = []
    offset = start_offset
    while True:
        fetched = log.read(
            start_offset=offset, max_bytes=max_bytes, isolation=Isolation.READ_COMMITTED
        )
        if not len(fetched.data):
            return found
        found += [
            record
            for record in filter_committed(split_batches(fetched.data), list(fetched.aborted))
            if record.offset >= offset
        ]
        offset = fetched.next_offset


def filter_committed(batches: list[bytes], aborted: list[tuple[int, int]]) -> list[Record]:
    """Kafka's consumer: a producer is void from its aborted first offset to its abort marker."""
    waiting = sorted(aborted, key=lambda one: one[1])
    void: set[int] = set()
    found: list[Record] = []
    for data in batches:
        batch = StoredBatch.of(data)
        while waiting and waiting[0][1] <= batch.last_offset:
            void.add(waiting.pop(0)[0])
        if batch.is_marker:
            if batch.is_abort:
                void.discard(batch.header.producer_id)
            continue
        if not (batch.header.is_transactional and batch.header.producer_id in void):
            found += batch.records
    return found


def check_equals(log: Log, model: LogModel) -> None:
    """Everything a log answers without being changed, against the model."""
    assert read_all(log) == [batch.data for batch in model.visible()]
    assert log.end_offset == model.end_offset
    assert log.log_start_offset == model.log_start_offset
    assert log.log_start_offset <= log.last_stable_offset <= log.high_watermark <= log.end_offset
    assert log.recovery_point <= log.end_offset
    _check_segments(log)
    _check_transactions(log, model)
    _check_times(log, model)


def _check_segments(log: Log) -> None:
    segments = list(log.view)
    bases = [segment.base_offset for segment in segments]
    assert bases == sorted(set(bases))
    for segment in segments:
        segment.offset_index().check(segment.path(".index"))
        segment.time_index().check(segment.path(".timeindex"))
        segment.txn_index().check(segment.path(".txnindex"))


def _check_transactions(log: Log, model: LogModel) -> None:
    stable = log.last_stable_offset
    # A truncation that takes a marker opens its transaction again; of what was deleted before, the
    # log knows as much as a snapshot tells.
    assert stable in {
        model.last_stable_offset(log.high_watermark, with_deleted=known) for known in (True, False)
    }
    aborted = model.aborted()
    if all(one.first_offset >= model.log_start_offset for one in aborted):
        assert log.aborted_transactions() == aborted
    start = model.log_start_offset
    assert read_committed(log, start_offset=start) == model.committed_records(stable)


def _check_times(log: Log, model: LogModel) -> None:
    timestamps = sorted({record.timestamp for record in model.records()})
    some = timestamps[:: len(timestamps) // 3 + 1] + timestamps[-1:]
    for timestamp in [0, *some, *(timestamp + 1 for timestamp in some)]:
        found = log.find_offset_by_time(timestamp)
        assert (found and (found.timestamp, found.offset)) == model.first_at_or_after(timestamp)
    found = log.find_max_timestamp()
    newest = model.newest()
    if newest is None or newest[1] >= model.log_start_offset:
        assert (found and (found.timestamp, found.offset)) == newest
