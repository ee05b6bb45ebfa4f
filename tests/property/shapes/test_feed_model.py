"""A feed against a model, under any sequence of writes, polls, flushes, checkpoints and crashes.

A shape follows it as the engine has it: it drops what it has, it is durable at times of its own,
and a checkpoint follows its flush. Once it has caught up it is at or beyond every offset that a
client was ever given.

Carries S1, S3 and S4.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any
from unittest.mock import patch

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.feed_bench import FollowedShape, build_feed
from tests.support.memory_directory import memory_directory
from tests.support.memory_topic import MemoryTopic
from tests.support.rounds import machine_settings
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Unavailable
from varve.shapes.feed.changes import Change
from varve.shapes.feed.row import Row
from varve.shapes.feed.table_store import ResetKind, TableStore
from varve.shapes.feed.topic_feed import TopicFeed
from varve.shapes.offset import ShapeOffset

_KEYS = st.integers(0, 3)
_WRITES = st.one_of(
    st.tuples(st.just("put"), _KEYS),
    st.tuples(st.just("put"), _KEYS),
    st.tuples(st.just("delete"), _KEYS),
)
_POLLS = st.tuples(st.just("poll"), st.integers(1, 9))
_TURN = st.tuples(
    st.lists(_WRITES, max_size=4),
    st.lists(_POLLS, max_size=2),
    st.sampled_from(["nothing", "flush", "checkpoint", "checkpoint", "grow"]),
    st.lists(_POLLS, max_size=1),
    st.lists(_WRITES, max_size=3),
    st.sampled_from(["nothing", "compact"]),
    st.sampled_from(["nothing", "crash"]),
)
_TURNS = st.lists(_TURN, min_size=1, max_size=8)
_READ_ALL = [("poll", 9)] * 4
_TOMBSTONES_MS = 1_000
_CUTS = st.one_of(
    st.tuples(st.just("cut"), st.integers(0, 2)),
    st.tuples(st.just("wait"), st.sampled_from([400, 700, 1_100])),
    st.tuples(st.just("compact"), st.just(0)),
    st.tuples(st.just("unreadable"), st.integers(1, 9)),
    _POLLS,
)
_CUT_TURNS = st.lists(st.tuples(_TURN, st.lists(_CUTS, max_size=3)), min_size=1, max_size=8)


def _steps(turns: list[Any]) -> Iterator[tuple[str, int]]:
    """Writes, polls, something durable, both again, and at times a compaction and a crash."""
    for writes, polls, durable, behind, more, compact, crash in turns:
        yield from [*writes, *polls, (durable, 0), *behind, *more, (compact, 0), (crash, 0)]


_PARTITIONS_MAX = 3


def _is_in(row: Row) -> bool:
    """The filter of the shape: rows with odd numbers."""
    return int(row["n"]) % 2 == 1


class _Run:
    def __init__(self, path: str, partitions: int, *, is_cut: bool) -> None:
        self.source = MemoryTopic(partitions=partitions)
        self.source.tombstones_ms = _TOMBSTONES_MS if is_cut else None
        self._is_cut = is_cut
        self._written_ms: dict[tuple[int, int], int] = {}
        self._rows: dict[bytes, bytes] = {}
        self.shape = FollowedShape(_is_in)
        self._path = path
        self._clock = ManualClock()
        self._number = 0
        self._first_count = partitions
        self._offsets: dict[bytes, ShapeOffset] = {}
        self.feed = self._make()
        self._open()

    def _make(self) -> TopicFeed:
        return build_feed(self.source, f"{self._path}/tables", clock=self._clock)

    def _open(self) -> None:
        if self.feed.open() is not None:
            # Rows whose records are gone from the log are gone, too.
            self._rows = self.source.state()
            self.shape.begin(self.feed)
            self.feed.checkpoint(self.feed.mark())

    def step(self, name: str, value: int) -> None:
        match name:
            case "put":
                self._number += 1
                self._append(value, b'{"n":%d}' % self._number)
            case "delete":
                self._append(value, None)
            case "poll":
                self.poll(value)
            case "flush":
                self.shape.flush()
            case "checkpoint":
                mark = self.feed.mark()
                self.shape.flush()
                self.feed.checkpoint(mark)
            case "compact":
                for number in range(len(self.source.logs)):
                    self.source.compact(number)
                    self._drop_tombstones(number)
            case "cut":
                self._cut(value)
            case "wait":
                self._clock.advance(value)
            case "unreadable":
                failing = patch.object(TableStore, "get_rows", side_effect=Unavailable("the disk"))
                with failing, suppress(Unavailable):
                    self.poll(value)
                if not self.feed.is_open:
                    self._open()
            case "crash":
                self.shape.crash()
                self.feed.close()
                self.feed = self._make()
                self._open()
            case "grow":
                if len(self.source.logs) < _PARTITIONS_MAX:
                    self.source.add_partition()
                    self._clock.advance(30_000)

    def _append(self, key: int, value: bytes | None) -> None:
        # A key stays in its partition, so that its records have an order.
        number, name = key % self._first_count, b"%d" % key
        offset = self.source.append(number, name, value)
        self._written_ms[number, offset] = self._clock.now_ms()
        self._rows.pop(name, None)
        if value is not None:
            self._rows[name] = value

    def _drop_tombstones(self, number: int) -> None:
        """As compaction does with those that were readable for long enough."""
        if self._is_cut:
            before_ms = self._clock.now_ms() - _TOMBSTONES_MS
            self.source.logs[number] = [
                one
                for one in self.source.logs[number]
                if one[2] is not None or self._written_ms[number, one[0]] >= before_ms
            ]

    def _cut(self, count: int) -> None:
        """Lets retention remove the first offsets of a partition."""
        number = count % len(self.source.logs)
        start = min(self.source.starts[number] + count, self.source.ends[number])
        self.source.starts[number] = start
        self.source.logs[number] = [one for one in self.source.logs[number] if one[0] >= start]

    def poll(self, count: int) -> None:
        last = self.feed.position
        for transaction in self.feed.poll(max_records=count, wait_ms=0):
            if transaction.reset is not None:
                assert self._is_cut
                assert transaction.reset.kind is ResetKind.SOURCE_LOST
                self._open()
                return
            for change in transaction.changes:
                assert change.offset > last
                last = change.offset
                self._note(change)
                self.shape.take(change)
        assert self.feed.position >= last

    def _note(self, change: Change) -> None:
        """A record has the same offset whenever it is given."""
        if change.row is not None:
            assert self._offsets.setdefault(change.row["n"], change.offset) == change.offset

    def finish(self) -> None:
        for _ in range(200):
            before = self.feed.position
            self.poll(7)
            if self.feed.is_caught_up and self.feed.position == before:
                break
        rows = {f'"public"."orders"/"{key.decode()}"': value for key, value in self._rows.items()}
        with self.feed.view() as view:
            table = {key: b'{"n":' + row["n"] + b"}" for key, row in view.rows()}
        assert table == rows
        held = {key: b'{"n":' + row["n"] + b"}" for key, row in self.shape.rows.items()}
        assert held == {key: value for key, value in rows.items() if int(value[5:-1]) % 2}
        assert self.shape.seen >= self.shape.told
        self.feed.close()


def _check(steps: Iterable[tuple[str, int]], partitions: int, *, is_cut: bool = False) -> None:
    with memory_directory() as path:
        run = _Run(str(path), partitions, is_cut=is_cut)
        for name, value in steps:
            run.step(name, value)
        run.finish()


@settings(
    machine_settings(30),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(turns=_TURNS, partitions=st.integers(1, 2))
def test_a_shape_behind_a_feed_ends_with_the_state_of_the_topic(
    turns: list[Any], partitions: int
) -> None:
    _check(_steps(turns), partitions)


@settings(
    machine_settings(30),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(turns=_CUT_TURNS, partitions=st.integers(1, 2))
def test_a_shape_misses_nothing_that_the_log_let_go_of(turns: list[Any], partitions: int) -> None:
    steps = [step for turn, cuts in turns for step in [*_steps([turn]), *cuts]]
    _check(steps, partitions, is_cut=True)


@machine_settings(60)
@given(
    before=st.lists(_WRITES, max_size=4),
    seen=st.lists(_WRITES, min_size=2, max_size=6),
    polls=st.tuples(_POLLS, _POLLS),
    after=st.lists(_WRITES, max_size=2),
    partitions=st.integers(1, 2),
)
def test_a_shape_is_not_behind_its_clients_after_two_crashes_over_a_compacted_topic(
    before: list[tuple[str, int]],
    seen: list[tuple[str, int]],
    polls: tuple[tuple[str, int], tuple[str, int]],
    after: list[tuple[str, int]],
    partitions: int,
) -> None:
    first = [*before, *_READ_ALL, ("checkpoint", 0), *seen, *_READ_ALL, ("compact", 0)]
    then = [polls[0], ("checkpoint", 0), polls[1], *after, ("compact", 0)]
    _check([*first, ("crash", 0), *then, ("crash", 0)], partitions)
