"""Fetch: batches on their way out, at once or when there are enough of them.

What the active segment holds is read here and now. Older offsets are read off the loop by
`SlowReads`; a fetch waits for them as it waits for appends, and answers without what takes longer
than it may wait.

Invariant  the first partition that has something gives one whole batch at least, whatever the
           limits say, so that a client always gets on. Partitions take turns in being first.
           A fetch that waits holds no records.
"""

import asyncio
from typing import Final, NamedTuple
from uuid import UUID

from varve.broker.broker import Broker
from varve.broker.context import RequestContext
from varve.broker.data.fetch_sessions import (
    NO_SESSION,
    AskedPartition,
    FetchPlan,
    FetchSession,
    TopicKey,
)
from varve.broker.data.slow_reads import ReadKey
from varve.broker.security.rights import Operation, ResourceType
from varve.broker.topics import ServedTopic, check_leader_epoch, leader_epoch_of
from varve.commit_log import FetchResult, Isolation, Log, TopicPartition
from varve.commit_log.active_segment import ActiveSegment
from varve.foundation.errors import Corrupt, StoreError, Unavailable
from varve.wire import NO_ID, ErrorCode
from varve.wire.errors import code_for
from varve.wire.messages.data import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
    SnapshotId,
)

_FIRST_WITH_IDS: Final = 13
_LOCAL_WAIT_MS: Final = 500
"""A read from the local disk is waited for so long, even by those who would not wait."""
_READ_COMMITTED: Final = 1

_NO_RECORDS: Final = memoryview(b"")
# Made once: an answer to many idle partitions would make three for each.
_NO_EPOCH: Final = EpochEndOffset()
_NO_LEADER: Final = LeaderIdAndEpoch()
_NO_SNAPSHOT: Final = SnapshotId()


class _Mark(NamedTuple):
    """How far a partition reached when the fetch began to wait."""

    log: Log
    offset: int
    limit: int
    active: ActiveSegment
    size: int


class _Round:
    """One look at all partitions."""

    __slots__ = ("answers", "bytes", "has_error", "is_local_pending", "marks", "pending", "room")

    def __init__(self, room: int) -> None:
        self.room = room
        self.bytes = 0
        self.has_error = False
        self.answers: list[tuple[AskedPartition, PartitionData]] = []
        self.marks: dict[TopicPartition, _Mark] = {}
        self.pending: set[ReadKey] = set()
        self.is_local_pending = False

    def add(self, asked: AskedPartition, answer: PartitionData) -> None:
        self.answers.append((asked, answer))
        if answer.records:
            self.bytes += len(answer.records)
            self.room -= len(answer.records)
        elif answer.error_code or answer.diverging_epoch is not _NO_EPOCH:
            self.has_error = True


