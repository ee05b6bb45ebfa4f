"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.broker_kit import BrokerKit
from varve.broker.admin.configs import is_secret
from varve.broker.settings import BrokerSettings, ConsumerGroupConfigs, GroupSettings
from varve.foundation.settings import setting
from varve.wire import ErrorCode
from varve.wire.messages import topics as topics_messages
from varve.wire.messages.topics import DescribeConfigsRequest, DescribeConfigsResource

TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


@pytest.fixture
def kit() -> Iterator[BrokerKit]:
    with BrokerKit(
        settings=BrokerSettings(num_partitions=4),
        store_settings={"log.segment.bytes": 9000},
    ) as kit:
        kit.make_topic("orders", settings={"retention.ms": 5000})
        yield kit


def _describe(
    kit: BrokerKit, kind: int, name: str, *keys: str, version: int = 4, **options: bool
) -> Any:
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(keys) or None
    )
    request = DescribeConfigsRequest(resources=[resource], **options)
    return kit.ask(request, version=version).results[0]


def _one(kit: BrokerKit, kind: int, name: str, key: str) -> Any:
    [found] = _describe(kit, kind, name, key, include_synonyms=True).configs
    return found


def _incremental(
    kit: BrokerKit,
    kind: int,
    name: str,
    *changes: tuple[str, int, str | None],
    trial: bool = False,
    version: int = 1,
) -> Any:
    configs = [
        topics_messages.IncrementalAlterableConfig(
            name=key, config_operation=operation, value=value
        )
        for key, operation, value in changes
    ]
    resource = topics_messages.IncrementalAlterConfigsResource(
        resource_type=kind, resource_name=name, configs=configs
    )
    request = topics_messages.IncrementalAlterConfigsRequest(
        resources=[resource], validate_only=trial
    )
    return kit.ask(request, version=version).responses[0]


def _whole(kit: BrokerKit, kind: int, name: str, *, version: int = 2, **configs: str | None) -> Any:
    given = [
        topics_messages.TopicConfig(name=key.replace("_", "."), value=value)
        for key, value in configs.items()
    ]
    resource = topics_messages.AlterConfigsResource(
        resource_type=kind, resource_name=name, configs=given
    )
    request = topics_messages.AlterConfigsRequest(resources=[resource])
    return kit.ask(request, version=version).responses[0]


# What is told


@pytest.mark.parametrize("version", range(1, 5))
def test_every_setting_of_a_topic_is_told_with_its_source(kit: BrokerKit, version: int) -> None:
    result = _describe(kit, TOPIC, "orders", version=version)
    assert (result.error_code, result.error_message) == (ErrorCode.NONE, None)
    found = {one.name: (one.value, one.config_source) for one in result.configs}
    assert found["retention.ms"] == ("5000", 1)
    assert found["segment.bytes"] == ("9000", 4)
    assert found["cleanup.policy"] == ("delete", 5)
    assert found["min.insync.replicas"] == ("1", 5)
    if version >= 3:
        types = {one.name: one.config_type for one in result.configs}
        assert types["retention.ms"] == 5
        assert types["segment.bytes"] == 3
        assert types["cleanup.policy"] == 7
        assert types["preallocate"] == 1


def test_synonyms_go_from_the_nearest_to_the_default(kit: BrokerKit) -> None:
    _incremental(kit, BROKER, "", ("log.retention.ms", SET, "7000"))
    _incremental(kit, TOPIC, "orders", ("segment.bytes", SET, "8000"))
    retention = _one(kit, TOPIC, "orders", "retention.ms")
    assert [(one.name, one.value, one.source) for one in retention.synonyms] == [
        ("retention.ms", "5000", 1),
        ("log.retention.ms", "7000", 3),
        ("log.retention.ms", "604800000", 5),
    ]
    segment = _one(kit, TOPIC, "orders", "segment.bytes")
    assert [(one.name, one.value, one.source) for one in segment.synonyms] == [
        ("segment.bytes", "8000", 1),
        ("log.segment.bytes", "9000", 4),
        ("log.segment.bytes", "1073741824", 5),
    ]


def test_documentation_and_synonyms_come_when_asked_for(kit: BrokerKit) -> None:
    [plain] = _describe(kit, TOPIC, "orders", "retention.ms").configs
    assert (plain.synonyms, plain.documentation) == ([], None)
    [told] = _describe(kit, TOPIC, "orders", "retention.ms", include_documentation=True).configs
    assert "older than this" in told.documentation


