"""Sinks without Spark: rows as Arrow batches, staged and committed to a directory or a server."""

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # ships no types

import varve
from varve.disk import FileSystem
from varve.embedded.topic import packaging_for
from varve.foundation.clock import ManualClock
from varve.foundation.settings import GivenValue
from varve.jobs.sink.batch_builder import BatchBuilder, SinkTarget
from varve.jobs.sink.commit import DirectoryCommit, ServerCommit, topic_id_of
from varve.jobs.sink.sink_state import CommitResult, EpochWrite, SinkStateFile
from varve.jobs.sink.staging import StagedTask, Staging
from varve.jobs.sink.target import SinkOptions, find_served_target, parse_sink_options
from varve.kafka_client.address import ClusterAddress, parse_cluster_address
from varve.kafka_client.client import KafkaClient
from varve.object_store import MemoryObjectStore
from varve.records import Codec
from varve.testing import KafkaKit

TOPIC = "out"
DIRECTORY = "/data"
TRANSACTION_TIMEOUT_MS = 60_000

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("partition", pa.int32()),
    ]
)

Row = dict[str, Any]


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    """Rows of some of the columns; the others are null."""
    return pa.RecordBatch.from_pylist(list(rows), schema=SCHEMA)


def epoch_rows(epoch: int, count: int = 4) -> list[Row]:
    """Rows of an epoch for two partitions in turn."""
    return [{"value": b"%d-%d" % (epoch, one), "partition": one % 2} for one in range(count)]


class EpochBench(ABC):
    """Rows are staged, and committed as epochs of a sink."""

    def __init__(self, clock: ManualClock, objects: MemoryObjectStore) -> None:
        self.clock = clock
        self.objects = objects

    @abstractmethod
    def target(self) -> SinkTarget: ...

    @abstractmethod
    def commit_write(
        self, write: EpochWrite, target: SinkTarget, staging: Staging
    ) -> CommitResult: ...

    @abstractmethod
    def open(self) -> AbstractContextManager[varve.Store]: ...

    def committed(self) -> dict[int, list[bytes | None]]:
        """The values that readers of committed records see, by partition."""
        with self.open() as store:
            return {
                one.number: [record.value for record in one.read(isolation="read_committed")]
                for one in store.topic(TOPIC).partitions
            }

    def stage(
        self,
        tasks: Sequence[Sequence[Row]],
        target: SinkTarget,
        *,
        sink_id: str = "s",
        codec: Codec = Codec.LZ4,
    ) -> list[StagedTask]:
        """What tasks with these rows stage."""
        staging = Staging(self.objects, sink_id)
        return [
            staging.stage(
                [batch_of(rows)],
                BatchBuilder(target, packaging_for(target.settings, codec), index),
                target.topic,
            )
            for index, rows in enumerate(tasks)
        ]

    def commit(
        self,
        epoch: int,
        tasks: Sequence[StagedTask],
        target: SinkTarget,
        *,
        sink_id: str = "s",
        query: str | None = "q",
        is_once: bool = False,
        skips_repeated: bool = False,
    ) -> CommitResult:
        write = EpochWrite(
            sink_id=sink_id,
            query=query,
            is_once=is_once,
            epoch=epoch,
            tasks=tasks,
            skips_repeated=skips_repeated,
        )
        return self.commit_write(write, target, Staging(self.objects, sink_id))

    def write(self, epoch: int, count: int = 4, *, sink_id: str = "s", **how: Any) -> CommitResult:
        """Stages the rows of an epoch by two tasks, and commits them."""
        target, rows = self.target(), epoch_rows(epoch, count)
        tasks = self.stage([rows[:2], rows[2:]], target, sink_id=sink_id)
        return self.commit(epoch, tasks, target, sink_id=sink_id, **how)


class SinkBench(EpochBench):
    """Opens the store for each commit, as the sink does."""

    def __init__(self, fs: FileSystem, clock: ManualClock, objects: MemoryObjectStore) -> None:
        super().__init__(clock, objects)
        self.fs = fs
        self.random = random.Random(7)

    def open(self) -> varve.Store:
        return varve.open(
            DIRECTORY, fs=self.fs, clock=self.clock, random=self.random, maintain=False
        )

    def create(self, *, partitions: int = 3, **settings: GivenValue) -> None:
        given = {name.replace("_", "."): value for name, value in settings.items()}
        with self.open() as store:
            store.create_topic(TOPIC, partitions=partitions, settings=given)

    def target(self) -> SinkTarget:
        with self.open() as store:
            topic = store.topic(TOPIC)
            return SinkTarget(TOPIC, topic_id_of(topic), topic.partition_count, topic.settings)

    def ledger(self) -> SinkStateFile:
        return SinkStateFile(self.fs, [DIRECTORY])

    def commit_write(self, write: EpochWrite, target: SinkTarget, staging: Staging) -> CommitResult:
        with self.open() as store:
            commit = DirectoryCommit(store, self.ledger(), clock=self.clock, random=self.random)
            return commit.commit(write, target, staging)

    def settle(self) -> list[str]:
        with self.open() as store:
            commit = DirectoryCommit(store, self.ledger(), clock=self.clock, random=self.random)
            return commit.finish_open_transactions()


class ServerSinkBench(EpochBench):
    """Commits through a server, each epoch with a client of its own."""

    def __init__(self, kit: KafkaKit) -> None:
        super().__init__(kit.clock, MemoryObjectStore("memory:"))
        self.kit = kit
        self.next_client: KafkaClient | None = None
        """For the next commit alone."""
        self._clients: list[KafkaClient] = []

    def open(self) -> AbstractContextManager[varve.Store]:
        return nullcontext(self.kit.store)

    @property
    def address(self) -> ClusterAddress:
        found = parse_cluster_address({"server": self.kit.bootstrap})
        assert found is not None
        return found

    def client(self) -> KafkaClient:
        return self.keep(KafkaClient(self.address, lambda seconds: None))

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

    def commit_write(self, write: EpochWrite, target: SinkTarget, staging: Staging) -> CommitResult:
        client, self.next_client = self.next_client or self.client(), None
        commit = ServerCommit(client, clock=self.clock, timeout_ms=TRANSACTION_TIMEOUT_MS)
        return commit.commit(write, target, staging)
