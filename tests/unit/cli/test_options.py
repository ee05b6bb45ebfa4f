"""Options that several commands share: which target they name, and the values they parse."""

from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete, get_completion_class
from click.testing import CliRunner

import varve
from varve.cli import options
from varve.cli.main import app
from varve.cli.options import parse_pair, parse_setting, parse_topic_partition
from varve.cli.where import Where
from varve.foundation.errors import InvalidRequest

_VARIABLES = ("VARVE_DIR", "VARVE_BOOTSTRAP", "VARVE_COMMAND_CONFIG", "VARVE_TIER_SETTINGS")


def _invoke(*arguments: str, **environment: str) -> tuple[Any, Where | None]:
    """The result of a command with `options.where`, and what the options became."""
    targets: list[Where] = []

    @click.command()
    @options.where
    def command(where: Where) -> None:
        targets.append(where)

    variables: dict[str, str | None] = {**dict.fromkeys(_VARIABLES), **environment}
    result = CliRunner().invoke(command, list(arguments), env=variables)
    return result, targets[0] if targets else None


def _where(*arguments: str, **environment: str) -> Where:
    result, where = _invoke(*arguments, **environment)
    assert where is not None, result.output
    return where


def _address(*arguments: str, **environment: str) -> str:
    where = _where(*arguments, **environment)
    assert where.is_broker
    return where.client().address


def _usage_error(*arguments: str, **environment: str) -> str:
    result, where = _invoke(*arguments, **environment)
    assert (result.exit_code, where) == (2, None), result.output
    return " ".join(result.stderr.split())


# Directory or broker


def test_a_directory_on_the_command_line_beats_the_broker_of_the_environment() -> None:
    assert _where("-d", "data", VARVE_BOOTSTRAP="b:1").directories == (Path("data"),)


@pytest.mark.parametrize("arguments", [("-b", "a:1"), ("-X", "bootstrap.servers=a:1")])
def test_a_broker_on_the_command_line_beats_the_directory_of_the_environment(
    arguments: tuple[str, ...],
) -> None:
    assert _address(*arguments, VARVE_DIR="data") == "a:1"


def test_a_client_file_on_the_command_line_beats_the_directory_of_the_environment(
    tmp_path: Path,
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=a:1\n")
    assert _address("--command-config", str(file), VARVE_DIR="data") == "a:1"


@pytest.mark.parametrize(
    "broker", [("-b", "a:1"), ("-X", "client.id=me"), ("--command-config", "client.properties")]
)
def test_a_directory_and_a_broker_exclude_each_other(broker: tuple[str, ...]) -> None:
    assert "leave one of them out" in _usage_error("-d", "data", *broker)


def test_both_variables_are_an_error_that_names_them() -> None:
    message = _usage_error(VARVE_DIR="data", VARVE_BOOTSTRAP="a:1")
    assert "VARVE_DIR and VARVE_BOOTSTRAP are both set" in message
    assert _where("-d", "x", VARVE_DIR="data", VARVE_BOOTSTRAP="a:1").directories == (Path("x"),)
    assert _address("-b", "x:1", VARVE_DIR="data", VARVE_BOOTSTRAP="a:1") == "x:1"


def test_without_any_of_them_it_is_the_local_broker() -> None:
    assert _address() == "localhost:9092"


def test_directories_are_repeated_or_separated_by_colons_in_the_variable() -> None:
    paths = (Path("a"), Path("b c"))
    assert _where("-d", "a", "--dir", "b c").directories == paths
    assert _where(VARVE_DIR="a:b c").directories == paths
    assert _where("-d", "x", VARVE_DIR="a:b c").directories == (Path("x"),)
    assert "is empty" in _usage_error("-d", "")
    assert "is empty" in _usage_error(VARVE_DIR="a:")


def test_settings_of_the_object_store_go_with_a_directory() -> None:
    where = _where("-d", "data", "--store-set", "endpoint=http://localhost:9000")
    assert where.tier_settings() == {"varve.tier.store.endpoint": "http://localhost:9000"}


# Addresses and client settings


@pytest.mark.parametrize("name", ["bootstrap.servers", "metadata.broker.list"])
def test_the_order_of_addresses(tmp_path: Path, name: str) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"{name}=file:1\n")
    option, config = f"{name}=option:1", ("--command-config", str(file))
    in_environment = {"VARVE_BOOTSTRAP": "variable:1", "VARVE_COMMAND_CONFIG": str(file)}
    assert _address("-b", "flag:1", *config, **in_environment) == "flag:1"
    assert _address("-X", option, *config, **in_environment) == "option:1"
    assert _address(*config, **in_environment) == "file:1"
    assert _address(**in_environment) == "variable:1"
    assert _address(VARVE_COMMAND_CONFIG=str(file)) == "file:1"
    config_settings = _where("-b", "flag:1", *config).client().config()
    assert config_settings["bootstrap.servers"] == "flag:1"
    assert "metadata.broker.list" not in config_settings


