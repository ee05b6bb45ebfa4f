"""With rights on, a client without any gets nothing from any API but the words that say so."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import pytest

from tests.support.broker_kit import BrokerKit
from tests.support.group_bench import commit
from tests.support.rights import Rights
from tests.support.transaction_bench import TransactionBench
from varve.broker.handlers import HANDLERS
from varve.broker.request import CLUSTER_NAME, AllowAllAuthorizer, Principal, ResourceType
from varve.broker.request import Operation as Op
from varve.broker.settings import SecuritySettings
from varve.wire import APIS, ApiKey, ErrorCode
from varve.wire.messages import cluster as cluster_messages
from varve.wire.messages.groups import ListGroupsRequest
from varve.wire.messages.state_records import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from varve.wire.messages.transactions import ListTransactionsRequest
from varve.wire.schema import FieldType, Kind, wire_fields

MALLORY = Principal("User", "mallory")
SECRET = "secret"
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTION = ResourceType.TRANSACTIONAL_ID
ERRORS = {
    TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    TRANSACTION: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
NAMES = {TOPIC: SECRET, GROUP: "g", CLUSTER: CLUSTER_NAME, TRANSACTION: "t"}

TOPIC_CONFIG = {"resource_type": 2, "resource_name": SECRET}
BROKER_CONFIG = {"resource_type": 4, "resource_name": "1"}
GROUP_CONFIG = {"resource_type": 32, "resource_name": "g"}

ASKED: list[tuple[ApiKey, int, Op, ResourceType, dict[str, Any]]] = [
    (ApiKey.PRODUCE, 9, Op.WRITE, TOPIC, {"transactional_id": None, "acks": 1}),
    (ApiKey.PRODUCE, 13, Op.WRITE, TOPIC, {"transactional_id": None, "acks": 1}),
    (ApiKey.FETCH, 12, Op.READ, TOPIC, {"max_wait_ms": 0, "forgotten_topics_data": []}),
    (ApiKey.FETCH, 13, Op.READ, TOPIC, {"max_wait_ms": 0, "forgotten_topics_data": []}),
    (ApiKey.LIST_OFFSETS, 7, Op.DESCRIBE, TOPIC, {"timestamp": -1}),
    (ApiKey.METADATA, 9, Op.DESCRIBE, TOPIC, {}),
    (ApiKey.OFFSET_COMMIT, 8, Op.READ, GROUP, {}),
    (ApiKey.OFFSET_FETCH, 7, Op.DESCRIBE, GROUP, {}),
    (ApiKey.OFFSET_FETCH, 8, Op.DESCRIBE, GROUP, {}),
    (ApiKey.FIND_COORDINATOR, 3, Op.DESCRIBE, GROUP, {"key": "g", "key_type": 0}),
    (ApiKey.FIND_COORDINATOR, 3, Op.DESCRIBE, TRANSACTION, {"key": "t", "key_type": 1}),
    (ApiKey.JOIN_GROUP, 5, Op.READ, GROUP, {}),
    (ApiKey.HEARTBEAT, 4, Op.READ, GROUP, {}),
    (ApiKey.LEAVE_GROUP, 4, Op.READ, GROUP, {}),
    (ApiKey.SYNC_GROUP, 4, Op.READ, GROUP, {}),
    (ApiKey.DESCRIBE_GROUPS, 5, Op.DESCRIBE, GROUP, {}),
    (ApiKey.CREATE_TOPICS, 7, Op.CREATE, TOPIC, {"name": "new"}),
    (ApiKey.DELETE_TOPICS, 5, Op.DESCRIBE, TOPIC, {}),
    (ApiKey.DELETE_RECORDS, 2, Op.DELETE, TOPIC, {"offset": -1}),
    (ApiKey.INIT_PRODUCER_ID, 4, Op.IDEMPOTENT_WRITE, CLUSTER, {"transactional_id": None}),
    (ApiKey.INIT_PRODUCER_ID, 4, Op.WRITE, TRANSACTION, {"transaction_timeout_ms": 1000}),
    (ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, Op.DESCRIBE, TOPIC, {}),
    (ApiKey.ADD_PARTITIONS_TO_TXN, 3, Op.WRITE, TRANSACTION, {}),
    (ApiKey.ADD_OFFSETS_TO_TXN, 3, Op.WRITE, TRANSACTION, {}),
    (ApiKey.END_TXN, 3, Op.WRITE, TRANSACTION, {}),
    (ApiKey.TXN_OFFSET_COMMIT, 3, Op.WRITE, TRANSACTION, {}),
    (ApiKey.WRITE_TXN_MARKERS, 1, Op.CLUSTER_ACTION, CLUSTER, {}),
    (ApiKey.DESCRIBE_ACLS, 3, Op.DESCRIBE, CLUSTER, {}),
    (ApiKey.CREATE_ACLS, 3, Op.ALTER, CLUSTER, {}),
    (ApiKey.DELETE_ACLS, 3, Op.ALTER, CLUSTER, {}),
    (ApiKey.DESCRIBE_CONFIGS, 4, Op.DESCRIBE_CONFIGS, TOPIC, TOPIC_CONFIG),
    (ApiKey.DESCRIBE_CONFIGS, 4, Op.DESCRIBE_CONFIGS, CLUSTER, BROKER_CONFIG),
    (ApiKey.DESCRIBE_CONFIGS, 4, Op.DESCRIBE_CONFIGS, GROUP, GROUP_CONFIG),
    (ApiKey.ALTER_CONFIGS, 2, Op.ALTER_CONFIGS, TOPIC, TOPIC_CONFIG),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, Op.ALTER_CONFIGS, TOPIC, TOPIC_CONFIG),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, Op.ALTER_CONFIGS, CLUSTER, BROKER_CONFIG),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, Op.ALTER_CONFIGS, GROUP, GROUP_CONFIG),
    (ApiKey.DESCRIBE_LOG_DIRS, 4, Op.DESCRIBE, CLUSTER, {}),
    (ApiKey.CREATE_PARTITIONS, 3, Op.ALTER, TOPIC, {"count": 9, "assignments": None}),
    (ApiKey.DELETE_GROUPS, 2, Op.DELETE, GROUP, {}),
    (ApiKey.ELECT_LEADERS, 2, Op.ALTER, CLUSTER, {}),
    (ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, Op.DESCRIBE, CLUSTER, {}),
    (ApiKey.OFFSET_DELETE, 0, Op.DELETE, GROUP, {}),
    (ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, Op.DESCRIBE_CONFIGS, CLUSTER, {}),
    (ApiKey.ALTER_CLIENT_QUOTAS, 1, Op.ALTER_CONFIGS, CLUSTER, {"entity_type": "user"}),
    (ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, Op.DESCRIBE, CLUSTER, {}),
    (ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, Op.ALTER, CLUSTER, {"mechanism": 1}),
    (ApiKey.DESCRIBE_PRODUCERS, 0, Op.READ, TOPIC, {}),
    (ApiKey.DESCRIBE_TRANSACTIONS, 0, Op.DESCRIBE, TRANSACTION, {}),
    (ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, Op.READ, GROUP, {}),
    (ApiKey.CONSUMER_GROUP_DESCRIBE, 0, Op.DESCRIBE, GROUP, {}),
    (ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, Op.DESCRIBE, TOPIC, {"cursor": None}),
    (ApiKey.DESCRIBE_QUORUM, 2, Op.DESCRIBE, CLUSTER, {}),
    (ApiKey.LIST_CONFIG_RESOURCES, 1, Op.DESCRIBE_CONFIGS, CLUSTER, {}),
]
"""Requests with the right that each needs first."""
LISTS = {ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS}
# Kafka lets everybody see versions and the addresses of the brokers, and push client metrics.
OPEN = {
    ApiKey.API_VERSIONS,
    ApiKey.DESCRIBE_CLUSTER,
}


def _filled(type: type, version: int, told: dict[str, Any]) -> Any:
    """A message with one element in each list, and names for what is not told."""
    values = {
        name: told[name] if name in told else _value(place.type, name, version, told)
        for name, place, _ in wire_fields(type)
        if version in place.versions and (name in told or place.type.kind in _FILLED)
    }
    return type(**values)


_FILLED = (Kind.STRUCT, Kind.ARRAY, Kind.STRING, Kind.RECORDS)


def _value(type: FieldType, name: str, version: int, told: dict[str, Any]) -> Any:
    if type.element is not None:
        return [_value(type.element, name, version, told)]
    if type.struct is not None:
        return _filled(type.struct, version, told)
    if type.kind is Kind.RECORDS:
        return memoryview(bytes(70))
    if type.kind is not Kind.STRING:
        return 0
    return "g" if "group" in name else "t" if "transactional" in name else SECRET


def _codes(value: Any) -> Iterator[int]:
    if is_dataclass(value):
        for one in fields(value):
            found = getattr(value, one.name)
            if one.name.endswith("error_code"):
                yield found
            yield from _codes(found)
    elif isinstance(value, list):
        for item in value:
            yield from _codes(item)


@pytest.fixture(scope="module")
def kit() -> Iterator[BrokerKit]:
    """With a topic, a group and a transactional id; only a client without rights asks."""
    with BrokerKit(security=SecuritySettings(authorizer_enable=True)) as kit:
        kit.make_topic(SECRET)
        by_acls, mallory = kit.broker.authorizer, kit.connect(MALLORY)
        kit.broker.authorizer = AllowAllAuthorizer()
        assert commit(kit, "g", SECRET, 0, 1) == ErrorCode.NONE
        TransactionBench(kit).start("t")
        kit.broker.authorizer = Rights(
            partial(by_acls.is_allowed, mallory), partial(by_acls.is_allowed_somewhere, mallory)
        )
        yield kit


@pytest.mark.parametrize(
    ("key", "version", "operation", "type", "told"),
    ASKED,
    ids=[f"{one[0].name} {one[1]} {one[2].name} {one[3].name}" for one in ASKED],
)
def test_a_client_without_rights_is_refused_for_the_right_that_it_lacks(
    kit: BrokerKit,
    key: ApiKey,
    version: int,
    operation: Op,
    type: ResourceType,
    told: dict[str, Any],
) -> None:
    rights = kit.broker.authorizer
    assert isinstance(rights, Rights)
    rights.asked.clear()
    request = _filled(APIS[key].request, version, {"topic_id": kit.topic(SECRET).id, **told})
    answer = kit.ask(request, version=version, principal=MALLORY)
    codes = {ErrorCode(one) for one in _codes(answer)} - {ErrorCode.NONE}
    assert codes == {ERRORS[type]}
    assert rights.asked[-1] == (operation, type, told.get("name", NAMES[type]))
    topics = {topic.name for topic in kit.store.topics()}
    assert topics == {SECRET, OFFSETS_TOPIC, TRANSACTIONS_TOPIC}
    assert kit.log(SECRET).end_offset == 0
    assert not kit.store.given_settings(SECRET)
    broker = kit.broker
    assert [group.id for group in broker.groups.groups] == ["g"]
    tables = (broker.acls.bindings, broker.quotas.table.quotas, broker.credentials.users)
    assert not any(tables)


def test_lists_of_everything_are_empty_for_a_client_without_rights(kit: BrokerKit) -> None:
    found = kit.ask(cluster_messages.MetadataRequest(topics=None), version=9, principal=MALLORY)
    assert found.topics == []
    asked = cluster_messages.DescribeTopicPartitionsRequest()
    assert kit.ask(asked, principal=MALLORY).topics == []
    assert kit.ask(ListGroupsRequest(), principal=MALLORY).groups == []
    assert kit.ask(ListTransactionsRequest(), principal=MALLORY).transaction_states == []
    by_id = cluster_messages.MetadataRequestTopic(topic_id=kit.topic(SECRET).id, name=None)
    found = kit.ask(cluster_messages.MetadataRequest(topics=[by_id]), version=12, principal=MALLORY)
    assert [one.name for one in found.topics] == [None]
    assert found.topics[0].error_code in (ERRORS[TOPIC], ErrorCode.UNKNOWN_TOPIC_ID)


def test_every_api_was_asked() -> None:
    assert set(HANDLERS) == {one[0] for one in ASKED} | LISTS | OPEN
