"""Fetch: returns batches at once, or when there are enough of them.

The active segment is read in the loop. Older offsets are read in the background; a fetch waits for
them as it waits for appends, and is answered without those that take longer than it may wait.

Invariant  the first partition that has records returns at least one whole batch, whatever the
           limits are, so that a client makes progress. Partitions take turns in being first.
           A fetch that waits holds no records.
"""

import asyncio
from typing import Final, NamedTuple
from uuid import UUID

from varve.broker.background import Timer
from varve.broker.broker import Broker
from varve.broker.data.fetch_sessions import (
    NO_SESSION,
    FetchPartitionState,
    FetchPlan,
    FetchSession,
    TopicKey,
)
from varve.broker.data.parked_fetches import ReadKey
from varve.broker.request import Operation, RequestContext
from varve.broker.topics import ServedTopic, check_leader_epoch, current_leader_epoch
from varve.commit_log import FetchResult, Isolation, Log, TopicPartition
from varve.commit_log.segment import ActiveSegment
from varve.foundation.errors import Corrupt, StoreError, Unavailable
from varve.wire import NO_ID, ErrorCode
from varve.wire.errors import KafkaError, code_for
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
"""How long a fetch waits for a read from the local disk, even with a shorter max_wait_ms."""
_READ_COMMITTED: Final = 1

_NO_RECORDS: Final = memoryview(b"")
# Shared by all responses: one to many idle partitions would create three for each.
_NO_EPOCH: Final = EpochEndOffset()
_NO_LEADER: Final = LeaderIdAndEpoch()
_NO_SNAPSHOT: Final = SnapshotId()


class _SeenEnd(NamedTuple):
    """How far a partition reached when the fetch was parked."""

    log: Log
    offset: int
    limit: int
    active: ActiveSegment
    size: int


class _ReadPass:
    """One pass over all partitions of a fetch."""

    __slots__ = (
        "bytes", "bytes_left", "ends", "has_error", "has_memory", "is_local_pending", "pending",
        "results",
    )  # fmt: skip

    def __init__(self, bytes_left: int, *, has_memory: bool) -> None:
        self.has_memory = has_memory
        """Whether records may be read."""
        self.bytes_left = bytes_left
        self.bytes = 0
        self.has_error = False
        self.results: list[tuple[FetchPartitionState, PartitionData]] = []
        self.ends: dict[TopicPartition, _SeenEnd] = {}
        self.pending: set[ReadKey] = set()
        self.is_local_pending = False

    def add(self, partition: FetchPartitionState, data: PartitionData) -> None:
        self.results.append((partition, data))
        if data.records:
            self.bytes += len(data.records)
            self.bytes_left -= len(data.records)
        elif data.error_code or data.diverging_epoch is not _NO_EPOCH:
            self.has_error = True


