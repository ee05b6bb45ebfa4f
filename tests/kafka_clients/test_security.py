"""Clients of three kinds log in by every way there is, and may do what they were given."""

import asyncio
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
)
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from confluent_kafka.cimpl import NewTopic
from kafka.errors import TopicAuthorizationFailedError

from tests.support.secure_server import ADMIN, PASSWORD, SecureServer

TOPIC = "orders"
WAYS = [
    ("MUTUAL", ""),
    ("SASL_PLAINTEXT", "PLAIN"),
    ("SASL_PLAINTEXT", "SCRAM-SHA-256"),
    ("SASL_SSL", "PLAIN"),
    ("SASL_SSL", "SCRAM-SHA-256"),
    ("SASL_SSL", "SCRAM-SHA-512"),
]
PATIENCE = 10.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureServer]:
    with SecureServer(tmp_path_factory.mktemp("secure")) as server:
        admin = AdminClient(_confluent(server, "SASL_SSL", "SCRAM-SHA-256"))
        admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(PATIENCE)
        yield server


def _protocol(listener: str) -> str:
    return "SSL" if listener == "MUTUAL" else listener


def _confluent(
    server: SecureServer,
    listener: str,
    mechanism: str = "",
    user: str = ADMIN,
    password: str = PASSWORD,
) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap.servers": server.address(listener),
        "security.protocol": _protocol(listener),
        "socket.timeout.ms": 5_000,
        "log_level": 0,
    }
    if "SSL" in _protocol(listener):
        settings["ssl.ca.location"] = server.file("authority")
    if listener == "MUTUAL":
        settings["ssl.certificate.location"] = server.file(user)
        settings["ssl.key.location"] = server.file(user)
    if mechanism:
        settings |= {
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
        }
    return settings


def _python(
    server: SecureServer,
    listener: str,
    mechanism: str = "",
    user: str = ADMIN,
    password: str = PASSWORD,
) -> dict[str, Any]:
    """For kafka-python and aiokafka, which take the same names."""
    settings: dict[str, Any] = {
        "bootstrap_servers": server.address(listener),
        "security_protocol": _protocol(listener),
    }
    if "SSL" in _protocol(listener):
        context = ssl.create_default_context(cafile=server.file("authority"))
        if listener == "MUTUAL":
            context.load_cert_chain(server.file(user))
        settings["ssl_context"] = context
    if mechanism:
        settings |= {
            "sasl_mechanism": mechanism,
            "sasl_plain_username": user,
            "sasl_plain_password": password,
        }
    return settings


def _send(settings: dict[str, Any], topic: str, value: bytes) -> int:
    """The offset of a record; raises what keeps it from being written."""
    outcome: list[Any] = []
    producer = confluent_kafka.Producer(settings | {"message.timeout.ms": 5_000})
    producer.produce(topic, value, on_delivery=lambda *told: outcome.append(told))
    producer.flush(PATIENCE)
    ((error, message),) = outcome
    if error is not None:
        raise KafkaException(error)
    return int(message.offset())


def _receive(settings: dict[str, Any], topic: str, offset: int) -> bytes:
    consumer = confluent_kafka.Consumer(
        settings | {"group.id": "unused", "enable.auto.commit": False}
    )
    try:
        consumer.assign([TopicPartition(topic, 0, offset)])
        message = consumer.poll(PATIENCE)
        assert message is not None
        if message.error():
            raise KafkaException(message.error())
        return bytes(message.value() or b"")
    finally:
        consumer.close()


@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
def test_confluent_kafka_logs_in(server: SecureServer, listener: str, mechanism: str) -> None:
    settings = _confluent(server, listener, mechanism)
    value = f"confluent {listener} {mechanism}".encode()
    assert _receive(settings, TOPIC, _send(settings, TOPIC, value)) == value


@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
def test_kafka_python_logs_in(server: SecureServer, listener: str, mechanism: str) -> None:
    value = f"kafka-python {listener} {mechanism}".encode()
    settings = _python(server, listener, mechanism)
    with_producer = kafka.KafkaProducer(**settings)
    try:
        sent = with_producer.send(TOPIC, value).get(PATIENCE)
    finally:
        with_producer.close()
    consumer = kafka.KafkaConsumer(**settings, consumer_timeout_ms=5_000)
    try:
        partition = kafka.TopicPartition(TOPIC, 0)
        consumer.assign([partition])
        consumer.seek(partition, sent.offset)
        assert next(consumer).value == value
    finally:
        consumer.close()


