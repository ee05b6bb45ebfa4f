"""CreateTopics, DeleteTopics and CreatePartitions as clients of every version see them."""

from typing import Any

import pytest

from tests.support.broker_kit import BrokerKit
from tests.support.rights import only
from varve.broker.request import CLUSTER_NAME, Operation, ResourceType
from varve.broker.settings import BrokerSettings
from varve.wire import NO_ID, ErrorCode
from varve.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    TopicConfig,
)


def _topic(
    name: str = "orders", count: int = 3, factor: int = 1, **configs: str | None
) -> CreatableTopic:
    given = [
        TopicConfig(name=name.replace("_", "."), value=value) for name, value in configs.items()
    ]
    return CreatableTopic(name=name, num_partitions=count, replication_factor=factor, configs=given)


def _create(kit: BrokerKit, *topics: CreatableTopic, version: int = 7, trial: bool = False) -> Any:
    request = CreateTopicsRequest(topics=list(topics), validate_only=trial)
    return kit.ask(request, version=version).topics


def test_topics_of_one_request_are_made_and_deleted_together_and_fail_alone(
    kit: BrokerKit,
) -> None:
    names = [f"many-{number}" for number in range(5)]
    made = _create(kit, *map(_topic, names[:3]), _topic("events"), *map(_topic, names[3:]))
    codes = [ErrorCode.NONE] * 3 + [ErrorCode.TOPIC_ALREADY_EXISTS] + [ErrorCode.NONE] * 2
    assert [one.error_code for one in made] == codes
    ids = [one.topic_id for one in made if one.error_code == ErrorCode.NONE]
    assert ids == [kit.topic(name).id for name in names]
    requested = [DeleteTopicState(name=name) for name in (*names[:2], "none", names[2])]
    requested += [DeleteTopicState(topic_id=ids[3]), DeleteTopicState(name=names[3])]
    deleted = kit.ask(DeleteTopicsRequest(topics=requested)).responses
    assert [one.error_code for one in deleted] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
    ]
    assert [name for name in names if kit.broker.topics.find(name) is not None] == [names[4]]


@pytest.mark.parametrize("version", range(2, 8))
def test_a_topic_is_made_as_asked_in_every_version(kit: BrokerKit, version: int) -> None:
    [made] = _create(kit, _topic(segment_bytes="5000"), version=version)
    assert (made.name, made.error_code, made.error_message) == ("orders", ErrorCode.NONE, None)
    served = kit.topic("orders")
    assert len(served.logs) == 3
    assert served.settings.segment_bytes == 5000
    if version >= 5:
        assert (made.num_partitions, made.replication_factor) == (3, 1)
        configs = {one.name: (one.value, one.config_source) for one in made.configs}
        assert configs["segment.bytes"] == ("5000", 1)
        assert configs["retention.ms"] == ("604800000", 5)
    if version >= 7:
        assert made.topic_id == served.id != NO_ID


def test_defaults_of_the_broker_count_where_nothing_is_told(kit: BrokerKit) -> None:
    [made] = _create(kit, _topic(count=-1, factor=-1))
    assert (made.num_partitions, made.replication_factor) == (1, 1)


@pytest.mark.parametrize("trial", [False, True])
def test_a_name_like_that_of_another_topic_is_refused(kit: BrokerKit, trial: bool) -> None:
    _create(kit, _topic("a.b"))
    names = ["a_b", "c.d_e", "c_d.e", "__consumer.offsets", "ab"]
    results = _create(kit, *map(_topic, names), trial=trial)
    refused = {one.name: one.error_message for one in results if one.error_code}
    assert list(refused) == ["a_b", "c_d.e", "__consumer.offsets"]
    assert {one.error_code for one in results} == {0, ErrorCode.INVALID_TOPIC_EXCEPTION}
    assert "collides with topic a.b" in refused["a_b"]
    [again] = _create(kit, _topic("a.b"))
    assert again.error_code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_names_alike_that_a_directory_has_are_served_and_deleted(kit: BrokerKit) -> None:
    for name in ("a.b", "a_b"):
        kit.store.create_topic(name)
    kit.restart()
    assert [one.name for one in kit.broker.topics] == ["a.b", "a_b", "events"]
    assert kit.ask(DeleteTopicsRequest(topic_names=["a.b"]), version=5).responses[0].error_code == 0
    [again] = _create(kit, _topic("a_b"))
    assert again.error_code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_trial_makes_nothing_and_tells_the_same_errors(kit: BrokerKit) -> None:
    fine, bad = _create(kit, _topic("fine"), _topic("bad", retention_ms="x"), trial=True)
    assert (fine.error_code, fine.topic_id, fine.num_partitions) == (0, NO_ID, 3)
    assert bad.error_code == ErrorCode.INVALID_CONFIG
    assert [one.name for one in kit.broker.topics] == ["events"]


