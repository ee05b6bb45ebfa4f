"""Topics that take no duplicates, as real clients write and read them."""

from pathlib import Path

import pytest

from tests.support.kafka_clients import KafkaClient, ProducerOptions
from tests.support.kafka_confluent import ConfluentClient
from tests.support.kafka_reading import Lab, read_all
from tests.support.kafka_server import ServerMaker, ServerProcess
from varve.testing import KafkaKit

# kafka-python leaves sockets that could not connect to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

BY_KEY = {"varve.dedup.by": "key"}


def send(
    client: KafkaClient, bootstrap: str, name: str, keys: str, *, is_idempotent: bool = False
) -> list[int]:
    """The offsets that the records of these keys were told, sent as one batch."""
    options = ProducerOptions(is_idempotent=is_idempotent, linger_ms=50)
    with client.producer(bootstrap, options) as producer:
        sent = [producer.send((name, 0), b"value", key=key.encode()) for key in keys]
        producer.flush()
    return [one.result(0) for one in sent]


def read(client: KafkaClient, bootstrap: str, name: str, count: int) -> list[tuple[int, bytes]]:
    found = read_all(client, bootstrap, [(name, 0)], count)
    return [(one.offset, one.key or b"") for one in found]


def test_duplicates_are_told_their_originals_and_leave_holes(lab: Lab, name: str) -> None:
    lab.admin.create(name, configs=BY_KEY)
    assert send(lab.client, lab.server.bootstrap, name, "ab") == [0, 1]
    assert send(lab.client, lab.server.bootstrap, name, "b") == [1]
    assert send(lab.client, lab.server.bootstrap, name, "cad") == [2, 3, 4]
    assert read(lab.client, lab.server.bootstrap, name, 4) == [
        (0, b"a"),
        (1, b"b"),
        (2, b"c"),
        (4, b"d"),
    ]
    assert lab.admin.latest((name, 0)) == 5


def test_an_idempotent_producer_goes_on_after_a_batch_of_duplicates(lab: Lab, name: str) -> None:
    lab.admin.create(name, configs=BY_KEY)
    with lab.producer(is_idempotent=True) as producer:
        told = []
        for key in b"aaabba":
            sent = producer.send((name, 0), b"value", key=bytes([key]))
            producer.flush()
            told.append(sent.result(0))
    assert told == [0, 0, 0, 3, 3, 0]
    # What was left out took an offset each, so that the producer's sequences go on.
    assert read(lab.client, lab.server.bootstrap, name, 2) == [(0, b"a"), (3, b"b")]
    assert lab.admin.latest((name, 0)) == 6


def test_duplicates_are_known_after_the_server_was_killed(
    server_maker: ServerMaker, tmp_path: Path
) -> None:
    client = ConfluentClient()
    with server_maker.start(tmp_path) as server, client.admin(server.bootstrap) as admin:
        admin.create("orders", configs=BY_KEY)
        assert send(client, server.bootstrap, "orders", "abc") == [0, 1, 2]
        server.kill()
        server.start()
        assert send(client, server.bootstrap, "orders", "c", is_idempotent=True) == [2]
        assert send(client, server.bootstrap, "orders", "bd") == [4, 5]
        found = read(client, server.bootstrap, "orders", 4)
    assert found == [(0, b"a"), (1, b"b"), (2, b"c"), (5, b"d")]
    client.close()


def test_a_transaction_is_refused_for_good(server: ServerProcess, name: str) -> None:
    client = ConfluentClient()
    with client.admin(server.bootstrap) as admin:
        admin.create(name, 1, BY_KEY)
        options = ProducerOptions(transactional_id=name)
        with client.producer(server.bootstrap, options) as producer:
            producer.begin()
            sent = producer.send((name, 0), b"value", key=b"a")
            producer.flush()
            with pytest.raises(Exception, match=r"INVALID_RECORD|failed to validate record"):
                sent.result(0)
            producer.abort()
    assert read(client, server.bootstrap, name, 0) == []
    client.close()


def test_duplicates_are_known_after_a_power_cut_of_the_kit() -> None:
    client = ConfluentClient()
    with KafkaKit() as kit:
        # The kit has a time of its own.
        settings = {**BY_KEY, "flush": "ack", "message.timestamp.type": "LogAppendTime"}
        kit.store.create_topic("orders", settings=settings)
        kit.restart()
        assert send(client, kit.bootstrap, "orders", "ab") == [0, 1]
        for is_crash in (True, False):
            kit.restart(crash=is_crash)
            assert send(client, kit.bootstrap, "orders", "b") == [1]
    client.close()
