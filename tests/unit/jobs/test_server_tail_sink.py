"""An epoch through a server is one transaction, committed once, wherever its writer is killed."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.support.sink_bench import TOPIC, TRANSACTION_TIMEOUT_MS, ServerSinkBench
from varve.foundation.errors import (
    Corrupt,
    Fenced,
    InvalidRecord,
    InvalidRequest,
    NotFound,
    StoreError,
)
from varve.jobs.sink.target import parse_sink_options
from varve.kafka_client.address import ClusterAddress
from varve.kafka_client.client import KafkaClient, M
from varve.kafka_client.transaction import CommittedOffset, TransactionalProducer, fetch_offsets
from varve.testing import KafkaKit
from varve.wire.schema import Message

STEPS: Final = 24

Row = dict[str, object]


class Killed(Exception):
    """Ends a writer as kill -9 would: nothing behind it is done."""


class MortalClient(KafkaClient):
    """Dies before it sends a request, or before it reads the answer."""

    def __init__(self, address: ClusterAddress, *, dies_at: int, after: bool) -> None:
        super().__init__(address, lambda seconds: None)
        self._left = dies_at
        self._after = after
        self.asked: list[str] = []

    def _exchange(  # type: ignore[no-untyped-def]
        self, connection, requests: Sequence[Message], kind: type[M]
    ) -> list[M]:
        self.asked.append(type(requests[0]).__name__)
        if self._left == 0 and not self._after:
            raise Killed
        answers = super()._exchange(connection, requests, kind)
        if self._left == 0:
            raise Killed
        self._left -= 1
        return answers


EPOCH_0: Final = {0: [b"0-0", b"0-2"], 1: [b"0-1", b"0-3"]}


@pytest.fixture
def bench() -> Iterator[ServerSinkBench]:
    with KafkaKit() as kit:
        made = ServerSinkBench(kit)
        made.target(createTopic="true", partitions="2")
        yield made
        made.close()


def mortal(bench: ServerSinkBench, *, dies_at: int, after: bool) -> MortalClient:
    """A client for the next commit."""
    made = MortalClient(bench.address, dies_at=dies_at, after=after)
    bench.next_client = bench.keep(made)
    return made


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_writer_may_be_killed_at_any_request(bench: ServerSinkBench, after: bool) -> None:
    """Whatever the server got of it, the epoch is there once when it was tried again."""
    expected: dict[int, list[bytes | None]] = {0: [], 1: []}
    for step in range(STEPS):
        client = mortal(bench, dies_at=step, after=after)
        try:
            bench.write(step)
        except Killed:
            assert not bench.write(step).is_repeated or "EndTxnRequest" in client.asked
        for one in range(4):
            expected[one % 2].append(b"%d-%d" % (step, one))
        assert bench.committed() == expected, (step, client.asked)
    # The last steps lie behind the end: nobody is killed there.
    assert len(client.asked) < STEPS


@pytest.mark.parametrize("step", [7, 11, 15, 16])
def test_a_server_may_lose_its_power_under_a_writer(bench: ServerSinkBench, step: int) -> None:
    mortal(bench, dies_at=step, after=True)
    with pytest.raises(Killed):
        bench.write(0)
    bench.kit.restart(crash=True)
    bench.write(0)
    assert bench.committed() == EPOCH_0


def test_a_connection_that_breaks_does_not_repeat_a_batch(bench: ServerSinkBench) -> None:
    class Torn(MortalClient):
        """Loses the connection once, when the server has done what it was asked."""

        def _exchange(  # type: ignore[no-untyped-def]
            self, connection, requests: Sequence[Message], kind: type[M]
        ) -> list[M]:
            try:
                return super()._exchange(connection, requests, kind)
            except Killed:
                self._left = -1
                connection.close()
                return KafkaClient._exchange(self, connection, requests, kind)

    for step in range(STEPS):
        bench.next_client = bench.keep(Torn(bench.address, dies_at=step, after=True))
        bench.write(step)
        assert bench.committed()[1][-2:] == [b"%d-1" % step, b"%d-3" % step]
    assert len(bench.committed()[0]) == 2 * STEPS


def test_an_older_writer_of_the_name_is_fenced(bench: ServerSinkBench) -> None:
    older = TransactionalProducer(bench.client(), "varve-sink-s", timeout_ms=TRANSACTION_TIMEOUT_MS)
    older.begin()
    older.add_partitions(TOPIC, [0])
    bench.write(0)
    with pytest.raises(Fenced):
        older.end(is_committed=True)
    assert bench.committed() == EPOCH_0


def test_a_transaction_whose_time_is_over_is_not_committed(bench: ServerSinkBench) -> None:
    late = TransactionalProducer(bench.client(), "varve-sink-s", timeout_ms=1_000)
    late.begin()
    late.add_partitions(TOPIC, [0, 1])
    late.commit_offset("varve-sink-s", CommittedOffset(TOPIC, 7, "{}"))
    bench.kit.advance(minutes=2)
    with pytest.raises(StoreError):
        late.end(is_committed=True)
    assert fetch_offsets(bench.client(), "varve-sink-s") == []


def test_a_write_of_its_own_leaves_no_note(bench: ServerSinkBench) -> None:
    bench.write(0, query=None, sink_id="write-1", is_once=True)
    assert bench.committed() == EPOCH_0
    assert fetch_offsets(bench.client(), "varve-sink-write-1") == []


def test_a_note_of_another_program_is_not_passed_over(bench: ServerSinkBench) -> None:
    other = TransactionalProducer(bench.client(), "other", timeout_ms=TRANSACTION_TIMEOUT_MS)
    other.begin()
    other.commit_offset("varve-sink-s", CommittedOffset(TOPIC, 3, "offset of mine"))
    other.end(is_committed=True)
    with pytest.raises(Corrupt, match="which no sink wrote"):
        bench.write(4)


def test_a_refused_batch_aborts_the_epoch(bench: ServerSinkBench) -> None:
    settings = {"topic.message.timestamp.before.max.ms": "1000"}
    target = bench.target(topic="late", createTopic="true", **settings)
    tasks = bench.stage([[{"value": b"v"}, {"value": b"old", "timestamp": 0}]], target)
    with pytest.raises(InvalidRecord, match="INVALID_TIMESTAMP"):
        bench.commit(0, tasks, target)
    (partition,) = bench.kit.store.topic("late").partitions
    assert list(partition.read(isolation="read_committed")) == []
    assert fetch_offsets(bench.client(), "varve-sink-s") == []


def test_the_topic_is_found_with_its_settings_or_made(bench: ServerSinkBench) -> None:
    made = bench.target(
        topic="new",
        createTopic="true",
        partitions="3",
        **{"topic.cleanup.policy": "compact", "topic.compression.type": "zstd"},
    )
    assert (made.partition_count, made.settings.is_compacted) == (3, True)
    assert made.settings.compression_type == "zstd"
    assert bench.target(topic="new") == made
    with pytest.raises(NotFound, match="createTopic=true"):
        bench.target(topic="lost")
    with pytest.raises(InvalidRequest, match="has 3 partitions, not the 2"):
        bench.target(topic="new", createTopic="true", partitions="2")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "option directory is missing"),
        ({"server": "h:1"}, "stagingUrl is missing"),
        ({"server": "h:1", "directory": "d", "stagingUrl": "memory:"}, "not both"),
    ],
)
def test_a_place_is_a_directory_or_a_server(
    given: dict[str, str], words: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        parse_sink_options({"topic": "t", **given})
