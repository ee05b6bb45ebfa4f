"""DeleteTopics: by name, and from version 6 on by id."""

from collections import Counter
from uuid import UUID

from varve.broker.admin.refusal import Refusal, refusal_of
from varve.broker.broker import Broker
from varve.broker.context import RequestContext
from varve.broker.security.rights import CLUSTER_NAME, Operation, ResourceType
from varve.broker.topics import ServedTopic
from varve.foundation.errors import StoreError
from varve.wire import NO_ID, ErrorCode
from varve.wire.messages.topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)


async def delete_topics(
    broker: Broker, context: RequestContext, request: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    wanted = list(request.topics)
    if context.version < 6:
        wanted = [DeleteTopicState(name=name) for name in request.topic_names]
    counts = Counter((one.name, one.topic_id) for one in wanted)
    results = []
    names: list[str] = []
    async with broker.admin.changing(names):
        for (name, id), count in counts.items():
            result = DeletableTopicResult(name=name, topic_id=id)
            results.append(result)
            try:
                _check_request(broker, context, name, id, count)
                topic = _find(broker, context, name, id)
                result.name, result.topic_id = topic.name, topic.id
                _check_deletable(broker, context, topic)
                names.append(topic.name)
                await broker.admin.change(broker.store.delete_topic, topic.name)
            except (Refusal, StoreError) as error:
                refusal = refusal_of(error)
                result.error_code, result.error_message = refusal.code, str(refusal)
    return DeleteTopicsResponse(responses=results)


def _check_request(
    broker: Broker, context: RequestContext, name: str | None, id: UUID, count: int
) -> None:
    if not broker.admin.settings.delete_topic_enable:
        # Before version 3 clients do not know the code.
        is_known = context.version >= 3
        raise Refusal(
            ErrorCode.TOPIC_DELETION_DISABLED if is_known else ErrorCode.INVALID_REQUEST,
            "topics are not deleted here: delete.topic.enable is false; set it when the broker "
            "starts",
        )
    if count > 1:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"topic {name or id} is named twice")
    if (name is None) == (id == NO_ID):
        raise Refusal(ErrorCode.INVALID_REQUEST, "name a topic or give its id, one of both")


def _find(broker: Broker, context: RequestContext, name: str | None, id: UUID) -> ServedTopic:
    """The topic; one that may not be seen looks as if the right were missing, there or not."""
    topic = broker.topics.find_by_id(id) if name is None else broker.topics.find(name)
    if topic is None and name is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic of id {id}")
    found = name if topic is None else topic.name
    assert found is not None
    may = broker.authorizer.is_allowed
    if not may(context, Operation.DELETE, ResourceType.CLUSTER, CLUSTER_NAME) and not may(
        context, Operation.DESCRIBE, ResourceType.TOPIC, found
    ):
        raise Refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no right to see this topic")
    if topic is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {found:.260}")
    return topic


def _check_deletable(broker: Broker, context: RequestContext, topic: ServedTopic) -> None:
    may = broker.authorizer.is_allowed
    if not may(context, Operation.DELETE, ResourceType.CLUSTER, CLUSTER_NAME) and not may(
        context, Operation.DELETE, ResourceType.TOPIC, topic.name
    ):
        raise Refusal(
            ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"no right to delete topic {topic.name}"
        )
    if topic.is_internal:
        raise Refusal(
            ErrorCode.INVALID_REQUEST,
            f"topic {topic.name} is what groups and transactions are kept in; it is not deleted",
        )
