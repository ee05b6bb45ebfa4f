"""Both ends of a deduplication behind a server: varve's, or any of Kafka's protocol.

A chunk is a transaction of the id `varve-dedup-<name>-<partition>`. Its coordinator fences and
settles; the position is noted as an offset of the group `varve-dedup-<name>` as well, so that
Kafka's own tools show the lag.

Invariant  the progress is read after the coordinator has ended what an earlier user left open.
Crash      the coordinator ends an open transaction: committed once it has noted the end, else
           aborted by the next `open_task` or after the timeout.
Threads    see `ends`; each partition has a client of its own, so that none waits for another.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from varve.commit_log.partition_metadata import encode_topic_id
from varve.dedup.chunk import InputRead, make_chunk
from varve.dedup.committed import CommittedBatches
from varve.dedup.ends import (
    RETENTION,
    DedupTopics,
    TaskCommit,
    TopicIds,
    check_own_topics,
    check_partitions,
    longer_retention,
)
from varve.dedup.producing import Producer, join_all
from varve.dedup.progress import Progress, find_last_progress, progress_batch
from varve.dedup.survivors import BatchLimit
from varve.foundation.clock import Clock
from varve.foundation.errors import Closed, NotFound, StoreError, Unavailable
from varve.kafka_client.address import ClusterAddress
from varve.kafka_client.client import EARLIEST, LATEST, KafkaClient
from varve.kafka_client.transaction import CommittedOffset, TransactionalProducer
from varve.records import Batch, RecordColumns, decode_header

PREFIX: Final = "varve-dedup-"
"""Before the name in transactional ids and in the group that notes positions."""
_READ_BYTES: Final = 4 << 20
_LOOK_MS: Final = 5_000
_MESSAGE_BYTES: Final = 1_048_588

Wait = Callable[[float], object]
"""Lets so many seconds pass."""


@dataclass(slots=True)
class _Writer:
    """Who writes to a partition now; `sequences` are the next ones by topic."""

    transactions: TransactionalProducer
    sequences: dict[str, int]
    changelog_end: int

    @property
    def producer(self) -> Producer:
        return Producer(self.transactions.producer_id, self.transactions.producer_epoch)


class ServerEnds:
    """Ends behind a server."""

    def __init__(
        self,
        address: ClusterAddress,
        topics: DedupTopics,
        *,
        settings: Mapping[str, Mapping[str, str]],
        clock: Clock,
        wait: Wait,
    ) -> None:
        self.topics = topics
        self._address = address
        self._settings = settings
        self._clock = clock
        self._wait = wait
        self._lock = threading.Lock()
        self._clients: dict[int, KafkaClient] = {}  # guarded by _lock
        self._writers: dict[int, _Writer] = {}
        self._admin = KafkaClient(address, wait)

    @property
    def place(self) -> str:
        return self._address.name

    def prepare(self) -> int:
        topics = self.topics
        count = len(self._admin.topic(topics.input).leaders)
        own = [one for one in (topics.changelog, topics.progress) if self._has_topic(one)]
        check_own_topics(topics, own, place=self.place, has_entries=self._has_entries)
        for name in topics.written:
            found = self._admin.create_topic(
                name, partitions=count, settings=self._settings[name], exist_ok=True
            )
            check_partitions(topics, name, len(found.leaders), wanted=count)
        had = self._admin.topic_settings(topics.changelog).get(RETENTION)
        altered = longer_retention(int(had or -1), self._settings[topics.changelog])
        if altered:
            self._admin.alter_topic(topics.changelog, altered)
        return count

    def _has_topic(self, name: str) -> bool:
        try:
            self._admin.topic(name)
        except NotFound:
            return False
        return True

    def _has_entries(self) -> bool:
        """Whether anything was ever written to the changelog."""
        topic = self.topics.changelog
        ends = (
            self._admin.find_offset(topic, partition, LATEST, is_committed=False)
            for partition in range(self.partition_count(topic))
        )
        return any(ends)

    def partition_count(self, topic: str) -> int:
        return len(self._admin.topic(topic).leaders)

    def topic_ids(self) -> TopicIds:
        names = (self.topics.input, self.topics.output)
        return TopicIds(*(encode_topic_id(self._admin.topic(name).id) for name in names))

    def limits(self) -> Mapping[str, BatchLimit]:
        found = {}
        for name in self.topics.written:
            told = self._admin.topic_settings(name)
            sizes = (told.get("max.message.bytes"), told.get("segment.bytes"))
            given = [int(one) for one in sizes if one is not None]
            found[name] = BatchLimit(name, min(given, default=_MESSAGE_BYTES))
        return found

    # A task's beginning and end

    def find_progress(self, partition: int) -> Progress | None:
        topic = self.topics.progress
        start, end = self._bounds(topic, partition)

        def read(offset: int) -> tuple[list[Batch], int]:
            found = self._read_below(topic, partition, offset, end)
            return [one.batch for one in found.batches], found.next_offset

        where = f"{self.place}: {topic}-{partition}"
        return find_last_progress(read, start=start, end=end, where=where)

    def open_task(self, partition: int) -> Progress | None:
        id = f"{PREFIX}{self.topics.name}-{partition}"
        timeout_ms = self._address.timeout_ms
        transactions = TransactionalProducer(self._client(partition), id, timeout_ms=timeout_ms)
        transactions.begin()
        sequences = dict.fromkeys(self.topics.written, 0)
        changelog_end = self.changelog_bounds(partition)[1]
        self._writers[partition] = _Writer(transactions, sequences, changelog_end)
        return self.find_progress(partition)

    def close_task(self, partition: int) -> None:
        self._writers.pop(partition, None)
        with self._lock:
            client = self._clients.pop(partition, None)
        if client is not None:
            client.close()

    def close(self) -> None:
        for partition in list(self._clients):
            self.close_task(partition)
        self._admin.close()

    # Reading

    def input_bounds(self, partition: int) -> tuple[int, int]:
        return self._bounds(self.topics.input, partition)

    def changelog_bounds(self, partition: int) -> tuple[int, int]:
        return self._bounds(self.topics.changelog, partition)

    def read(self, partition: int, start: int, *, max_bytes: int, wait_ms: int) -> InputRead:
        return self._fetch(self.topics.input, partition, start, max_bytes, wait_ms)

    def read_changelog(self, partition: int, start: int) -> Iterator[tuple[RecordColumns, int]]:
        topic = self.topics.changelog
        end = self._bounds(topic, partition)[1]
        offset = start
        while offset < end:
            found = self._read_below(topic, partition, offset, end)
            yield make_chunk(found.batches, start_offset=start).columns, found.next_offset
            offset = found.next_offset

    def _bounds(self, topic: str, partition: int) -> tuple[int, int]:
        client = self._client(partition)
        start = client.find_offset(topic, partition, EARLIEST, is_committed=False)
        end = client.find_offset(topic, partition, LATEST, is_committed=True)
        if start is None or end is None:
            raise Unavailable(f"{self.place} tells no bounds of {topic}-{partition}: try again")
        return start, max(start, end)

    def _read_below(self, topic: str, partition: int, offset: int, end: int) -> InputRead:
        """What lies at an offset below a known end; raises Unavailable where it does not come."""
        for _ in range(max(1, self._address.timeout_ms // _LOOK_MS)):
            found = self._fetch(topic, partition, offset, _READ_BYTES, _LOOK_MS)
            if found.next_offset > offset:
                return found
        raise Unavailable(
            f"{self.place}: {topic}-{partition} gives nothing at offset {offset}, and ends at "
            f"{end}: try again"
        )

    def _fetch(
        self, topic: str, partition: int, offset: int, max_bytes: int, wait_ms: int
    ) -> InputRead:
        fetched = self._client(partition).fetch(
            topic,
            partition,
            offset,
            max_bytes=max_bytes,
            max_wait_ms=wait_ms,
            is_committed=True,
        )
        aborted = [(one.producer_id, one.first_offset) for one in fetched.aborted]
        where = f"{self.place}: {topic}-{partition}"
        walk = CommittedBatches(fetched.data, aborted, start=offset, where=where)
        batches = list(walk)
        return InputRead(batches, walk.next_offset, fetched.last_stable_offset)

    def _client(self, partition: int) -> KafkaClient:
        with self._lock:
            if partition not in self._clients:
                self._clients[partition] = KafkaClient(self._address, self._wait)
            return self._clients[partition]

    # Writing

    def commit(self, partition: int, commit: TaskCommit) -> int:
        writer = self._writers.pop(partition, None)
        if writer is None:
            raise Closed(f"{self.topics.output}-{partition}: open the task before a commit")
        try:
            self._write(writer, partition, commit)
        except StoreError:
            # What cannot be aborted now is aborted by the next start, or when its time is over.
            with suppress(StoreError):
                writer.transactions.end(is_committed=False)
            raise
        writer.transactions.end(is_committed=True)
        self._writers[partition] = writer
        return writer.changelog_end

    def _write(self, writer: _Writer, partition: int, commit: TaskCommit) -> None:
        topics, transactions = self.topics, writer.transactions
        note = progress_batch(commit.progress, self._clock.now_ms())
        parts = {
            topics.changelog: commit.changelog,
            topics.output: commit.output,
            topics.progress: [note],
        }
        if topics.side is not None:
            parts[topics.side] = commit.side
        written = {name: batches for name, batches in parts.items() if batches}
        transactions.add_topics({name: [partition] for name in written})
        for name, batches in written.items():
            joined, following = join_all(batches, writer.producer, writer.sequences[name])
            offset = transactions.append_all(name, partition, joined)
            writer.sequences[name] = following
            if name == topics.changelog and offset >= 0:
                writer.changelog_end = offset + decode_header(joined[-1]).last_offset_delta + 1
        position = CommittedOffset(topics.input, commit.progress.position, "", partition)
        transactions.commit_offset(f"{PREFIX}{topics.name}", position)