def test_the_broker_tells_what_it_was_started_with(kit: BrokerKit) -> None:
    found = {one.name: one for one in _describe(kit, BROKER, "1").configs}
    partitions = found["num.partitions"]
    assert (partitions.value, partitions.config_source, partitions.read_only) == ("4", 4, True)
    assert found["node.id"].config_source == 5
    assert found["delete.topic.enable"].value == "true"
    assert found["default.replication.factor"].value == "1"
    assert (found["log.segment.bytes"].value, found["log.segment.bytes"].read_only) == (
        "9000",
        False,
    )
    assert "log.cleaner.threads" in found or "log.cleaner.backoff.ms" in found
    assert _describe(kit, BROKER, "").configs == []
    assert _describe(kit, BROKER, "2").error_code == ErrorCode.INVALID_REQUEST


def test_secrets_have_no_value(kit: BrokerKit) -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Listener:
        password: str = setting("", "Opens the key.", kafka_name="ssl.key.password")

    kit.broker.visible_settings.append(Listener(password="hush"))
    secret = _one(kit, BROKER, "1", "ssl.key.password")
    assert (secret.value, secret.is_sensitive, secret.config_type) == (None, True, 9)
    assert [one.value for one in secret.synonyms] == [None, None]
    assert not is_secret("log.segment.bytes")


def test_what_is_not_there_is_told_so(kit: BrokerKit) -> None:
    assert _describe(kit, TOPIC, "none").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert _describe(kit, 16, "x").error_code == ErrorCode.INVALID_REQUEST
    assert _describe(kit, TOPIC, "orders", "no.such").configs == []


def test_a_group_has_what_all_groups_have(kit: BrokerKit) -> None:
    found = _one(kit, GROUP, "readers", "consumer.session.timeout.ms")
    assert (found.value, found.config_source, found.read_only) == ("45000", 5, False)
    names = [config.name for config in _describe(kit, GROUP, "readers").configs]
    assert names == ["consumer.heartbeat.interval.ms", "consumer.session.timeout.ms"]


def _list(kit: BrokerKit, *kinds: int, version: int = 1) -> list[tuple[int, str]]:
    request = topics_messages.ListConfigResourcesRequest(list(kinds))
    answer = kit.ask(request, version=version)
    assert answer.error_code == ErrorCode.NONE
    return [(one.resource_type, one.resource_name) for one in answer.config_resources]


def test_resources_with_configs_are_listed(kit: BrokerKit) -> None:
    _incremental(kit, GROUP, "readers", ("consumer.session.timeout.ms", SET, "50000"))
    everything = [(TOPIC, "orders"), (BROKER, "1"), (8, "1"), (GROUP, "readers")]
    assert _list(kit) == everything
    assert _list(kit, GROUP, TOPIC) == [(TOPIC, "orders"), (GROUP, "readers")]
    assert _list(kit, version=0) == []
    unknown = kit.ask(topics_messages.ListConfigResourcesRequest([99]))
    assert unknown.error_code == ErrorCode.UNSUPPORTED_VERSION


# What is changed


@pytest.mark.parametrize("version", range(2))
def test_settings_of_a_topic_change_one_by_one(kit: BrokerKit, version: int) -> None:
    done = _incremental(
        kit,
        TOPIC,
        "orders",
        ("retention.ms", DELETE, None),
        ("cleanup.policy", APPEND, "compact"),
        ("flush", SET, "ack"),
        version=version,
    )
    assert (done.error_code, done.error_message) == (ErrorCode.NONE, None)
    assert dict(kit.store.given_settings("orders")) == {
        "cleanup.policy": "delete,compact",
        "flush": "ack",
    }
    assert kit.log("orders").settings.is_compacted
    _incremental(kit, TOPIC, "orders", ("cleanup.policy", SUBTRACT, "delete"))
    assert kit.topic("orders").settings.cleanup_policy == ("compact",)


