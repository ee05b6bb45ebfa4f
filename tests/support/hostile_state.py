"""A client of few words, and what it is told of the whole state of a broker, for a comparison."""

import socket
from struct import Struct
from typing import Any, Final, Self

from tests.support.hostile_requests import LENGTH
from tests.support.kafka_server import HOST
from varve.wire import APIS, ApiKey, Message, decode, encode, skip_tags, write_request_header
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
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from varve.wire.messages.topics import DescribeConfigsRequest, DescribeConfigsResource
from varve.wire.messages.transactions import ListTransactionsRequest

_CORRELATION: Final = Struct(">i")
_PATIENCE_SECONDS: Final = 20.0
_ANY: Final = 1
_TOPIC, _BROKER = 2, 4

State = dict[str, Any]
"""Answers by what was asked."""


class WordyClient:
    """One connection; logs in where it is given a password."""

    def __init__(self, port: int, *, user: str | None = None, password: str = "") -> None:
        self._socket = socket.create_connection((HOST, port), _PATIENCE_SECONDS)
        if user is not None:
            self.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
            token = b"\0%s\0%s" % (user.encode(), password.encode())
            told = self.ask(SaslAuthenticateRequest(auth_bytes=token), 2)
            assert told.error_code == 0, told

    def ask(self, message: Message, version: int) -> Any:
        api = APIS[message.API_KEY]
        out = write_request_header(
            api.key, version, 7, "honest", is_flexible=api.is_flexible(version)
        )
        out += encode(message, version)
        self._socket.sendall(LENGTH.pack(len(out)) + out)
        (length,) = LENGTH.unpack(self._receive(LENGTH.size))
        data = memoryview(self._receive(length))
        at = _CORRELATION.size
        if api.is_flexible(version) and api.key is not ApiKey.API_VERSIONS:
            at = skip_tags(data, at)
        return decode(api.response, version, data, at)

    def _receive(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            piece = self._socket.recv(size - len(found))
            if not piece:
                raise ConnectionError("the server ended the connection of an honest client")
            found += piece
        return bytes(found)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def whole_state(client: WordyClient) -> State:
    """All that a broker tells of what it keeps."""
    topics = client.ask(MetadataRequest(topics=None), 12).topics
    groups = sorted(one.group_id for one in client.ask(ListGroupsRequest(), 5).groups)
    counts = {one.name: len(one.partitions) for one in topics}
    return {
        "topics": sorted((one.name, one.topic_id, len(one.partitions)) for one in topics),
        "groups": groups,
        "broker": client.ask(_configs(_BROKER, "1"), 4),
        "acls": client.ask(
            DescribeAclsRequest(
                resource_type_filter=_ANY,
                pattern_type_filter=_ANY,
                operation=_ANY,
                permission_type=_ANY,
            ),
            3,
        ),
        "quotas": client.ask(DescribeClientQuotasRequest(components=[]), 1),
        "users": client.ask(DescribeUserScramCredentialsRequest(users=None), 0),
        "transactions": client.ask(ListTransactionsRequest(), 0),
        **part_of_state(client, counts, groups),
    }


def part_of_state(client: WordyClient, counts: dict[str, int], groups: list[str]) -> State:
    """Topics with their numbers of partitions, and groups: configs, offsets and contents."""
    state: State = {}
    for name, count in counts.items():
        state[f"configs of {name}"] = client.ask(_configs(_TOPIC, name), 4)
        for number in range(count):
            state[f"start of {name}-{number}"] = _offset(client, name, number, -2)
            state[f"end of {name}-{number}"] = _offset(client, name, number, -1)
            state[f"records of {name}-{number}"] = _records(client, name, number)
    for group in groups:
        asked = OffsetFetchRequestGroup(group_id=group, topics=None)
        state[f"offsets of {group}"] = client.ask(OffsetFetchRequest(groups=[asked]), 8)
    return state


def _configs(kind: int, name: str) -> DescribeConfigsRequest:
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=None
    )
    return DescribeConfigsRequest(resources=[resource])


def _offset(client: WordyClient, name: str, number: int, timestamp: int) -> tuple[int, int]:
    asked = ListOffsetsPartition(partition_index=number, timestamp=timestamp)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name, [asked])])
    (topic,) = client.ask(request, 5).topics
    (told,) = topic.partitions
    return told.error_code, told.offset


def _records(client: WordyClient, name: str, number: int) -> bytes | None:
    asked = FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(max_bytes=1 << 20, topics=[FetchTopic(name, partitions=[asked])])
    (topic,) = client.ask(request, 11).responses
    (told,) = topic.partitions
    return None if told.records is None else bytes(told.records)
