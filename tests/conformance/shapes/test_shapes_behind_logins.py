"""Shapes of a broker with TLS, SCRAM and rights: what is taken away costs no shape."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest
from confluent_kafka.admin._acl import AclOperation

from tests.conformance.tools.broker import Broker
from tests.conformance.tools.guarded_broker import GuardedBroker, options_of
from tests.conformance.tools.program import pause
from tests.conformance.tools.toolchain import Toolchain
from tests.support.certificates import Authority
from tests.support.kafka_login import Login
from tests.support.secure_server import ADMIN, PASSWORD, SecureServer
from tests.support.shape_audience import Audience
from tests.support.shape_server import ShapeServer
from tests.support.shape_topic import ShapeTopic
from tests.support.shape_traffic import Traffic

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]

USER: Final = "shapes"
DOOR: Final = "SAFE"


@pytest.fixture(params=["varve", "kafka"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[GuardedBroker]:
    if request.param == "varve":
        with SecureServer(tmp_path) as server:
            address, known = server.address("SASL_SSL"), Path(server.file("authority"))
            login = Login(known, ADMIN, PASSWORD).for_librdkafka()
            yield GuardedBroker(address, known, {"bootstrap.servers": address, **login})
        return
    authority = Authority()
    trusted = tmp_path / "authority.pem"
    trusted.write_text(authority.pem)
    own = authority.sign("broker").write(tmp_path / "broker.pem")
    door = f"listener.name.{DOOR.lower()}"
    settings = {
        f"{door}.ssl.keystore.type": "PEM",
        f"{door}.ssl.keystore.location": str(own),
        f"{door}.sasl.enabled.mechanisms": "SCRAM-SHA-256",
        f"{door}.scram-sha-256.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    tools: Toolchain = request.getfixturevalue("toolchain")
    with Broker(tools, tmp_path / "kafka", settings, doors={DOOR: "SASL_SSL"}) as made:
        made.format()
        made.start()
        admin = {"bootstrap.servers": made.address}
        yield GuardedBroker(made.door(DOOR), trusted, admin)


def _wait_for_refusal(server: ShapeServer, topic: str) -> None:
    """Returns when the server knows that it may not read, and says so in its log."""
    for _ in range(300):
        told = server.log.read_text()
        if "TOPIC_AUTHORIZATION_FAILED" in told and topic in told:
            assert "varve acl add" in told
            return
        pause(0.1)
    raise AssertionError(f"nothing about rights: {told[-2000:]}")


def test_rights_that_are_withdrawn_cost_no_shape(broker: GuardedBroker, tmp_path: Path) -> None:
    topic = ShapeTopic(
        broker.admin["bootstrap.servers"], "parcels", partition_count=2, login=broker.admin
    )
    traffic = Traffic(topic)
    traffic.add(50)
    login = broker.add_user(USER, "of shapes")
    with ShapeServer(broker.address, tmp_path, *options_of(login)) as server:
        asked = {"table": topic.name}
        refused = httpx.get(server.url, params={**asked, "offset": "-1"}, timeout=60)
        assert refused.status_code == 503, refused.text
        assert "retry-after" in refused.headers
        _wait_for_refusal(server, topic.name)
        broker.grant(USER, topic.name)
        with Audience(server.host, server.port, None) as audience:
            audience.join(asked, topic.rows)
            audience.settle()
            handles = audience.handles()
            # It reads by now: what is told from here on is of rights that were withdrawn.
            server.log.write_text("")
            for operation in (AclOperation.READ, AclOperation.ANY):
                broker.withdraw(USER, operation)
                traffic.change(50)
                _wait_for_refusal(server, topic.name)
                if operation is AclOperation.ANY:
                    server.kill()
                    server.log.write_text("")
                    server.start()
                    _wait_for_refusal(server, topic.name)
                broker.grant(USER, topic.name)
                # Those of before may have been read before the rights were gone.
                traffic.change(50)
                audience.settle()
                server.log.write_text("")
            # A password that is changed is needed for the next connection.
            broker.add_user(USER, "another one")
            traffic.change(50)
            audience.settle()
            assert audience.handles() == handles
            assert audience.refetch_count() == 0
