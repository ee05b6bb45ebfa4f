"""Metadata, DescribeTopicPartitions, DescribeCluster, FindCoordinator and DescribeLogDirs: what
clients learn of the cluster.

There is one broker. It leads every partition and coordinates every group and transaction.

Invariant  a topic that the client may not describe is reported as unauthorized whether it exists or
           not; in a response with all topics it is left out. A topic is reported once, however
           often the request names it.
"""

import os
import shutil
from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from varve.broker.answers import in_turns
from varve.broker.broker import Broker
from varve.broker.request import NO_OPERATIONS, Operation, RequestContext, ResourceType
from varve.broker.topics import ServedTopic, current_leader_epoch
from varve.commit_log import LogDirectory
from varve.commit_log.names import validate_topic_name
from varve.disk import FileSystem, RealFileSystem
from varve.foundation.errors import InvalidRequest, StoreError, TopicExists
from varve.wire import NO_ID, ErrorCode
from varve.wire.errors import KafkaError, code_for
from varve.wire.messages import cluster as messages
from varve.wire.messages.state_records import BROKER_TOPICS, INTERNAL_TOPICS

# Metadata

_FIRST_WITH_IDS: Final = 12


async def handle_metadata(
    broker: Broker, context: RequestContext, request: messages.MetadataRequest
) -> messages.MetadataResponse:
    """The broker and the requested topics, which may be created by the request."""
    endpoint, settings = broker.endpoints[context.connection.listener], broker.settings
    return messages.MetadataResponse(
        brokers=[
            messages.MetadataResponseBroker(
                settings.node_id, endpoint.host, endpoint.port, settings.rack or None
            )
        ],
        cluster_id=broker.store.cluster_id,
        controller_id=settings.node_id,
        topics=await _describe_requested_topics(broker, context, request),
        cluster_authorized_operations=_cluster_operations(
            context, request.include_cluster_authorized_operations
        ),
    )


async def _describe_requested_topics(
    broker: Broker, context: RequestContext, request: messages.MetadataRequest
) -> list[messages.MetadataResponseTopic]:
    requested = request.topics
    # Version 0 has no null: an empty list stands for all topics.
    if requested is None or (context.version == 0 and not requested):
        return [
            _describe_topic(broker, context, request, topic)
            for topic in broker.topics
            if context.is_authorized(Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
        ]
    has_ids = any(topic.name is None or topic.topic_id != NO_ID for topic in requested)
    if has_ids and context.version < _FIRST_WITH_IDS:
        return [
            messages.MetadataResponseTopic(
                ErrorCode.INVALID_REQUEST, topic.name or "", topic.topic_id
            )
            for topic in requested
        ]
    unique = {(topic.name, topic.topic_id): topic for topic in requested}
    return [
        await _describe_requested_topic(broker, context, request, topic)
        async for topic in in_turns(unique.values())
    ]


def _cluster_operations(context: RequestContext, is_requested: bool) -> int:
    if not is_requested:
        return NO_OPERATIONS
    if not context.is_authorized(Operation.DESCRIBE, ResourceType.CLUSTER):
        return 0
    return context.authorized_operations(ResourceType.CLUSTER)


async def _describe_requested_topic(
    broker: Broker,
    context: RequestContext,
    request: messages.MetadataRequest,
    requested: messages.MetadataRequestTopic,
) -> messages.MetadataResponseTopic:
    name = requested.name
    if name is None or requested.topic_id != NO_ID:
        try:
            topic = context.get_topic(Operation.DESCRIBE, id=requested.topic_id)
        except KafkaError as error:
            return messages.MetadataResponseTopic(error.code, None, requested.topic_id)
        return _describe_topic(broker, context, request, topic)
    try:
        context.authorize(Operation.DESCRIBE, ResourceType.TOPIC, name)
        served = broker.topics.find(name)
        if served is None:
            _check_creatable(broker, context, request, name)
            served = await _create_topic(broker, name)
    except StoreError as error:
        return messages.MetadataResponseTopic(
            code_for(error), name, is_internal=name in INTERNAL_TOPICS
        )
    return _describe_topic(broker, context, request, served)


def _check_creatable(
    broker: Broker, context: RequestContext, request: messages.MetadataRequest, name: str
) -> None:
    """Raises KafkaError unless the request may create a missing topic."""
    try:
        validate_topic_name(name)
    except StoreError as error:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION) from error
    is_enabled = broker.settings.auto_create_topics_enable and request.allow_auto_topic_creation
    if not is_enabled or name in BROKER_TOPICS:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if not context.is_authorized(Operation.CREATE, ResourceType.CLUSTER):
        context.authorize(Operation.CREATE, ResourceType.TOPIC, name)