@pytest.mark.parametrize(
    ("topic", "code", "text"),
    [
        (_topic(count=0), ErrorCode.INVALID_PARTITIONS, "1 to 10000"),
        (_topic(count=-2), ErrorCode.INVALID_PARTITIONS, "1 to 10000"),
        (_topic(count=20_000), ErrorCode.INVALID_PARTITIONS, "1 to 10000"),
        (_topic(factor=0), ErrorCode.INVALID_REPLICATION_FACTOR, "use 1"),
        (_topic(factor=3), ErrorCode.INVALID_REPLICATION_FACTOR, "use 1, or -1"),
        (_topic(""), ErrorCode.INVALID_TOPIC_EXCEPTION, "empty"),
        (_topic("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION, "outside"),
        (_topic("__cluster_metadata"), ErrorCode.INVALID_TOPIC_EXCEPTION, "another name"),
        (_topic("__consumer_offsets"), ErrorCode.INVALID_TOPIC_EXCEPTION, "by the broker"),
        (_topic(retention_m="5"), ErrorCode.INVALID_CONFIG, "did you mean"),
        (_topic(retention_ms="x"), ErrorCode.INVALID_CONFIG, "long"),
        (_topic(min_insync_replicas="2"), ErrorCode.INVALID_CONFIG, "must be 1"),
        (_topic(retention_ms=None), ErrorCode.INVALID_CONFIG, "null"),
    ],
)
def test_what_cannot_be_made_is_refused_with_a_remedy(
    kit: BrokerKit, topic: CreatableTopic, code: ErrorCode, text: str
) -> None:
    refused, made = _create(kit, topic, _topic("other"))
    assert refused.error_code == code
    assert text in refused.error_message
    assert made.error_code == ErrorCode.NONE


def test_settings_of_replicas_that_fit_one_are_taken(kit: BrokerKit) -> None:
    topic = _topic(min_insync_replicas="1", unclean_leader_election_enable="false")
    [made] = _create(kit, topic)
    assert made.error_code == ErrorCode.NONE
    assert dict(kit.store.given_settings("orders")) == {}


def test_a_topic_that_is_named_twice_is_refused(kit: BrokerKit) -> None:
    [twice] = _create(kit, _topic("new"), _topic("new"))
    assert twice.error_code == ErrorCode.INVALID_REQUEST
    assert kit.broker.topics.find("new") is None


def _assigned(*assignments: tuple[int, list[int]], count: int = -1) -> CreatableTopic:
    return CreatableTopic(
        name="orders",
        num_partitions=count,
        replication_factor=-1,
        assignments=[
            CreatableReplicaAssignment(partition_index=number, broker_ids=ids)
            for number, ids in assignments
        ],
    )


def test_partitions_may_be_assigned_to_this_broker_only(kit: BrokerKit) -> None:
    for bad, code in (
        (_assigned((0, [1]), (2, [1])), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (_assigned((0, [2])), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (_assigned((0, [1, 2])), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (_assigned((0, [])), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (_assigned((0, [1]), count=1), ErrorCode.INVALID_REQUEST),
    ):
        assert _create(kit, bad)[0].error_code == code
    [made] = _create(kit, _assigned((1, [1]), (0, [1])))
    assert (made.error_code, made.num_partitions) == (ErrorCode.NONE, 2)


def test_creating_needs_a_right_on_the_cluster_or_the_topic(kit: BrokerKit) -> None:
    kit.broker.authorizer = only((Operation.CREATE, ResourceType.TOPIC, "orders"))
    made, denied = _create(kit, _topic(), _topic("other"))
    assert made.error_code == ErrorCode.NONE
    assert made.topic_config_error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert (made.num_partitions, made.configs) == (-1, None)
    assert denied.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    kit.broker.authorizer = only((Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME))
    assert _create(kit, _topic("other"))[0].error_code == ErrorCode.NONE


# Deletion


@pytest.mark.parametrize("version", range(1, 7))
def test_topics_are_deleted_by_name(kit: BrokerKit, version: int) -> None:
    kit.make_topic("orders")
    request = DeleteTopicsRequest(topic_names=["orders", "none"])
    if version >= 6:
        names = [DeleteTopicState(name="orders"), DeleteTopicState(name="none")]
        request = DeleteTopicsRequest(topics=names)
    done, missing = kit.ask(request, version=version).responses
    assert (done.name, done.error_code) == ("orders", ErrorCode.NONE)
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert kit.broker.topics.find("orders") is None


def test_topics_are_deleted_by_id_and_a_new_one_has_another(kit: BrokerKit) -> None:
    id = kit.make_topic("orders").id
    request = DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=id)])
    [done] = kit.ask(request).responses
    assert (done.name, done.topic_id, done.error_code) == ("orders", id, ErrorCode.NONE)
    assert kit.make_topic("orders").id != id
    [gone] = kit.ask(request).responses
    assert gone.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert kit.broker.topics.find("orders") is not None


def test_a_deletion_names_each_topic_once_and_in_one_way(kit: BrokerKit) -> None:
    id = kit.make_topic("orders").id
    both, neither, twice = (
        DeleteTopicState(name="orders", topic_id=id),
        DeleteTopicState(),
        DeleteTopicState(name="orders"),
    )
    responses = kit.ask(DeleteTopicsRequest(topics=[both, neither, twice, twice])).responses
    assert [one.error_code for one in responses] == [ErrorCode.INVALID_REQUEST] * 3
    assert kit.broker.topics.find("orders") is not None


def test_deletion_can_be_switched_off() -> None:
    with BrokerKit(settings=BrokerSettings(delete_topic_enable=False)) as kit:
        kit.make_topic("orders")
        request = DeleteTopicsRequest(topic_names=["orders"])
        codes = [kit.ask(request, version=one).responses[0].error_code for one in (2, 3)]
        assert codes == [ErrorCode.INVALID_REQUEST, ErrorCode.TOPIC_DELETION_DISABLED]
        assert kit.broker.topics.find("orders") is not None


def test_deleting_needs_a_right_and_hides_what_may_not_be_seen(kit: BrokerKit) -> None:
    id = kit.make_topic("orders").id
    kit.broker.authorizer = only()
    by_id = DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=id)])
    [hidden] = kit.ask(by_id).responses
    assert (hidden.name, hidden.error_code) == (None, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    kit.broker.authorizer = only((Operation.DESCRIBE, ResourceType.TOPIC, "orders"))
    [denied] = kit.ask(by_id).responses
    assert (denied.name, denied.error_code) == ("orders", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    kit.broker.authorizer = only((Operation.DELETE, ResourceType.CLUSTER, CLUSTER_NAME))
    assert kit.ask(by_id).responses[0].error_code == ErrorCode.NONE


def test_internal_topics_stay(kit: BrokerKit) -> None:
    kit.make_topic("__consumer_offsets", partitions=8)
    deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name="__consumer_offsets")])
    assert kit.ask(deletion).responses[0].error_code == ErrorCode.INVALID_REQUEST
    growth = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name="__consumer_offsets", count=9, assignments=None)]
    )
    assert kit.ask(growth).results[0].error_code == ErrorCode.INVALID_REQUEST


