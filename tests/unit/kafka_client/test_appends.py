"""Topics that are made through a server, and batches that are on their way together."""

import threading
from collections.abc import Iterator, Sequence
from typing import TypeVar

import pytest

from varve.foundation.errors import InvalidRequest, OutOfOrderSequence, StoreError, Unavailable
from varve.kafka_client.address import ClusterAddress, parse_cluster_address
from varve.kafka_client.client import KafkaClient
from varve.kafka_client.connection import BrokerConnection
from varve.kafka_client.transaction import CommittedOffset, TransactionalProducer, fetch_offsets
from varve.records import Record, build_batch
from varve.testing import KafkaKit
from varve.wire.messages.data import ProduceRequest
from varve.wire.schema import Message

R = TypeVar("R", bound=Message)


class ForgetfulClient(KafkaClient):
    """Loses the answers to the first requests of a sort, as a broken connection does."""

    def __init__(self, address: ClusterAddress, *, losses: int) -> None:
        super().__init__(address, lambda seconds: None)
        self.losses = losses
        self.flights: list[int] = []

    def _exchange(
        self, connection: BrokerConnection, requests: Sequence[Message], kind: type[R]
    ) -> list[R]:
        answers = super()._exchange(connection, requests, kind)
        if isinstance(requests[0], ProduceRequest):
            self.flights.append(len(requests))
            if self.losses:
                self.losses -= 1
                raise Unavailable("the connection is lost")
        return answers


@pytest.fixture(scope="module")
def kit() -> Iterator[KafkaKit]:
    with KafkaKit() as made:
        yield made


@pytest.fixture
def address(kit: KafkaKit) -> ClusterAddress:
    found = parse_cluster_address({"bootstrap.servers": kit.bootstrap})
    assert found is not None
    return found


@pytest.fixture
def client(address: ClusterAddress) -> Iterator[KafkaClient]:
    made = KafkaClient(address, threading.Event().wait)
    yield made
    made.close()


def begin(client: KafkaClient, topic: str) -> TransactionalProducer:
    """A producer in a transaction with the only partition of a new topic."""
    client.create_topic(topic, exist_ok=True)
    producer = TransactionalProducer(client, topic, timeout_ms=10_000)
    producer.begin()
    producer.add_partitions(topic, [0])
    return producer


def batches_of(producer: TransactionalProducer, count: int, *, first: int = 0) -> list[bytearray]:
    return [
        bytearray(
            build_batch(
                [Record(b"k", b"%d" % number)],
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                base_sequence=number,
                transactional=True,
            )
        )
        for number in range(first, first + count)
    ]


def committed(kit: KafkaKit, topic: str) -> list[bytes | None]:
    return [one.value for one in kit.store.topic(topic).read(isolation="read_committed")]


def test_a_topic_is_made_as_asked_and_then_left_alone(kit: KafkaKit, client: KafkaClient) -> None:
    made = client.create_topic(
        "made", partitions=3, settings={"cleanup.policy": "compact"}, exist_ok=True
    )
    assert sorted(made.leaders) == [0, 1, 2]
    assert kit.store.topic("made").settings.cleanup_policy == ("compact",)
    again = client.create_topic("made", partitions=5, exist_ok=True)
    assert (again.id, len(again.leaders)) == (made.id, 3)


def test_a_topic_that_cannot_be_made_is_told(client: KafkaClient) -> None:
    with pytest.raises(InvalidRequest, match="INVALID_CONFIG"):
        client.create_topic("wrong", settings={"cleanup.policy": "burn"}, exist_ok=True)


def test_batches_go_out_together_and_keep_their_order(kit: KafkaKit, client: KafkaClient) -> None:
    producer = begin(client, "many")
    assert producer.append_all("many", 0, batches_of(producer, 12)) == 11
    producer.end(is_committed=True)
    assert committed(kit, "many") == [b"%d" % number for number in range(12)]


@pytest.mark.parametrize("losses", [1, 2])
def test_what_is_sent_again_is_appended_once(
    kit: KafkaKit, address: ClusterAddress, losses: int
) -> None:
    topic = f"again-{losses}"
    client = ForgetfulClient(address, losses=losses)
    producer = begin(client, topic)
    producer.append_all(topic, 0, batches_of(producer, 8))
    producer.end(is_committed=True)
    client.close()
    assert client.flights == [5] * (1 + losses) + [3]
    assert committed(kit, topic) == [b"%d" % number for number in range(8)]


def test_the_first_failure_of_a_flight_is_told(client: KafkaClient) -> None:
    producer = begin(client, "gap")
    producer.append_all("gap", 0, batches_of(producer, 1))
    with pytest.raises(StoreError, match="OUT_OF_ORDER_SEQUENCE") as caught:
        producer.append_all("gap", 0, batches_of(producer, 3, first=5))
    assert isinstance(caught.value, InvalidRequest | OutOfOrderSequence)
    producer.end(is_committed=False)


def test_a_transaction_spans_topics_and_notes(kit: KafkaKit, client: KafkaClient) -> None:
    for topic in ("left", "right"):
        client.create_topic(topic, partitions=2, exist_ok=True)
    producer = TransactionalProducer(client, "both", timeout_ms=10_000)
    producer.begin()
    for number in range(3):
        producer.add_topics({"left": [0], "right": [1]})
        producer.append_all("left", 0, batches_of(producer, 1, first=number))
        producer.append_all("right", 1, batches_of(producer, 1, first=number))
        producer.commit_offset("both-group", CommittedOffset("left", number, "text", partition=1))
        producer.end(is_committed=number != 1)
    assert committed(kit, "left") == [b"0", b"2"]
    right = kit.store.topic("right").read(partition=1, start=0, isolation="read_committed")
    assert [one.value for one in right] == [b"0", b"2"]
    assert fetch_offsets(client, "both-group") == [CommittedOffset("left", 2, "text", partition=1)]
