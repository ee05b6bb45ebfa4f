"""CreateTopics, DeleteTopics and CreatePartitions.

Invariant  each topic of a request is created, deleted or extended on its own: one that is rejected
           does not affect the others. A topic is created with all its partitions or not at all.
           Records stay where they are when partitions are added; a key may map to another partition
           from then on, as in Kafka.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final
from uuid import UUID

from varve.broker.admin.cluster import CLUSTER_METADATA_TOPIC
from varve.broker.admin.configs import (
    ConfigEntry,
    TopicConfigs,
    check_names,
    check_no_nulls,
    without_replication,
)
from varve.broker.answers import in_turns
from varve.broker.broker import Broker
from varve.broker.error_responses import reporting
from varve.broker.request import Operation, RequestContext, ResourceType
from varve.broker.topics import ServedTopic
from varve.commit_log.names import validate_topic_name
from varve.embedded.topic_admin import PARTITION_COUNT_MAX, NewTopic
from varve.foundation.errors import InvalidRequest, StoreError
from varve.wire import NO_ID, ErrorCode
from varve.wire.errors import KafkaError
from varve.wire.messages import topics as messages
from varve.wire.messages.state_records import BROKER_TOPICS

_CREATED_TOGETHER_MAX: Final = 2_000
"""Partitions; requests about topics wait for so many."""
_DEFAULT: Final = -1
"""Stands for the default number of partitions or replicas."""


# CreateTopics


async def handle_create_topics(
    broker: Broker, context: RequestContext, request: messages.CreateTopicsRequest
) -> messages.CreateTopicsResponse:
    counts = Counter(topic.name for topic in request.topics)
    requested = {topic.name: topic for topic in request.topics}
    results = []
    planned: _Planned = {}
    # Also for validation: a topic that another request creates meanwhile is a conflict.
    async with broker.changing_topics(requested):
        async for topic in in_turns(requested.values()):
            result = messages.CreatableTopicResult(name=topic.name, configs=[])
            results.append(result)
            with reporting(result):
                _check_named_once(topic.name, counts[topic.name])
                if not context.is_authorized(Operation.CREATE, ResourceType.CLUSTER):
                    context.authorize(Operation.CREATE, ResourceType.TOPIC, topic.name)
                _check_name(broker, topic.name, planned)
                planned[topic.name] = _plan(broker, topic), result
        if not request.validate_only:
            planned = await _create(broker, planned)
        for new, result in planned.values():
            _describe_created(broker, new, result)
            _hide_configs(context, result)
    return messages.CreateTopicsResponse(topics=results)


def _check_named_once(name: str, count: int) -> None:
    if count > 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"topic {name:.260} is named twice")


def _plan(broker: Broker, topic: messages.CreatableTopic) -> NewTopic:
    count = _partition_count(broker, topic)
    return NewTopic(topic.name, count, _own_configs(broker.topic_configs, topic))


_Planned = dict[str, tuple[NewTopic, messages.CreatableTopicResult]]


async def _create(broker: Broker, planned: _Planned) -> _Planned:
    """Creates the topics, many at a time; returns those that were created."""
    created: _Planned = {}
    for group in _groups(planned):
        topics = [planned[name][0] for name in group]
        outcomes = await broker.blocking.run(broker.store.create_topics, topics)
        for name, outcome in zip(group, outcomes, strict=True):
            with reporting(planned[name][1]):
                if isinstance(outcome, StoreError):
                    raise outcome
                assert outcome.id is not None
                planned[name][1].topic_id = outcome.id
                created[name] = planned[name]
    return created


def _groups(planned: _Planned) -> Iterator[list[str]]:
    """The names of topics whose partitions are created together."""
    group: list[str] = []
    count = 0
    for name, (new, _) in planned.items():
        group.append(name)
        count += new.partition_count
        if count >= _CREATED_TOGETHER_MAX:
            yield group
            group, count = [], 0
    if group:
        yield group


def _describe_created(broker: Broker, new: NewTopic, result: messages.CreatableTopicResult) -> None:
    result.error_message = None
    result.num_partitions, result.replication_factor = new.partition_count, 1
    entries = broker.topic_configs.entries(
        {name: str(value) for name, value in new.settings.items()}
    )
    result.configs = [_created_config(entry) for entry in entries]


def _check_name(broker: Broker, name: str, created: Iterable[str]) -> None:
    try:
        validate_topic_name(name)
    except InvalidRequest as error:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, str(error)) from error
    if name == CLUSTER_METADATA_TOPIC:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic {name} is internal to Kafka: choose another name",
        )
    if broker.topics.find(name) is not None:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name} exists already")
    if name in BROKER_TOPICS:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic {name} is created by the broker when it is first needed: choose another name",
        )
    colliding = broker.topics.find_colliding(name, created)
    if colliding is not None:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic {name} collides with topic {colliding}: they differ in dots and underscores "
            "alone; choose another name",
        )


def _own_configs(configs: TopicConfigs, topic: messages.CreatableTopic) -> dict[str, str]:
    requested = {config.name: config.value for config in topic.configs}
    requested = without_replication(topic.name, requested)
    check_names(topic.name, requested)
    try:
        own = check_no_nulls(requested)
    except InvalidRequest as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
    configs.check(topic.name, own)
    return own


def _partition_count(broker: Broker, topic: messages.CreatableTopic) -> int:
    if topic.assignments:
        if topic.num_partitions != _DEFAULT or topic.replication_factor != _DEFAULT:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"topic {topic.name:.260} has an assignment of its partitions: use -1 for the "
                "number of partitions and for the replication factor",
            )
        return _assigned_count(topic.assignments, broker.settings.node_id)
    if topic.replication_factor not in (_DEFAULT, 1):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {topic.replication_factor} is larger than the number of brokers, "
            "1: use 1, or -1 for the default"
            if topic.replication_factor > 1
            else f"replication factor {topic.replication_factor}: use 1, or -1 for the default",
        )
    count = topic.num_partitions
    if count == _DEFAULT:
        return broker.settings.num_partitions
    if not 1 <= count <= PARTITION_COUNT_MAX:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {topic.name:.260} with {count} partitions: use 1 to {PARTITION_COUNT_MAX}, "
            "or -1 for the default",
        )
    return count


def _assigned_count(assignments: list[messages.CreatableReplicaAssignment], node_id: int) -> int:
    numbers = sorted(assignment.partition_index for assignment in assignments)
    if numbers != list(range(len(numbers))) or len(numbers) > PARTITION_COUNT_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"partitions {numbers!s:.100} are assigned: assign 0 to one less than their number, "
            f"which is at most {PARTITION_COUNT_MAX}",
        )
    for assignment in assignments:
        _check_brokers(assignment.partition_index, assignment.broker_ids, node_id)
    return len(numbers)


def _check_brokers(partition: int, broker_ids: list[int], node_id: int) -> None:
    if broker_ids != [node_id]:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"partition {partition} is assigned to brokers {broker_ids!s:.100}: broker {node_id} "
            "is the only one",
        )


def _hide_configs(context: RequestContext, result: messages.CreatableTopicResult) -> None:
    """Removes what the client may not describe."""
    if context.is_authorized(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, result.name):
        return
    result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    result.num_partitions = result.replication_factor = _DEFAULT
    result.configs = None


def _created_config(entry: ConfigEntry) -> messages.CreatableTopicConfigs:
    return messages.CreatableTopicConfigs(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.config_source,
        is_sensitive=entry.is_sensitive,
    )


# DeleteTopics

_FIRST_WITH_TOPIC_STATES: Final = 6
_FIRST_WITH_DELETION_DISABLED: Final = 3


async def handle_delete_topics(
    broker: Broker, context: RequestContext, request: messages.DeleteTopicsRequest
) -> messages.DeleteTopicsResponse:
    """Topics by name, and from version 6 on also by id."""
    requested = list(request.topics)
    if context.version < _FIRST_WITH_TOPIC_STATES:
        requested = [messages.DeleteTopicState(name=name) for name in request.topic_names]
    counts = Counter((topic.name, topic.topic_id) for topic in requested)
    results = []
    names: list[str] = []  # filled inside, as an id is looked up only while no topic changes
    deleted: dict[str, messages.DeletableTopicResult] = {}
    async with broker.changing_topics(names):
        async for (name, id), count in in_turns(counts.items()):
            result = messages.DeletableTopicResult(name=name, topic_id=id)
            results.append(result)
            with reporting(result):
                _check_deletion_request(broker, context, name, id, count)
                topic = _get_described_topic(broker, context, name, id)
                result.name, result.topic_id = topic.name, topic.id
                _check_may_delete(context, topic)
                if topic.name in deleted:
                    raise KafkaError(
                        ErrorCode.INVALID_REQUEST,
                        f"topic {topic.name} is named twice, by its name and by its id",
                    )
                names.append(topic.name)
                deleted[topic.name] = result
        outcomes = await broker.blocking.run(broker.store.delete_topics, list(deleted))
        for result, error in zip(deleted.values(), outcomes, strict=True):
            with reporting(result):
                if error is not None:
                    raise error
    return messages.DeleteTopicsResponse(responses=results)


def _check_deletion_request(
    broker: Broker, context: RequestContext, name: str | None, id: UUID, count: int
) -> None:
    if not broker.settings.delete_topic_enable:
        is_known = context.version >= _FIRST_WITH_DELETION_DISABLED
        raise KafkaError(
            ErrorCode.TOPIC_DELETION_DISABLED if is_known else ErrorCode.INVALID_REQUEST,
            "topics cannot be deleted: delete.topic.enable is false; set it to true and restart "
            "the broker",
        )
    if count > 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"topic {name or id} is named twice")
    if (name is None) == (id == NO_ID):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "give either the name or the id of a topic")


def _get_described_topic(
    broker: Broker, context: RequestContext, name: str | None, id: UUID
) -> ServedTopic:
    """As `get_topic`, for a client that may delete everything or describe the topic."""
    if not context.is_authorized(Operation.DELETE, ResourceType.CLUSTER):
        return context.get_topic(Operation.DESCRIBE, name=name, id=id)
    return broker.topics.get(name=name, id=id)


def _check_may_delete(context: RequestContext, topic: ServedTopic) -> None:
    if not context.is_authorized(Operation.DELETE, ResourceType.CLUSTER):
        context.authorize(Operation.DELETE, ResourceType.TOPIC, topic.name)
    if topic.is_internal:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"topic {topic.name} holds the state of groups or transactions and cannot be deleted",
        )


# CreatePartitions


async def handle_create_partitions(
    broker: Broker, context: RequestContext, request: messages.CreatePartitionsRequest
) -> messages.CreatePartitionsResponse:
    counts = Counter(topic.name for topic in request.topics)
    requested = {topic.name: topic for topic in request.topics}
    results = []
    # Also for validation, so that the partition count does not change; then no topic is changed.
    async with broker.changing_topics([] if request.validate_only else requested):
        async for topic in in_turns(requested.values()):
            result = messages.CreatePartitionsTopicResult(name=topic.name)
            results.append(result)
            with reporting(result):
                _check_named_once(topic.name, counts[topic.name])
                served = context.get_topic(Operation.ALTER, name=topic.name)
                _check_count(served, topic.count)
                _check_new_assignments(topic, len(served.logs), broker.settings.node_id)
                if not request.validate_only:
                    add_partitions = broker.store.add_partitions
                    await broker.blocking.run(add_partitions, topic.name, topic.count)
    return messages.CreatePartitionsResponse(results=results)


def _check_count(topic: ServedTopic, count: int) -> None:
    if topic.is_internal:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"the partition count of topic {topic.name} cannot change: the partition of a group or "
            "transaction depends on it",
        )
    current = len(topic.logs)
    if not current < count <= PARTITION_COUNT_MAX:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {topic.name} has {current} partitions and cannot have {count}: partitions are "
            f"only added; request a total of {current + 1} to {PARTITION_COUNT_MAX}",
        )


def _check_new_assignments(
    topic: messages.CreatePartitionsTopic, current: int, node_id: int
) -> None:
    if topic.assignments is None:
        return
    if len(topic.assignments) != topic.count - current:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"topic {topic.name} gets {topic.count - current} new partitions, and "
            f"{len(topic.assignments)} are assigned: assign all of them, or none",
        )
    for number, assignment in enumerate(topic.assignments, start=current):
        _check_brokers(number, assignment.broker_ids, node_id)
