"""An engine of shapes over a store in the same process, and clients that follow its shapes.

Invariant  without workers nothing happens but what a test asks for, in that order.
"""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

import varve
from tests.support.feed_bench import build_feed
from tests.support.shape_messages import apply_message
from varve.disk import FileSystem, RealFileSystem
from varve.embedded import Store
from varve.foundation.clock import Clock, ManualClock
from varve.foundation.errors import NotFound
from varve.shapes.definition import define
from varve.shapes.engine import ShapeEngine
from varve.shapes.feed.decoders import Decoder
from varve.shapes.feed.topic_feed import TopicFeed
from varve.shapes.offset import BEFORE_ALL
from varve.shapes.settings import CompactionSettings, EngineSettings
from varve.shapes.shape import Shape
from varve.topics import StoreCluster

Row = dict[str, Any]
_ROUNDS_MAX: Final = 1000
_PATIENCE_SECONDS: Final = 20.0


class Stage:
    """A store, its topics, and an engine that can be crashed and opened again."""

    def __init__(
        self,
        path: Path,
        *,
        settings: EngineSettings | None = None,
        compaction: CompactionSettings | None = None,
        clock: Clock | None = None,
        maintain: bool = False,
        files: FileSystem | None = None,
        decoder: Decoder | None = None,
    ) -> None:
        """`files` holds the shapes; registry and tables are on the real disk in any case."""
        self.path = path
        self.clock = clock or ManualClock()
        self._settings = settings
        self._compaction = compaction
        self._maintain = maintain
        self._decoder = decoder
        self._files = files or RealFileSystem()
        (path / "shapes").mkdir(exist_ok=True)
        self.store: Store = varve.open(path / "store", maintain=False)
        self.engine = self._open()

    def _open(self) -> ShapeEngine:
        engine = ShapeEngine(
            str(self.path / "shapes"),
            self.make_feed,
            fs=self._files,
            clock=self.clock,
            random=Random(7),
            settings=self._settings,
            compaction=self._compaction,
        )
        return engine.open(maintain=self._maintain)

    def make_feed(self, topic: str) -> TopicFeed:
        self.store.topic(topic)
        return build_feed(
            StoreCluster(self.store).reader(topic),
            self.path / "shapes" / "tables",
            decoder=self._decoder,
            clock=self.clock,
        )

    def put(self, topic: str, key: str, row: Row | None) -> None:
        value = None if row is None else json.dumps(row).encode()
        self.store.topic(topic).append(key=key.encode(), value=value)

    def crash(self) -> None:
        """The engine is gone, with all that it had not made durable, and opened again."""
        self.engine.abandon()
        self.engine = self._open()

    def restart(self) -> None:
        self.engine.close()
        self.engine = self._open()

    def settle(self, topic: str) -> None:
        """Takes all that the topic has."""
        for _ in range(_ROUNDS_MAX):
            if not self.engine.run_turn(topic) and self.engine.is_caught_up(topic):
                return
        raise AssertionError(f"topic {topic} does not come to rest")

    def create(self, topic: str, **parameters: Any) -> Shape:
        """A shape with its snapshot."""
        shape = self.engine.find_or_create(define(topic, **parameters))
        self.settle(topic)
        return shape

    def close(self) -> None:
        self.engine.close()
        self.store.close()


StageMaker = Callable[..., Stage]


class Follower:
    """A client: it has an offset and rows, and begins anew when its shape is gone."""

    def __init__(self, stage: Stage, topic: str, **parameters: Any) -> None:
        self._stage = stage
        self._topic = topic
        self._parameters = parameters
        self.handle: str | None = None
        self.offset = BEFORE_ALL
        self.rows: dict[str, Row] = {}
        self.refetches = 0

    def step(self) -> bool:
        """One answer; False when there is nothing more."""
        engine = self._stage.engine
        shape = None if self.handle is None else engine.find(self.handle)
        if shape is None:
            shape = self._begin()
        if not shape.is_snapshot_started:
            return True
        try:
            end = shape.chunk_end(self.offset) or shape.latest
            if end <= self.offset:
                return False
            data = b"[" + b",".join(shape.read(self.offset, end)) + b"]"
        except NotFound:
            self.refetches += 1
            self.handle = None
            return True
        for message in json.loads(data):
            is_update = message["headers"].get("operation") == "update"
            assert not is_update or message["key"] in self.rows, f"an update of no row: {message}"
            apply_message(self.rows, message)
        self.offset = end
        return True

    def _begin(self) -> Shape:
        engine = self._stage.engine
        self.refetches += self.handle is not None
        shape = engine.find_or_create(define(self._topic, **self._parameters))
        assert shape.handle != self.handle, "a handle came back"
        self.handle, self.offset, self.rows = shape.handle, BEFORE_ALL, {}
        return shape

    def catch_up(self) -> dict[str, Row]:
        """Follows to the end; rows by their key column, without columns that are null."""
        self.step()
        for _ in range(_ROUNDS_MAX):
            self._stage.settle(self._topic)
            if not self.step():
                self._check_place()
                return self.state()
        raise AssertionError(f"shape {self.handle} has no end")

    def _check_place(self) -> None:
        """A shape that has caught up is not behind what its client was given."""
        shape = self._stage.engine.find(self.handle or "")
        assert shape is not None
        assert shape.latest >= self.offset

    def state(self) -> dict[str, Row]:
        return {
            str(row["key"]): {name: value for name, value in row.items() if value is not None}
            for row in self.rows.values()
        }


def wait_until(is_met: Callable[[], bool]) -> None:
    """Returns when something that workers do has come; raises where it does not within 20 s."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not is_met():
        assert time.monotonic() < deadline, "it did not come"
        threading.Event().wait(0.005)
