"""`varve shape serve` at a broker that it may not enter: one line that says what to do, exit 1."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificates import Authority
from tests.support.kafka_server import HOST, ReservedPort
from tests.support.secure_server import ADMIN, PASSWORD, SecureServer
from tests.support.varve_command import run_varve
from varve.disk import RealFileSystem
from varve.foundation.clock import SystemClock
from varve.foundation.errors import Unavailable
from varve.http.shapes.launch import make_feed_factory
from varve.kafka_client.address import ClusterAddress
from varve.shapes.opening import FeedFactory


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureServer]:
    with SecureServer(tmp_path_factory.mktemp("secure")) as made:
        yield made


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of the command is that of the whole process, and the broker runs in it too."""
    monkeypatch.setattr("varve.serving.process.set_up_logging", lambda *given: None)


def _login(server: SecureServer, **given: str) -> list[str]:
    """The options of a command for the administrator."""
    login = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": server.file("authority"),
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": ADMIN,
        "sasl.password": PASSWORD,
        **{name.replace("_", "."): value for name, value in given.items()},
    }
    options = [word for name, value in login.items() for word in ("-X", f"{name}={value}")]
    return ["-b", server.address("SASL_SSL"), *options]


def _serve(server: SecureServer, data: Path, **given: str) -> str:
    """What it says before it ends by itself."""
    order = ["shape", "serve", *_login(server, **given), "--data", str(data)]
    ended = run_varve(*order, "--listen", "127.0.0.1:0", code=1)
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert not data.exists(), "nothing is made where nothing can be served"
    return ended.stderr


def test_a_wrong_password_is_told_at_the_start(server: SecureServer, tmp_path: Path) -> None:
    told = _serve(server, tmp_path / "shapes", sasl_password="wrong")
    assert "refuses the login" in told
    assert "set sasl.username and sasl.password" in told
    assert "wrong" not in told


def test_a_file_that_is_not_there_is_told(server: SecureServer, tmp_path: Path) -> None:
    told = _serve(server, tmp_path / "shapes", ssl_ca_location=str(tmp_path / "none.pem"))
    assert "ssl.ca.location" in told


def test_a_certificate_of_somebody_else_is_told(server: SecureServer, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    other.write_text(Authority().pem)
    told = _serve(server, tmp_path / "shapes", ssl_ca_location=str(other))
    assert "set ssl.ca.location to the certificate of the authority that signed it" in told


def test_a_certificate_that_has_expired_is_told(tmp_path: Path) -> None:
    made = SecureServer(tmp_path)
    made.authority.sign("server", is_expired=True).write(tmp_path / "server.pem")
    with made as expired:
        told = _serve(expired, tmp_path / "shapes")
    assert "certificate has expired: have the broker's certificate renewed" in told


def _allow(server: SecureServer, topic: str, *operations: str) -> None:
    for operation in operations:
        rule = ["--principal", "User:alice", "--operation", operation, "--topic", topic]
        run_varve("acl", "add", *rule, *_login(server))


def test_shapes_that_may_not_be_registered_are_not_made(
    server: SecureServer, tmp_path: Path
) -> None:
    """An erasure would not know of them."""
    run_varve("topic", "create", "people", *_login(server))
    _allow(server, "people", "read", "describe_configs")
    host, _, port = server.address("SASL_PLAINTEXT").rpartition(":")
    address = ClusterAddress(
        hosts=((host, int(port)),), mechanism="PLAIN", username="alice", password="wonderland"
    )
    maker = _maker(address, tmp_path)
    with pytest.raises(Unavailable, match=r"topic varve-outputs lists .* allow CREATE of it once"):
        maker.make("people")
    _allow(server, "varve-outputs", "create", "write")
    maker.make("people").close()
    maker.close()


def _maker(address: ClusterAddress, path: Path) -> FeedFactory:
    return make_feed_factory(address, {}, str(path), fs=RealFileSystem(), clock=SystemClock())


def test_rights_that_are_missing_may_come_and_are_told_once(
    server: SecureServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    host, _, port = server.address("SASL_PLAINTEXT").rpartition(":")
    address = ClusterAddress(
        hosts=((host, int(port)),), mechanism="PLAIN", username="alice", password="wonderland"
    )
    maker = _maker(address, tmp_path)
    maker.check_access()
    with caplog.at_level(logging.WARNING, "varve.shapes.opening"):
        for _ in range(3):
            with pytest.raises(Unavailable, match="add ACLs for describe and read of the topic"):
                maker.make("orders")
    maker.close()
    assert [one.message for one in caplog.records] == ["topic cannot be read"]


def test_a_broker_that_is_away_is_told_and_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ReservedPort() as free, caplog.at_level(logging.WARNING, "varve.shapes.opening"):
        _maker(ClusterAddress(hosts=((HOST, free.number),)), tmp_path).check_access()
    assert [one.message for one in caplog.records] == ["broker does not answer"]
