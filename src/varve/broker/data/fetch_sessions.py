"""Fetch sessions: a client sends only what changed since its last request. KIP-227.

Invariant  sessions and the partitions in them are bounded. A client without a session names all
           partitions in each request. A session takes one request at a time, by epoch.
Threads    the loop's.
"""

import random
from collections.abc import Iterator
from typing import Final, NamedTuple
from uuid import UUID

from varve.broker.settings import BrokerSettings
from varve.foundation.clock import Clock
from varve.wire import ErrorCode
from varve.wire.errors import KafkaError
from varve.wire.messages.data import FetchPartition, FetchRequest, PartitionData

NO_SESSION: Final = 0
_INITIAL_EPOCH: Final = 0
_FINAL_EPOCH: Final = -1
_EPOCH_MAX: Final = (1 << 31) - 1
_EVICTION_MS: Final = 120_000

TopicKey = str | UUID
"""A topic by name, or by id from version 13 on."""


class FetchPartitionState:
    """A partition of a fetch, and in a session what the last response said of it."""

    __slots__ = ("high_watermark", "log_start_offset", "requested", "topic")

    def __init__(self, topic: TopicKey, requested: FetchPartition) -> None:
        self.topic = topic
        self.requested = requested
        self.high_watermark = -1
        self.log_start_offset = -1

    @property
    def key(self) -> tuple[TopicKey, int]:
        return self.topic, self.requested.partition

    def update(self, data: PartitionData) -> bool:
        """Remembers a response; whether it differs from the one before."""
        is_changed = (
            bool(data.records)
            or data.high_watermark != self.high_watermark
            or data.log_start_offset != self.log_start_offset
            or data.diverging_epoch.end_offset >= 0
        )
        self.high_watermark = data.high_watermark
        self.log_start_offset = data.log_start_offset
        if data.error_code:
            # The response after an error counts as changed.
            self.high_watermark = -1
            return True
        return is_changed


class FetchSession:
    """What one client fetches; `epoch` is that of its next request."""

    __slots__ = ("created_ms", "epoch", "has_ids", "id", "partitions", "used_ms")

    def __init__(self, id: int, has_ids: bool, now_ms: int) -> None:
        self.id = id
        self.has_ids = has_ids
        self.created_ms = now_ms
        self.used_ms = now_ms
        self.epoch = 1
        self.partitions: dict[tuple[TopicKey, int], FetchPartitionState] = {}

    def update(self, request: FetchRequest) -> None:
        """Applies what a request adds, changes and removes."""
        for partition in requested_partitions(request, self.has_ids):
            existing = self.partitions.get(partition.key)
            if existing is None:
                self.partitions[partition.key] = partition
            else:
                existing.requested = partition.requested
        for topic in request.forgotten_topics_data:
            key: TopicKey = topic.topic_id if self.has_ids else topic.topic
            for number in topic.partitions:
                self.partitions.pop((key, number), None)

    def move_to_end(self, key: tuple[TopicKey, int]) -> None:
        """Others come first in the next fetch."""
        partition = self.partitions.pop(key, None)
        if partition is not None:
            self.partitions[key] = partition


class FetchPlan(NamedTuple):
    """The partitions that a request fetches, with those its session remembers."""

    partitions: list[FetchPartitionState]
    session: FetchSession | None = None
    is_incremental: bool = False


def requested_partitions(request: FetchRequest, has_ids: bool) -> Iterator[FetchPartitionState]:
    for topic in request.topics:
        key: TopicKey = topic.topic_id if has_ids else topic.topic
        for partition in topic.partitions:
            yield FetchPartitionState(key, partition)


class FetchSessions:
    """All sessions."""

    def __init__(self, settings: BrokerSettings, clock: Clock, random: random.Random) -> None:
        self._settings = settings
        self._clock = clock
        self._random = random
        # By last use, the oldest first.
        self._sessions: dict[int, FetchSession] = {}
        self.partition_count = 0
        """Partitions of all sessions."""

    def __len__(self) -> int:
        return len(self._sessions)

    def plan(self, request: FetchRequest, *, has_ids: bool) -> FetchPlan:
        """Opens, continues or closes the session that a request names; raises KafkaError."""
        epoch = request.session_epoch
        if epoch not in (_INITIAL_EPOCH, _FINAL_EPOCH):
            return self._continue(request, has_ids)
        self._remove(request.session_id)
        partitions = list(requested_partitions(request, has_ids))
        if epoch == _FINAL_EPOCH or not partitions:
            return FetchPlan(partitions)
        return FetchPlan(partitions, self._create(partitions, has_ids))

    def _continue(self, request: FetchRequest, has_ids: bool) -> FetchPlan:
        session = self._sessions.get(request.session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.has_ids != has_ids:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        before = len(session.partitions)
        session.update(request)
        self.partition_count += len(session.partitions) - before
        if self.partition_count > self._settings.fetch_session_partition_count_max:
            self._remove(session.id)
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session.epoch = 1 if session.epoch == _EPOCH_MAX else session.epoch + 1
        session.used_ms = self._clock.now_ms()
        self._sessions[session.id] = self._sessions.pop(session.id)
        partitions = list(session.partitions.values())
        if not partitions:
            self._remove(session.id)
            return FetchPlan(partitions)
        return FetchPlan(partitions, session, is_incremental=True)

    def _create(self, partitions: list[FetchPartitionState], has_ids: bool) -> FetchSession | None:
        """None where the limits are reached and no session may be evicted."""
        now_ms = self._clock.now_ms()
        if not self._make_space(len(partitions), now_ms):
            return None
        id = self._random.randint(1, _EPOCH_MAX)
        if id in self._sessions:
            return None
        session = FetchSession(id, has_ids, now_ms)
        session.partitions = {partition.key: partition for partition in partitions}
        self._sessions[id] = session
        self.partition_count += len(session.partitions)
        return session

    def _make_space(self, count: int, now_ms: int) -> bool:
        settings = self._settings
        if count > settings.fetch_session_partition_count_max:
            return False
        while (
            len(self._sessions) >= settings.fetch_session_count_max
            or self.partition_count + count > settings.fetch_session_partition_count_max
        ):
            victim = self._find_victim(count, now_ms)
            if victim is None:
                return False
            self._remove(victim.id)
        return True

    def _find_victim(self, count: int, now_ms: int) -> FetchSession | None:
        """One that was not used for two minutes; else a smaller one that is as old."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or now_ms - oldest.used_ms > _EVICTION_MS:
            return oldest
        aged = [
            session
            for session in self._sessions.values()
            if now_ms - session.created_ms > _EVICTION_MS and len(session.partitions) < count
        ]
        return min(aged, key=lambda session: len(session.partitions), default=None)

    def _remove(self, id: int) -> None:
        session = self._sessions.pop(id, None)
        if session is not None:
            self.partition_count -= len(session.partitions)