class Fetch:
    """One request under way."""

    __slots__ = (
        "_broker", "_bytes", "_context", "_idle", "_isolation", "_marks", "_max_bytes",
        "_min_bytes", "_pending", "_plan", "_request", "_rotation",
    )  # fmt: skip

    def __init__(
        self, broker: Broker, context: RequestContext, request: FetchRequest, plan: FetchPlan
    ) -> None:
        self._broker = broker
        self._context = context
        self._request = request
        self._plan = plan
        is_committed = request.isolation_level == _READ_COMMITTED
        self._isolation = Isolation.READ_COMMITTED if is_committed else Isolation.READ_UNCOMMITTED
        self._max_bytes = max(0, min(request.max_bytes, broker.settings.fetch_max_bytes))
        self._min_bytes = min(request.min_bytes, self._max_bytes)
        # A session keeps its own order, in which those that were served go last.
        self._rotation = 0 if plan.is_incremental else broker.fetches.next_turn()
        self._marks: dict[TopicPartition, _Mark] = {}
        self._pending: set[ReadKey] = set()
        self._bytes = 0
        self._idle: _Round | None = None
        """What is told when the time is over and nothing has happened meanwhile."""

    def begin(self) -> "FetchResponse | asyncio.Future[FetchResponse]":
        """Answers at once if there is enough, something to tell, or nothing to wait for."""
        found = self._look()
        request = self._request
        wait_ms = request.max_wait_ms
        if found.is_local_pending:
            wait_ms = max(wait_ms, _LOCAL_WAIT_MS)
        is_done = found.has_error or (
            found.bytes >= self._min_bytes and not self._is_starved(found)
        )
        if wait_ms <= 0 or is_done or not self._plan.asked:
            return self._tell(found)
        self._marks, self._pending, self._bytes = found.marks, found.pending, found.bytes
        if not found.bytes and not found.pending:
            self._idle = found
        return self._broker.fetches.park(
            self,
            connection=self._context.connection,
            partitions=tuple(found.marks),
            delay_ms=wait_ms,
        )

    def _is_starved(self, found: _Round) -> bool:
        """Nothing there although something is on its way: no answer for those who want 0 bytes."""
        return not found.bytes and bool(found.pending)

    # While it waits

    def is_enough(self, partition: TopicPartition) -> bool:
        self._idle = None
        mark = self._marks[partition]
        limit = self._limit(mark.log)
        if limit <= max(mark.limit, mark.offset):
            return False
        active = mark.log.view.active
        if active is not mark.active:
            return True
        size = active.size
        self._bytes += size - mark.size
        self._marks[partition] = mark._replace(limit=limit, size=size)
        return self._bytes >= self._min_bytes

    def is_read(self, key: ReadKey, outcome: FetchResult | Exception) -> bool:
        if key not in self._pending:
            return False
        if isinstance(outcome, Exception):
            return True
        self._pending.discard(key)
        self._bytes += len(outcome.data)
        if not outcome.data:
            return False
        return self._bytes >= self._min_bytes or not self._pending

    def answer(self, *, is_timeout: bool) -> FetchResponse:
        if is_timeout and self._idle is not None:
            return self._tell(self._idle)
        return self._tell(self._look())

    # Reading

    def _limit(self, log: Log) -> int:
        if self._isolation is Isolation.READ_COMMITTED:
            return log.last_stable_offset
        return log.high_watermark

    def _look(self) -> _Round:
        found = _Round(self._max_bytes)
        asked = self._plan.asked
        turn = self._rotation % len(asked) if asked else 0
        known: dict[TopicKey, tuple[ServedTopic | None, ErrorCode]] = {}
        for one in (*asked[turn:], *asked[:turn]) if turn else asked:
            if one.topic not in known:
                known[one.topic] = self._find_topic(one.topic)
            topic, error = known[one.topic]
            if topic is None or error:
                found.add(one, _failed(one.asked.partition, error))
            else:
                found.add(one, self._look_at(found, topic, one.asked))
        return found

    def _find_topic(self, key: TopicKey) -> tuple[ServedTopic | None, ErrorCode]:
        topics = self._broker.topics
        topic = topics.find_by_id(key) if isinstance(key, UUID) else topics.find(key)
        if topic is None and isinstance(key, UUID):
            return None, ErrorCode.UNKNOWN_TOPIC_ID
        name = str(key) if topic is None else topic.name
        if not self._broker.authorizer.is_allowed(
            self._context, Operation.READ, ResourceType.TOPIC, name
        ):
            return None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if topic is None:
            return None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return topic, ErrorCode.NONE

    def _look_at(self, found: _Round, topic: ServedTopic, asked: FetchPartition) -> PartitionData:
        log = topic.find_log(asked.partition)
        if log is None:
            return _failed(asked.partition, topic.why_missing(asked.partition))
        error = check_leader_epoch(log, asked.current_leader_epoch)
        if error:
            leader = LeaderIdAndEpoch(self._broker.settings.node_id, leader_epoch_of(log))
            return _failed(asked.partition, error, leader)
        if asked.last_fetched_epoch >= 0:
            diverging = _find_divergence(log, asked)
            if diverging is not None:
                ends = log.high_watermark, log.last_stable_offset, log.log_start_offset
                answer = _told(asked.partition, ends, _NO_RECORDS)
                answer.diverging_epoch = diverging
                return answer
        try:
            return self._read(found, log, asked)
        except StoreError as failure:
            if isinstance(failure, (Unavailable, Corrupt)):
                self._broker.failed_reads.note(log.topic_partition, failure)
            return _failed(asked.partition, code_for(failure))

    def _read(self, found: _Round, log: Log, asked: FetchPartition) -> PartitionData:
        offset, start = asked.fetch_offset, log.log_start_offset
        if not start <= offset <= log.end_offset:
            answer = _failed(asked.partition, ErrorCode.OFFSET_OUT_OF_RANGE)
            answer.log_start_offset = start
            return answer
        is_committed = self._isolation is Isolation.READ_COMMITTED
        high_watermark, stable = log.high_watermark, log.last_stable_offset
        limit = stable if is_committed else high_watermark
        active = log.view.active
        found.marks[log.topic_partition] = _Mark(log, offset, limit, active, active.size)
        records = _NO_RECORDS
        # None tells readers of everything that nobody looked for aborted transactions.
        aborted: list[AbortedTransaction] | None = [] if is_committed else None
        if offset < limit:
            read = self._read_batches(found, log, asked, is_hot=offset >= active.base_offset)
            if read is not None:
                records = read.data
                high_watermark = max(high_watermark, read.high_watermark)
                stable = max(stable, read.last_stable_offset)
                if is_committed:
                    aborted = [AbortedTransaction(*one) for one in read.aborted]
        return _told(asked.partition, (high_watermark, stable, start), records, aborted)

    def _read_batches(
        self, found: _Round, log: Log, asked: FetchPartition, *, is_hot: bool
    ) -> FetchResult | None:
        """What there is room for; None where there is none, or it is read off the loop."""
        is_first = not found.bytes
        max_bytes = max(0, min(asked.partition_max_bytes, found.room))
        if not max_bytes and not is_first:
            return None
        if not is_hot:
            return self._read_slowly(found, log, asked.fetch_offset, max_bytes, is_first)
        return log.read(
            start_offset=asked.fetch_offset,
            max_bytes=max_bytes,
            isolation=self._isolation,
            min_one=is_first,
        )

    def _read_slowly(
        self, found: _Round, log: Log, offset: int, max_bytes: int, is_first: bool
    ) -> FetchResult | None:
        """What an earlier fetch had read, if it fits in; else None, and the read is begun."""
        reads = self._broker.slow_reads
        key = ReadKey(log, offset, self._isolation)
        outcome = reads.find(key)
        if isinstance(outcome, Exception):
            reads.drop(key)
            raise outcome
        if outcome is not None:
            if len(outcome.data) > max_bytes and not is_first:
                return None
            reads.drop(key)
            # Nothing was left up to where the log ended then.
            if outcome.data or outcome.next_offset >= self._limit(log):
                return outcome
        if not max_bytes and found.pending:
            return None
        if reads.begin(key, max_bytes=max_bytes):
            found.pending.add(key)
            found.room -= max_bytes
            found.is_local_pending |= offset >= log.view.first_base_offset
        return None

    # Telling

    def _tell(self, found: _Round) -> FetchResponse:
        session = self._plan.session
        topics: dict[TopicKey, FetchableTopicResponse] = {}
        for asked, answer in found.answers:
            if session is not None and not self._is_told(session, asked, answer):
                continue
            topic = topics.get(asked.topic)
            if topic is None:
                topic = topics[asked.topic] = _begin_topic(asked.topic)
            topic.partitions.append(answer)
        session_id = NO_SESSION if session is None else session.id
        return FetchResponse(session_id=session_id, responses=list(topics.values()))

    def _is_told(self, session: FetchSession, asked: AskedPartition, answer: PartitionData) -> bool:
        is_news = asked.note(answer)
        if answer.records:
            session.move_to_end(asked.key)
        return is_news or not self._plan.is_incremental


