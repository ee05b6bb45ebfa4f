"""DescribeTransactions and ListTransactions: what the coordinator knows."""

from collections.abc import Sequence
from dataclasses import dataclass

from varve.broker.broker import Broker
from varve.broker.context import RequestContext
from varve.broker.security.rights import Operation, ResourceType
from varve.broker.transactions.state import BY_KAFKA_NAME, Status, Transaction
from varve.wire import ErrorCode
from varve.wire.messages.transactions import (
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TopicData,
)


def answer_describe(
    broker: Broker, context: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    described = [_describe(broker, context, one) for one in request.transactional_ids]
    return DescribeTransactionsResponse(transaction_states=described)


def _describe(
    broker: Broker, context: RequestContext, transactional_id: str
) -> DescribedTransaction:
    answer = DescribedTransaction(transactional_id=transactional_id)
    if not _may_describe(broker, context, ResourceType.TRANSACTIONAL_ID, transactional_id):
        answer.error_code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return answer
    found = broker.transactions.find(transactional_id)
    if found is None:
        answer.error_code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        return answer
    answer.transaction_state = found.status.kafka_name
    answer.transaction_timeout_ms = found.timeout_ms
    answer.transaction_start_time_ms = found.start_ms
    answer.producer_id = found.producer_id
    answer.producer_epoch = found.producer_epoch
    by_topic: dict[str, list[int]] = {}
    for partition in sorted(found.partitions):
        by_topic.setdefault(partition.topic, []).append(partition.partition)
    answer.topics = [
        TopicData(topic=topic, partitions=numbers)
        for topic, numbers in by_topic.items()
        if _may_describe(broker, context, ResourceType.TOPIC, topic)
    ]
    return answer


def _may_describe(broker: Broker, context: RequestContext, type: ResourceType, name: str) -> bool:
    return broker.authorizer.is_allowed(context, Operation.DESCRIBE, type, name)


@dataclass(frozen=True, slots=True)
class _Filter:
    """Which transactions are asked for; empty sets ask for all."""

    statuses: frozenset[Status] | None
    producer_ids: frozenset[int]
    duration_ms: int
    now_ms: int

    def takes(self, one: Transaction) -> bool:
        return (
            (self.statuses is None or one.status in self.statuses)
            and (not self.producer_ids or one.producer_id in self.producer_ids)
            and (self.duration_ms < 0 or self.now_ms - one.start_ms > self.duration_ms)
        )


async def answer_list(
    broker: Broker, context: RequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    names = request.state_filters
    known = frozenset(BY_KAFKA_NAME[one] for one in names if one in BY_KAFKA_NAME)
    wanted = _Filter(
        known if names else None,
        frozenset(request.producer_id_filters),
        request.duration_filter,
        broker.clock.now_ms(),
    )
    found = [one for one in broker.transactions.known() if wanted.takes(one)]
    if request.transactional_id_pattern:
        ids = [one.transactional_id for one in found]
        matches = await broker.offload(_match, ids, request.transactional_id_pattern)
        if matches is None:
            return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
        found = [one for one, is_match in zip(found, matches, strict=True) if is_match]
    listed = [
        ListedTransaction(
            transactional_id=one.transactional_id,
            producer_id=one.producer_id,
            transaction_state=one.status.kafka_name,
        )
        for one in found
        if _may_describe(broker, context, ResourceType.TRANSACTIONAL_ID, one.transactional_id)
    ]
    return ListTransactionsResponse(
        unknown_state_filters=[one for one in names if one not in BY_KAFKA_NAME],
        transaction_states=listed,
    )


def _match(ids: Sequence[str], pattern: str) -> list[bool] | None:
    """Which ids the whole pattern describes; None where it is none.

    By RE2, as Kafka does: Python's own takes exponential time for some patterns.
    """
    # Here and not above: it takes longer to load than all of the broker, and few ask.
    import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
    import pyarrow.compute as pc  # type: ignore[import-untyped]  # ships no types

    column = pa.array(ids, pa.string())
    try:
        pc.match_substring_regex(pa.array([""]), pattern=pattern)
        found = pc.match_substring_regex(column, pattern=rf"\A(?:{pattern})\z")
    except pa.ArrowInvalid:
        return None
    matches: list[bool] = found.to_pylist()
    return matches
