"""An engine of shapes in memory, for tests of the door in front of it."""

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from varve.foundation.errors import NotFound, StoreError
from varve.foundation.metrics import MetricTable
from varve.shapes.compaction.compactor import CompactionOutcome, CompactionReport
from varve.shapes.compaction.log_compaction import Balance
from varve.shapes.definition import Definition
from varve.shapes.filter.subset import Subset
from varve.shapes.metrics import TopicHealth
from varve.shapes.offset import BEFORE_ALL, FIRST_CHUNK, SNAPSHOT_END, ShapeOffset
from varve.shapes.shape import DropReason
from varve.shapes.storage.shape_storage import ChunkEnd
from varve.shapes.topic import SubsetResult


class FakeShape:
    """Snapshot chunks and a log as lists of messages."""

    def __init__(self, handle: str, definition: Definition, chunks: list[list[bytes]]) -> None:
        self.handle = handle
        self.definition = definition
        self.created_ms = 0
        self.is_dropped = False
        self.is_snapshot_started = True
        self.is_snapshot_complete = True
        self.is_open = True
        self.failure: StoreError | None = None
        self.chunks = chunks
        self.log: list[tuple[ShapeOffset, bytes]] = []
        self.ends: list[ShapeOffset] = []
        self.reads = 0
        self.followers = 0
        self.is_tail = False
        self.compacted_to = BEFORE_ALL

    def open(self) -> None:
        self.is_open = True

    @property
    def latest(self) -> ShapeOffset:
        return self.log[-1][0] if self.log else SNAPSHOT_END

    def chunk_end(self, offset: ShapeOffset) -> ShapeOffset | None:
        if self.is_dropped:
            raise NotFound("dropped")
        if offset == BEFORE_ALL:
            return FIRST_CHUNK
        if offset.tx == 0 and offset.op < len(self.chunks) - 1:
            return offset.after()
        return next((end for end in self.ends if end > offset), None)

    def find_cached_chunk_end(self, offset: ShapeOffset) -> ChunkEnd | None:
        is_cached = offset.is_virtual or self.is_tail
        return ChunkEnd(self.chunk_end(offset)) if is_cached else None

    def is_in_memory(self, start: ShapeOffset) -> bool:
        return self.is_tail

    @contextmanager
    def pin(self) -> Iterator[None]:
        yield

    @contextmanager
    def subscribe(self) -> Iterator[None]:
        self.followers += 1
        try:
            yield
        finally:
            self.followers -= 1

    def read(self, start: ShapeOffset, end: ShapeOffset) -> Iterator[bytes]:
        if self.is_dropped:
            raise NotFound("dropped")
        self.reads += 1
        return iter(self._messages(start, end))

    def _messages(self, start: ShapeOffset, end: ShapeOffset) -> list[bytes]:
        if start == BEFORE_ALL:
            return self.chunks[0]
        if start.tx == 0 and start.op < len(self.chunks) - 1:
            return self.chunks[start.op + 1]
        return [message for offset, message in self.log if start < offset <= end]


class FakeEngine:
    """Shapes by definition; tests put messages into them."""

    def __init__(self) -> None:
        self.by_definition: dict[Definition, FakeShape] = {}
        self.by_handle: dict[str, FakeShape] = {}
        self.listeners: list[Callable[[Collection[str]], None]] = []
        self.metrics = MetricTable([])
        self.trouble = ""
        self.is_replayed = True
        self.newest = 0
        self.made = 0
        self.chunks: list[list[bytes]] = [[message(b"1", 1)]]
        self.begins_at_once = True
        self.rows: list[bytes] = []
        self.refuses: StoreError | None = None
        self.outcome = CompactionOutcome.DONE
        self.is_dropping = False
        self.compactions_end = threading.Event()
        self._lock = threading.Lock()

    def find(self, handle: str) -> FakeShape | None:
        return self.by_handle.get(handle)

    def find_by_definition(self, definition: Definition) -> FakeShape | None:
        return self.by_definition.get(definition)

    def find_or_create(self, definition: Definition) -> FakeShape:
        with self._lock:
            if definition.topic == "missing":
                raise NotFound("there is no topic 'missing'")
            if definition not in self.by_definition:
                self.made += 1
                shape = FakeShape(f"{self.made:04}-handle", definition, self.chunks)
                shape.is_snapshot_started = self.begins_at_once
                self.by_definition[definition] = shape
                self.by_handle[shape.handle] = shape
            return self.by_definition[definition]

    def drop(self, shape: FakeShape, reason: DropReason = DropReason.DELETED) -> None:
        shape.is_dropped = True
        self.by_definition.pop(shape.definition, None)
        self.by_handle.pop(shape.handle, None)
        self.tell([shape.handle])

    def compact(self, shape: FakeShape) -> CompactionReport:
        balance = Balance(entries_in=len(shape.log))
        if self.is_dropping:
            self.drop(shape, DropReason.OUTGROWN)
        return CompactionReport(
            handle=shape.handle,
            started_ms=0,
            outcome=self.outcome,
            boundary=shape.latest,
            position=0,
            suffix=None,
            snapshot_rows=1,
            balance=balance,
        )

    def end_compactions(self) -> None:
        self.compactions_end.set()

    def subset(
        self, shape: FakeShape, subset: Subset, is_cancelled: Callable[[], bool]
    ) -> SubsetResult:
        if self.refuses is not None:
            raise self.refuses
        return SubsetResult(self.rows, shape.latest, self.newest, 7)

    def shapes(self) -> Collection[FakeShape]:
        return list(self.by_handle.values())

    def newest_tx(self, topic: str) -> int:
        return self.newest

    def is_caught_up(self, topic: str) -> bool:
        return self.is_replayed

    def is_read_again(self, topic: str) -> bool:
        return self.is_replayed

    def health(self) -> str:
        return "waiting" if self.trouble else "active"

    def topic_health(self, topic: str) -> TopicHealth:
        return TopicHealth(topic, is_ready=True, error=self.trouble)

    def subscribe(self, listener: Callable[[Collection[str]], None]) -> Callable[[], None]:
        self.listeners.append(listener)

        def unsubscribe() -> None:
            self.listeners = [one for one in self.listeners if one is not listener]

        return unsubscribe

    def add(self, shape: FakeShape, *messages: bytes) -> None:
        """Appends messages, a transaction each, and tells the door."""
        for one in messages:
            self.newest += 1
            shape.log.append((ShapeOffset(self.newest, 0), one))
        self.tell([shape.handle])

    def tell(self, handles: list[str]) -> None:
        for listener in self.listeners:
            listener(handles)


def message(key: bytes, value: int) -> bytes:
    return b'{"key":"%s","value":{"id":%d},"headers":{"operation":"insert"}}' % (key, value)
