"""Requests of several threads through one client: none waits for the long poll of another."""

import threading
import time

from tests.support.scripted_broker import ScriptedBroker
from varve.kafka_client import FetchedBatches
from varve.wire import ApiKey
from varve.wire.messages.cluster import Coordinator, FindCoordinatorResponse
from varve.wire.messages.data import (
    FetchableTopicResponse,
    FetchResponse,
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    PartitionData,
)
from varve.wire.messages.groups import HeartbeatRequest, HeartbeatResponse


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