def test_two_addresses_on_the_command_line_are_an_error() -> None:
    message = _usage_error("-b", "flag:1", "-X", "bootstrap.servers=option:1")
    assert "--bootstrap is flag:1, -X bootstrap.servers is option:1" in message
    assert _address("-b", "same:1", "-X", "bootstrap.servers=same:1") == "same:1"


def test_client_settings_come_from_the_file_and_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# who we are\nsasl.username = alice\nsasl.password=a=b\n")
    where = _where("-b", "a:1", "-X", "sasl.username=bob", VARVE_COMMAND_CONFIG=str(file))
    assert where.client().settings == {"sasl.username": "bob", "sasl.password": "a=b"}
    assert "write NAME=VALUE" in _usage_error("-X", "nonsense")


# Values


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("retention.ms=7d", ("retention.ms", "604800000")),
        ("retention.ms=1h30m", ("retention.ms", "5400000")),
        ("retention.ms=-1", ("retention.ms", "-1")),
        ("retention.ms=5000", ("retention.ms", "5000")),
        ("segment.bytes=64MiB", ("segment.bytes", "67108864")),
        ("segment.bytes=1.5 GB", ("segment.bytes", "1500000000")),
        ("segment.bytes=1000", ("segment.bytes", "1000")),
        ("cleanup.policy=compact,delete", ("cleanup.policy", "compact,delete")),
        ("sasl.password= a=b ", ("sasl.password", "a=b")),
        ("flush = 7d", ("flush", "7d")),
        ("name=", ("name", "")),
    ],
)
def test_a_setting_may_have_units(text: str, setting: tuple[str, str]) -> None:
    assert parse_setting(text) == setting


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("retention.ms", "write NAME=VALUE"),
        ("=7d", "write NAME=VALUE"),
        ("retention.ms=7fortnights", "retention.ms '7fortnights'"),
        ("segment.bytes=64MiX", "segment.bytes '64MiX' is not a size"),
    ],
)
def test_what_is_not_a_setting_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        parse_setting(text)


def test_a_partition_is_named_after_its_topic() -> None:
    assert parse_topic_partition("orders") == ("orders", None)
    assert parse_topic_partition("orders:12") == ("orders", 12)
    for text in ("orders:", "orders:x", "orders:-1", "a:1:2"):
        with pytest.raises(InvalidRequest, match="write TOPIC:PARTITION"):
            parse_topic_partition(text)


# Completion


def _complete(incomplete: str, *arguments: str) -> list[str]:
    completion = ShellComplete(app, {}, "varve", "_VARVE_COMPLETE")
    return [item.value for item in completion.get_completions(list(arguments), incomplete)]


def test_topics_of_a_directory_are_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with varve.open(tmp_path, maintain=False) as store:
        for name in ("orders", "order-lines", "balances"):
            store.create_topic(name)
        assert _complete("ord", "consume", "-d", str(tmp_path)) == ["order-lines", "orders"]
    everything = ["balances", "order-lines", "orders"]
    assert _complete("", "topic", "delete", "-d", str(tmp_path), "orders") == everything
    monkeypatch.setenv("VARVE_DIR", str(tmp_path))
    assert _complete("b", "produce") == ["balances"]
    monkeypatch.setenv("VARVE_DIR", str(tmp_path / "missing"))
    assert _complete("b", "produce") == []


@pytest.mark.parametrize(
    "words", [("consume", "orders", "-d"), ("tier", "restore", "orders", "--dir"), ("demo", "-d")]
)
def test_directories_are_completed_by_the_shell(words: tuple[str, ...]) -> None:
    completion = ShellComplete(app, {}, "varve", "_VARVE_COMPLETE")
    [item] = completion.get_completions(list(words), "da")
    assert (item.type, item.value) == ("dir", "da")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(shell: str) -> None:
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(app, {}, "varve", "_VARVE_COMPLETE").source()
    assert "_VARVE_COMPLETE" in script
    assert f"{shell}_complete" in script


def test_commands_and_options_are_completed() -> None:
    assert _complete("con") == ["consume"]
    assert _complete("del", "topic") == ["delete", "delete-records"]
    assert "--key-separator" in _complete("--", "consume", "orders")


def test_completion_without_a_broker_offers_nothing() -> None:
    assert _complete("o", "consume", "-b", "127.0.0.1:1") == []


def test_a_secret_of_a_client_or_a_store_keeps_its_spaces() -> None:
    assert parse_pair("sasl.password= a=b ") == ("sasl.password", " a=b ")
