"""A sink without Spark: rows as Arrow batches, staged and committed on any file system."""

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # ships no types

import varve
from varve.disk import FileSystem
from varve.embedded.topic import packaging_for
from varve.foundation.clock import ManualClock
from varve.foundation.settings import GivenValue
from varve.jobs.sink.batch_builder import BatchBuilder, SinkTarget
from varve.jobs.sink.commit import DirectoryCommit, topic_id_of
from varve.jobs.sink.sink_state import CommitResult, EpochWrite, SinkStateFile
from varve.jobs.sink.staging import StagedTask, Staging
from varve.object_store import MemoryObjectStore
from varve.records import Codec

TOPIC = "out"
DIRECTORY = "/data"

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


class SinkBench:
    """Opens the store for each commit, as the sink does."""

    def __init__(self, fs: FileSystem, clock: ManualClock, objects: MemoryObjectStore) -> None:
        self.fs = fs
        self.clock = clock
        self.objects = objects
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
                TOPIC,
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
        with self.open() as store:
            commit = DirectoryCommit(store, self.ledger(), clock=self.clock, random=self.random)
            return commit.commit(write, target, Staging(self.objects, sink_id))

    def settle(self) -> list[str]:
        with self.open() as store:
            commit = DirectoryCommit(store, self.ledger(), clock=self.clock, random=self.random)
            return commit.finish_open_transactions()

    def committed(self) -> dict[int, list[bytes | None]]:
        """The values that readers of committed records see, by partition."""
        with self.open() as store:
            return {
                one.number: [record.value for record in one.read(isolation="read_committed")]
                for one in store.topic(TOPIC).partitions
            }