async def _create_topic(broker: Broker, name: str) -> ServedTopic:
    def create() -> None:
        broker.store.create_topic(name, partitions=broker.settings.num_partitions)

    try:
        async with broker.changing_topics((name,)):
            if broker.topics.find(name) is None:
                if broker.topics.find_colliding(name) is not None:
                    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
                await broker.blocking.run(create)
    except TopicExists:
        pass  # created meanwhile by the program that runs the broker
    topic = broker.topics.find(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return topic


def _describe_topic(
    broker: Broker, context: RequestContext, request: messages.MetadataRequest, topic: ServedTopic
) -> messages.MetadataResponseTopic:
    operations = NO_OPERATIONS
    if request.include_topic_authorized_operations:
        operations = context.authorized_operations(ResourceType.TOPIC, topic.name)
    node_id = broker.settings.node_id
    return messages.MetadataResponseTopic(
        ErrorCode.NONE,
        topic.name,
        topic.id,
        topic.is_internal,
        [
            messages.MetadataResponsePartition(*_partition_state(topic, number, node_id))
            for number in range(len(topic.logs))
        ],
        operations,
    )


def _partition_state(
    topic: ServedTopic, number: int, node_id: int
) -> tuple[ErrorCode, int, int, int, list[int], list[int], list[int]]:
    """Error, number, leader, leader epoch; and the replicas, those in sync and those offline."""
    log = topic.logs[number]
    if log is None:
        return ErrorCode.LEADER_NOT_AVAILABLE, number, -1, -1, [node_id], [], [node_id]
    return ErrorCode.NONE, number, node_id, current_leader_epoch(log), [node_id], [node_id], []


# DescribeTopicPartitions

_PAGE_PARTITIONS_MAX: Final = 2_000
"""In one response, whatever the client allows."""


async def handle_describe_topic_partitions(
    broker: Broker, context: RequestContext, request: messages.DescribeTopicPartitionsRequest
) -> messages.DescribeTopicPartitionsResponse:
    """The requested topics, or all, by name from the cursor on, up to a number of partitions.

    The cursor of the response names the first partition that was left out.
    """
    cursor = request.cursor
    if cursor is not None and cursor.partition_index < 0:
        raise InvalidRequest(f"cursor at partition {cursor.partition_index}; must be 0 or more")
    count_left = max(1, min(request.response_partition_limit, _PAGE_PARTITIONS_MAX))
    response = messages.DescribeTopicPartitionsResponse()
    requested = {topic.name for topic in request.topics or broker.topics}
    async for name in in_turns(sorted(requested)):
        if cursor is not None and name < cursor.topic_name:
            continue
        try:
            topic = context.get_topic(Operation.DESCRIBE, name=name)
        except KafkaError as error:
            if request.topics:
                response.topics.append(
                    messages.DescribeTopicPartitionsResponseTopic(error.code, name)
                )
            continue
        is_resumed = cursor is not None and name == cursor.topic_name
        start = cursor.partition_index if cursor is not None and is_resumed else 0
        if not count_left:
            response.next_cursor = messages.Cursor(name, start)
            break
        end = min(len(topic.logs), start + count_left)
        response.topics.append(_describe_page(broker, context, topic, range(start, end)))
        count_left -= max(0, end - start)
        if end < len(topic.logs):
            response.next_cursor = messages.Cursor(name, end)
            break
    return response


def _describe_page(
    broker: Broker, context: RequestContext, topic: ServedTopic, numbers: range
) -> messages.DescribeTopicPartitionsResponseTopic:
    node_id = broker.settings.node_id
    return messages.DescribeTopicPartitionsResponseTopic(
        ErrorCode.NONE,
        topic.name,
        topic.id,
        topic.is_internal,
        [_describe_page_partition(topic, number, node_id) for number in numbers],
        context.authorized_operations(ResourceType.TOPIC, topic.name),
    )


def _describe_page_partition(
    topic: ServedTopic, number: int, node_id: int
) -> messages.DescribeTopicPartitionsResponsePartition:
    """Replica lists are empty, never null: Java clients do not accept null."""
    state = _partition_state(topic, number, node_id)
    return messages.DescribeTopicPartitionsResponsePartition(*state[:6], [], [], state[6])


# DescribeCluster

_BROKERS: Final = 1
_CONTROLLERS: Final = 2


def handle_describe_cluster(
    broker: Broker, context: RequestContext, request: messages.DescribeClusterRequest
) -> messages.DescribeClusterResponse:
    """The broker by the address of the listener that the client is connected to."""
    if request.endpoint_type == _CONTROLLERS:
        raise KafkaError(
            ErrorCode.MISMATCHED_ENDPOINT_TYPE, "this is a broker's endpoint, not a controller's"
        )
    if request.endpoint_type != _BROKERS:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            f"endpoint type {request.endpoint_type} is not known; request 1 (brokers)",
        )
    settings, endpoint = broker.settings, broker.endpoints[context.connection.listener]
    return messages.DescribeClusterResponse(
        endpoint_type=_BROKERS,
        cluster_id=broker.store.cluster_id,
        controller_id=settings.node_id,
        brokers=[
            messages.DescribeClusterBroker(
                settings.node_id, endpoint.host, endpoint.port, settings.rack or None
            )
        ],
        cluster_authorized_operations=_cluster_operations(
            context, request.include_cluster_authorized_operations
        ),
    )


