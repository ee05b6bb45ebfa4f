"""An internal compacted topic in which a coordinator keeps its state: the last record of each key.

All records of a name (a group, a transactional id) are in one partition, chosen by Java's hash of
the name. The topic is created when a name is first used. Most of its batches hold one record, so
the records of many batches are parsed as if they were in one: a start after a busy day reads
millions.

Layout     see `wire.state_records`; a value of null is a tombstone.
Invariant  `append` and `submit` complete in the order of the calls for one partition: what follows
           an `await` of them may change memory without looking at others.
           In a replay the last committed record of a key counts; records of transactions that have
           not ended are returned separately, with their producer.
           A batch or record that cannot be read or used is left out of a replay, logged and
           counted: it does not keep the broker from starting. It stays in the log.
Crash      the topic is created with `flush=ack`: a completed append is on disk. The records of one
           append are there together or not at all.
Threads    the loop's; replays and the creation of the topic run in the blocking pool.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import dropwhile
from typing import Final, NamedTuple

import numpy as np

from varve.broker.append_scheduler import AppendEntry, AppendScheduler
from varve.broker.background import BlockingPool
from varve.broker.topics import Topics, current_leader_epoch
from varve.commit_log import Log, TopicPartition
from varve.commit_log.producer_state import AppendOrigin
from varve.embedded import Store
from varve.foundation.errors import Corrupt, DirectoryOffline, TopicExists
from varve.kernels.batch_layout import (
    CONTROL_BIT,
    TRANSACTIONAL_BIT,
    BatchColumn,
    ScanStatus,
    status_text,
)
from varve.records import ControlType, Producer, Record, build_batch, decode_control_record
from varve.records.columns import Integers, frozen_bytes
from varve.records.committed import parse_columns, scan_whole_batches

logger = logging.getLogger(__name__)

_READ_BYTES: Final = 4 << 20
_ONE_BATCH: Final = 1
"""A read has one batch at least, whatever its size."""
_NO_PRODUCER: Final = -1


class StateTopic:
    """The partitions of one such topic, which may not exist yet."""

    def __init__(
        self,
        name: str,
        store: Store,
        topics: Topics,
        appends: AppendScheduler,
        blocking: BlockingPool,
        *,
        partition_count: int,
        segment_bytes: int,
    ) -> None:
        """The topic is created with this partition count and segment size."""
        self._name = name
        self._store = store
        self._topics = topics
        self._appends = appends
        self._blocking = blocking
        self._partition_count = partition_count
        self._segment_bytes = segment_bytes
        self._creation: asyncio.Future[None] | None = None
        self._last_appends: dict[int, asyncio.Future[int]] = {}
        self.unreadable_count = 0
        """Records and batches that replays left out."""

    # Partitions

    @property
    def exists(self) -> bool:
        return self._topics.find(self._name) is not None

    def partition_of(self, name: str) -> TopicPartition:
        """Where the records of a name are, or will be once the topic is created."""
        topic = self._topics.find(self._name)
        count = self._partition_count if topic is None else len(topic.logs)
        return TopicPartition(self._name, partition_for(name, count))

    def find_log(self, name: str) -> Log | None:
        """None where the partition of a name is offline or not created yet."""
        topic = self._topics.find(self._name)
        return None if topic is None else topic.find_log(partition_for(name, len(topic.logs)))

    def get_log(self, name: str) -> Log:
        """The partition of a name; raises DirectoryOffline."""
        log = self.find_log(name)
        if log is not None:
            return log
        if not self.exists:
            raise DirectoryOffline(f"{self._name} no longer exists; restart the broker")
        raise DirectoryOffline(
            f"{self.partition_of(name)} is offline: repair its disk and reopen the store"
        )

    def is_offline(self, name: str) -> bool:
        """Whether a name may have records that cannot be read."""
        return self.exists and self.find_log(name) is None

    def leader_epoch(self, name: str) -> int:
        """Of the partition of a name; raises DirectoryOffline."""
        return current_leader_epoch(self.get_log(name))

    async def ensure(self) -> None:
        """Creates the topic unless it exists."""
        if self.exists:
            return
        if self._creation is None:
            self._creation = self._blocking.run(self._create)
            self._creation.add_done_callback(self._created)
        await asyncio.shield(self._creation)

    def _create(self) -> None:
        try:
            self._store.create_topic(
                self._name,
                partitions=self._partition_count,
                settings={
                    "cleanup.policy": "compact",
                    "compression.type": "producer",
                    "segment.bytes": self._segment_bytes,
                    "flush": "ack",
                },
            )
        except TopicExists:
            return

    def _created(self, creation: "asyncio.Future[None]") -> None:
        self._creation = None
        if not creation.cancelled() and creation.exception() is None:
            self._topics.refresh()

    # Appending

    async def append(
        self, name: str, records: Sequence[Record], *, producer: Producer | None = None
    ) -> int:
        """Writes records of a name as one batch, and creates the topic first where it is missing.

        With a producer they are part of its transaction. Returns the offset of the first record;
        raises what the log rejected the batch for.
        """
        await self.ensure()
        return await asyncio.shield(self.submit(name, records, producer=producer))

    async def append_synced(self, name: str, records: Sequence[Record]) -> None:
        """Like `append`; on disk when it returns, also where the topic was altered to sync less."""
        await self.append(name, records)
        log = self.get_log(name)
        if not log.settings.syncs_every_append:
            await self._blocking.run(log.flush)

    def submit(
        self, name: str, records: Sequence[Record], *, producer: Producer | None = None
    ) -> "asyncio.Future[int]":
        """Like `append`, for a topic that exists: written even if it is not awaited, and before
        anything that is submitted later.
        """
        id, epoch = (_NO_PRODUCER, -1) if producer is None else producer
        batch = build_batch(
            records, producer_id=id, producer_epoch=epoch, transactional=producer is not None
        )
        log = self.get_log(name)
        entry = AppendEntry(log, batch, AppendOrigin.COORDINATOR)
        appended = self._appends.submit([entry])
        number = log.topic_partition.partition
        done = asyncio.ensure_future(_in_order(entry, appended, self._last_appends.get(number)))
        self._last_appends[number] = done
        return done

    # Replaying

    async def replay(self) -> "AsyncIterator[StateReplay]":
        """The content of each partition; logs and skips those that are offline."""
        topic = self._topics.find(self._name)
        for number, log in enumerate(() if topic is None else topic.logs):
            if log is None:
                logger.warning(
                    "coordinator state is offline",
                    extra={"topic": self._name, "partition": number},
                )
                continue
            try:
                replayed = await self._blocking.run(replay_log, log)
            except DirectoryOffline as offline:
                # As above: nothing is answered from the part that was read.
                logger.warning(
                    "coordinator state is offline",
                    extra={"topic": self._name, "partition": number, "error": str(offline)},
                )
                self._topics.refresh()
                continue
            for error in replayed.errors:
                self.report_unreadable(error)
            yield replayed

    @contextmanager
    def setting_aside(self, where: str) -> Iterator[None]:
        """Around the use of one record at a start: one that cannot be used is left out."""
        try:
            yield
        except Corrupt as error:
            self.report_unreadable(error)
        except Exception as error:
            # A coordinator that starts without one record serves all others.
            self.report_unreadable(Corrupt(f"{where}: {type(error).__name__}: {error}"))

    def report_unreadable(self, error: Corrupt) -> None:
        """Counts and logs a record or batch that a replay leaves out."""
        self.unreadable_count += 1
        logger.error(
            "coordinator state cannot be read and is ignored",
            extra={"topic": self._name, "error": str(error)},
        )


async def _in_order(
    entry: AppendEntry, appended: "asyncio.Future[None]", before: "asyncio.Future[int] | None"
) -> int:
    """The offset of an entry, not before the one submitted before it is done."""
    await appended
    if before is not None:
        await asyncio.wait([before])
    if entry.error is not None:
        raise entry.error
    assert entry.result is not None
    return entry.result.base_offset


def partition_for(name: str, partition_count: int) -> int:
    """As Kafka chooses: the absolute value of Java's hash, 0 for the one that has none."""
    code = 0
    data = name.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(data), 2):
        code = (31 * code + (data[index] << 8) + data[index + 1]) & 0xFFFFFFFF
    signed = code - (1 << 32) if code >= 1 << 31 else code
    return 0 if signed == -(1 << 31) else abs(signed) % partition_count


