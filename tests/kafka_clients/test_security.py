"""Clients of three kinds log in by every way there is, and may do what they were given."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from confluent_kafka.cimpl import NewTopic
from kafka.errors import TopicAuthorizationFailedError

from tests.support.kafka_aio import AioClient
from tests.support.kafka_clients import ConsumerOptions, KafkaClient, ProducerOptions
from tests.support.kafka_confluent import ConfluentClient
from tests.support.kafka_login import Login
from tests.support.kafka_python import PythonClient
from tests.support.kafka_reading import read_count
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


def _login(
    server: SecureServer,
    listener: str,
    mechanism: str = "",
    user: str = ADMIN,
    password: str = PASSWORD,
) -> Login:
    is_mutual = listener == "MUTUAL"
    return Login(
        Path(server.file("authority")),
        user,
        password,
        mechanism,
        "SSL" if is_mutual else listener,
        server.file(user) if is_mutual else None,
    )


def _confluent(server: SecureServer, listener: str, *more: str) -> dict[str, Any]:
    """The settings of librdkafka; `more` are mechanism, user and password."""
    own = {"bootstrap.servers": server.address(listener), "log_level": 0}
    return _login(server, listener, *more).for_librdkafka() | own


def _send_and_read(client: KafkaClient, bootstrap: str, value: bytes) -> bytes | None:
    """A record as it is read where it was written; raises what keeps it from being written."""
    with client.producer(bootstrap, ProducerOptions()) as producer:
        sent = producer.send((TOPIC, 0), value)
        producer.flush()
    with client.consumer(bootstrap, ConsumerOptions(group="unused")) as consumer:
        consumer.assign({(TOPIC, 0): sent.result(0)})
        return read_count(consumer, 1)[0].value


@pytest.mark.parametrize("make", [ConfluentClient, PythonClient, AioClient])
@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
def test_a_client_logs_in(
    server: SecureServer, make: Callable[[Login], KafkaClient], listener: str, mechanism: str
) -> None:
    client = make(_login(server, listener, mechanism))
    value = f"{make} {listener} {mechanism}".encode()
    assert _send_and_read(client, server.address(listener), value) == value
    client.close()


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


def test_who_did_not_log_in_sees_nothing(server: SecureServer) -> None:
    found = AdminClient(_confluent(server, "SSL")).list_topics(timeout=PATIENCE)
    assert found.topics == {}


def test_rights_are_given_and_taken_by_an_admin_client(server: SecureServer) -> None:
    admin = AdminClient(_confluent(server, "SASL_SSL", "SCRAM-SHA-512"))
    alice = ConfluentClient(_login(server, "SASL_PLAINTEXT", "PLAIN", "alice", "wonderland"))
    address = server.address("SASL_PLAINTEXT")
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        _send_and_read(alice, address, b"x")
    prefixed, allow = ResourcePatternType.PREFIXED, AclPermissionType.ALLOW
    rights = [
        AclBinding(type, name, prefixed, "User:alice", "*", operation, allow)
        for type, name, operation in (
            (ResourceType.TOPIC, "ord", AclOperation.WRITE),
            (ResourceType.TOPIC, "ord", AclOperation.READ),
            (ResourceType.GROUP, "unus", AclOperation.READ),
        )
    ]
    for future in admin.create_acls(rights).values():
        future.result(PATIENCE)
    assert _send_and_read(alice, address, b"by alice") == b"by alice"
    anything: Any = None
    kind, pattern, permission = ResourceType.ANY, ResourcePatternType.ANY, AclPermissionType.ANY
    everything = AclBindingFilter(
        kind, anything, pattern, "User:alice", anything, AclOperation.ANY, permission
    )
    assert len(admin.describe_acls(everything).result(PATIENCE)) == 3
    (gone,) = admin.delete_acls([everything]).values()
    assert len(gone.result(PATIENCE)) == 3
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        _send_and_read(alice, address, b"x")


def test_kafka_python_is_told_what_it_may_not_do(server: SecureServer) -> None:
    settings = _login(server, "SASL_PLAINTEXT", "PLAIN", "anton", "tirol").for_python()
    address = server.address("SASL_PLAINTEXT")
    producer = kafka.KafkaProducer(**settings, bootstrap_servers=address, max_block_ms=3_000)
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
