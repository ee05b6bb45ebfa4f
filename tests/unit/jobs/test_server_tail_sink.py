"""An epoch through a server is one transaction, committed once, wherever its writer is killed."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.support.sink_bench import TOPIC, batch_of
from varve.embedded.topic import packaging_for
from varve.foundation.errors import (
    Corrupt,
    Fenced,
    InvalidRecord,
    InvalidRequest,
    NotFound,
    StoreError,
)
from varve.jobs.sink.batch_builder import BatchBuilder, SinkTarget
from varve.jobs.sink.commit import ServerCommit
from varve.jobs.sink.sink_state import CommitResult, EpochWrite
from varve.jobs.sink.staging import StagedTask, Staging
from varve.jobs.sink.target import SinkOptions, find_served_target, parse_sink_options
from varve.kafka_client.address import ClusterAddress, parse_cluster_address
from varve.kafka_client.client import KafkaClient, M
from varve.kafka_client.transaction import CommittedOffset, TransactionalProducer, fetch_offsets
from varve.object_store import MemoryObjectStore
from varve.records import Codec
from varve.testing import KafkaKit
from varve.wire.schema import Message

TIMEOUT_MS: Final = 60_000
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


class Bench:
    """A sink without Spark, and the server it writes to."""

    def __init__(self, kit: KafkaKit) -> None:
        self.kit = kit
        self.objects = MemoryObjectStore("memory:")
        self._clients: list[KafkaClient] = []

    @property
    def address(self) -> ClusterAddress:
        found = parse_cluster_address({"server": self.kit.bootstrap})
        assert found is not None
        return found

    def client(self) -> KafkaClient:
        return self.keep(KafkaClient(self.address, lambda seconds: None))

    def mortal(self, *, dies_at: int, after: bool) -> "MortalClient":
        made = MortalClient(self.address, dies_at=dies_at, after=after)
        self.keep(made)
        return made

    def keep(self, client: KafkaClient) -> KafkaClient:
        self._clients.append(client)
        return client

    def close(self) -> None:
        for one in self._clients:
            one.close()

    def options(self, **more: str) -> SinkOptions:
        given = {"server": self.kit.bootstrap, "topic": TOPIC, "stagingUrl": "memory:", **more}
        return parse_sink_options(given)

    def target(self, **more: str) -> SinkTarget:
        return find_served_target(self.client(), self.options(**more))

    def stage(self, target: SinkTarget, rows: Sequence[Row], sink_id: str) -> StagedTask:
        packaging = packaging_for(target.settings, Codec.LZ4)
        builder = BatchBuilder(target, packaging, 0)
        return Staging(self.objects, sink_id).stage([batch_of(rows)], builder, TOPIC)

    def write(
        self,
        epoch: int,
        count: int = 4,
        *,
        query: str | None = "q",
        sink_id: str = "s",
        client: KafkaClient | None = None,
        is_once: bool = False,
        skips_repeated: bool = False,
    ) -> CommitResult:
        target = self.target()
        rows = [{"value": b"%d-%d" % (epoch, one), "partition": one % 2} for one in range(count)]
        tasks = [self.stage(target, rows[:2], sink_id), self.stage(target, rows[2:], sink_id)]
        write = EpochWrite(
            sink_id=sink_id,
            query=query,
            is_once=is_once,
            epoch=epoch,
            tasks=tasks,
            skips_repeated=skips_repeated,
        )
        commit = ServerCommit(client or self.client(), clock=self.kit.clock, timeout_ms=TIMEOUT_MS)
        return commit.commit(write, target, Staging(self.objects, sink_id))

    def committed(self) -> dict[int, list[bytes | None]]:
        return {
            one.number: [record.value for record in one.read(isolation="read_committed")]
            for one in self.kit.store.topic(TOPIC).partitions
        }


EPOCH_0: Final = {0: [b"0-0", b"0-2"], 1: [b"0-1", b"0-3"]}


@pytest.fixture
def bench() -> Iterator[Bench]:
    with KafkaKit() as kit:
        made = Bench(kit)
        made.target(createTopic="true", partitions="2")
        yield made
        made.close()


def test_an_epoch_is_a_transaction_of_all_partitions(bench: Bench) -> None:
    result = bench.write(0)
    assert (result.rows, result.is_repeated) == (4, False)
    assert bench.committed() == EPOCH_0
    for partition in bench.kit.store.topic(TOPIC).partitions:
        batches = list(partition.batches())
        assert [one.header.is_transactional for one in batches] == [True, True]
        assert len({one.header.producer_id for one in batches}) == 1


def test_a_done_epoch_is_not_appended_again(bench: Bench) -> None:
    assert [bench.write(one).is_repeated for one in (0, 0, 1, 1)] == [False, True, False, True]
    assert bench.committed()[0] == [b"0-0", b"0-2", b"1-0", b"1-2"]
    bench.kit.restart(crash=True)
    assert bench.write(1).is_repeated


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_writer_may_be_killed_at_any_request(bench: Bench, after: bool) -> None:
    """Whatever the server got of it, the epoch is there once when it was tried again."""
    expected: dict[int, list[bytes | None]] = {0: [], 1: []}
    for step in range(STEPS):
        mortal = bench.mortal(dies_at=step, after=after)
        try:
            bench.write(step, client=mortal)
        except Killed:
            assert not bench.write(step).is_repeated or "EndTxnRequest" in mortal.asked
        for one in range(4):
            expected[one % 2].append(b"%d-%d" % (step, one))
        assert bench.committed() == expected, (step, mortal.asked)
    # The last steps lie behind the end: nobody is killed there.
    assert len(mortal.asked) < STEPS


@pytest.mark.parametrize("step", [7, 11, 15, 16])
def test_a_server_may_lose_its_power_under_a_writer(bench: Bench, step: int) -> None:
    mortal = bench.mortal(dies_at=step, after=True)
    with pytest.raises(Killed):
        bench.write(0, client=mortal)
    bench.kit.restart(crash=True)
    bench.write(0)
    assert bench.committed() == EPOCH_0


def test_a_connection_that_breaks_does_not_repeat_a_batch(bench: Bench) -> None:
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
        bench.write(step, client=bench.keep(Torn(bench.address, dies_at=step, after=True)))
        assert bench.committed()[1][-2:] == [b"%d-1" % step, b"%d-3" % step]
    assert len(bench.committed()[0]) == 2 * STEPS


def test_an_older_writer_of_the_name_is_fenced(bench: Bench) -> None:
    older = TransactionalProducer(bench.client(), "varve-sink-s", timeout_ms=TIMEOUT_MS)
    older.begin()
    older.add_partitions(TOPIC, [0])
    bench.write(0)
    with pytest.raises(Fenced):
        older.end(is_committed=True)
    assert bench.committed() == EPOCH_0


def test_a_transaction_whose_time_is_over_is_not_committed(bench: Bench) -> None:
    late = TransactionalProducer(bench.client(), "varve-sink-s", timeout_ms=1_000)
    late.begin()
    late.add_partitions(TOPIC, [0, 1])
    late.commit_offset("varve-sink-s", CommittedOffset(TOPIC, 7, "{}"))
    bench.kit.advance(minutes=2)
    with pytest.raises(StoreError):
        late.end(is_committed=True)
    assert fetch_offsets(bench.client(), "varve-sink-s") == []


def test_a_query_under_another_name_does_not_write_its_last_epoch_again(bench: Bench) -> None:
    bench.write(0)
    with pytest.raises(InvalidRequest, match="committed epoch 0 as sink s"):
        bench.write(0, sink_id="renamed")
    assert not bench.write(1, sink_id="renamed").is_repeated


@pytest.mark.parametrize(
    ("epoch", "count", "query", "words"),
    [
        (3, 4, "q", "an older checkpoint was restored"),
        (4, 6, "q", "these are other rows"),
        (4, 4, "another", "its epochs start again"),
        (5, 4, None, "and this is batch writes"),
    ],
)
def test_epochs_that_are_not_the_next_are_refused(
    bench: Bench, epoch: int, count: int, query: str | None, words: str
) -> None:
    bench.write(4)
    with pytest.raises(InvalidRequest, match=words):
        bench.write(epoch, count, query=query)
    assert bench.committed()[0] == [b"4-0", b"4-2"]
    assert bench.write(4, 6, skips_repeated=True).is_repeated


def test_a_write_of_its_own_leaves_no_note(bench: Bench) -> None:
    bench.write(0, query=None, sink_id="write-1", is_once=True)
    assert bench.committed() == EPOCH_0
    assert fetch_offsets(bench.client(), "varve-sink-write-1") == []


def test_a_note_of_another_program_is_not_passed_over(bench: Bench) -> None:
    other = TransactionalProducer(bench.client(), "other", timeout_ms=TIMEOUT_MS)
    other.begin()
    other.commit_offset("varve-sink-s", CommittedOffset(TOPIC, 3, "offset of mine"))
    other.end(is_committed=True)
    with pytest.raises(Corrupt, match="which no sink wrote"):
        bench.write(4)


def test_a_refused_batch_aborts_the_epoch(bench: Bench) -> None:
    settings = {"topic.message.timestamp.before.max.ms": "1000"}
    target = bench.target(topic="late", createTopic="true", **settings)
    task = bench.stage(target, [{"value": b"v"}, {"value": b"old", "timestamp": 0}], "s")
    write = EpochWrite(sink_id="s", query="q", is_once=False, epoch=0, tasks=[task])
    commit = ServerCommit(bench.client(), clock=bench.kit.clock, timeout_ms=TIMEOUT_MS)
    with pytest.raises(InvalidRecord, match="INVALID_TIMESTAMP"):
        commit.commit(write, target, Staging(bench.objects, "s"))
    (partition,) = bench.kit.store.topic("late").partitions
    assert list(partition.read(isolation="read_committed")) == []
    assert fetch_offsets(bench.client(), "varve-sink-s") == []


def test_the_topic_is_found_with_its_settings_or_made(bench: Bench) -> None:
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
