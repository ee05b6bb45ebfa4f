"""Fetch sessions: what clients fetch is remembered, so that they only tell changes. KIP-227.

Invariant  sessions and the partitions in them are bounded. A client without a session is served as
           well, by requests that name everything. A session takes one request at a time, by epoch.
Threads    the loop's alone.
"""

import random
from collections.abc import Iterator
from typing import Final, NamedTuple
from uuid import UUID

from varve.broker.data.settings import DataSettings
from varve.foundation.clock import Clock
from varve.wire import ErrorCode
from varve.wire.messages.data import FetchPartition, FetchRequest, PartitionData

NO_SESSION: Final = 0
_INITIAL_EPOCH: Final = 0
_FINAL_EPOCH: Final = -1
_EPOCH_MAX: Final = (1 << 31) - 1
_EVICTION_MS: Final = 120_000

TopicKey = str | UUID
"""A topic as the client calls it."""


class AskedPartition:
    """A partition of a fetch, and for a session what the client was told of it last."""

    __slots__ = ("asked", "high_watermark", "log_start_offset", "topic")

    def __init__(self, topic: TopicKey, asked: FetchPartition) -> None:
        self.topic = topic
        self.asked = asked
        self.high_watermark = -1
        self.log_start_offset = -1

    @property
    def key(self) -> tuple[TopicKey, int]:
        return self.topic, self.asked.partition

    def note(self, told: PartitionData) -> bool:
        """Remembers what a client is told; whether it is more than it knows."""
        is_news = (
            bool(told.records)
            or told.high_watermark != self.high_watermark
            or told.log_start_offset != self.log_start_offset
            or told.diverging_epoch.end_offset >= 0
        )
        self.high_watermark = told.high_watermark
        self.log_start_offset = told.log_start_offset
        if told.error_code:
            # What follows an error is news in any case.
            self.high_watermark = -1
            return True
        return is_news


class FetchSession:
    """What one client fetches; `epoch` is that of its next request."""

    __slots__ = ("created_ms", "epoch", "has_ids", "id", "partitions", "used_ms")

    def __init__(self, id: int, has_ids: bool, now_ms: int) -> None:
        self.id = id
        self.has_ids = has_ids
        self.created_ms = now_ms
        self.used_ms = now_ms
        self.epoch = 1
        self.partitions: dict[tuple[TopicKey, int], AskedPartition] = {}

    def update(self, request: FetchRequest) -> None:
        """Takes over what a request adds, changes and forgets."""
        for one in asked_partitions(request, self.has_ids):
            known = self.partitions.get(one.key)
            if known is None:
                self.partitions[one.key] = one
            else:
                known.asked = one.asked
        for topic in request.forgotten_topics_data:
            key: TopicKey = topic.topic_id if self.has_ids else topic.topic
            for number in topic.partitions:
                self.partitions.pop((key, number), None)

    def move_to_end(self, key: tuple[TopicKey, int]) -> None:
        """Lets others come first next time."""
        found = self.partitions.pop(key, None)
        if found is not None:
            self.partitions[key] = found


class FetchPlan(NamedTuple):
    """What a request asks for in the end, or why it is refused."""

    error: ErrorCode
    asked: list[AskedPartition]
    session: FetchSession | None = None
    is_incremental: bool = False


def asked_partitions(request: FetchRequest, has_ids: bool) -> Iterator[AskedPartition]:
    for topic in request.topics:
        key: TopicKey = topic.topic_id if has_ids else topic.topic
        for one in topic.partitions:
            yield AskedPartition(key, one)


class FetchSessions:
    """All sessions."""

    def __init__(self, settings: DataSettings, clock: Clock, random: random.Random) -> None:
        self._settings = settings
        self._clock = clock
        self._random = random
        # By last use, the oldest first.
        self._sessions: dict[int, FetchSession] = {}
        self._partition_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        """Partitions of all sessions."""
        return self._partition_count

    def plan(self, request: FetchRequest, *, has_ids: bool) -> FetchPlan:
        """Opens, continues or closes the session that a request speaks of."""
        epoch = request.session_epoch
        if epoch not in (_INITIAL_EPOCH, _FINAL_EPOCH):
            return self._continue(request, has_ids)
        self._remove(request.session_id)
        asked = list(asked_partitions(request, has_ids))
        if epoch == _FINAL_EPOCH or not asked:
            return FetchPlan(ErrorCode.NONE, asked)
        return FetchPlan(ErrorCode.NONE, asked, self._create(asked, has_ids))

    def _continue(self, request: FetchRequest, has_ids: bool) -> FetchPlan:
        session = self._sessions.get(request.session_id)
        if session is None:
            return FetchPlan(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])
        if session.epoch != request.session_epoch:
            return FetchPlan(ErrorCode.INVALID_FETCH_SESSION_EPOCH, [])
        if session.has_ids != has_ids:
            return FetchPlan(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, [])
        before = len(session.partitions)
        session.update(request)
        self._partition_count += len(session.partitions) - before
        if self._partition_count > self._settings.fetch_session_partition_count_max:
            self._remove(session.id)
            return FetchPlan(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])
        session.epoch = 1 if session.epoch == _EPOCH_MAX else session.epoch + 1
        session.used_ms = self._clock.now_ms()
        self._sessions[session.id] = self._sessions.pop(session.id)
        asked = list(session.partitions.values())
        if not asked:
            self._remove(session.id)
            return FetchPlan(ErrorCode.NONE, asked)
        return FetchPlan(ErrorCode.NONE, asked, session, is_incremental=True)

    def _create(self, asked: list[AskedPartition], has_ids: bool) -> FetchSession | None:
        """None where there is no room, and nothing to make some with."""
        now_ms = self._clock.now_ms()
        if not self._make_room(len(asked), now_ms):
            return None
        id = self._random.randint(1, _EPOCH_MAX)
        if id in self._sessions:
            return None
        session = FetchSession(id, has_ids, now_ms)
        session.partitions = {one.key: one for one in asked}
        self._sessions[id] = session
        self._partition_count += len(session.partitions)
        return session

    def _make_room(self, wanted: int, now_ms: int) -> bool:
        settings = self._settings
        if wanted > settings.fetch_session_partition_count_max:
            return False
        while (
            len(self._sessions) >= settings.fetch_session_count_max
            or self._partition_count + wanted > settings.fetch_session_partition_count_max
        ):
            victim = self._find_victim(wanted, now_ms)
            if victim is None:
                return False
            self._remove(victim.id)
        return True

    def _find_victim(self, wanted: int, now_ms: int) -> FetchSession | None:
        """One that was not used for long; else a smaller one that has had its time."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or now_ms - oldest.used_ms > _EVICTION_MS:
            return oldest
        aged = [
            one
            for one in self._sessions.values()
            if now_ms - one.created_ms > _EVICTION_MS and len(one.partitions) < wanted
        ]
        return min(aged, key=lambda one: len(one.partitions), default=None)

    def _remove(self, id: int) -> None:
        session = self._sessions.pop(id, None)
        if session is not None:
            self._partition_count -= len(session.partitions)
