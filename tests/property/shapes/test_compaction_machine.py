"""Clients of a shape end with its rows, whatever is written, compacted, lost or read meanwhile.

Carries S1 and S3.
"""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.support.compaction_bench import CompactionBench
from tests.support.rounds import machine_settings
from tests.support.shape_messages import State, apply_message, read_messages
from varve.foundation.clock import ManualClock
from varve.shapes.compaction.compactor import Compactor
from varve.shapes.offset import SNAPSHOT_END, ShapeOffset
from varve.shapes.settings import CompactionSettings
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem

CLIENTS = 4
KEYS = st.sampled_from(["a", "b", "c"])


class CompactionMachine(RuleBasedStateMachine):
    """A shape that is written, compacted and crashed, and clients at offsets of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = CompactionBench(FaultyFileSystem(ManualClock()))
        self.clients: list[tuple[ShapeOffset, State]] = [(SNAPSHOT_END, {}) for _ in range(CLIENTS)]

    @rule(key=KEYS, columns=st.dictionaries(st.sampled_from("xyz"), st.integers(0, 99)))
    def put(self, key: str, columns: dict[str, int]) -> None:
        self.bench.put(key, **columns)

    @rule(key=KEYS, count=st.integers(3, 12))
    def put_often(self, key: str, count: int) -> None:
        for number in range(count):
            self.bench.put(key, x=number)

    @rule(key=KEYS)
    def remove(self, key: str) -> None:
        if key in self.bench.state:
            self.bench.remove(key)

    @rule()
    def control(self) -> None:
        self.bench.control("note")

    @rule()
    def flush(self) -> None:
        self.bench.storage.flush()

    @rule()
    def close_chunk(self) -> None:
        self.bench.storage.close_chunk()

    @rule(
        keep_chunks=st.integers(0, 2),
        memory_bytes=st.sampled_from([1024, 4096, 1 << 20]),
        is_forced=st.booleans(),
    )
    def compact(self, keep_chunks: int, memory_bytes: int, is_forced: bool) -> None:
        settings = CompactionSettings(
            keep_chunks=keep_chunks,
            memory_bytes=memory_bytes,
            min_bytes=900,
            min_cleanable_ratio=0.3,
        )
        self.bench.compactor = Compactor(settings, self.bench.random)
        self.bench.compact(is_forced=is_forced)

    @rule(client=st.integers(0, CLIENTS - 1))
    def read_a_chunk(self, client: int) -> None:
        place, state = self.clients[client]
        storage = self.bench.storage
        if place >= storage.latest:
            return
        end = storage.chunk_end(place) or storage.latest
        for message in read_messages(storage, place, end):
            apply_message(state, message)
        self.clients[client] = end, state

    @rule(client=st.integers(0, CLIENTS - 1))
    def begin_anew(self, client: int) -> None:
        self.clients[client] = SNAPSHOT_END, {}

    @rule(mode=st.sampled_from(list(CrashMode)), seed=st.integers(0, 99))
    def crash(self, mode: CrashMode, seed: int) -> None:
        assert isinstance(self.bench.fs, FaultyFileSystem)
        self.bench.fs = self.bench.fs.after_crash(mode, seed)
        self.bench.storage = self.bench.reopen(self.bench.fs)
        self.bench.replay()

    @rule()
    def restart(self) -> None:
        self.bench.storage.close()
        self.bench.storage = self.bench.reopen(self.bench.fs)

    def teardown(self) -> None:
        """All clients go on to the end."""
        storage = self.bench.storage
        assert storage.latest == self.bench.latest
        for place, state in self.clients:
            assert self.bench.follow(storage, place, state) == self.bench.state
        self.bench.check(sample=10)


TestCompactionMachine = CompactionMachine.TestCase
TestCompactionMachine.settings = machine_settings(30)