def answer_fetch(
    broker: Broker, context: RequestContext, request: FetchRequest
) -> "FetchResponse | asyncio.Future[FetchResponse]":
    """Reads what is asked for; partitions have errors of their own."""
    plan = broker.fetch_sessions.plan(request, has_ids=context.version >= _FIRST_WITH_IDS)
    if plan.error:
        return FetchResponse(error_code=plan.error)
    return Fetch(broker, context, request, plan).begin()


def _begin_topic(key: TopicKey) -> FetchableTopicResponse:
    if isinstance(key, UUID):
        return FetchableTopicResponse("", key)
    return FetchableTopicResponse(key, NO_ID)


def _find_divergence(log: Log, asked: FetchPartition) -> EpochEndOffset | None:
    """Where the epoch ended that the client read last, if it read beyond."""
    found = log.end_offset_for_epoch(asked.last_fetched_epoch)
    if found is None:
        return None
    epoch, end_offset = found
    if epoch < asked.last_fetched_epoch or end_offset < asked.fetch_offset:
        return EpochEndOffset(epoch, end_offset)
    return None


def _told(
    partition: int,
    ends: tuple[int, int, int],
    records: memoryview,
    aborted: list[AbortedTransaction] | None = None,
) -> PartitionData:
    """`ends` are the high watermark, the last stable offset and the log start."""
    return PartitionData(
        partition,
        ErrorCode.NONE,
        *ends,
        _NO_EPOCH,
        _NO_LEADER,
        _NO_SNAPSHOT,
        aborted,
        -1,
        records,
    )


def _failed(
    partition: int, error: ErrorCode, leader: LeaderIdAndEpoch = _NO_LEADER
) -> PartitionData:
    return PartitionData(
        partition, error, -1, -1, -1, _NO_EPOCH, leader, _NO_SNAPSHOT, None, -1, _NO_RECORDS
    )
