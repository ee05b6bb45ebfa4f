"""Metadata: where clients find this broker and the partitions it leads.

Invariant  a topic that the asking one may not describe is told apart from one that does not exist
           only by its name; where all topics are asked for it is left out.
"""

from collections.abc import Sequence
from typing import Final

from varve.broker.authorized_operations import NOT_ASKED, authorized_operations
from varve.broker.broker import Broker
from varve.broker.context import RequestContext
from varve.broker.security.rights import CLUSTER_NAME, Operation, ResourceType
from varve.broker.topics import INTERNAL_TOPICS, ServedTopic, leader_epoch_of
from varve.commit_log.names import validate_topic_name
from varve.foundation.errors import StoreError, TopicExists
from varve.wire import NO_ID, ErrorCode
from varve.wire.errors import code_for
from varve.wire.messages.cluster import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

_FIRST_WITH_IDS: Final = 12


async def answer_metadata(
    broker: Broker, context: RequestContext, request: MetadataRequest
) -> MetadataResponse:
    """Brokers, and the topics asked for, which may be made on the way."""
    asked = _asked_topics(context, request)
    if asked is None:
        topics = [
            _tell(broker, context, request, one)
            for one in broker.topics
            if _may(broker, context, Operation.DESCRIBE, one.name)
        ]
    elif _has_ids(asked) and context.version < _FIRST_WITH_IDS:
        topics = [
            MetadataResponseTopic(ErrorCode.INVALID_REQUEST, one.name or "", one.topic_id)
            for one in asked
        ]
    else:
        topics = [await _answer_topic(broker, context, request, one) for one in asked]
    return MetadataResponse(
        brokers=[_tell_broker(broker, context)],
        cluster_id=broker.store.cluster_id,
        controller_id=broker.settings.node_id,
        topics=topics,
        cluster_authorized_operations=_cluster_operations(broker, context, request),
    )


def _asked_topics(
    context: RequestContext, request: MetadataRequest
) -> Sequence[MetadataRequestTopic] | None:
    """None for all; version 0 has no null and says it by naming none."""
    if context.version == 0 and not request.topics:
        return None
    return request.topics


def _has_ids(asked: Sequence[MetadataRequestTopic]) -> bool:
    return any(one.name is None or one.topic_id != NO_ID for one in asked)


def _may(broker: Broker, context: RequestContext, operation: Operation, topic: str) -> bool:
    return broker.authorizer.is_allowed(context, operation, ResourceType.TOPIC, topic)


def _tell_broker(broker: Broker, context: RequestContext) -> MetadataResponseBroker:
    endpoint = broker.endpoints[context.connection.listener]
    settings = broker.settings
    return MetadataResponseBroker(
        settings.node_id, endpoint.host, endpoint.port, settings.rack or None
    )


def _cluster_operations(broker: Broker, context: RequestContext, request: MetadataRequest) -> int:
    if not request.include_cluster_authorized_operations:
        return NOT_ASKED
    cluster = ResourceType.CLUSTER
    if not broker.authorizer.is_allowed(context, Operation.DESCRIBE, cluster, CLUSTER_NAME):
        return 0
    return authorized_operations(broker.authorizer, context, cluster, CLUSTER_NAME)


async def _answer_topic(
    broker: Broker, context: RequestContext, request: MetadataRequest, asked: MetadataRequestTopic
) -> MetadataResponseTopic:
    if asked.name is None or asked.topic_id != NO_ID:
        return _answer_by_id(broker, context, request, asked)
    name = asked.name
    if not _may(broker, context, Operation.DESCRIBE, name):
        return MetadataResponseTopic(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name)
    found = broker.topics.find(name)
    if found is None:
        error = _why_not_made(broker, context, request, name)
        if error is None:
            error, found = await _make(broker, name)
        if found is None:
            return MetadataResponseTopic(error, name, is_internal=name in INTERNAL_TOPICS)
    return _tell(broker, context, request, found)


def _answer_by_id(
    broker: Broker, context: RequestContext, request: MetadataRequest, asked: MetadataRequestTopic
) -> MetadataResponseTopic:
    found = broker.topics.find_by_id(asked.topic_id)
    if found is None:
        return MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_ID, None, asked.topic_id)
    if not _may(broker, context, Operation.DESCRIBE, found.name):
        return MetadataResponseTopic(ErrorCode.TOPIC_AUTHORIZATION_FAILED, None, asked.topic_id)
    return _tell(broker, context, request, found)


def _why_not_made(
    broker: Broker, context: RequestContext, request: MetadataRequest, name: str
) -> ErrorCode | None:
    """What keeps a missing topic from being made; None when nothing does."""
    try:
        validate_topic_name(name)
    except StoreError:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    is_wanted = broker.settings.auto_create_topics_enable and request.allow_auto_topic_creation
    if not is_wanted or name in INTERNAL_TOPICS:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    cluster = ResourceType.CLUSTER
    if not broker.authorizer.is_allowed(
        context, Operation.CREATE, cluster, CLUSTER_NAME
    ) and not _may(broker, context, Operation.CREATE, name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return None


async def _make(broker: Broker, name: str) -> tuple[ErrorCode, ServedTopic | None]:
    def make() -> None:
        broker.store.create_topic(name, partitions=broker.settings.num_partitions)

    try:
        async with broker.admin.changing((name,)):
            if broker.topics.find(name) is None:
                if broker.topics.find_colliding(name) is not None:
                    return ErrorCode.INVALID_TOPIC_EXCEPTION, None
                await broker.admin.change(make)
    except TopicExists:
        pass  # the program that runs the broker was faster
    except StoreError as error:
        return code_for(error), None
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, broker.topics.find(name)


def _tell(
    broker: Broker, context: RequestContext, request: MetadataRequest, topic: ServedTopic
) -> MetadataResponseTopic:
    operations = NOT_ASKED
    if request.include_topic_authorized_operations:
        operations = authorized_operations(
            broker.authorizer, context, ResourceType.TOPIC, topic.name
        )
    node_id = broker.settings.node_id
    return MetadataResponseTopic(
        ErrorCode.NONE,
        topic.name,
        topic.id,
        topic.is_internal,
        [_tell_partition(topic, number, node_id) for number in range(len(topic.logs))],
        operations,
    )


def _tell_partition(topic: ServedTopic, number: int, node_id: int) -> MetadataResponsePartition:
    log = topic.logs[number]
    if log is None:
        error = ErrorCode.LEADER_NOT_AVAILABLE
        return MetadataResponsePartition(error, number, -1, -1, [node_id], [], [node_id])
    return MetadataResponsePartition(
        ErrorCode.NONE, number, node_id, leader_epoch_of(log), [node_id], [node_id], []
    )