class StateRecord(NamedTuple):
    """A record of a state topic; `producer_id` is set in a transaction that has not ended."""

    offset: int
    key: bytes
    value: bytes | None
    producer_id: int = _NO_PRODUCER


@dataclass(slots=True)
class StateReplay:
    """Live records in the order of the log, and those of transactions that have not ended."""

    where: str
    """The partition, for error messages."""
    live: list[StateRecord] = field(default_factory=list)
    pending: list[StateRecord] = field(default_factory=list)
    errors: list[Corrupt] = field(default_factory=list)
    """One for each batch that could not be read."""


def replay_log(log: Log) -> StateReplay:
    """Reads a whole partition."""
    errors: list[Corrupt] = []
    last: dict[bytes, tuple[int, bytes | None]] = {}
    open_records: dict[int, list[StateRecord]] = {}
    for offset, producer_id, attributes, key, value in scan_records(log, errors):
        if attributes & CONTROL_BIT:
            try:
                marker = decode_control_record(key, value)
            except Corrupt as error:
                errors.append(error)
                continue
            ended = open_records.pop(producer_id, [])
            if marker.type is ControlType.COMMIT:
                for record in ended:
                    # A later record of the key may be in the log already.
                    if last.get(record.key, (-1, None))[0] < record.offset:
                        last[record.key] = record.offset, record.value
        elif key is None:
            continue
        elif attributes & TRANSACTIONAL_BIT:
            record = StateRecord(offset, key, value, producer_id)
            open_records.setdefault(producer_id, []).append(record)
        else:
            last[key] = offset, value
    live = [
        StateRecord(offset, key, value)
        for key, (offset, value) in last.items()
        if value is not None
    ]
    live.sort()
    return StateReplay(
        str(log.topic_partition),
        live,
        [state_record for records in open_records.values() for state_record in records],
        errors,
    )