@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
def test_aiokafka_logs_in(server: SecureServer, listener: str, mechanism: str) -> None:
    value = f"aiokafka {listener} {mechanism}".encode()

    async def scenario() -> None:
        settings = _python(server, listener, mechanism)
        async with aiokafka.AIOKafkaProducer(**settings) as producer:
            sent = await producer.send_and_wait(TOPIC, value)
        async with aiokafka.AIOKafkaConsumer(**settings) as consumer:
            partition = aiokafka.TopicPartition(TOPIC, 0)
            consumer.assign([partition])
            consumer.seek(partition, sent.offset)
            assert (await consumer.getone()).value == value

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
@pytest.mark.parametrize("user", [ADMIN, "mallory"])
def test_a_wrong_password_is_refused(server: SecureServer, mechanism: str, user: str) -> None:
    errors: list[confluent_kafka.KafkaError] = []
    settings = _confluent(server, "SASL_SSL", mechanism, user, "wrong")
    producer = confluent_kafka.Producer(settings | {"error_cb": errors.append})
    end = time.monotonic() + PATIENCE
    while not errors and time.monotonic() < end:
        producer.poll(0.1)
    assert errors[0].code() == confluent_kafka.KafkaError._AUTHENTICATION
    assert "nvalid" in errors[0].str()


def test_a_client_without_a_certificate_is_not_let_in(server: SecureServer) -> None:
    settings = _confluent(server, "MUTUAL")
    del settings["ssl.certificate.location"], settings["ssl.key.location"]
    with pytest.raises(KafkaException):
        AdminClient(settings).list_topics(timeout=1)


def test_a_certificate_that_is_no_users_is_turned_away(server: SecureServer) -> None:
    settings = _confluent(server, "MUTUAL", user="berta")
    with pytest.raises(KafkaException):
        AdminClient(settings).list_topics(timeout=1)


def test_who_did_not_log_in_sees_nothing(server: SecureServer) -> None:
    found = AdminClient(_confluent(server, "SSL")).list_topics(timeout=PATIENCE)
    assert found.topics == {}


def test_rights_are_given_and_taken_by_an_admin_client(server: SecureServer) -> None:
    admin = AdminClient(_confluent(server, "SASL_SSL", "SCRAM-SHA-512"))
    alice = _confluent(server, "SASL_PLAINTEXT", "PLAIN", "alice", "wonderland")
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        _send(alice, TOPIC, b"x")
    rights = [
        AclBinding(
            type,
            name,
            ResourcePatternType.PREFIXED,
            "User:alice",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for type, name, operation in (
            (ResourceType.TOPIC, "ord", AclOperation.WRITE),
            (ResourceType.TOPIC, "ord", AclOperation.READ),
            (ResourceType.GROUP, "unus", AclOperation.READ),
        )
    ]
    for future in admin.create_acls(rights).values():
        future.result(PATIENCE)
    assert _receive(alice, TOPIC, _send(alice, TOPIC, b"by alice")) == b"by alice"
    anything: Any = None
    everything = AclBindingFilter(
        ResourceType.ANY,
        anything,
        ResourcePatternType.ANY,
        "User:alice",
        anything,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert len(admin.describe_acls(everything).result(PATIENCE)) == 3
    (gone,) = admin.delete_acls([everything]).values()
    assert len(gone.result(PATIENCE)) == 3
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        _send(alice, TOPIC, b"x")


def test_kafka_python_is_told_what_it_may_not_do(server: SecureServer) -> None:
    settings = _python(server, "SASL_PLAINTEXT", "PLAIN", "anton", "tirol")
    producer = kafka.KafkaProducer(**settings, max_block_ms=3_000)
    try:
        with pytest.raises(TopicAuthorizationFailedError):
            producer.send(TOPIC, b"x").get(PATIENCE)
    finally:
        producer.close(timeout=1)


def test_a_user_made_by_an_admin_client_can_log_in(server: SecureServer) -> None:
    admin = AdminClient(_confluent(server, "SASL_SSL", "PLAIN"))
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 5_000)
    upsertion = UserScramCredentialUpsertion("carol", info, b"new password")
    for future in admin.alter_user_scram_credentials([upsertion]).values():
        future.result(PATIENCE)
    futures: Any = admin.describe_user_scram_credentials(["carol"])
    found = futures["carol"].result(PATIENCE)
    assert [one.iterations for one in found.scram_credential_infos] == [5_000]
    carol = _confluent(server, "SASL_SSL", "SCRAM-SHA-512", "carol", "new password")
    assert AdminClient(carol).list_topics(timeout=PATIENCE).topics == {}


def test_a_session_that_ends_is_renewed_while_records_flow(tmp_path: Path) -> None:
    with SecureServer(tmp_path, connections_max_reauth_ms=1_200) as server:
        settings = _confluent(server, "SASL_PLAINTEXT", "SCRAM-SHA-256")
        admin = AdminClient(settings)
        admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(PATIENCE)
        errors: list[Any] = []
        producer = confluent_kafka.Producer(settings | {"error_cb": errors.append})
        delivered: list[int | None] = []
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            producer.produce(
                TOPIC, b"x", on_delivery=lambda _, message: delivered.append(message.offset())
            )
            producer.poll(0.05)
        producer.flush(PATIENCE)
        assert delivered == list(range(len(delivered)))
        assert len(delivered) > 10
        assert errors == []