class Fetch:
    """One request in progress."""

    __slots__ = (
        "_broker", "_bytes", "_context", "_ends", "_idle", "_isolation", "_max_bytes",
        "_min_bytes", "_pending", "_plan", "_request", "_rotation", "connection", "future",
        "read_bytes", "timer",
    )  # fmt: skip

    def __init__(
        self, broker: Broker, context: RequestContext, request: FetchRequest, plan: FetchPlan
    ) -> None:
        self._broker = broker
        self._context = context
        self._request = request
        self._plan = plan
        self.connection = context.connection
        is_committed = request.isolation_level == _READ_COMMITTED
        self._isolation = Isolation.READ_COMMITTED if is_committed else Isolation.READ_UNCOMMITTED
        self._max_bytes = max(0, min(request.max_bytes, broker.settings.fetch_max_bytes))
        self._min_bytes = min(request.min_bytes, self._max_bytes)
        # A session keeps its own order, in which partitions that returned records go last.
        self._rotation = 0 if plan.is_incremental else broker.parked_fetches.next_rotation()
        self._ends: dict[TopicPartition, _SeenEnd] = {}
        self._pending: set[ReadKey] = set()
        self._bytes = 0
        self._idle: _ReadPass | None = None
        """The first pass, where it is still true when the time is over."""
        self.read_bytes = 0
        """Records in the response."""
        self.future: asyncio.Future[FetchResponse]
        self.timer: Timer | None = None

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """Those it waits for."""
        return tuple(self._ends)

    def start(self) -> "FetchResponse | asyncio.Future[FetchResponse]":
        """The response, where there are enough bytes, an error, or nothing to wait for."""
        first = self._read_partitions()
        wait_ms = self._request.max_wait_ms
        if first.is_local_pending:
            wait_ms = max(wait_ms, _LOCAL_WAIT_MS)
        # With min_bytes = 0 the records of a read in progress are waited for all the same.
        is_starved = not first.bytes and bool(first.pending)
        is_done = first.has_error or (first.bytes >= self._min_bytes and not is_starved)
        if wait_ms <= 0 or is_done or not self._plan.partitions:
            return self._respond(first)
        self._ends, self._pending, self._bytes = first.ends, first.pending, first.bytes
        if not first.bytes and not first.pending:
            self._idle = first
        self.future = self._broker.loop.create_future()
        self._broker.parked_fetches.park(self, delay_ms=wait_ms)
        return self.future

    # While it is parked

    def has_enough_after_append(self, partition: TopicPartition) -> bool:
        self._idle = None
        end = self._ends[partition]
        limit = self._limit(end.log)
        if limit <= max(end.limit, end.offset):
            return False
        active = end.log.view.active
        if active is not end.active:
            return True
        size = active.size
        self._bytes += size - end.size
        self._ends[partition] = end._replace(limit=limit, size=size)
        return self._bytes >= self._min_bytes

    def has_enough_after_read(self, key: ReadKey, outcome: FetchResult | Exception) -> bool:
        if key not in self._pending:
            return False
        if isinstance(outcome, Exception):
            return True
        self._pending.discard(key)
        self._bytes += len(outcome.data)
        if not outcome.data:
            return False
        return self._bytes >= self._min_bytes or not self._pending

    def complete(self, *, is_timeout: bool, has_memory: bool = True) -> FetchResponse:
        """The response with what there is; unchanged where only the time is over.

        Without memory it has no records.
        """
        if is_timeout and self._idle is not None:
            return self._respond(self._idle)
        last = self._read_partitions(has_memory=has_memory)
        self.read_bytes = last.bytes
        return self._respond(last)

    # Reading

    def _limit(self, log: Log) -> int:
        if self._isolation is Isolation.READ_COMMITTED:
            return log.last_stable_offset
        return log.high_watermark

    def _read_partitions(self, *, has_memory: bool = True) -> _ReadPass:
        current = _ReadPass(self._max_bytes, has_memory=has_memory)
        partitions = self._plan.partitions
        first = self._rotation % len(partitions) if partitions else 0
        topics: dict[TopicKey, ServedTopic | KafkaError] = {}
        for partition in (*partitions[first:], *partitions[:first]) if first else partitions:
            topic = topics.get(partition.topic)
            if topic is None:
                topic = topics[partition.topic] = self._find_topic(partition.topic)
            if isinstance(topic, KafkaError):
                current.add(partition, _failed(partition.requested.partition, topic.code))
            else:
                current.add(partition, self._read_partition(current, topic, partition.requested))
        return current

    def _find_topic(self, key: TopicKey) -> ServedTopic | KafkaError:
        try:
            if isinstance(key, UUID):
                return self._context.get_topic(Operation.READ, id=key)
            return self._context.get_topic(Operation.READ, name=key)
        except KafkaError as error:
            return error

    def _read_partition(
        self, current: _ReadPass, topic: ServedTopic, requested: FetchPartition
    ) -> PartitionData:
        number = requested.partition
        log = topic.find_log(number)
        if log is None:
            return _failed(number, topic.missing_partition_code(number))
        error = check_leader_epoch(log, requested.current_leader_epoch)
        if error:
            leader = LeaderIdAndEpoch(self._broker.settings.node_id, current_leader_epoch(log))
            return _failed(number, error, leader)
        if requested.last_fetched_epoch >= 0:
            diverging = _find_divergence(log, requested)
            if diverging is not None:
                ends = log.high_watermark, log.last_stable_offset, log.log_start_offset
                data = _partition_data(number, ends, _NO_RECORDS)
                data.diverging_epoch = diverging
                return data
        try:
            return self._read_log(current, log, requested)
        except StoreError as failure:
            if isinstance(failure, (Unavailable, Corrupt)):
                self._broker.failed_reads.record(log.topic_partition, failure)
            return _failed(number, code_for(failure))

    def _read_log(self, current: _ReadPass, log: Log, requested: FetchPartition) -> PartitionData:
        offset, start = requested.fetch_offset, log.log_start_offset
        if not start <= offset <= log.end_offset:
            data = _failed(requested.partition, ErrorCode.OFFSET_OUT_OF_RANGE)
            data.log_start_offset = start
            return data
        is_committed = self._isolation is Isolation.READ_COMMITTED
        high_watermark, stable = log.high_watermark, log.last_stable_offset
        limit = stable if is_committed else high_watermark
        active = log.view.active
        current.ends[log.topic_partition] = _SeenEnd(log, offset, limit, active, active.size)
        records = _NO_RECORDS
        # None for readers of uncommitted records: aborted transactions were not looked up.
        aborted: list[AbortedTransaction] | None = [] if is_committed else None
        if offset < limit and current.has_memory:
            is_hot = offset >= active.base_offset
            read = self._read_batches(current, log, requested, is_hot=is_hot)
            if read is not None:
                records = read.data
                high_watermark = max(high_watermark, read.high_watermark)
                stable = max(stable, read.last_stable_offset)
                if is_committed:
                    aborted = [AbortedTransaction(*pair) for pair in read.aborted]
        ends = high_watermark, stable, start
        return _partition_data(requested.partition, ends, records, aborted)

    def _read_batches(
        self, current: _ReadPass, log: Log, requested: FetchPartition, *, is_hot: bool
    ) -> FetchResult | None:
        """What the limits allow; None where that is nothing, or it is read in the background."""
        is_first = not current.bytes
        max_bytes = max(0, min(requested.partition_max_bytes, current.bytes_left))
        if not max_bytes and not is_first:
            return None
        if not is_hot:
            offset = requested.fetch_offset
            return self._read_in_background(current, log, offset, max_bytes, is_first)
        return log.read(
            start_offset=requested.fetch_offset,
            max_bytes=max_bytes,
            isolation=self._isolation,
            min_one=is_first,
        )

    def _read_in_background(
        self, current: _ReadPass, log: Log, offset: int, max_bytes: int, is_first: bool
    ) -> FetchResult | None:
        """The result of an earlier read, where it fits; else None, and the read is started."""
        reads = self._broker.background_reads
        key = ReadKey(log, offset, self._isolation)
        outcome = reads.find(key)
        if isinstance(outcome, Exception):
            reads.drop(key)
            raise outcome
        if outcome is not None:
            if len(outcome.data) > max_bytes and not is_first:
                return None
            reads.drop(key)
            # Without records: there were none left up to the end of the log at that time.
            if outcome.data or outcome.next_offset >= self._limit(log):
                return outcome
        if not max_bytes and current.pending:
            return None
        if reads.start(key, max_bytes=max_bytes):
            current.pending.add(key)
            current.bytes_left -= max_bytes
            current.is_local_pending |= offset >= log.view.first_base_offset
        return None

    # Responding

    def _respond(self, current: _ReadPass) -> FetchResponse:
        session = self._plan.session
        topics: dict[TopicKey, FetchableTopicResponse] = {}
        for partition, data in current.results:
            if session is not None and not self._is_reported(session, partition, data):
                continue
            topic = topics.get(partition.topic)
            if topic is None:
                topic = topics[partition.topic] = _topic_response(partition.topic)
            topic.partitions.append(data)
        session_id = NO_SESSION if session is None else session.id
        return FetchResponse(session_id=session_id, responses=list(topics.values()))

    def _is_reported(
        self, session: FetchSession, partition: FetchPartitionState, data: PartitionData
    ) -> bool:
        is_changed = partition.update(data)
        if data.records:
            session.move_to_end(partition.key)
        return is_changed or not self._plan.is_incremental


def handle_fetch(
    broker: Broker, context: RequestContext, request: FetchRequest
) -> "FetchResponse | asyncio.Future[FetchResponse]":
    """Reads the requested partitions; each has its own error."""
    plan = broker.fetch_sessions.plan(request, has_ids=context.version >= _FIRST_WITH_IDS)
    return Fetch(broker, context, request, plan).start()


def _topic_response(key: TopicKey) -> FetchableTopicResponse:
    if isinstance(key, UUID):
        return FetchableTopicResponse("", key)
    return FetchableTopicResponse(key, NO_ID)


def _find_divergence(log: Log, requested: FetchPartition) -> EpochEndOffset | None:
    """Where the epoch ended that the client read last, if it read beyond."""
    end = log.end_offset_for_epoch(requested.last_fetched_epoch)
    if end is None:
        return None
    epoch, end_offset = end
    if epoch < requested.last_fetched_epoch or end_offset < requested.fetch_offset:
        return EpochEndOffset(epoch, end_offset)
    return None


def _partition_data(
    partition: int,
    ends: tuple[int, int, int],
    records: memoryview,
    aborted: list[AbortedTransaction] | None = None,
) -> PartitionData:
    """`ends` are the high watermark, the last stable offset and the log start offset."""
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
