"""Topics that are made through a server where they are lacking, and their settings.

Invariant  who asks for a topic that is there does not change it.
"""

from collections.abc import Mapping
from typing import Final

from varve.foundation.errors import NotFound
from varve.kafka_client.answers import Refused, check, only
from varve.kafka_client.client import ServedTopic, ServerClient
from varve.wire.errors import ErrorCode
from varve.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from varve.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

DEFAULT_COUNT: Final = -1
"""Leaves the number of partitions or replicas to the server."""

_TOPIC: Final = 2
"""Kafka's number of this kind of resource."""
_SET: Final = 0


def find_or_create_topic(
    client: ServerClient,
    name: str,
    *,
    partitions: int = DEFAULT_COUNT,
    settings: Mapping[str, str] | None = None,
) -> ServedTopic:
    """A topic as it is, or made as it is asked for."""
    try:
        return client.topic(name)
    except NotFound:
        client.patiently(lambda: _create(client, name, partitions, settings or {}))
    return client.patiently(lambda: _get_made(client, name))


def alter_topic(client: ServerClient, name: str, settings: Mapping[str, str]) -> None:
    """Gives a topic other settings; those not named stay."""
    configs = [AlterableConfig(key, _SET, value) for key, value in settings.items()]
    request = IncrementalAlterConfigsRequest([AlterConfigsResource(_TOPIC, name, configs)], False)

    def ask() -> None:
        answer = client.ask_controller(request, IncrementalAlterConfigsResponse)
        where = f"{client.address.name}: settings of topic {name}"
        altered = only(answer.responses, where)
        check(altered.error_code, where, altered.error_message)

    client.patiently(ask)


def _create(client: ServerClient, name: str, partitions: int, settings: Mapping[str, str]) -> None:
    configs = [CreatableTopicConfig(setting, value) for setting, value in settings.items()]
    asked = CreatableTopic(name, partitions, DEFAULT_COUNT, configs=configs)
    request = CreateTopicsRequest([asked], timeout_ms=client.address.timeout_ms)
    where = f"{client.address.name}: topic {name}"
    made = only(client.ask_controller(request, CreateTopicsResponse).topics, where)
    if made.error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
        check(made.error_code, where, made.error_message)


def _get_made(client: ServerClient, name: str) -> ServedTopic:
    """A broker may know a new topic a little later than its controller."""
    try:
        return client.topic(name)
    except NotFound as error:
        raise Refused(str(error)) from error
