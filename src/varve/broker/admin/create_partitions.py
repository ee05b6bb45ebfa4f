"""CreatePartitions: topics that get more partitions.

Records stay where they are. Of those to come a key may go to another partition than before, as in
Kafka.
"""

from collections import Counter

from varve.broker.admin.create_topics import check_assignment
from varve.broker.admin.refusal import Refusal, refusal_of
from varve.broker.broker import Broker
from varve.broker.context import RequestContext
from varve.broker.security.rights import Operation, ResourceType
from varve.broker.topics import ServedTopic
from varve.embedded.topic_admin import PARTITION_COUNT_MAX
from varve.foundation.errors import StoreError
from varve.wire import ErrorCode
from varve.wire.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)


async def create_partitions(
    broker: Broker, context: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    counts = Counter(topic.name for topic in request.topics)
    wanted = {topic.name: topic for topic in request.topics}
    results = []
    async with broker.admin.changing([] if request.validate_only else wanted):
        for topic in wanted.values():
            result = CreatePartitionsTopicResult(name=topic.name)
            results.append(result)
            try:
                if counts[topic.name] > 1:
                    raise Refusal(
                        ErrorCode.INVALID_REQUEST, f"topic {topic.name:.260} is named twice"
                    )
                _check(broker, context, topic)
                if not request.validate_only:
                    add = broker.store.add_partitions
                    await broker.admin.change(add, topic.name, topic.count)
            except (Refusal, StoreError) as error:
                refusal = refusal_of(error)
                result.error_code, result.error_message = refusal.code, str(refusal)
    return CreatePartitionsResponse(results=results)


def _check(broker: Broker, context: RequestContext, topic: CreatePartitionsTopic) -> None:
    may = broker.authorizer.is_allowed
    if not may(context, Operation.ALTER, ResourceType.TOPIC, topic.name):
        raise Refusal(
            ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"no right to alter topic {topic.name:.260}"
        )
    served = broker.topics.find(topic.name)
    if served is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic.name:.260}")
    _check_count(served, topic.count)
    _check_assignments(topic, len(served.logs), broker.settings.node_id)


def _check_count(served: ServedTopic, count: int) -> None:
    if served.is_internal:
        raise Refusal(
            ErrorCode.INVALID_REQUEST,
            f"topic {served.name} keeps each group or transaction in a partition that follows from "
            "their number; it does not change",
        )
    had = len(served.logs)
    if not had < count <= PARTITION_COUNT_MAX:
        raise Refusal(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {served.name} has {had} partitions and cannot have {count}: partitions are "
            f"only added; ask for {had + 1} to {PARTITION_COUNT_MAX} in all",
        )


def _check_assignments(topic: CreatePartitionsTopic, had: int, node_id: int) -> None:
    if topic.assignments is None:
        return
    if len(topic.assignments) != topic.count - had:
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"topic {topic.name} gets {topic.count - had} partitions more, and "
            f"{len(topic.assignments)} are assigned: assign each of them, or none",
        )
    for number, one in enumerate(topic.assignments, start=had):
        check_assignment(number, one.broker_ids, node_id)
