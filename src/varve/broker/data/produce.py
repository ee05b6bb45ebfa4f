"""Produce: appends batches to logs.

What the header of a batch shows is checked here, all else by the log. Each partition succeeds or
fails on its own.

Invariant  the response is sent when every batch is as durable as its topic promises, whatever
           `acks` says. Only where a topic is synced for each append does the request time out, and
           then not before the batches were appended: their bytes belong to the request.
           With `acks=0` there is no response, and an error closes the connection.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from struct import Struct
from typing import Final

from varve.broker.append_scheduler import AppendEntry
from varve.broker.background import Timer
from varve.broker.broker import Broker
from varve.broker.dedup.topics import DedupAppend
from varve.broker.request import CloseConnection, Operation, RequestContext, ResourceType
from varve.broker.topics import ServedTopic, current_leader_epoch
from varve.commit_log import TopicPartition
from varve.foundation.errors import Closed, InvalidRecord
from varve.kernels.batch_layout import (
    CODEC_MASK,
    CRC_START,
    LENGTH_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_BIT,
)
from varve.records import HEADER_BYTES, Codec
from varve.wire import ErrorCode
from varve.wire.errors import KafkaError, code_for
from varve.wire.messages.data import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

_FIRST_WITH_IDS: Final = 13
_FIRST_WITH_ZSTD: Final = 7
_RETRY_MS: Final = 100
"""After its timeout a request still waits for appends in progress, and checks them so often."""

# Offset, length, leader epoch, magic; see records/batch_format.py. Unpacked for each batch.
_LENGTH_AND_MAGIC: Final = Struct(">8xi4xb")
_PRODUCER_ID_AND_EPOCH: Final = Struct(">43xqh")
_ATTRIBUTES_AT: Final = CRC_START + 1
"""The low byte of the attributes, in which all flags are."""

_Outcome = KafkaError | AppendEntry

_NAMED_TWICE: Final = KafkaError(
    ErrorCode.INVALID_REQUEST,
    "the request names the partition twice; send one batch for a partition in a request",
)


class _Produce:
    """One request in progress: for each topic and partition an error, or an entry to append."""

    __slots__ = (
        "_broker", "_context", "_dedup_entries", "_future", "_outcomes", "_pending", "_request",
        "_timer", "entries",
    )  # fmt: skip

    def __init__(self, broker: Broker, context: RequestContext, request: ProduceRequest) -> None:
        self._broker = broker
        self._context = context
        self._request = request
        self._outcomes: list[list[_Outcome]] = []
        self._timer: Timer | None = None
        self._future: asyncio.Future[ProduceResponse | None] = broker.loop.create_future()
        self.entries: list[AppendEntry] = []
        self._dedup_entries: list[tuple[ServedTopic, DedupAppend]] = []
        """Those of the entries whose topics are deduplicated."""
        self._pending = 0
        """Submissions that are not complete."""

    # Checking

    def plan(self) -> None:
        request_error = self._find_request_error()
        named: set[tuple[str, int]] = set()
        for topic_data in self._request.topic_data:
            outcomes: list[_Outcome] = []
            self._outcomes.append(outcomes)
            topic = request_error or self._find_topic(topic_data)
            for data in topic_data.partition_data:
                if isinstance(topic, KafkaError):
                    outcomes.append(topic)
                    continue
                if (topic.name, data.index) in named:
                    outcomes.append(_NAMED_TWICE)
                    continue
                named.add((topic.name, data.index))
                outcome = self._plan_partition(topic, data)
                if isinstance(outcome, AppendEntry):
                    self.entries.append(outcome)
                outcomes.append(outcome)

    def _find_request_error(self) -> KafkaError | None:
        request = self._request
        if not -1 <= request.acks <= 1:
            return KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
        if not _has_transactional_batch(request):
            return None
        transactional_id = request.transactional_id
        if transactional_id is None or not self._context.is_authorized(
            Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
        ):
            return KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        return None

    def _find_topic(self, data: TopicProduceData) -> ServedTopic | KafkaError:
        try:
            if self._context.version >= _FIRST_WITH_IDS:
                topic = self._context.get_topic(Operation.WRITE, id=data.topic_id)
            else:
                topic = self._context.get_topic(Operation.WRITE, name=data.name)
        except KafkaError as error:
            return error
        # Kafka lets a client named __admin_client write to them, and anyone may take that name.
        if not topic.is_written_by_clients:
            return KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"topic {topic.name} holds the broker's state: only the broker writes to it",
            )
        return topic

    def _plan_partition(self, topic: ServedTopic, data: PartitionProduceData) -> _Outcome:
        log = topic.find_log(data.index)
        if log is None:
            return KafkaError(topic.missing_partition_code(data.index))
        batch = data.records
        if batch is None or not _is_one_batch(batch):
            return KafkaError(
                ErrorCode.INVALID_RECORD,
                "a request must have exactly one batch of message format 2 for a partition",
            )
        attributes = batch[_ATTRIBUTES_AT]
        if attributes & CODEC_MASK == Codec.ZSTD and self._context.version < _FIRST_WITH_ZSTD:
            return KafkaError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                f"zstd needs Produce version {_FIRST_WITH_ZSTD} or later",
            )
        is_transactional = bool(attributes & TRANSACTIONAL_BIT)
        if is_transactional:
            code = self._check_transaction(log.topic_partition, batch)
            if code:
                return KafkaError(code)
        if not topic.settings.varve_dedup_by or topic.is_internal:
            return AppendEntry(log, batch)
        if is_transactional:
            return KafkaError(
                ErrorCode.INVALID_RECORD,
                f"topic {topic.name} is deduplicated (varve.dedup.by) and takes no transactions: "
                "an abort would not bring back the duplicates that were dropped; write without a "
                "transactional.id",
            )
        entry = DedupAppend(log, batch)
        self._dedup_entries.append((topic, entry))
        return entry

    def _check_transaction(self, partition: TopicPartition, batch: memoryview) -> ErrorCode:
        producer_id, producer_epoch = _PRODUCER_ID_AND_EPOCH.unpack_from(batch)
        return self._broker.transactions.check_produce(
            self._request.transactional_id or "",
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            partition=partition,
        )

    # Responding

    def respond(self, *, is_timeout: bool = False) -> ProduceResponse | None:
        """The outcome of every batch; raises CloseConnection where there is no response."""
        if self._request.acks == 0:
            self._check_all_appended()
            return None
        topics = []
        for data, outcomes in zip(self._request.topic_data, self._outcomes, strict=True):
            partitions = [
                self._partition_response(partition.index, outcome, is_timeout)
                for partition, outcome in zip(data.partition_data, outcomes, strict=True)
            ]
            topics.append(TopicProduceResponse(data.name, data.topic_id, partitions))
        return ProduceResponse(topics)

    def _check_all_appended(self) -> None:
        for outcomes in self._outcomes:
            for outcome in outcomes:
                error = outcome if isinstance(outcome, KafkaError) else outcome.error
                if error is not None:
                    text = error.code.name if isinstance(error, KafkaError) else str(error)
                    raise CloseConnection(f"produced with acks=0: {text}")

    def _partition_response(
        self, index: int, outcome: _Outcome, is_timeout: bool
    ) -> PartitionProduceResponse:
        if isinstance(outcome, KafkaError):
            message = outcome.message
            return PartitionProduceResponse(index, outcome.code, -1, error_message=message)
        if outcome.error is not None:
            return self._failed_append(index, outcome, outcome.error)
        result = outcome.result
        if result is None or (is_timeout and outcome.log.settings.syncs_every_append):
            return PartitionProduceResponse(index, ErrorCode.REQUEST_TIMED_OUT, -1)
        return PartitionProduceResponse(
            index, ErrorCode.NONE, result.base_offset, result.timestamp, result.log_start_offset
        )

    def _failed_append(
        self, index: int, entry: AppendEntry, error: Exception
    ) -> PartitionProduceResponse:
        code = code_for(error)
        response = PartitionProduceResponse(index, code, -1, error_message=str(error))
        if isinstance(error, InvalidRecord):
            response.log_start_offset = entry.log.log_start_offset
            response.record_errors = [
                BatchIndexAndErrorMessage(*record_error) for record_error in error.record_errors
            ]
        if code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            epoch = current_leader_epoch(entry.log)
            response.current_leader = LeaderIdAndEpoch(self._broker.settings.node_id, epoch)
        return response

    # Appending

    def start(self) -> "asyncio.Future[ProduceResponse | None]":
        """Submits the entries; done when they are appended, or at the timeout.

        Each deduplicated entry is submitted by itself, the others together.
        """
        plain = self.entries
        if self._dedup_entries:
            plain = [entry for entry in self.entries if not isinstance(entry, DedupAppend)]
        self._pending = len(self._dedup_entries) + bool(plain)
        if plain:
            self._submit(plain, self._broker.appends.submit_then, plain)
        for topic, entry in self._dedup_entries:
            submit_then = partial(
                self._broker.dedup_topics.submit_then, timeout_ms=self._request.timeout_ms
            )
            self._submit([entry], submit_then, topic, entry)
        is_waiting = not self._future.done()
        if is_waiting and any(entry.log.settings.syncs_every_append for entry in self.entries):
            self._start_timer(self._request.timeout_ms)
        return self._future

    def _submit(
        self, entries: Sequence[AppendEntry], submit_then: Callable[..., None], *args: object
    ) -> None:
        try:
            submit_then(*args, self._on_appended)
        except Closed as error:
            for entry in entries:
                entry.error = error
            self._on_appended()

    def _start_timer(self, delay_ms: int) -> None:
        self._timer = self._broker.timers.call_later(delay_ms, self._on_timeout)

    def _on_timeout(self) -> None:
        if any(entry.result is None and entry.error is None for entry in self.entries):
            self._start_timer(_RETRY_MS)
            return
        self._finish(is_timeout=True)

    def _on_appended(self) -> None:
        self._pending -= 1
        if self._pending:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._finish(is_timeout=False)

    def _finish(self, *, is_timeout: bool) -> None:
        if self._future.done():
            return
        try:
            self._future.set_result(self.respond(is_timeout=is_timeout))
        except Exception as error:
            # The server closes the connection, or answers and logs it.
            self._future.set_exception(error)


def handle_produce(
    broker: Broker, context: RequestContext, request: ProduceRequest
) -> "ProduceResponse | asyncio.Future[ProduceResponse | None] | None":
    """Appends the batches that pass the checks; each partition has its own outcome."""
    produce = _Produce(broker, context, request)
    produce.plan()
    return produce.start() if produce.entries else produce.respond()


def _is_one_batch(data: memoryview) -> bool:
    if len(data) < HEADER_BYTES:
        return False
    length, magic = _LENGTH_AND_MAGIC.unpack_from(data)
    return bool(magic == MAGIC and length + LENGTH_OVERHEAD == len(data))


def _has_transactional_batch(request: ProduceRequest) -> bool:
    return any(
        partition.records is not None
        and len(partition.records) >= HEADER_BYTES
        and partition.records[_ATTRIBUTES_AT] & TRANSACTIONAL_BIT
        for topic in request.topic_data
        for partition in topic.partition_data
    )
