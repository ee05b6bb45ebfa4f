"""The topic that a sink writes to through a server, as writers must know it.

Invariant  a topic is made only where that is asked for.
"""

from typing import Final

from varve.commit_log import LogSettings
from varve.commit_log.partition_metadata import encode_topic_id
from varve.foundation.errors import InvalidRequest, NotFound
from varve.foundation.settings import parse_settings
from varve.jobs.sink.batches import SinkTarget
from varve.jobs.sink.options import SinkOptions
from varve.kafka_client.client import KafkaClient, TopicMetadata
from varve.wire.errors import ErrorCode, raise_for_code
from varve.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

_NAMES: Final = (
    "cleanup.policy",
    "max.message.bytes",
    "segment.bytes",
    "compression.type",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.zstd.level",
)
_DEFAULT: Final = -1
"""Leaves the number of partitions or replicas to the server."""


def find_served_target(client: KafkaClient, options: SinkOptions) -> SinkTarget:
    """The topic, made if that is asked for; raises NotFound."""
    topic = _find(client, options)
    told = client.topic_settings(topic.name)
    given = {name: value for name, value in told.items() if name in _NAMES}
    settings = parse_settings(LogSettings, given, f"topic {topic.name}")
    count = len(topic.leaders)
    if options.partitions not in (None, count):
        raise InvalidRequest(
            f"topic {topic.name} has {count} partitions, not the {options.partitions} of option "
            "partitions: leave it out, or name another topic"
        )
    return SinkTarget(topic.name, encode_topic_id(topic.id), count, settings)


def _find(client: KafkaClient, options: SinkOptions) -> TopicMetadata:
    try:
        return client.topic(options.topic)
    except NotFound as error:
        if not options.creates_topic:
            raise NotFound(
                f"{error}: make it, or let the write make it with createTopic=true"
            ) from error
    client.retry(lambda: _create(client, options))
    return client.retry(lambda: client.topic(options.topic))


def _create(client: KafkaClient, options: SinkOptions) -> None:
    configs = [CreatableTopicConfig(name, value) for name, value in options.topic_settings]
    count = options.partitions or _DEFAULT
    asked = CreatableTopic(options.topic, count, _DEFAULT, configs=configs)
    request = CreateTopicsRequest([asked], timeout_ms=client.address.timeout_ms)
    (made,) = client.send_to_controller(request, CreateTopicsResponse).topics
    if made.error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
        where = f"{client.address.name}: topic {options.topic}"
        raise_for_code(made.error_code, where, made.error_message)
