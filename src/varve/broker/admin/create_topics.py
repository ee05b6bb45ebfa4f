"""CreateTopics: every topic of a request for itself.

Invariant  a topic is made with all its partitions or refused; what is refused keeps no other from
           being made.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from varve.broker.admin.config_entry import ConfigEntry
from varve.broker.admin.refusal import Refusal, refusal_of
from varve.broker.admin.topic_configs import (
    TopicConfigs,
    check_names,
    check_no_nulls,
    without_replication,
)
from varve.broker.broker import Broker
from varve.broker.context import RequestContext
from varve.broker.security.rights import CLUSTER_NAME, Operation, ResourceType
from varve.broker.topics import INTERNAL_TOPICS
from varve.commit_log.names import validate_topic_name
from varve.embedded.topic_admin import PARTITION_COUNT_MAX
from varve.foundation.errors import InvalidRequest, StoreError
from varve.wire import ErrorCode
from varve.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
_UNTOLD: Final = -1


async def create_topics(
    broker: Broker, context: RequestContext, request: CreateTopicsRequest
) -> CreateTopicsResponse:
    counts = Counter(topic.name for topic in request.topics)
    wanted = {topic.name: topic for topic in request.topics}
    results = []
    made: list[str] = []
    async with broker.admin.changing(wanted):
        for topic in wanted.values():
            try:
                _check_allowed(broker, context, topic, counts[topic.name])
                _check_name(broker, topic.name, made)
                results.append(await _create(broker, topic, is_trial=request.validate_only))
                made.append(topic.name)
            except (Refusal, StoreError) as error:
                results.append(_refused(topic, refusal_of(error)))
    for result in results:
        if result.error_code == ErrorCode.NONE:
            _tell_configs(broker, context, result)
    return CreateTopicsResponse(topics=results)


def _check_allowed(
    broker: Broker, context: RequestContext, topic: CreatableTopic, count: int
) -> None:
    may = broker.authorizer.is_allowed
    if count > 1:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"topic {topic.name:.260} is named twice")
    if not may(context, Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME) and not may(
        context, Operation.CREATE, ResourceType.TOPIC, topic.name
    ):
        raise Refusal(
            ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"no right to create topic {topic.name:.260}"
        )


async def _create(broker: Broker, topic: CreatableTopic, *, is_trial: bool) -> CreatableTopicResult:
    count = _partition_count(broker, topic)
    own = _own_settings(broker.admin.topic_configs, topic)
    result = CreatableTopicResult(
        name=topic.name,
        error_message=None,
        num_partitions=count,
        replication_factor=1,
        configs=[_config(entry) for entry in broker.admin.topic_configs.entries(own)],
    )
    if not is_trial:
        made = await broker.admin.change(
            lambda: broker.store.create_topic(topic.name, partitions=count, settings=own)
        )
        assert made.id is not None
        result.topic_id = made.id
    return result


def _check_name(broker: Broker, name: str, made: Iterable[str]) -> None:
    try:
        validate_topic_name(name)
    except InvalidRequest as error:
        raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, str(error)) from error
    if name == CLUSTER_METADATA_TOPIC:
        raise Refusal(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {name} is Kafka's own: choose another name"
        )
    if broker.topics.find(name) is not None:
        raise Refusal(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name} exists already")
    if name in INTERNAL_TOPICS:
        raise Refusal(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic {name} is made by the broker when it is first needed: choose another name",
        )
    if (found := broker.topics.find_colliding(name, made)) is not None:
        raise Refusal(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic {name} collides with topic {found}: they differ in dots and underscores alone; "
            "choose another name",
        )


def _own_settings(configs: TopicConfigs, topic: CreatableTopic) -> dict[str, str]:
    given = without_replication(topic.name, {one.name: one.value for one in topic.configs})
    check_names(topic.name, given)
    try:
        own = check_no_nulls(given)
    except InvalidRequest as error:
        raise Refusal(ErrorCode.INVALID_CONFIG, str(error)) from error
    configs.check(topic.name, own)
    return own


def _partition_count(broker: Broker, topic: CreatableTopic) -> int:
    if topic.assignments:
        if topic.num_partitions != _UNTOLD or topic.replication_factor != _UNTOLD:
            raise Refusal(
                ErrorCode.INVALID_REQUEST,
                f"topic {topic.name:.260} has its partitions assigned by hand: give -1 for the "
                "number of partitions and for the replication factor",
            )
        return _assigned_count(topic.assignments, broker.settings.node_id)
    if topic.replication_factor not in (_UNTOLD, 1):
        raise Refusal(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {topic.replication_factor} is more than there are brokers: this "
            "one is alone; ask for 1, or -1 for the default"
            if topic.replication_factor > 1
            else f"replication factor {topic.replication_factor}: ask for 1, or -1 for the default",
        )
    count = topic.num_partitions
    if count == _UNTOLD:
        return broker.settings.num_partitions
    if not 1 <= count <= PARTITION_COUNT_MAX:
        raise Refusal(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {topic.name:.260} with {count} partitions: ask for 1 to {PARTITION_COUNT_MAX}, "
            "or -1 for the default",
        )
    return count


def _assigned_count(assignments: list[CreatableReplicaAssignment], node_id: int) -> int:
    numbers = sorted(one.partition_index for one in assignments)
    if numbers != list(range(len(numbers))) or len(numbers) > PARTITION_COUNT_MAX:
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"partitions {numbers!s:.100} are assigned: they must be 0 to one less than their "
            f"number, which is {PARTITION_COUNT_MAX} at most",
        )
    for one in assignments:
        check_assignment(one.partition_index, one.broker_ids, node_id)
    return len(numbers)


def check_assignment(partition: int, broker_ids: list[int], node_id: int) -> None:
    """Raises Refusal unless a partition is to be on this broker alone."""
    if broker_ids != [node_id]:
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"partition {partition} is assigned to brokers {broker_ids!s:.100}: broker {node_id} "
            "is the only one",
        )


def _tell_configs(broker: Broker, context: RequestContext, result: CreatableTopicResult) -> None:
    """Takes away what the one who asks may not see."""
    may = broker.authorizer.is_allowed
    if may(context, Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, result.name):
        return
    result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    result.num_partitions = result.replication_factor = _UNTOLD
    result.configs = None


def _config(entry: ConfigEntry) -> CreatableTopicConfigs:
    return CreatableTopicConfigs(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
    )


def _refused(topic: CreatableTopic, refusal: Refusal) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=topic.name, error_code=refusal.code, error_message=str(refusal), configs=[]
    )