@pytest.mark.parametrize("version", range(3))
def test_a_whole_change_takes_the_others_back(kit: BrokerKit, version: int) -> None:
    done = _whole(kit, TOPIC, "orders", segment_bytes="6000", version=version)
    assert done.error_code == ErrorCode.NONE
    assert dict(kit.store.given_settings("orders")) == {"segment.bytes": "6000"}
    assert _whole(kit, TOPIC, "orders", flush=None).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("retention.ms", SET, "x"), ErrorCode.INVALID_CONFIG),
        (("retention.m", SET, "5"), ErrorCode.INVALID_CONFIG),
        (("retention.m", DELETE, None), ErrorCode.INVALID_CONFIG),
        (("retention.ms", APPEND, "5"), ErrorCode.INVALID_CONFIG),
        (("retention.ms", SET, None), ErrorCode.INVALID_REQUEST),
        (("retention.ms", 9, "5"), ErrorCode.INVALID_REQUEST),
        (("min.insync.replicas", SET, "2"), ErrorCode.INVALID_CONFIG),
        (("remote.storage.enable", SET, "maybe"), ErrorCode.INVALID_CONFIG),
        (("varve.erasure.last", SET, "none"), ErrorCode.INVALID_CONFIG),
        (("varve.erasure.last", DELETE, None), ErrorCode.INVALID_CONFIG),
    ],
)
def test_a_refused_change_leaves_the_topic_as_it_was(
    kit: BrokerKit, change: tuple[str, int, str | None], code: ErrorCode
) -> None:
    refused = _incremental(kit, TOPIC, "orders", ("flush", SET, "ack"), change)
    assert refused.error_code == code
    assert refused.error_message
    assert dict(kit.store.given_settings("orders")) == {"retention.ms": "5000"}


def test_no_client_takes_the_last_erasure_back(kit: BrokerKit) -> None:
    """What was derived before the erasure would pass for derived after it."""
    kit.store.alter_topic("orders", {"varve.erasure.last": "e at 1"})
    assert _one(kit, TOPIC, "orders", "varve.erasure.last").read_only
    assert _whole(kit, TOPIC, "orders", segment_bytes="6000").error_code == ErrorCode.NONE
    kept = {"segment.bytes": "6000", "varve.erasure.last": "e at 1"}
    assert dict(kit.store.given_settings("orders")) == kept


def test_a_trial_tells_errors_and_changes_nothing(kit: BrokerKit) -> None:
    for value, code in (("7", ErrorCode.NONE), ("x", ErrorCode.INVALID_CONFIG)):
        tried = _incremental(kit, TOPIC, "orders", ("retention.ms", SET, value), trial=True)
        assert tried.error_code == code
        tried = _incremental(kit, BROKER, "1", ("log.retention.ms", SET, value), trial=True)
        assert tried.error_code == code
    assert kit.topic("orders").settings.retention_ms == 5000
    assert not kit.store.altered_defaults


def test_a_setting_or_resource_that_is_named_twice_is_refused(kit: BrokerKit) -> None:
    twice = _incremental(kit, TOPIC, "orders", ("flush", SET, "ack"), ("flush", DELETE, None))
    assert twice.error_code == ErrorCode.INVALID_REQUEST
    resource = topics_messages.AlterConfigsResource(resource_type=TOPIC, resource_name="orders")
    answer = kit.ask(topics_messages.AlterConfigsRequest(resources=[resource, resource]))
    assert [one.error_code for one in answer.responses] == [ErrorCode.INVALID_REQUEST]


@pytest.mark.parametrize("name", ["", "1"])
def test_defaults_of_topics_change_while_the_broker_runs(kit: BrokerKit, name: str) -> None:
    kit.make_topic("other")
    assert _incremental(kit, BROKER, name, ("log.retention.ms", SET, "7")).error_code == 0
    assert kit.log("other").settings.retention_ms == 7
    assert kit.log("orders").settings.retention_ms == 5000
    told = _one(kit, BROKER, "1", "log.retention.ms")
    assert (told.value, told.config_source) == ("7", 3)
    [altered] = _describe(kit, BROKER, "").configs
    assert altered.name == "log.retention.ms"
    kit.restart()
    assert kit.topic("other").settings.retention_ms == 7
    assert _whole(kit, BROKER, "", log_segment_bytes="8000").error_code == 0
    assert kit.topic("other").settings.retention_ms == 604_800_000
    assert kit.topic("other").settings.segment_bytes == 8000


@pytest.mark.parametrize(
    ("name", "text"), [("num.partitions", "starts"), ("no.such", "log.retention.ms")]
)
def test_what_cannot_change_while_the_broker_runs_is_refused(
    kit: BrokerKit, name: str, text: str
) -> None:
    refused = _incremental(kit, BROKER, "1", (name, SET, "8"))
    assert refused.error_code == ErrorCode.INVALID_CONFIG
    assert text in refused.error_message


def test_a_config_of_kafka_without_a_meaning_here_is_stored(kit: BrokerKit) -> None:
    name = "sasl.login.refresh.min.period.seconds"
    assert _incremental(kit, BROKER, "1", (name, SET, "58")).error_code == ErrorCode.NONE
    kit.restart()
    told = _one(kit, BROKER, "1", name)
    assert (told.value, told.config_source, told.read_only) == ("58", 3, False)
    assert [one.name for one in _describe(kit, BROKER, "").configs] == [name]
    assert _incremental(kit, BROKER, "1", (name, DELETE, None)).error_code == ErrorCode.NONE
    assert _describe(kit, BROKER, "").configs == []
    assert _incremental(kit, BROKER, "1", (name, SET, "x" * 5000)).error_code != ErrorCode.NONE


