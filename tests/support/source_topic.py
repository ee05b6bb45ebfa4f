"""A topic on a real directory with a cold tier beside it, read as rows without Spark."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # ships no types

from tests.support.log_bench import make_marker
from varve.commit_log import AppendOrigin, TopicPartition
from varve.foundation.settings import GivenValue
from varve.jobs.source.arrow_columns import ArrowColumns, list_columns
from varve.jobs.source.options import SourceFilters, SourceOptions, parse_options
from varve.jobs.source.plan import plan_tasks
from varve.jobs.source.read import read_task
from varve.object_store import open_object_store
from varve.records import Codec, Record, build_batch
from varve.testing import VirtualStore

NAME = "orders"
Row = dict[str, Any]


class SourceTopic:
    """A topic whose closed segments go to the bucket when told; nothing happens by itself."""

    def __init__(self, root: Path, *, partitions: int = 1, **settings: GivenValue) -> None:
        self.url = f"file://{root}/cold"
        self.kit = VirtualStore(
            directory=f"{root}/data",
            settings={"varve.tier.url": self.url, "varve.tier.grace.ms": 1_000},
            objects=open_object_store(self.url),
        )
        given: dict[str, GivenValue] = {
            "remote.storage.enable": True,
            "retention.ms": -1,
            "file.delete.delay.ms": 0,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        self.topic = self.kit.store.create_topic(NAME, partitions=partitions, settings=given)
        self._sequences: dict[int, int] = {}
        self._open_producers: set[int] = set()

    def append(
        self, records: Sequence[Record], *, partition: int = 0, codec: Codec = Codec.NONE
    ) -> None:
        """One batch outside of transactions."""
        self.topic.partition(partition).log.append(build_batch(records, codec=codec))

    def put(self, *pairs: tuple[str, str | None], partition: int = 0) -> None:
        """Keys and values in one batch, at the time of the kit's clock."""
        self.append(
            [
                Record(key.encode(), None if value is None else value.encode(), timestamp=self.now)
                for key, value in pairs
            ],
            partition=partition,
        )

    def write(self, records: Sequence[Record], *, producer_id: int, partition: int = 0) -> None:
        """Part of a transaction, to be ended by `end`."""
        sequence = self._sequences.get(producer_id, 0)
        self._sequences[producer_id] = sequence + len(records)
        self.topic.partition(partition).log.append(
            build_batch(
                records,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=sequence,
                transactional=True,
            )
        )

    def end(self, *, producer_id: int, committed: bool, partition: int = 0) -> None:
        self.topic.partition(partition).log.append(
            make_marker(committed, producer_id=producer_id), origin=AppendOrigin.COORDINATOR
        )

    @property
    def now(self) -> int:
        return self.kit.now_ms

    def roll(self, partition: int = 0) -> None:
        self.topic.partition(partition).log.roll()
        self.kit.advance(minutes=1)

    def copy(self, partition: int = 0) -> None:
        tier = self.kit.store.tier
        assert tier is not None
        report = tier.copy(TopicPartition(NAME, partition), self.kit.now_ms)
        assert report.error is None, report.error

    def move(self) -> None:
        """Lets all that is copied go from the local disk."""
        tier = self.kit.store.tier
        assert tier is not None
        manifest = tier.partitions.get(TopicPartition(NAME, 0)).manifests.load()
        log = self.topic.partition(0).log
        log.drop_local_segments_before(manifest.highest_offset + 1, now_ms=self.now)

    def play(self, step: tuple[Any, ...]) -> bool:
        """A step of a script on the first partition; False if it is none of a topic's own."""
        match step:
            case ("plain", list(cells), Codec() as codec):
                records = [Record(key, value, timestamp=self.now) for key, value in cells]
                self.append(records, codec=codec)
            case ("part", int(producer_id), (key, value)):
                self.write([Record(key, value, timestamp=self.now)], producer_id=producer_id)
                self._open_producers.add(producer_id)
            case ("end", int(producer_id), bool(committed)):
                if producer_id in self._open_producers:
                    self.end(producer_id=producer_id, committed=committed)
                    self._open_producers.discard(producer_id)
            case ("roll",):
                self.roll()
            case ("copy",):
                self.copy()
            case ("move",):
                self.copy()
                self.move()
            case ("clean",):
                self.kit.clean_now(roll=False)
            case _:
                return False
        return True

    def fill(self, *counts: int) -> None:
        """So many records to each segment; all but the last are copied."""
        for number, count in enumerate(counts):
            if number:
                self.roll()
            for index in range(count):
                self.put((f"k{index}", f"s{number}"))
        self.copy()

    def flush(self) -> None:
        for number in range(len(self.topic.partitions)):
            self.topic.partition(number).log.flush()

    def options(self, *, is_hot: bool = False, **more: str) -> SourceOptions:
        given = {"url": self.url, "topic": NAME, **more}
        if is_hot:
            given["directory"] = self.kit.path
        return parse_options(given)

    def rows(
        self, filters: SourceFilters | None = None, *, is_hot: bool = False, **more: str
    ) -> list[Row]:
        """The rows of a read, task after task."""
        options = self.options(is_hot=is_hot, **more)
        return read_rows(options, filters or SourceFilters())

    def close(self) -> None:
        self.kit.close()


def offsets(rows: list[Row]) -> list[int]:
    return [row["offset"] for row in rows]


def read_rows(options: SourceOptions, filters: SourceFilters) -> list[Row]:
    return [row for batch in read_batches(options, filters) for row in batch.to_pylist()]


def read_batches(
    options: SourceOptions, filters: SourceFilters | None = None
) -> Iterator[pa.RecordBatch]:
    wanted = filters or SourceFilters()
    columns = ArrowColumns(list_columns(options.columns))
    for task in plan_tasks(options, wanted):
        yield from read_task(task, columns, options, wanted)
