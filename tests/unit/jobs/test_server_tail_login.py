"""Reading through a server that asks who one is: TLS, client certificates, PLAIN and SCRAM."""

from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

from tests.support.certificates import Authority
from tests.support.secure_server import ADMIN, PASSWORD, SecureServer
from tests.support.source_topic import read_rows
from varve.foundation.errors import InvalidRequest, StoreDenied, Unavailable
from varve.jobs.source.options import SourceFilters, learn_tier, parse_options
from varve.kafka_client.client import open_client
from varve.records import Record


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureServer]:
    folder: Path = tmp_path_factory.mktemp("secure")
    with SecureServer(folder) as made:
        topic = made.store.create_topic("t")
        topic.append_many([Record(b"k", b"v%d" % number) for number in range(3)])
        made.broker.topics.refresh()
        yield made


def read(server: SecureServer, listener: str, **given: str) -> list[bytes]:
    """The values of the topic; names of options have underscores for dots."""
    options = {name.replace("_", "."): value for name, value in given.items()}
    if listener != "SASL_PLAINTEXT":
        options.setdefault("ssl.ca.location", server.file("authority"))
    address = {"bootstrap.servers": server.address(listener), "topic": "t"}
    asked = parse_options({**address, **options})
    assert asked.server is not None
    try:
        return [row["value"] for row in read_rows(learn_tier(asked), SourceFilters())]
    finally:
        open_client(asked.server).close()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_a_client_logs_in_by_its_password(
    server: SecureServer, listener: str, mechanism: str
) -> None:
    login = {"sasl_mechanism": mechanism, "sasl_username": ADMIN}
    given = {"security_protocol": listener, **login}
    assert read(server, listener, **given, sasl_password=PASSWORD) == [b"v0", b"v1", b"v2"]
    with pytest.raises(StoreDenied, match="refuses the login"):
        read(server, listener, **given, sasl_password="wrong")


def test_a_client_shows_a_certificate(server: SecureServer) -> None:
    own = {"ssl_certificate_location": server.file(ADMIN)}
    assert len(read(server, "MUTUAL", security_protocol="SSL", **own)) == 3


def test_a_server_of_another_authority_is_refused(server: SecureServer, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    other.write_text(Authority().pem)
    with pytest.raises(StoreDenied, match=r"set ssl\.ca\.location"):
        read(server, "SSL", security_protocol="SSL", ssl_ca_location=str(other))
    with pytest.raises(InvalidRequest, match="cannot be used"):
        read(server, "SSL", security_protocol="SSL", ssl_ca_location=str(tmp_path / "none"))


def test_a_client_without_rights_is_told_so(server: SecureServer) -> None:
    login = {"sasl_mechanism": "PLAIN", "sasl_username": "alice", "sasl_password": "wonderland"}
    with pytest.raises(StoreDenied, match="TOPIC_AUTHORIZATION_FAILED"):
        read(server, "SASL_PLAINTEXT", security_protocol="SASL_PLAINTEXT", **login)


@pytest.mark.parametrize("listener", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_a_client_without_tls_or_a_login_is_told_so_at_once(
    server: SecureServer, listener: str
) -> None:
    began = monotonic()
    with pytest.raises(Unavailable, match=r"may require TLS or SASL: set security\.protocol"):
        read(server, listener, request_timeout_ms="30000")
    assert monotonic() - began < 5
