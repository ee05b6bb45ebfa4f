"""Settings of a server come from Kafka's own file, the environment and options, in this order."""

import inspect
import json
import logging
from pathlib import Path

import pytest

from varve.broker.broker import Broker
from varve.embedded.store_settings import parse_store_settings
from varve.foundation.errors import InvalidSetting
from varve.kafka_server.config import (
    ServerConfig,
    make_config,
    read_environment,
    read_properties_file,
    variable_of,
)
from varve.serving.process import JsonFormatter, TextFormatter

KAFKAS_OWN = """
# As Kafka ships it
process.roles=broker,controller
node.id=3
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/one, /tmp/two
num.partitions=4
offsets.topic.replication.factor=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


def _config(given: dict[str, str], *directories: str) -> ServerConfig:
    return make_config(given, directories, default_directory="varve-data")


def _read(tmp_path: Path, text: str) -> dict[str, str]:
    file = tmp_path / "server.properties"
    file.write_text(text, encoding="utf-8")
    return read_properties_file(file)


def test_kafkas_own_file_is_understood(tmp_path: Path) -> None:
    config = _config(_read(tmp_path, KAFKAS_OWN))
    assert config.directories == ("/tmp/one", "/tmp/two")
    assert config.server.listeners == ("PLAINTEXT://:9092",)
    assert config.server.advertised_listeners == ("PLAINTEXT://localhost:9092",)
    assert config.server.socket_send_buffer_bytes == 102_400
    assert config.broker["settings"].node_id == 3
    assert config.broker["settings"].num_partitions == 4
    assert config.store["log.retention.ms"] == str(168 * 3_600_000)
    assert config.store["log.segment.bytes"] == "1073741824"
    warnings = " ".join(config.warnings)
    for name in ("num.io.threads", "process.roles", "CONTROLLER://:9093"):
        assert name in warnings


def test_records_from_the_future_are_refused_as_kafka_does_unless_told_otherwise() -> None:
    name = "log.message.timestamp.after.max.ms"
    assert _config({}).store == {name: "3600000"}
    assert _config({name: "5"}).store == {name: "5"}


def test_units_are_those_of_the_command_line_in_every_source(tmp_path: Path) -> None:
    sizes = {"log.segment.bytes": str(64 << 20), "log.retention.ms": str(7 * 86_400_000)}
    settings = _read(tmp_path, "log.segment.bytes=64MiB\nlog.retention.ms = 7d\n")
    assert _config(settings).store.items() >= sizes.items()
    variables = {"VARVE_LOG_SEGMENT_BYTES": "64MiB", "VARVE_LOG_RETENTION_MS": "7d"}
    assert _config(read_environment(variables)[0]).store.items() >= sizes.items()
    parsed = parse_store_settings({"log.segment.bytes": "64MiB", "log.retention.ms": "7d"})
    assert (parsed.defaults.segment_bytes, parsed.defaults.retention_ms) == (64 << 20, 604_800_000)


def test_a_wrong_value_is_named_as_it_is_written_with_its_source(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"log\.segment\.bytes in .*properties, line 2 is 1, "):
        parse_store_settings(_config(_read(tmp_path, "node.id=1\nlog.segment.bytes=1")).store)
    settings, _ = read_environment({"VARVE_SOCKET_REQUEST_MAX_BYTES": "none"})
    with pytest.raises(InvalidSetting, match="in the variable VARVE_SOCKET_REQUEST_MAX_BYTES is"):
        _config(settings)
    with pytest.raises(InvalidSetting, match=r"'log\.segment\.byte' in .*properties, line 1: did"):
        _config(_read(tmp_path, "log.segment.byte=1"))


def test_what_only_kafka_3_had_is_ignored_with_a_warning() -> None:
    config = _config(
        {"zookeeper.connect": "localhost:2181", "inter.broker.protocol.version": "3.0"}
    )
    [warning] = config.warnings
    assert warning.endswith("are ignored: inter.broker.protocol.version, zookeeper.connect")


def test_directories_that_are_named_come_before_those_of_the_file() -> None:
    assert _config({"log.dirs": "a,b"}, "c").directories == ("c",)
    assert _config({"log.dir": "a"}).directories == ("a",)
    assert _config({}).directories == ("varve-data",)


def test_a_name_that_nobody_knows_is_refused_with_a_near_one() -> None:
    with pytest.raises(InvalidSetting, match=r"did you mean 'socket\.request\.max\.bytes'"):
        _config({"socket.request.max.byte": "1"})


def test_a_setting_of_one_topic_is_refused_with_the_one_for_all() -> None:
    with pytest.raises(InvalidSetting, match=r"set log\.retention\.ms for all topics"):
        _config({"retention.ms": "1"})


def test_values_are_checked() -> None:
    with pytest.raises(InvalidSetting, match=r"socket\.request\.max\.bytes"):
        _config({"socket.request.max.bytes": "none"})
    with pytest.raises(InvalidSetting, match=r"log\.retention\.hours"):
        _config({"log.retention.hours": "soon"})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"log.retention.hours": "2"}, "7200000"),
        ({"log.retention.minutes": "3", "log.retention.hours": "2"}, "180000"),
        ({"log.retention.ms": "5", "log.retention.hours": "2"}, "5"),
        ({"log.retention.hours": "-1"}, "-1"),
    ],
)
def test_times_in_other_units_are_kafkas(given: dict[str, str], expected: str) -> None:
    assert _config(given).store["log.retention.ms"] == expected


def test_settings_of_the_tier_and_of_listeners_go_where_they_belong() -> None:
    config = _config(
        {
            "varve.tier.url": "s3://bucket",
            "varve.tier.store.region": "eu-west-1",
            "listener.name.plaintext.connections.max.reauth.ms": "5",
            "ssl.client.auth": "required",
        }
    )
    tier = {"varve.tier.url": "s3://bucket", "varve.tier.store.region": "eu-west-1"}
    assert config.store.items() >= tier.items()
    assert config.listener_settings == {"listener.name.plaintext.connections.max.reauth.ms": "5"}
    assert config.tls.client_auth == "required"


def test_an_empty_variable_switches_no_rights_off() -> None:
    with pytest.raises(InvalidSetting, match="VARVE_AUTHORIZER_CLASS_NAME is empty"):
        read_environment({"VARVE_AUTHORIZER_CLASS_NAME": ""})


def test_variables_stand_for_settings() -> None:
    found, warnings = read_environment(
        {
            "VARVE_LISTENERS": "PLAINTEXT://:1",
            "VARVE_LOG_DIRS": "a",
            "VARVE_TIER_URL": "file:/x",
            "VARVE_TIER_STORE_ENDPOINT": "http://localhost",
            "VARVE_DIR": "b",
            "VARVE_SHAPE_TOKEN": "t",
            "VARVE_LISTENER": "x",
            "HOME": "/root",
        }
    )
    assert found == {
        "listeners": "PLAINTEXT://:1",
        "log.dirs": "a",
        "varve.tier.url": "file:/x",
        "varve.tier.store.endpoint": "http://localhost",
    }
    assert warnings == [
        "VARVE_LISTENER in the environment is not a setting; did you mean VARVE_LISTENERS?"
    ]
    assert variable_of("varve.http.port") == "VARVE_HTTP_PORT"


def test_properties_are_read_as_java_does(tmp_path: Path) -> None:
    text = (
        "a=1\n  b : two words  \nc three\n# no\n! no\n\nd=x\\\n   y\ne\\=f=g\nu=\\u00e4\nempty=\n"
        "path=C:\\\\x\nlast=\\"
    )
    assert _read(tmp_path, text) == {
        "a": "1",
        "b": "two words",
        "c": "three",
        "d": "xy",
        "e=f": "g",
        "u": "ä",
        "empty": "",
        "path": "C:\\x",
        "last": "",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a=1\nb=2\na=3\n", "server.properties, line 3: a is set twice"),
        ("a=1\n=2\n", "server.properties, line 2: a value without a name"),
        ("a=\\u12\n", "server.properties, line 1: .*four hex digits"),
    ],
)
def test_a_broken_properties_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidSetting, match=message):
        _read(tmp_path, text)


def test_a_byte_order_mark_is_not_part_of_the_first_setting(tmp_path: Path) -> None:
    assert _read(tmp_path, "\ufefflisteners=PLAINTEXT://:9092\n") == {
        "listeners": "PLAINTEXT://:9092"
    }


def test_a_properties_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_bytes(b"a=\xff\n")
    with pytest.raises(InvalidSetting, match="is not UTF-8 text"):
        read_properties_file(file)


def _record() -> logging.LogRecord:
    record = logging.makeLogRecord(
        {"name": "varve.x", "levelname": "INFO", "msg": "rolled", "created": 1_700_000_000.5}
    )
    record.partition = "t-0\nforged"
    return record


def test_a_line_of_the_log_tells_what_it_speaks_of() -> None:
    line = TextFormatter().format(_record())
    assert line == "2023-11-14T22:13:20.500Z INFO varve.x: rolled partition=t-0\\nforged"


def test_the_log_may_be_json() -> None:
    told = json.loads(JsonFormatter().format(_record()))
    assert told == {
        "time": "2023-11-14T22:13:20.500Z",
        "level": "info",
        "logger": "varve.x",
        "message": "rolled",
        "partition": "t-0\nforged",
    }


def test_values_that_a_message_names_are_its_arguments() -> None:
    record = logging.makeLogRecord(
        {"name": "varve.x", "levelname": "INFO", "msg": "%(partition)s: copying failed: %(error)s"}
    )
    record.args = {"partition": "t-0", "error": "denied"}
    # What a handler that is not varve's prints.
    assert record.getMessage() == "t-0: copying failed: denied"
    assert TextFormatter().format(record).endswith("varve.x: t-0: copying failed: denied")
    told = json.loads(JsonFormatter().format(record))
    assert (told["partition"], told["error"]) == ("t-0", "denied")


def test_all_settings_that_a_broker_takes_are_filled() -> None:
    config = _config({}, "data")
    taken = inspect.signature(Broker).parameters.values()
    assert set(config.broker) == {
        one.name for one in taken if "Settings" in inspect.formatannotation(one.annotation)
    }


def test_limits_of_groups_and_transactions_reach_their_parts() -> None:
    given = {"group.min.session.timeout.ms": "500", "transaction.max.timeout.ms": "7000"}
    config = _config(given, "data")
    assert config.broker["groups"].group_min_session_timeout_ms == 500
    assert config.broker["transactions"].transaction_max_timeout_ms == 7000
    assert not config.warnings


def test_an_authorizer_without_super_users_is_warned_of() -> None:
    authorizer = {"varve.authorizer.enable": "true"}
    warnings = _config(authorizer, "data").warnings
    assert [text for text in warnings if "set super.users=User:NAME" in text]
    given = {**authorizer, "super.users": "User:admin"}
    assert _config(given, "data").warnings == []
