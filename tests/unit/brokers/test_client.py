"""Settings of clients, and the errors of brokers, without a broker."""

from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from varve.brokers.client import BrokerClient, canonical_settings, read_client_file
from varve.brokers.errors import Denied, Refused, as_error, login_refused, unreachable
from varve.foundation.errors import InvalidSetting, NotFound, Unavailable


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        (KafkaError._ALL_BROKERS_DOWN, Unavailable, "varve serve"),
        (KafkaError._MSG_TIMED_OUT, Unavailable, "VARVE_BOOTSTRAP"),
        (KafkaError._AUTHENTICATION, Denied, "security.protocol"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, Denied, "varve acl add"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, NotFound, "varve topic list"),
        (KafkaError.GROUP_ID_NOT_FOUND, NotFound, "varve group list"),
        (KafkaError.INVALID_CONFIG, InvalidSetting, "topic orders: "),
        (KafkaError.NOT_CONTROLLER, Refused, "topic orders: "),
    ],
)
def test_errors_of_brokers_become_sentences_with_a_remedy(
    code: int, kind: type[Exception], text: str
) -> None:
    error = as_error(KafkaError(code), "topic orders", address="host:1")
    assert type(error) is kind
    assert text in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("reason", "texts"),
    [
        (
            "Connect to ipv4#127.0.0.1:1 failed: Connection refused",
            ("(Connection refused); start",),
        ),
        ("Failed to resolve 'host:1': Name or service not known", ("not known", "`varve serve`")),
        (
            "1/1 brokers are down",
            ("closes the connection", "security.protocol=SSL", "security.protocol=SASL_PLAINTEXT"),
        ),
        ("Failed while waiting for controller: Local: Timed out", ("if the listener uses TLS",)),
        ("SSL handshake failed: connecting to a PLAINTEXT broker listener?", ("not use TLS",)),
    ],
)
def test_a_broker_without_an_answer_says_what_to_change(
    reason: str, texts: tuple[str, ...]
) -> None:
    message = str(unreachable("host:1", reason))
    assert message.count("host:1") >= 1
    for text in texts:
        assert text in message


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("SSL handshake failed: certificate verify failed: ...", "set ssl.ca.location"),
        ("Broker: Request not valid in current SASL state", "has no login"),
        ("SASL authentication error", "sasl.password=..."),
    ],
)
def test_a_refused_login_says_which_setting_to_change(reason: str, text: str) -> None:
    assert text in str(login_refused("host:1", reason))


def test_a_client_file_has_a_setting_per_line(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# who we are\nsasl.username = alice\nsasl.password=a=b\n\n")
    assert read_client_file(file) == {"sasl.username": "alice", "sasl.password": "a=b"}
    file.write_text("\ufeffsasl.username=alice\n", encoding="utf-8")
    assert read_client_file(file) == {"sasl.username": "alice"}
    file.write_text("nonsense\n")
    with pytest.raises(InvalidSetting, match="line 1"):
        read_client_file(file)
    with pytest.raises(InvalidSetting, match="--command-config /nowhere: No such file"):
        read_client_file(Path("/nowhere"))


def test_a_client_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_bytes(b"sasl.password=\xff\n")
    with pytest.raises(InvalidSetting, match=r"client\.properties is not UTF-8 text"):
        read_client_file(file)


def test_a_setting_that_has_two_names_is_known_by_one() -> None:
    settings = {"metadata.broker.list": "a:1", "sasl.mechanism": "PLAIN", "client.id": "me"}
    assert canonical_settings(settings) == {
        "bootstrap.servers": "a:1",
        "sasl.mechanisms": "PLAIN",
        "client.id": "me",
    }


def test_client_settings_beat_defaults_and_not_what_the_command_requires() -> None:
    client = BrokerClient("host:1", {"sasl.username": "bob"})
    assert client.config(group_id="g")["bootstrap.servers"] == "host:1"
    assert client.config(group_id="g")["group.id"] == "g"
    assert client.config(defaults={"sasl_username": "carol"})["sasl.username"] == "bob"
    assert client.config(sasl_username="carol")["sasl.username"] == "carol"