@pytest.mark.parametrize("name", ["ssl.cipher.suites", "max.connection.creation.rate"])
def test_a_config_that_promises_protection_is_not_stored(kit: BrokerKit, name: str) -> None:
    refused = _incremental(kit, BROKER, "1", (name, SET, "1"))
    assert refused.error_code == ErrorCode.INVALID_CONFIG
    assert _describe(kit, BROKER, "").configs == []


def test_a_group_has_configs_of_its_own(kit: BrokerKit) -> None:
    name = "consumer.session.timeout.ms"
    assert _incremental(kit, GROUP, "readers", (name, SET, "50000")).error_code == ErrorCode.NONE
    kit.restart()
    found = _one(kit, GROUP, "readers", name)
    assert (found.value, found.config_source) == ("50000", 8)
    assert [one.value for one in found.synonyms] == ["50000", "45000"]
    assert _one(kit, GROUP, "others", name).value == "45000"
    replaced = _whole(kit, GROUP, "readers", consumer_heartbeat_interval_ms="6000")
    assert replaced.error_code == ErrorCode.NONE
    assert _one(kit, GROUP, "readers", name).value == "45000"
    assert _one(kit, GROUP, "readers", "consumer.heartbeat.interval.ms").value == "6000"


@pytest.mark.parametrize(
    ("group", "change", "text"),
    [
        ("g", ("consumer.session.timeout.ms", SET, "1"), "45000 to 60000"),
        ("g", ("consumer.session.timeout.ms", SET, "x"), "type int"),
        ("g", ("consumer.heartbeat.interval.ms", SET, "15001"), "5000 to 15000"),
        ("g", ("share.session.timeout.ms", SET, "45000"), "share groups"),
        ("g", ("streams.session.timeout.ms", SET, "45000"), "streams groups"),
        ("g", ("consumer.session.timeout", SET, "45000"), "did you mean"),
        ("", ("consumer.session.timeout.ms", SET, "50000"), "no name"),
    ],
)
def test_a_config_that_a_group_cannot_have_is_refused(
    kit: BrokerKit, group: str, change: tuple[str, int, str], text: str
) -> None:
    refused = _incremental(kit, GROUP, group, change)
    assert refused.error_code in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST)
    assert text in refused.error_message
    assert not kit.broker.group_configs.names


def test_a_group_keeps_to_bounds_that_are_newer_than_its_configs(kit: BrokerKit) -> None:
    _incremental(kit, GROUP, "g", ("consumer.session.timeout.ms", SET, "60000"))
    settings = GroupSettings(group_consumer_max_session_timeout_ms=50_000)
    kit.set_part(groups=settings)
    kit.restart()
    own = kit.broker.stored_configs.of_group("g")
    assert ConsumerGroupConfigs.of_group(settings, own).consumer_session_timeout_ms == 50_000


def test_a_resource_named_often_is_described_once_with_all_its_keys(kit: BrokerKit) -> None:
    def describe(*keys: list[str] | None) -> list[str]:
        resources = [DescribeConfigsResource(TOPIC, "orders", names) for names in keys]
        (result,) = kit.ask(DescribeConfigsRequest(resources=resources)).results
        return [config.name for config in result.configs]

    assert describe(["retention.ms"], ["segment.ms"]) == ["retention.ms", "segment.ms"]
    assert describe(["retention.ms"], None, ["segment.ms"]) == describe(None)


def test_an_internal_topic_stays_compacted(kit: BrokerKit) -> None:
    name = "__consumer_offsets"
    kit.make_topic(name, settings={"cleanup.policy": "compact"})
    for policy in ("delete", "compact,delete"):
        change = ("cleanup.policy", SET, policy)
        answer = _incremental(kit, TOPIC, name, change)
        assert answer.error_code == ErrorCode.INVALID_CONFIG
        assert "leave cleanup.policy at compact" in answer.error_message
    for change in (("remote.storage.enable", SET, "true"), ("varve.dedup.by", SET, "key")):
        answer = _incremental(kit, TOPIC, name, change)
        assert answer.error_code == ErrorCode.INVALID_CONFIG
        assert "at its default" in answer.error_message
    assert _whole(kit, TOPIC, name, segment_bytes="1000000").error_code == ErrorCode.INVALID_CONFIG
    assert _incremental(kit, TOPIC, name, ("segment.bytes", SET, "1000000")).error_code == 0
