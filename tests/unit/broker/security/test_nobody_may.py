"""With rights on, a client without any gets nothing from any API but the words that say so."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from tests.support.broker_kit import BrokerKit
from varve.broker.handlers import HANDLERS
from varve.broker.request import Principal
from varve.broker.settings import SecuritySettings
from varve.wire import APIS, ApiKey, ErrorCode
from varve.wire.messages import cluster as cluster_messages
from varve.wire.schema import FieldType, Kind, wire_fields

MALLORY = Principal("User", "mallory")
SECRET = "secret"
NO_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
NO_GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED
NO_CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
NO_TRANSACTION = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

ASKED: list[tuple[ApiKey, int, ErrorCode | None, dict[str, Any]]] = [
    (ApiKey.PRODUCE, 9, NO_TOPIC, {"transactional_id": None, "acks": 1}),
    (ApiKey.FETCH, 12, NO_TOPIC, {"max_wait_ms": 0, "forgotten_topics_data": []}),
    (ApiKey.LIST_OFFSETS, 7, NO_TOPIC, {"timestamp": -1}),
    (ApiKey.METADATA, 9, NO_TOPIC, {}),
    (ApiKey.OFFSET_COMMIT, 8, NO_GROUP, {}),
    (ApiKey.OFFSET_FETCH, 8, NO_GROUP, {}),
    (ApiKey.FIND_COORDINATOR, 3, NO_GROUP, {"key": "g", "key_type": 0}),
    (ApiKey.FIND_COORDINATOR, 3, NO_TRANSACTION, {"key": "t", "key_type": 1}),
    (ApiKey.JOIN_GROUP, 5, NO_GROUP, {}),
    (ApiKey.HEARTBEAT, 4, NO_GROUP, {}),
    (ApiKey.LEAVE_GROUP, 4, NO_GROUP, {}),
    (ApiKey.SYNC_GROUP, 4, NO_GROUP, {}),
    (ApiKey.DESCRIBE_GROUPS, 5, NO_GROUP, {}),
    (ApiKey.LIST_GROUPS, 4, None, {"states_filter": []}),
    (ApiKey.CREATE_TOPICS, 7, NO_TOPIC, {"name": "new", "num_partitions": 1, "assignments": []}),
    (ApiKey.DELETE_TOPICS, 5, NO_TOPIC, {}),
    (ApiKey.DELETE_RECORDS, 2, NO_TOPIC, {"offset": -1}),
    (ApiKey.INIT_PRODUCER_ID, 4, NO_CLUSTER, {"transactional_id": None}),
    (ApiKey.INIT_PRODUCER_ID, 4, NO_TRANSACTION, {"transaction_timeout_ms": 1000}),
    (ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, NO_TOPIC, {}),
    (ApiKey.ADD_PARTITIONS_TO_TXN, 3, NO_TRANSACTION, {}),
    (ApiKey.ADD_OFFSETS_TO_TXN, 3, NO_TRANSACTION, {}),
    (ApiKey.END_TXN, 3, NO_TRANSACTION, {}),
    (ApiKey.TXN_OFFSET_COMMIT, 3, NO_TRANSACTION, {}),
    (ApiKey.DESCRIBE_ACLS, 3, NO_CLUSTER, {}),
    (ApiKey.CREATE_ACLS, 3, NO_CLUSTER, {}),
    (ApiKey.DELETE_ACLS, 3, NO_CLUSTER, {}),
    (ApiKey.DESCRIBE_CONFIGS, 4, NO_TOPIC, {"resource_type": 2, "resource_name": SECRET}),
    (ApiKey.DESCRIBE_CONFIGS, 4, NO_CLUSTER, {"resource_type": 4, "resource_name": "1"}),
    (ApiKey.ALTER_CONFIGS, 2, NO_TOPIC, {"resource_type": 2, "resource_name": SECRET}),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, NO_CLUSTER, {"resource_type": 4, "resource_name": ""}),
    (ApiKey.DESCRIBE_LOG_DIRS, 4, NO_CLUSTER, {}),
    (ApiKey.CREATE_PARTITIONS, 3, NO_TOPIC, {"count": 9, "assignments": None}),
    (ApiKey.DELETE_GROUPS, 2, NO_GROUP, {}),
    (ApiKey.ELECT_LEADERS, 2, NO_CLUSTER, {}),
    (ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, NO_CLUSTER, {}),
    (ApiKey.OFFSET_DELETE, 0, NO_GROUP, {}),
    (ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, NO_CLUSTER, {}),
    (ApiKey.ALTER_CLIENT_QUOTAS, 1, NO_CLUSTER, {"entity_type": "user", "entity_name": "a"}),
    (ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, NO_CLUSTER, {}),
    (ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, NO_CLUSTER, {"mechanism": 1, "iterations": 4_096}),
    (ApiKey.DESCRIBE_PRODUCERS, 0, NO_TOPIC, {}),
    (ApiKey.DESCRIBE_TRANSACTIONS, 0, NO_TRANSACTION, {}),
    (ApiKey.LIST_TRANSACTIONS, 1, None, {"state_filters": [], "producer_id_filters": []}),
    (ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, NO_GROUP, {}),
    (ApiKey.CONSUMER_GROUP_DESCRIBE, 0, NO_GROUP, {}),
    (ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, NO_TOPIC, {"cursor": None}),
]
# Kafka lets everybody see versions and the addresses of the brokers.
OPEN = {ApiKey.API_VERSIONS, ApiKey.DESCRIBE_CLUSTER}


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
    with BrokerKit(security=SecuritySettings(authorizer_enable=True)) as kit:
        kit.make_topic(SECRET)
        yield kit


@pytest.mark.parametrize(
    ("key", "version", "expected", "told"), ASKED, ids=[one[0].name for one in ASKED]
)
def test_a_client_without_rights_is_refused(
    kit: BrokerKit, key: ApiKey, version: int, expected: ErrorCode | None, told: dict[str, Any]
) -> None:
    request = _filled(APIS[key].request, version, told)
    answer = kit.ask(request, version=version, principal=MALLORY)
    codes = {ErrorCode(one) for one in _codes(answer)} - {ErrorCode.NONE}
    assert codes == (set() if expected is None else {expected})
    assert [topic.name for topic in kit.store.topics()] == [SECRET]
    assert kit.log(SECRET).end_offset == 0
    assert not kit.store.given_settings(SECRET)
    broker = kit.broker
    tables = (broker.acls.bindings, broker.quotas.table.quotas, broker.credentials.users)
    assert not any(tables)


def test_lists_of_everything_are_empty_for_a_client_without_rights(kit: BrokerKit) -> None:
    found = kit.ask(cluster_messages.MetadataRequest(topics=None), version=9, principal=MALLORY)
    assert found.topics == []
    asked = cluster_messages.DescribeTopicPartitionsRequest()
    assert kit.ask(asked, principal=MALLORY).topics == []
    by_id = cluster_messages.MetadataRequestTopic(topic_id=kit.topic(SECRET).id, name=None)
    found = kit.ask(cluster_messages.MetadataRequest(topics=[by_id]), version=12, principal=MALLORY)
    assert [one.name for one in found.topics] == [None]
    assert found.topics[0].error_code in (NO_TOPIC, ErrorCode.UNKNOWN_TOPIC_ID)


def test_every_api_was_asked() -> None:
    assert set(HANDLERS) == {one[0] for one in ASKED} | OPEN
