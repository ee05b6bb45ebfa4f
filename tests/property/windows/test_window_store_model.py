"""Under any sequence of operations a window store equals a dict: invariants 1 to 6.

1 directories and registered segments lie between retention and stream time; 2 the visible set is
the model's; 3 fetches agree with each other; 4 reads change nothing; 5 a restore gives the same
state from any cut; 6 puts within the retention may come in any order.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.memory_changelog import MemoryChangelog
from tests.support.window_bench import WindowBench, memory_bench, rocks_bench, visible
from tests.support.window_model import WindowModel
from varve.windows.window_store import WindowStore

SEGMENT_MS = 7
RETENTION_MS = 18
TIME_MAX = 60


class Step(NamedTuple):
    """One operation: `kind` is put, delete, remove, maintain, checkpoint or reopen."""

    kind: str
    key: bytes
    time_ms: int
    value: bytes


KEYS = st.sampled_from([b"", b"\x00", b"a", b"a\x00", b"aa", b"b", b"\xff"])
TIMES = st.integers(0, TIME_MAX)
KINDS = st.sampled_from(
    ["put"] * 8 + ["delete", "remove", "maintain", "checkpoint", "reopen", "read"]
)
STEPS = st.lists(st.builds(Step, KINDS, KEYS, TIMES, st.binary(max_size=2)), max_size=40)


class Run:
    """A store and its model, going through the same steps."""

    def __init__(self, bench: WindowBench) -> None:
        self.bench = bench
        self.model = WindowModel(SEGMENT_MS, RETENTION_MS)
        self.store = self._open()

    def _open(self) -> WindowStore:
        return self.bench.store(segment_ms=SEGMENT_MS, retention_ms=RETENTION_MS)

    def take(self, step: Step) -> None:
        key, time_ms, value = step.key, step.time_ms, step.value
        match step.kind:
            case "put":
                was_written = self.store.put(key, value, time_ms)
                assert was_written == self.model.put(key, value, time_ms)
            case "delete":
                self.store.put(key, None, time_ms)
                self.model.put(key, None, time_ms)
            case "remove":
                self.store.remove(key, time_ms)
                self.model.remove(key, time_ms)
            case "maintain":
                self.store.maintain(time_ms)
                self.model.maintain(time_ms)
            case "checkpoint":
                self.store.checkpoint()
            case "reopen":
                self.store.close()
                self.store = self._open()
                self.model.maintain(-1)
            case "read":
                self.check_reads(key, time_ms)
        self.check()

    def check(self) -> None:
        """Invariants 1 and 2."""
        starts = [id * SEGMENT_MS for id in sorted(self.model.segment_ids)]
        assert self.bench.starts() == starts
        assert self.store.stream_time_ms == self.model.stream_time_ms
        assert visible(self.store) == self.model.visible()

    def check_reads(self, key: bytes, time_ms: int) -> None:
        """Invariants 3 and 4."""
        store, model = self.store, self.model
        before = (store.stream_time_ms, self.bench.names())
        from_ms, to_ms = time_ms - 10, time_ms + 10
        ranges = [(key, key), (None, key), (key, None), (b"a", b"b"), (None, None)]
        for first, last in ranges:
            wanted = model.fetched(first, last, from_ms, to_ms)
            assert list(store.fetch_range(first, last, from_ms, to_ms)) == wanted
            assert (
                list(store.fetch_range(first, last, from_ms, to_ms, backward=True)) == wanted[::-1]
            )
        one_key = model.fetched(key, key, from_ms, to_ms)
        assert list(store.fetch(key, from_ms, to_ms)) == one_key
        assert list(store.fetch(key, from_ms, to_ms, backward=True)) == one_key[::-1]
        everything = model.fetched(None, None, 0, TIME_MAX)
        assert list(store.all()) == list(store.fetch_all(0, TIME_MAX)) == everything
        assert list(store.all(backward=True)) == everything[::-1]
        found = {(entry.key, entry.time_ms): entry.value for entry in everything}
        for time in range(max(0, from_ms), to_ms):
            assert store.get(key, time) == found.get((key, time))
        assert before == (store.stream_time_ms, self.bench.names())


def _run(bench: WindowBench, steps: Sequence[Step]) -> None:
    run = Run(bench)
    for step in steps:
        run.take(step)
    run.check_reads(b"a", RETENTION_MS)
    run.store.close()


@given(STEPS)
@settings(max_examples=60)
def test_any_steps_on_databases_in_memory(steps: list[Step]) -> None:
    _run(memory_bench(), steps)


@given(STEPS)
@settings(max_examples=5)
def test_any_steps_on_rocksdb(steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as path:
        _run(rocks_bench(Path(path)), steps)


@given(STEPS, st.integers(1, 5), st.integers(1, 5), st.data())
@settings(max_examples=40)
def test_a_restore_gives_the_same_state_from_any_cut(
    steps: list[Step], batch_count: int, gathered_count: int, data: st.DataObject
) -> None:
    changelog = MemoryChangelog(batch_count_max=batch_count)
    bench = memory_bench()
    bench.changelog = changelog
    run = Run(bench)
    for step in steps:
        if step.kind in ("put", "delete"):
            run.take(step)
    run.store.close()
    copy = memory_bench()
    store = copy.local(segment_ms=SEGMENT_MS, retention_ms=RETENTION_MS)
    for start in [0, *data.draw(st.lists(st.integers(0, changelog.end_offset), max_size=3))]:
        store.restore(changelog, start_offset=start, batch_count=gathered_count)
    assert visible(store) == run.model.visible()
    assert store.stream_time_ms == (run.model.stream_time_ms if changelog.end_offset else -1)


@given(st.data(), st.integers(0, 10_000))
@settings(max_examples=40)
def test_puts_within_the_retention_may_come_in_any_order(data: st.DataObject, base: int) -> None:
    times = st.integers(base, base + RETENTION_MS - 1)
    puts = data.draw(st.lists(st.tuples(KEYS, times), unique=True, max_size=20))
    states = []
    for order in (puts, data.draw(st.permutations(puts))):
        with memory_bench().store(segment_ms=SEGMENT_MS, retention_ms=RETENTION_MS) as store:
            for key, time_ms in order:
                assert store.put(key, str(time_ms).encode(), time_ms)
            states.append((visible(store), store.stream_time_ms))
    assert states[0] == states[1]
    assert len(states[0][0]) == len(puts)
