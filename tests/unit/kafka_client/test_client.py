"""What a client makes of a broker's answers: an empty one is tried again and then told by name."""

import socket
import threading
import time
from collections.abc import Callable

import pytest

from tests.support.scripted_broker import ScriptedBroker
from varve.foundation.errors import Corrupt, InvalidRequest, Unavailable
from varve.kafka_client.client import FetchedBatches, KafkaClient
from varve.kafka_client.connection import BrokerConnection
from varve.kafka_client.transaction import CommittedOffset, TransactionalProducer, fetch_offsets
from varve.wire import ApiKey, encode
from varve.wire.messages.cluster import (
    ApiVersionsResponse,
    Coordinator,
    FindCoordinatorResponse,
    MetadataResponse,
    MetadataResponseTopic,
)
from varve.wire.messages.data import (
    FetchableTopicResponse,
    FetchResponse,
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    PartitionData,
)
from varve.wire.messages.groups import HeartbeatRequest, HeartbeatResponse


def fetch(client: KafkaClient) -> FetchedBatches:
    return client.fetch("t", 0, 7, max_bytes=100, max_wait_ms=1, is_committed=True)


@pytest.mark.parametrize(
    "throttled",
    [
        FetchResponse(throttle_time_ms=5),
        FetchResponse(5, responses=[FetchableTopicResponse("t", partitions=[PartitionData()])]),
    ],
    ids=["as Kafka answers", "as varve answers"],
)
def test_a_throttled_fetch_is_tried_again_until_there_are_records(throttled: FetchResponse) -> None:
    part = PartitionData(high_watermark=9, records=memoryview(b"batches"))
    answers = iter([throttled, throttled, throttled])
    full = FetchResponse(responses=[FetchableTopicResponse("t", partitions=[part])])
    with (
        ScriptedBroker({ApiKey.FETCH: lambda _: next(answers, full)}) as broker,
        broker.open_client(timeout_ms=10_000) as client,
    ):
        found = fetch(client)
    assert bytes(found.data) == b"batches"
    assert found.high_watermark == 9


def _produce(client: KafkaClient) -> None:
    TransactionalProducer(client, "id", timeout_ms=1).append("t", 0, bytearray(100))


def _note(client: KafkaClient) -> None:
    TransactionalProducer(client, "id", timeout_ms=1).commit_offset(
        "g", CommittedOffset("t", 1, "")
    )


def _add_partitions(client: KafkaClient) -> None:
    TransactionalProducer(client, "id", timeout_ms=1).add_partitions("t", [0])


def _create(client: KafkaClient) -> None:
    client.create_topic("t", exist_ok=True)


@pytest.mark.parametrize(
    "ask",
    [
        fetch,
        lambda client: client.find_offset("t", 0, -1, is_committed=True),
        lambda client: client.topic_settings("t"),
        lambda client: client.broker_settings("node.id"),
        lambda client: client.alter_topic("t", {"a": "b"}),
        lambda client: fetch_offsets(client, "g"),
        _produce,
        _note,
        _add_partitions,
    ],
)
def test_an_answer_without_what_was_asked_for_is_named(ask: Callable[[KafkaClient], None]) -> None:
    with ScriptedBroker({}) as broker:
        found = FindCoordinatorResponse(
            coordinators=[Coordinator("id", 1, "127.0.0.1", broker.port)]
        )
        broker.script(ApiKey.FIND_COORDINATOR, lambda _: found)
        expected = pytest.raises((Unavailable, InvalidRequest), match=r"127\.0\.0\.1")
        with broker.open_client() as client, expected:
            ask(client)


def test_an_answer_without_a_coordinator_is_told() -> None:
    with (
        ScriptedBroker({}) as broker,
        broker.open_client() as client,
        pytest.raises(Unavailable),
    ):
        _add_partitions(client)


def test_metadata_without_the_topic_or_a_broker_is_told() -> None:
    with (
        ScriptedBroker({ApiKey.METADATA: lambda _: MetadataResponse()}) as broker,
        broker.open_client() as client,
    ):
        with pytest.raises(Unavailable):
            client.topic("t")
        with pytest.raises(Unavailable):
            client.broker_settings("node.id")


def test_a_created_topic_that_is_not_told_of_is_named() -> None:
    missing = MetadataResponse(topics=[MetadataResponseTopic(error_code=3, name="t")])
    with (
        ScriptedBroker({ApiKey.METADATA: lambda _: missing}) as broker,
        broker.open_client() as client,
        pytest.raises(Unavailable, match="controller"),
    ):
        _create(client)


def test_a_response_to_another_request_ends_the_connection() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        response = encode(ApiVersionsResponse(), 3, bytearray((2).to_bytes(4)))
        theirs.sendall(len(response).to_bytes(4) + response)
        connection = BrokerConnection(ours, "broker:9092", "test")
        with pytest.raises(Corrupt, match="not that of request 1"):
            connection.learn_versions()
        assert connection.is_closed


def test_a_long_poll_delays_no_other_request() -> None:
    release = threading.Event()

    def hold(_: object) -> FetchResponse:
        release.wait(10)
        part = PartitionData(records=memoryview(b"batches"))
        return FetchResponse(responses=[FetchableTopicResponse("t", partitions=[part])])

    offsets = ListOffsetsResponse(
        topics=[ListOffsetsTopicResponse("t", [ListOffsetsPartitionResponse(offset=7)])]
    )
    answers = {ApiKey.FETCH: hold, ApiKey.LIST_OFFSETS: lambda _: offsets}
    found: list[FetchedBatches] = []
    with ScriptedBroker(answers) as broker, broker.open_client(timeout_ms=10_000) as client:

        def poll() -> None:
            found.append(
                client.fetch("t", 0, 0, max_bytes=10, max_wait_ms=5_000, is_committed=False)
            )

        polling = [threading.Thread(target=poll) for _ in range(3)]
        for thread in polling:
            thread.start()
        began = time.monotonic()
        for _ in range(20):
            assert client.find_offset("t", 0, -1, is_committed=False) == 7
        assert not found
        assert time.monotonic() - began < 5
        release.set()
        for thread in polling:
            thread.join(10)
        assert [bytes(one.data) for one in found] == [b"batches"] * 3
        assert broker.client_ids == {"varve-test"}


def test_a_coordinator_is_looked_up_once_until_it_moves() -> None:
    with ScriptedBroker({}) as broker, broker.open_client(timeout_ms=10_000) as client:
        coordinator = Coordinator("g", 1, "127.0.0.1", broker.port)
        found = FindCoordinatorResponse(coordinators=[coordinator])
        broker.script(ApiKey.FIND_COORDINATOR, lambda _: found)
        for _ in range(3):
            client.send_to_coordinator(0, "g", HeartbeatRequest("g"), HeartbeatResponse)
        kinds = [type(one).__name__ for one in broker.requests]
        assert kinds.count("FindCoordinatorRequest") == 1