ScannedRecord = tuple[int, int, int, bytes | None, bytes | None]
"""Offset, producer and attributes of its batch, key and value."""


def scan_records(log: Log, errors: list[Corrupt]) -> Iterator[ScannedRecord]:
    """All records from the start of the log on, those of control batches included.

    A batch that cannot be read is left out, and its error added to `errors`.
    """
    start = offset = log.log_start_offset
    max_bytes = _READ_BYTES
    while True:
        try:
            read = log.read(start_offset=offset, max_bytes=max_bytes)
        except Corrupt as error:
            errors.append(error)  # the length of a batch is damaged: none after it can be found
            return
        if not read.data:
            return
        try:
            for records, next_offset in _parse(read.data, str(log.topic_partition)):
                # The first batch may begin before the log start offset.
                yield from dropwhile(lambda record: record[0] < start, records)
                offset = next_offset
        except Corrupt as error:
            if max_bytes == _READ_BYTES:
                max_bytes = _ONE_BATCH
                continue
            errors.append(error)
        offset = read.next_offset


def _parse(data: memoryview, where: str) -> Iterator[tuple[Iterator[ScannedRecord], int]]:
    """The records in parts, each with the offset after it."""
    buffer = frozen_bytes(data)
    batches, position, status = scan_whole_batches(buffer)
    if status is not ScanStatus.END:
        raise Corrupt(
            f"{where}: {status_text(status)} at position {position} of the data read; run `varve "
            "check` on the directory to see what is broken"
        )
    for columns, ends in parse_columns(buffer, batches, where=where):
        part, batches = batches[: len(ends)], batches[len(ends) :]
        counts = part[:, BatchColumn.RECORD_COUNT]
        payload = columns.payload.tobytes()
        records = zip(
            columns.offsets.tolist(),
            np.repeat(part[:, BatchColumn.PRODUCER_ID], counts).tolist(),
            np.repeat(part[:, BatchColumn.ATTRIBUTES], counts).tolist(),
            _slices(payload, columns.key_starts, columns.key_sizes),
            _slices(payload, columns.value_starts, columns.value_sizes),
            strict=True,
        )
        yield records, int(part[-1, BatchColumn.LAST_OFFSET]) + 1


def _slices(payload: bytes, starts: Integers, sizes: Integers) -> list[bytes | None]:
    return [
        payload[start:end] if end >= start else None
        for start, end in zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
    ]
