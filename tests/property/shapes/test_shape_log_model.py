"""A shape's log equals a list of committed entries under any sequence of what may happen to it.

Appends, replays, flushes, reads in the middle, streams that are read on later, swaps of compacted
logs, restarts and crashes.

Carries S2.
"""

from collections.abc import Iterator

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.rounds import machine_settings
from tests.support.shape_log import (
    SMALL,
    LogModel,
    compact_plainly,
    create_storage,
    follow,
    joined,
    make_entry,
    open_storage,
    read_messages,
)
from varve.foundation.clock import ManualClock
from varve.shapes.offset import LAST, SNAPSHOT_END, ShapeOffset
from varve.shapes.storage.shape_storage import ShapeStorage
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem

STREAMS_MAX = 3
# Chunks of about five entries and buffers of about two, so that every border is met often.
SIZES = st.integers(20, 120)


class ShapeLogMachine(RuleBasedStateMachine):
    """The storage on a disk that can crash, and the model."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = FaultyFileSystem(ManualClock())
        self.storage: ShapeStorage = create_storage(self.disk, SMALL)
        self.model = LogModel()
        self.next_tx = 1
        self.streams: list[tuple[list[object], Iterator[bytes], list[object]]] = []

    @rule(sizes=st.lists(SIZES, min_size=1, max_size=12), gap=st.integers(1, 5))
    def append_transaction(self, sizes: list[int], gap: int) -> None:
        entries = [make_entry(self.next_tx, 2 * at, size=size) for at, size in enumerate(sizes)]
        self.storage.append(entries)
        self.model.append(entries)
        self.model.commit()
        self.next_tx += gap

    @rule(count=st.integers(1, 20))
    def replay(self, count: int) -> None:
        self.storage.append(self.model.committed[-count:])

    @rule()
    def flush(self) -> None:
        self.storage.flush()
        self.model.flush()
        assert self.storage.persisted == self.model.latest

    @rule(start=st.integers(0, 60), end=st.integers(0, 60), ops=st.tuples(*[st.integers(0, 9)] * 2))
    def read_between(self, start: int, end: int, ops: tuple[int, int]) -> None:
        low, high = ShapeOffset(start, ops[0]), ShapeOffset(end, ops[1])
        if start == 0:
            low = SNAPSHOT_END
        assert read_messages(self.storage, low, high) == self.model.between(low, high)

    @precondition(lambda self: len(self.streams) < STREAMS_MAX)
    @rule(start=st.integers(0, 60))
    def begin_stream(self, start: int) -> None:
        low = ShapeOffset(start, 0) if start else SNAPSHOT_END
        expected = self.model.between(low, self.model.latest)
        self.streams.append(([], self.storage.read(low, LAST), expected))

    @precondition(lambda self: self.streams)
    @rule(count=st.integers(1, 4))
    def read_streams_on(self, count: int) -> None:
        for got, stream, expected in self.streams:
            for _ in range(count):
                piece = next(stream, None)
                if piece is None:
                    assert got == expected
                    break
                got += joined(iter([piece]))
            assert expected[: len(got)] == got

    @precondition(lambda self: self.streams)
    @rule()
    def end_stream(self) -> None:
        got, stream, expected = self.streams.pop(0)
        assert got + joined(stream) == expected

    @rule(keep=st.integers(0, 2))
    def compact(self, keep: int) -> None:
        """A compaction that keeps all entries; one that merges has a model of its own."""
        if compact_plainly(self.storage, keep, now_ms=self.next_tx):
            self.model.flush()

    @rule()
    def restart(self) -> None:
        self.storage.close()
        self.model.flush()
        self.storage = open_storage(self.disk, SMALL)

    @rule(mode=st.sampled_from(list(CrashMode)), seed=st.integers(0, 99))
    def crash(self, mode: CrashMode, seed: int) -> None:
        self.streams.clear()
        self.disk = self.disk.after_crash(mode, seed)
        self.storage = open_storage(self.disk, SMALL)
        self.model.crash(self.storage.latest)
        self.next_tx = max(self.next_tx, self.model.latest.tx) + 1

    @invariant()
    def a_client_that_follows_gets_exactly_what_was_appended(self) -> None:
        assert self.storage.latest == self.model.latest
        assert self.storage.persisted <= self.storage.latest
        expected = self.model.between(SNAPSHOT_END, LAST)
        assert read_messages(self.storage) == expected
        assert follow(self.storage) == expected


TestShapeLogMachine = ShapeLogMachine.TestCase
TestShapeLogMachine.settings = machine_settings(40)
