"""A topic behind a server, varve's or any Kafka's, as the source of a feed.

Invariant  one request asks a broker for all partitions that it leads, so that a wait is for any of
           them. What cannot be told apart from silence is asked again. Rights that are missing
           may be given: until then the topic is away, and not gone. Where topics have ids,
           what was read before `topic_id` is of the topic that it tells.
Threads    see `source`; the client has a lock of its own.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final
from uuid import UUID

from varve.commit_log.partition_metadata import encode_topic_id
from varve.foundation.errors import StoreDenied, Unavailable
from varve.kafka_client.address import ClusterAddress
from varve.kafka_client.client import EARLIEST, LATEST, KafkaClient
from varve.shapes.feed.committed import read_committed
from varve.shapes.feed.source import SourceRead, Wait
from varve.wire.errors import ErrorCode, RetriableError, raise_for_code
from varve.wire.messages.data import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from varve.wire.schema import NO_ID

_READ_COMMITTED: Final = 1
_ANSWER_BYTES: Final = 16 << 20
_DELETE_RETENTION: Final = "delete.retention.ms"
_DELETE_RETENTION_MS: Final = 24 * 3_600_000
_POLICY: Final = "cleanup.policy"
_OTHER_TOPIC: Final = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID)


class ServerSource:
    """Reads a topic through Kafka's protocol."""

    def __init__(self, address: ClusterAddress, topic: str, *, wait: Wait) -> None:
        self.topic = topic
        self._address = address
        self._client = KafkaClient(address, wait)
        # Who reads waits for the server; others need not wait for them.
        self._asking = KafkaClient(address, wait)
        self._id: UUID | None = None
        self._leaders: Mapping[int, int] | None = None

    @property
    def place(self) -> str:
        return self._address.name

    def topic_id(self) -> str:
        if self._id is None:
            with _wait_for_rights():
                self._id = self._asking.topic(self.topic).id
        return "" if self._id == NO_ID else encode_topic_id(self._id)

    def partition_count(self) -> int:
        with _wait_for_rights():
            found = self._asking.topic(self.topic)
        self._id = found.id
        return len(found.leaders)

    def bounds(self, partition: int) -> tuple[int, int]:
        with _wait_for_rights():
            start = self._asking.find_offset(self.topic, partition, EARLIEST, is_committed=False)
            end = self._asking.find_offset(self.topic, partition, LATEST, is_committed=True)
        if start is None or end is None:
            raise Unavailable(
                f"{self.place} tells no bounds of {self.topic}-{partition}: try again"
            )
        return start, max(start, end)

    def read(
        self, positions: Mapping[int, int], *, max_bytes: int, wait_ms: int
    ) -> Mapping[int, SourceRead]:
        def ask() -> dict[int, SourceRead]:
            try:
                return self._read(positions, max_bytes, wait_ms)
            except Unavailable:
                self._leaders = None
                raise

        with _wait_for_rights():
            return self._client.retry(ask)

    def tombstone_retention_ms(self) -> int | None:
        with _wait_for_rights():
            told = self._asking.topic_settings(self.topic)
        if "compact" not in told.get(_POLICY, ""):
            return None
        return int(told.get(_DELETE_RETENTION, _DELETE_RETENTION_MS))

    def close(self) -> None:
        self._client.close()
        self._asking.close()

    def _read(
        self, positions: Mapping[int, int], max_bytes: int, wait_ms: int
    ) -> dict[int, SourceRead]:
        groups = self._by_leader(positions)
        found: dict[int, SourceRead] = {}
        if len(groups) > 1:
            for group in groups:
                found |= self._fetch(group, max_bytes, 0)
        if found:
            return found
        for group in groups:
            # One connection is read at a time, so brokers share the time.
            found |= self._fetch(group, max_bytes, wait_ms // len(groups))
        return found

    def _by_leader(self, positions: Mapping[int, int]) -> list[dict[int, int]]:
        if self._leaders is None or not self._leaders.keys() >= positions.keys():
            found = self._client.topic(self.topic)
            self._id, self._leaders = found.id, found.leaders
        groups: dict[int, dict[int, int]] = {}
        for partition, offset in positions.items():
            leader = self._leaders.get(partition, partition)
            groups.setdefault(leader, {})[partition] = offset
        return list(groups.values())

    def _fetch(
        self, positions: Mapping[int, int], max_bytes: int, wait_ms: int
    ) -> dict[int, SourceRead]:
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=max(max_bytes, _ANSWER_BYTES),
            isolation_level=_READ_COMMITTED,
            topics=[
                FetchTopic(
                    self.topic,
                    self._id or NO_ID,
                    partitions=[
                        FetchPartition(number, fetch_offset=offset, partition_max_bytes=max_bytes)
                        for number, offset in positions.items()
                    ],
                )
            ],
        )
        answer = self._client.send_to_leader(
            self.topic, next(iter(positions)), request, FetchResponse
        )
        raise_for_code(answer.error_code, f"{self.place}: {self.topic}")
        parts = [one for topic in answer.responses for one in topic.partitions]
        found = {}
        if any(part.error_code in _OTHER_TOPIC for part in parts):
            # Made anew, or not known to this broker yet: the id tells which.
            self._leaders = None
            raise RetriableError(
                f"{self.place} has no topic {self.topic} of that id", refresh_metadata=True
            )
        for part in parts:
            read = self._read_part(part, positions[part.partition_index])
            if read.next_offset > positions[part.partition_index]:
                found[part.partition_index] = read
        if not found and answer.throttle_time_ms:
            raise RetriableError(f"{self.place} asks for patience (a quota is used up)")
        return found

    def _read_part(self, part: PartitionData, offset: int) -> SourceRead:
        where = f"{self.place}: {self.topic}-{part.partition_index}"
        raise_for_code(part.error_code, f"{where}, offset {offset}")
        aborted = [(one.producer_id, one.first_offset) for one in part.aborted_transactions or ()]
        data = part.records or memoryview(b"")
        found = read_committed(data, aborted, start=offset, where=where)
        return SourceRead(found.columns, found.next_offset, part.last_stable_offset)


@contextmanager
def _wait_for_rights() -> Iterator[None]:
    """Makes a refusal something to try again."""
    try:
        yield
    except StoreDenied as error:
        raise Unavailable(str(error)) from error
