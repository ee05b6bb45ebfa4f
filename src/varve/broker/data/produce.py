"""Produce: batches on their way into logs.

What can be told from a batch's header is checked here, all else by the log itself. Each partition
succeeds or fails alone.

Invariant  an answer comes when every batch is as durable as its topic promises, whatever `acks`
           says; only a topic that is synced for each append lets the request's timeout pass. Even
           then it comes after the batches were taken over: their bytes are the request's.
           With `acks=0` there is no answer, and an error ends the connection.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from struct import Struct
from typing import Final, NamedTuple

from varve.broker.appends import AppendPart
from varve.broker.broker import Broker
from varve.broker.context import RequestContext
from varve.broker.data.dedup.gates import GatedPart
from varve.broker.errors import CloseConnection
from varve.broker.security.rights import Operation, ResourceType
from varve.broker.timers import Timer
from varve.broker.topics import ServedTopic, leader_epoch_of
from varve.commit_log import Log, TopicPartition
from varve.foundation.errors import Closed, InvalidRecord
from varve.records import HEADER_BYTES, Codec
from varve.wire import ErrorCode
from varve.wire.errors import code_for
from varve.wire.messages.data import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceLeader,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

_FIRST_WITH_IDS: Final = 13
_FIRST_WITH_ZSTD: Final = 7
_ADMIN_CLIENT: Final = "__admin_client"
"""The one client that may write to internal topics."""
_TRANSACTIONAL: Final = 0x10
_CODEC: Final = 0x07
_PRODUCER_ID_AT: Final = 43
_MAGIC_AT: Final = 16
_MAGIC: Final = 2
_RETRY_MS: Final = 100

# Behind the magic: CRC, attributes, last delta, two timestamps, producer's id and epoch.
_LENGTH: Final = Struct(">i")
_PRODUCER: Final = Struct(">qh")


class _Refusal(NamedTuple):
    code: ErrorCode
    message: str | None = None


_INVALID_COUNT: Final = _Refusal(
    ErrorCode.INVALID_RECORD, "a partition takes exactly one batch of message format 2 at a time"
)


class _Produce:
    """One request under way: per topic and partition a refusal, or a part of the append."""

    __slots__ = (
        "_broker",
        "_context",
        "_future",
        "_gated",
        "_left",
        "_outcomes",
        "_request",
        "_timer",
        "parts",
    )

    def __init__(self, broker: Broker, context: RequestContext, request: ProduceRequest) -> None:
        self._broker = broker
        self._context = context
        self._request = request
        self._outcomes: list[list[_Refusal | AppendPart]] = []
        self._timer: Timer | None = None
        self._future: asyncio.Future[ProduceResponse | None] = broker.loop.create_future()
        self.parts: list[AppendPart] = []
        self._gated: list[tuple[ServedTopic, GatedPart]] = []
        """Those of the parts whose topics take no duplicates."""
        self._left = 0

    def plan(self) -> None:
        whole = self._refuse_whole()
        for topic_data in self._request.topic_data:
            found: list[_Refusal | AppendPart] = []
            self._outcomes.append(found)
            topic = self._find_topic(topic_data)
            refusal = whole or self._refuse_topic(topic, topic_data.name)
            for data in topic_data.partition_data:
                outcome: _Refusal | AppendPart
                if refusal is not None or topic is None:
                    outcome = refusal or _Refusal(ErrorCode.UNKNOWN_SERVER_ERROR)
                else:
                    outcome = self._plan_partition(topic, data)
                    if isinstance(outcome, AppendPart):
                        self.parts.append(outcome)
                found.append(outcome)

    def _refuse_whole(self) -> _Refusal | None:
        request = self._request
        if not -1 <= request.acks <= 1:
            return _Refusal(ErrorCode.INVALID_REQUIRED_ACKS)
        if not _has_transactional(request):
            return None
        transactional_id = request.transactional_id
        if transactional_id is None or not self._broker.authorizer.is_allowed(
            self._context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
        ):
            return _Refusal(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        return None

    def _find_topic(self, data: TopicProduceData) -> ServedTopic | None:
        topics = self._broker.topics
        if self._context.version >= _FIRST_WITH_IDS:
            return topics.find_by_id(data.topic_id)
        return topics.find(data.name)

    def _refuse_topic(self, topic: ServedTopic | None, name: str) -> _Refusal | None:
        has_ids = self._context.version >= _FIRST_WITH_IDS
        if topic is None and has_ids:
            return _Refusal(ErrorCode.UNKNOWN_TOPIC_ID)
        name = name if topic is None else topic.name
        if not self._broker.authorizer.is_allowed(
            self._context, Operation.WRITE, ResourceType.TOPIC, name
        ):
            return _Refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if topic is None:
            return _Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if topic.is_internal and self._context.client_id != _ADMIN_CLIENT:
            return _Refusal(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {topic.name} is written by the broker"
            )
        return None

    def _plan_partition(
        self, topic: ServedTopic, data: PartitionProduceData
    ) -> _Refusal | AppendPart:
        log = topic.find_log(data.index)
        if log is None:
            return _Refusal(topic.why_missing(data.index))
        batch = data.records
        if batch is None or not _is_one_batch(batch):
            return _INVALID_COUNT
        attributes = batch[22]
        if attributes & _CODEC == Codec.ZSTD and self._context.version < _FIRST_WITH_ZSTD:
            return _Refusal(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                f"zstd needs Produce version {_FIRST_WITH_ZSTD} or later",
            )
        if attributes & _TRANSACTIONAL:
            code = self._check_transaction(log.topic_partition, batch)
            if code:
                return _Refusal(code)
        if topic.settings.varve_dedup_by and not topic.is_internal:
            return self._plan_gated(topic, log, batch)
        return AppendPart(log, batch)

    def _plan_gated(self, topic: ServedTopic, log: Log, batch: memoryview) -> _Refusal | AppendPart:
        if batch[22] & _TRANSACTIONAL:
            return _Refusal(
                ErrorCode.INVALID_RECORD,
                f"topic {topic.name} takes no duplicates (varve.dedup.by), and so no transactions: "
                "an abort would bring back what was left out; write without a transactional.id",
            )
        part = GatedPart(log, batch)
        self._gated.append((topic, part))
        return part

    def _check_transaction(self, partition: TopicPartition, batch: memoryview) -> ErrorCode:
        producer_id, producer_epoch = _PRODUCER.unpack_from(batch, _PRODUCER_ID_AT)
        return self._broker.produce_guard.check_produce(
            self._request.transactional_id or "",
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            partition=partition,
        )

    def answer(self, *, is_timeout: bool = False) -> ProduceResponse | None:
        """What became of every batch; raises CloseConnection where nothing can be answered."""
        if self._request.acks == 0:
            self._check_all_done()
            return None
        topics = []
        for data, outcomes in zip(self._request.topic_data, self._outcomes, strict=True):
            answers = [
                self._tell(one.index, outcome, is_timeout)
                for one, outcome in zip(data.partition_data, outcomes, strict=True)
            ]
            topics.append(TopicProduceResponse(data.name, data.topic_id, answers))
        return ProduceResponse(topics)

    def _check_all_done(self) -> None:
        for outcomes in self._outcomes:
            for one in outcomes:
                if isinstance(one, _Refusal):
                    raise CloseConnection(f"produced with acks=0: {one.code.name}")
                if one.error is not None:
                    raise CloseConnection(f"produced with acks=0: {one.error}")

    def _tell(
        self, index: int, outcome: _Refusal | AppendPart, is_timeout: bool
    ) -> PartitionProduceResponse:
        if isinstance(outcome, _Refusal):
            return PartitionProduceResponse(index, outcome.code, -1, error_message=outcome.message)
        if outcome.error is not None:
            return self._tell_error(index, outcome, outcome.error)
        result = outcome.result
        if result is None or (is_timeout and outcome.log.settings.syncs_every_append):
            return PartitionProduceResponse(index, ErrorCode.REQUEST_TIMED_OUT, -1)
        return PartitionProduceResponse(
            index, ErrorCode.NONE, result.base_offset, result.timestamp, result.log_start_offset
        )

    def _tell_error(
        self, index: int, part: AppendPart, error: Exception
    ) -> PartitionProduceResponse:
        code = code_for(error)
        answer = PartitionProduceResponse(index, code, -1, error_message=str(error))
        if isinstance(error, InvalidRecord):
            answer.log_start_offset = part.log.log_start_offset
            if error.record_index is not None:
                fault = BatchIndexAndErrorMessage(error.record_index, str(error))
                answer.record_errors = [fault]
        if code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            epoch = leader_epoch_of(part.log)
            answer.current_leader = ProduceLeader(self._broker.settings.node_id, epoch)
        return answer

    # Waiting

    def begin(self) -> "asyncio.Future[ProduceResponse | None]":
        """Submits the parts; done when they are, or when the time is over."""
        if self._gated:
            self._submit_gated()
        else:
            self._left = 1
            self._broker.appends.submit_then(self.parts, self._on_done)
        if any(part.log.settings.syncs_every_append for part in self.parts):
            self._wait(self._request.timeout_ms)
        return self._future

    def _submit_gated(self) -> None:
        """Each part that has a gate goes by itself, the others together."""
        plain = [part for part in self.parts if not isinstance(part, GatedPart)]
        self._left = len(self._gated) + bool(plain)
        if plain:
            self._submit(plain, partial(self._broker.appends.submit_then, plain, self._on_done))
        for topic, part in self._gated:
            submit = self._broker.gates.submit_then
            timeout_ms = self._request.timeout_ms
            call = partial(submit, topic, part, self._on_done, timeout_ms=timeout_ms)
            self._submit([part], call)

    def _submit(self, parts: Sequence[AppendPart], call: Callable[[], None]) -> None:
        try:
            call()
        except Closed as error:
            for part in parts:
                part.error = error
            self._on_done()

    def _wait(self, delay_ms: int) -> None:
        self._timer = self._broker.timers.call_later(delay_ms, self._on_timeout)

    def _on_timeout(self) -> None:
        if any(part.result is None and part.error is None for part in self.parts):
            self._wait(_RETRY_MS)
            return
        self._finish(is_timeout=True)

    def _on_done(self) -> None:
        self._left -= 1
        if self._left:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._finish(is_timeout=False)

    def _finish(self, *, is_timeout: bool) -> None:
        if self._future.done():
            return
        try:
            self._future.set_result(self.answer(is_timeout=is_timeout))
        except Exception as error:
            # The server ends the connection, or tells the client and logs it.
            self._future.set_exception(error)


def answer_produce(
    broker: Broker, context: RequestContext, request: ProduceRequest
) -> "ProduceResponse | asyncio.Future[ProduceResponse | None] | None":
    """Appends what may be appended; each partition has its own outcome."""
    produce = _Produce(broker, context, request)
    produce.plan()
    if not produce.parts:
        return produce.answer()
    try:
        return produce.begin()
    except Closed as error:
        for part in produce.parts:
            part.error = error
        return produce.answer()


def _is_one_batch(data: memoryview) -> bool:
    return (
        len(data) >= HEADER_BYTES
        and data[_MAGIC_AT] == _MAGIC
        and _LENGTH.unpack_from(data, 8)[0] + 12 == len(data)
    )


def _has_transactional(request: ProduceRequest) -> bool:
    return any(
        one.records is not None
        and len(one.records) >= HEADER_BYTES
        and one.records[22] & _TRANSACTIONAL
        for topic in request.topic_data
        for one in topic.partition_data
    )
