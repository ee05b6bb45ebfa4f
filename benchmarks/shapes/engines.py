"""An engine in this process over a topic of a store that is open here."""

import gc
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import varve
from benchmarks.shapes.files import BenchmarkFileSystem
from varve.embedded import Store, Topic
from varve.foundation.clock import SystemClock
from varve.http.shapes.launch import GARBAGE_THRESHOLDS
from varve.shapes.definition import define
from varve.shapes.engine import ShapeEngine
from varve.shapes.feed.decoders import PlainDecoder
from varve.shapes.feed.initial_load import FullScan
from varve.shapes.feed.topic_feed import TopicFeed
from varve.shapes.settings import EngineSettings
from varve.topics import StoreCluster

TOPIC = "items"
ROW_COUNT = 20_000


@dataclass(frozen=True, slots=True)
class Place:
    """A store with the topic, and the directory of an engine over it."""

    store: Store
    data: Path
    files: BenchmarkFileSystem

    @property
    def topic(self) -> Topic:
        return self.store.topic(TOPIC)


def make_rows(numbers: Iterable[int], tenant_count: int) -> Iterator[tuple[bytes, bytes]]:
    """Records of rows, each of one tenant for ever."""
    chance = random.Random(7)
    for number in numbers:
        row = number % ROW_COUNT
        value = (
            f'{{"tenant":"t{row % tenant_count}","n":{number},"title":"row {row}",'
            f'"price":{chance.random():.6f},"text":"{"x" * 60}"}}'
        )
        yield str(row).encode(), value.encode()


@contextmanager
def open_place(directory: Path, tenant_count: int) -> Iterator[Place]:
    """A topic with every row once."""
    with varve.open(str(directory / "store")) as store:
        topic = store.create_topic(TOPIC, partitions=1, settings={"cleanup.policy": "compact"})
        topic.append_many(make_rows(range(ROW_COUNT), tenant_count))
        yield Place(store, directory / "shapes", BenchmarkFileSystem())


def open_engine(place: Place) -> ShapeEngine:
    """An engine without threads of its own; garbage is looked for as seldom as its server does."""
    gc.set_threshold(*GARBAGE_THRESHOLDS)

    def make_feed(topic: str) -> TopicFeed:
        source = StoreCluster(place.store).reader(topic)
        return TopicFeed(
            source,
            PlainDecoder(),
            FullScan,
            directory=str(place.data / "tables"),
            fs=place.files,
            clock=SystemClock(),
            signature="benchmark",
        )

    engine = ShapeEngine(
        str(place.data),
        make_feed,
        fs=place.files,
        clock=SystemClock(),
        random=random.Random(7),
        settings=EngineSettings(),
    )
    return engine.open(maintain=False)


def create_shapes(place: Place, engine: ShapeEngine, filters: Sequence[str | None]) -> None:
    """Shapes with complete snapshots."""
    with place.files.unsynced():
        for where in filters:
            engine.find_or_create(define(TOPIC, where=where))
        engine.run_turn(TOPIC)
    waiting = [shape for shape in engine.shapes() if not shape.is_snapshot_complete]
    if waiting:
        raise RuntimeError(f"{len(waiting)} of {len(filters)} snapshots are not complete")


def catch_up(engine: ShapeEngine) -> int:
    """Changes until the topic's end, all durable."""
    total = 0
    while found := engine.run_turn(TOPIC):
        total += found
    engine.checkpoint_now()
    return total
