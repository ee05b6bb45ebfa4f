"""A server with a guarded door and an open one, and honest things behind them.

Whoever comes through the open door has the rights that the test gives: to read, or to do all.
"""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Self
from uuid import UUID

from tests.support.kafka_server import HOST
from tests.support.soak_server import ServedProcess
from varve.broker.request import Operation, ResourceType
from varve.broker.security.acls import PatternType, Permission
from varve.kafka_client.address import ClusterAddress
from varve.kafka_client.connection import BrokerConnection, open_connection
from varve.records import Codec, Record, build_batch
from varve.wire import APIS, ErrorCode, Message
from varve.wire.messages.cluster import MetadataRequest
from varve.wire.messages.data import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from varve.wire.messages.groups import (
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from varve.wire.messages.security import (
    AclCreation,
    CreateAclsRequest,
    DescribeAclsRequest,
    DescribeClientQuotasRequest,
    DescribeUserScramCredentialsRequest,
)
from varve.wire.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from varve.wire.messages.transactions import ListTransactionsRequest

VAULT: Final = "vault-of-the-honest"
HONEST_GROUP: Final = "honest-readers"
PREY: Final = ("prey", "game")
"""Topics and groups that the hostile may change once they have the rights."""
_ADMIN, _PASSWORD = "admin", "correct-horse"
_SETTINGS: Final = {
    "listeners": f"OPEN://{HOST}:{{0}},GUARDED://{HOST}:{{1}}",
    "listener.security.protocol.map": "OPEN:PLAINTEXT,GUARDED:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.guarded.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'user_{_ADMIN}="{_PASSWORD}";'
    ),
    "varve.authorizer.enable": "true",
    "super.users": f"User:{_ADMIN}",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "group.min.session.timeout.ms": "100",
}
_READ: Final = (Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)
_OF_READERS: Final = {
    ResourceType.TOPIC: _READ,
    ResourceType.GROUP: (Operation.DESCRIBE,),
    ResourceType.CLUSTER: (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS),
    ResourceType.TRANSACTIONAL_ID: (Operation.DESCRIBE,),
}
_OF_ALL: Final = dict.fromkeys(_OF_READERS, (Operation.ALL,))


_ANY: Final = 1
_TOPIC, _BROKER = 2, 4

State = dict[str, Any]
"""Answers by what was asked."""


class HostileBench:
    """Starts with the rights of readers at the open door."""

    def __init__(self, folder: Path) -> None:
        log = folder / "server.log"
        self.server = ServedProcess(folder / "data", _SETTINGS, log=log, port_count=2)
        self.port, self._guarded = self.server.ports
        self._honest = ClusterAddress(
            hosts=((HOST, self._guarded),),
            mechanism="PLAIN",
            username=_ADMIN,
            password=_PASSWORD,
            timeout_ms=20_000,
        )

    def __enter__(self) -> Self:
        self.server.__enter__()
        try:
            with self.honest() as client:
                self._furnish(client)
            self.give(_OF_READERS)
        except BaseException:
            self.server.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.server.__exit__()

    def honest(self) -> "closing[BrokerConnection]":
        return closing(open_connection(self._honest, HOST, self._guarded))

    def _furnish(self, client: BrokerConnection) -> None:
        for name in (VAULT, *PREY):
            self.create(client, name, 2)
            for number in (0, 1):
                produce(client, name, number, 0)
        for group in (HONEST_GROUP, *PREY):
            commit(client, group, 3)

    def create(self, client: BrokerConnection, name: str, count: int) -> None:
        topic = CreatableTopic(name=name, num_partitions=count, replication_factor=1)
        told = ask(client, CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
        assert all(one.error_code == 0 for one in told.topics), told

    def give(self, rights: Mapping[ResourceType, tuple[Operation, ...]]) -> None:
        """To everybody at the open door."""
        creations = [
            AclCreation(
                resource_type=kind,
                resource_name="kafka-cluster" if kind is ResourceType.CLUSTER else "*",
                resource_pattern_type=PatternType.LITERAL,
                principal="User:ANONYMOUS",
                host="*",
                operation=operation,
                permission_type=Permission.ALLOW,
            )
            for kind, operations in rights.items()
            for operation in operations
        ]
        with self.honest() as client:
            told = ask(client, CreateAclsRequest(creations=creations))
        assert all(one.error_code == 0 for one in told.results), told

    def give_all(self) -> None:
        self.give(_OF_ALL)

    def ids(self, names: tuple[str, ...]) -> list[UUID]:
        with self.honest() as client:
            topics = ask(client, MetadataRequest(topics=None)).topics
        return [one.topic_id for one in topics if one.name in names]

    def state(self) -> State:
        """Everything."""
        with self.honest() as client:
            return whole_state(client)

    def honest_state(self) -> State:
        """What nobody else has a name for."""
        with self.honest() as client:
            return part_of_state(client, {VAULT: 2}, [HONEST_GROUP])

    def check_served(self) -> None:
        """An honest client writes, reads and commits as ever."""
        with self.honest() as client:
            before = part_of_state(client, {VAULT: 1}, [])
            end = before[f"end of {VAULT}-0"][1]
            produce(client, VAULT, 0, end)
            after = part_of_state(client, {VAULT: 1}, [])
            assert after[f"end of {VAULT}-0"] == (0, end + 2)
            records = after[f"records of {VAULT}-0"]
            assert records.startswith(before[f"records of {VAULT}-0"])
            commit(client, HONEST_GROUP, end)
        assert self.server.troubles() == []


def end_of(client: BrokerConnection, topic: str, number: int) -> int:
    """The offset that comes next."""
    error_code, offset = part_of_state(client, {topic: number + 1}, [])[f"end of {topic}-{number}"]
    assert error_code == ErrorCode.NONE
    return int(offset)


def produce(
    client: BrokerConnection, topic: str, number: int, offset: int, value: bytes = b"value"
) -> None:
    """Two records, which are to begin at the offset."""
    batch = build_batch([Record(b"key", value), Record(b"other", b"1" * 100)], codec=Codec.LZ4)
    data = [PartitionProduceData(number, memoryview(batch))]
    request = ProduceRequest(None, -1, 10_000, [TopicProduceData(topic, partition_data=data)])
    (told,) = ask(client, request).responses[0].partition_responses
    assert (told.error_code, told.base_offset) == (ErrorCode.NONE, offset), told


def commit(client: BrokerConnection, group: str, offset: int) -> None:
    """As one does who is no member of the group."""
    parts = [OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)]
    topics = ask(client, MetadataRequest(topics=None)).topics
    (topic_id,) = (one.topic_id for one in topics if one.name == VAULT)
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequestTopic(VAULT, topic_id, parts)],
    )
    told = ask(client, request)
    assert told.topics[0].partitions[0].error_code == 0, told


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