# FindCoordinator

_FIRST_WITH_KEYS: Final = 4


class CoordinatorType(IntEnum):
    """By Kafka's numbers."""

    GROUP = 0
    TRANSACTION = 1


async def handle_find_coordinator(
    broker: Broker, context: RequestContext, request: messages.FindCoordinatorRequest
) -> messages.FindCoordinatorResponse:
    """This broker. The topic of group state is created when a client first looks for a group."""
    keys = request.coordinator_keys if context.version >= _FIRST_WITH_KEYS else [request.key]
    coordinators = [
        await _find_coordinator(broker, context, request.key_type, key)
        async for key in in_turns(dict.fromkeys(keys))
    ]
    if context.version >= _FIRST_WITH_KEYS:
        return messages.FindCoordinatorResponse(coordinators=coordinators)
    [coordinator] = coordinators
    return messages.FindCoordinatorResponse(
        error_code=coordinator.error_code,
        error_message=coordinator.error_message,
        node_id=coordinator.node_id,
        host=coordinator.host,
        port=coordinator.port,
    )


async def _find_coordinator(
    broker: Broker, context: RequestContext, key_type: int, key: str
) -> messages.Coordinator:
    try:
        match key_type:
            case CoordinatorType.GROUP:
                context.authorize(Operation.DESCRIBE, ResourceType.GROUP, key)
                await broker.groups.ensure_topic()
            case CoordinatorType.TRANSACTION:
                context.authorize(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, key)
            case _:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"coordinator type {key_type} is not known; request 0 (groups) or 1 "
                    "(transactions)",
                )
    except KafkaError as error:
        return messages.Coordinator(key, -1, "", -1, error.code, str(error))
    endpoint = broker.endpoints[context.connection.listener]
    return messages.Coordinator(key, broker.settings.node_id, endpoint.host, endpoint.port)


# DescribeLogDirs

_Selection = Mapping[str, frozenset[int]] | None


async def handle_describe_log_dirs(
    broker: Broker, context: RequestContext, request: messages.DescribeLogDirsRequest
) -> messages.DescribeLogDirsResponse:
    """The partitions of each log directory with their sizes, and the space on its disk."""
    if not context.is_authorized(Operation.DESCRIBE, ResourceType.CLUSTER):
        # Before version 3 there is no field for the error: the list is empty.
        return messages.DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    selection: _Selection = None
    if request.topics is not None:
        selection = {topic.topic: frozenset(topic.partitions) for topic in request.topics}
    store = broker.store
    results = await broker.blocking.run(
        lambda: [
            _describe_log_dir(store.fs, directory, selection) for directory in store.directories
        ]
    )
    return messages.DescribeLogDirsResponse(results=results)


def _describe_log_dir(
    fs: FileSystem, directory: LogDirectory, selection: _Selection
) -> messages.DescribeLogDirsResult:
    is_real = isinstance(fs, RealFileSystem)
    result = messages.DescribeLogDirsResult(
        log_dir=os.path.abspath(directory.path) if is_real else directory.path
    )
    if directory.failure is not None:
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return result
    topics: dict[str, messages.DescribeLogDirsTopic] = {}
    for partition, log in sorted(directory.logs.copy().items()):
        name, number = partition.topic, partition.partition
        if selection is None or number in selection.get(name, ()):
            topic = topics.setdefault(name, messages.DescribeLogDirsTopic(name=name))
            topic.partitions.append(
                messages.DescribeLogDirsPartition(partition_index=number, partition_size=log.size)
            )
    result.topics = list(topics.values())
    if is_real:
        usage = shutil.disk_usage(directory.path)
        result.total_bytes, result.usable_bytes = usage.total, usage.free
    return result