def test_who_waits_is_told_of_changed_and_deleted_topics(
    kit: BrokerKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.make_topic("orders", partitions=2)
    changed: list[str] = []
    deleted: list[str] = []
    wake, groups = kit.broker.parked_fetches, kit.broker.groups
    monkeypatch.setattr(wake, "wake", lambda found: changed.append(str(found)))
    monkeypatch.setattr(groups, "topic_deleted", lambda topic: deleted.append(topic.name))
    kit.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="orders")]))
    assert changed == ["orders-0", "orders-1"]
    assert deleted == ["orders"]


# Partitions


def _grow(kit: BrokerKit, *topics: CreatePartitionsTopic, version: int = 3) -> Any:
    return kit.ask(CreatePartitionsRequest(topics=list(topics)), version=version).results


def _to(count: int, *brokers: int, name: str = "orders") -> CreatePartitionsTopic:
    given = [CreatePartitionsAssignment(broker_ids=[one]) for one in brokers]
    return CreatePartitionsTopic(name=name, count=count, assignments=given or None)


@pytest.mark.parametrize("version", range(4))
def test_a_topic_gets_more_partitions(kit: BrokerKit, version: int) -> None:
    kit.make_topic("orders", partitions=2)
    [done] = _grow(kit, _to(4), version=version)
    assert (done.name, done.error_code, done.error_message) == ("orders", ErrorCode.NONE, None)
    assert len(kit.topic("orders").logs) == 4
    assert kit.log("orders", 3).end_offset == 0


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (_to(2), ErrorCode.INVALID_PARTITIONS),
        (_to(1), ErrorCode.INVALID_PARTITIONS),
        (_to(20_000), ErrorCode.INVALID_PARTITIONS),
        (_to(4, 1), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (_to(4, 1, 2), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (_to(4, name="none"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_partitions_that_cannot_be_added_are_refused(
    kit: BrokerKit, topic: CreatePartitionsTopic, code: ErrorCode
) -> None:
    kit.make_topic("orders", partitions=2)
    assert _grow(kit, topic)[0].error_code == code
    assert len(kit.topic("orders").logs) == 2


def test_a_trial_of_more_partitions_changes_nothing(kit: BrokerKit) -> None:
    kit.make_topic("orders")
    request = CreatePartitionsRequest(topics=[_to(2, 1)], validate_only=True)
    assert kit.ask(request).results[0].error_code == ErrorCode.NONE
    assert len(kit.topic("orders").logs) == 1
    [twice] = _grow(kit, _to(2), _to(3))
    assert twice.error_code == ErrorCode.INVALID_REQUEST


def test_what_was_made_while_a_change_was_looked_at_is_served_too(kit: BrokerKit) -> None:
    view = kit.broker.topics.snapshot()
    kit.make_topic("between")
    kit.broker.topics.serve(view)
    assert kit.broker.topics.find("between") is not None
