"""What an honest client is told of the whole state of a broker, for a comparison."""

from typing import Any, Final

from varve.kafka_client.connection import BrokerConnection
from varve.wire import APIS, Message
from varve.wire.messages.cluster import MetadataRequest
from varve.wire.messages.data import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from varve.wire.messages.groups import (
    ListGroupsRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from varve.wire.messages.security import (
    DescribeAclsRequest,
    DescribeClientQuotasRequest,
    DescribeUserScramCredentialsRequest,
)
from varve.wire.messages.topics import DescribeConfigsRequest, DescribeConfigsResource
from varve.wire.messages.transactions import ListTransactionsRequest

_ANY: Final = 1
_TOPIC, _BROKER = 2, 4

State = dict[str, Any]
"""Answers by what was asked."""


def ask(client: BrokerConnection, request: Message) -> Any:
    return client.send(request, APIS[request.API_KEY].response)


def whole_state(client: BrokerConnection) -> State:
    """All that a broker tells of what it keeps."""
    topics = ask(client, MetadataRequest(topics=None)).topics
    groups = sorted(one.group_id for one in ask(client, ListGroupsRequest()).groups)
    counts = {one.name: len(one.partitions) for one in topics}
    return {
        "topics": sorted((one.name, one.topic_id, len(one.partitions)) for one in topics),
        "groups": groups,
        "broker": ask(client, _configs(_BROKER, "1")),
        "acls": ask(
            client,
            DescribeAclsRequest(
                resource_type_filter=_ANY,
                pattern_type_filter=_ANY,
                operation=_ANY,
                permission_type=_ANY,
            ),
        ),
        "quotas": ask(client, DescribeClientQuotasRequest(components=[])),
        "users": ask(client, DescribeUserScramCredentialsRequest(users=None)),
        "transactions": ask(client, ListTransactionsRequest()),
        **part_of_state(client, counts, groups),
    }


def part_of_state(client: BrokerConnection, counts: dict[str, int], groups: list[str]) -> State:
    """Topics with their numbers of partitions, and groups: configs, offsets and contents."""
    state: State = {}
    for name, count in counts.items():
        state[f"configs of {name}"] = ask(client, _configs(_TOPIC, name))
        for number in range(count):
            state[f"start of {name}-{number}"] = _offset(client, name, number, -2)
            state[f"end of {name}-{number}"] = _offset(client, name, number, -1)
            state[f"records of {name}-{number}"] = _records(client, name, number)
    for group in groups:
        asked = OffsetFetchRequestGroup(group_id=group, topics=None)
        state[f"offsets of {group}"] = ask(client, OffsetFetchRequest(groups=[asked]))
    return state


def _configs(kind: int, name: str) -> DescribeConfigsRequest:
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=None
    )
    return DescribeConfigsRequest(resources=[resource])


def _offset(client: BrokerConnection, name: str, number: int, timestamp: int) -> tuple[int, int]:
    asked = ListOffsetsPartition(partition_index=number, timestamp=timestamp)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name, [asked])])
    (topic,) = ask(client, request).topics
    (told,) = topic.partitions
    return told.error_code, told.offset


def _records(client: BrokerConnection, name: str, number: int) -> bytes | None:
    asked = FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(max_bytes=1 << 20, topics=[FetchTopic(name, partitions=[asked])])
    (topic,) = ask(client, request).responses
    (told,) = topic.partitions
    return None if told.records is None else bytes(told.records)
