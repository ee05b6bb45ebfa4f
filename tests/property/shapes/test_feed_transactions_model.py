"""A feed of source transactions against a model, under writes, ends, failures and crashes.

The topic has several partitions, and is truncated or compacted. Its table cannot be read at times,
its journal fails, and the power goes at any step of it. The journal tells the one order that
counts: it is the same in each life, and the table and a shape end with what it comes to.

Carries S1, S2, S3 and S4.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from errno import EIO
from typing import Any
from unittest.mock import patch

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.feed_bench import FollowedShape, build_feed
from tests.support.memory_directory import memory_directory
from tests.support.memory_topic import MemoryTopic
from tests.support.rounds import machine_settings
from varve.foundation.clock import ManualClock
from varve.foundation.errors import PowerLoss, Unavailable
from varve.shapes.feed.changes import Change, FeedCounts, Transaction
from varve.shapes.feed.decoders import DebeziumDecoder
from varve.shapes.feed.initial_load import TransactionAlignedScan
from varve.shapes.feed.journal import OffsetSpan, decode_journal
from varve.shapes.feed.source_transactions import BEGUN_WAIT_MS, SourceTransactions
from varve.shapes.feed.table_store import TableStore
from varve.shapes.feed.topic_feed import TopicFeed
from varve.shapes.offset import ShapeOffset
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem

_PARTITIONS_MAX = 3
_TOPIC = "db.public.items"
_KEYS = st.integers(0, 5)
_WRITES = st.one_of(
    st.tuples(st.just("put"), _KEYS),
    st.tuples(st.just("put"), _KEYS),
    st.tuples(st.just("put"), _KEYS),
    st.tuples(st.just("delete"), _KEYS),
    st.tuples(st.just("truncate"), st.integers(0, _PARTITIONS_MAX - 1)),
    st.tuples(st.just("end"), st.just(0)),
    st.tuples(st.just("end"), st.just(0)),
    st.tuples(st.just("leave"), st.just(0)),
    st.tuples(st.just("plain"), _KEYS),
)
_READS = st.one_of(
    st.tuples(st.just("poll"), st.integers(1, 9)),
    st.tuples(st.just("poll"), st.integers(1, 9)),
    st.tuples(st.just("unreadable"), st.integers(1, 9)),
    st.tuples(st.just("unwritable"), st.integers(1, 4)),
    st.tuples(st.just("wait"), st.sampled_from([100, 5_000, 60_000])),
)
_TURN = st.tuples(
    st.lists(_WRITES, max_size=6),
    st.lists(_READS, max_size=3),
    st.sampled_from(["nothing", "flush", "checkpoint", "checkpoint", "mark", "grow", "compact"]),
    st.lists(_READS, max_size=2),
    st.one_of(
        st.tuples(st.just("nothing"), st.just(0)),
        st.tuples(st.just("crash"), st.just(0)),
        st.tuples(st.just("power"), st.integers(1, 12)),
    ),
)
_TURNS = st.lists(_TURN, min_size=1, max_size=8)


def _steps(turns: list[Any]) -> Iterator[tuple[str, int]]:
    for writes, reads, durable, behind, crash in turns:
        yield from [*writes, *reads, (durable, 0), *behind, crash]


class _Run:
    def __init__(self, path: str, partitions: int, *, is_compacted: bool) -> None:
        self.source = MemoryTopic(_TOPIC, partitions=partitions)
        self.ends = MemoryTopic("db.transaction")
        self.shape = FollowedShape()
        self.counts = FeedCounts()
        self._path = path
        self._clock = ManualClock()
        self._fs = FaultyFileSystem(self._clock)
        self._first_count = partitions
        self._is_compacted = is_compacted
        self._number = self._transaction = self._event_count = 0
        self._order: dict[int, OffsetSpan] = {}
        self._offsets: dict[bytes, ShapeOffset] = {}
        self._sources: dict[bytes, tuple[int, int]] = {}
        self._mark: int | None = None
        self.feed = self._make()
        self._open()

    def _make(self) -> TopicFeed:
        decoder = DebeziumDecoder()
        return build_feed(
            self.source,
            f"{self._path}/tables",
            decoder=decoder,
            rows=lambda reader: TransactionAlignedScan(reader, decoder),
            fs=self._fs,
            clock=self._clock,
            grouping=SourceTransactions(self.ends, _TOPIC, self.counts, self._clock, records_max=5),
        )

    def _open(self) -> None:
        self._mark = None
        while not self.feed.is_open:
            with suppress(OSError):  # which comes once
                if self.feed.open() is not None:
                    assert not self._order
                    self.shape.begin(self.feed)
                    self.feed.checkpoint(self.feed.mark())

    def step(self, name: str, value: int) -> None:
        match name:
            case "put" | "delete":
                self._write(name, value)
            case "plain":
                self._end()
                self._write(name, value)
            case "truncate" if not self._is_compacted:
                told = {"op": "t", "transaction": self._next_event()}
                number = value % len(self.source.logs)
                self.source.append(number, b"{}", json.dumps(told).encode())
            case "end":
                self._end()
            case "leave":
                self._transaction, self._event_count = self._transaction + 1, 0
            case "poll":
                self.poll(value)
            case "unreadable":
                failing = patch.object(TableStore, "get_rows", side_effect=Unavailable("the disk"))
                with failing:
                    self.poll(value)
            case "unwritable":
                self._fs.fail_at(self._fs.steps + value, OSError(EIO, "the disk"))
            case "wait":
                self._clock.advance(value)
            case "flush":
                self.shape.flush()
            case "mark":
                self._mark = self.feed.mark()
                self.shape.flush()
            case "checkpoint":
                if self._mark is None:
                    self._mark = self.feed.mark()
                    self.shape.flush()
                self.feed.checkpoint(self._mark)
                self._mark = None
            case "crash":
                self._crash(self._fs)
            case "power":
                self._lose_power(value)
            case "grow" if len(self.source.logs) < _PARTITIONS_MAX:
                self.source.add_partition()
                self._clock.advance(30_000)
            case "compact" if self._is_compacted:
                for number in range(len(self.source.logs)):
                    self.source.compact(number)

    # Writing

    def _write(self, name: str, key: int) -> None:
        number, encoded = key % self._first_count, b'{"id":%d}' % key
        event = None if name == "plain" else self._next_event()
        if name == "delete":
            told = {"op": "d", "transaction": event}
            self.source.append(number, encoded, json.dumps(told).encode())
            self.source.append(number, encoded, None)
            return
        self._number += 1
        told = {"op": "c", "after": {"id": key, "n": self._number}, "transaction": event}
        self.source.append(number, encoded, json.dumps(told).encode())
        if event is not None:
            self._sources[b"%d" % self._number] = (self._transaction, number)

    def _next_event(self) -> dict[str, Any]:
        name = f"t{self._transaction}"
        if not self._event_count:
            self._tell({"status": "BEGIN", "id": name, "data_collections": None})
        self._event_count += 1
        order = self._event_count
        return {"id": name, "total_order": order, "data_collection_order": order}

    def _end(self) -> None:
        if self._event_count:
            held = [{"data_collection": "public.items", "event_count": self._event_count}]
            self._tell({"status": "END", "id": f"t{self._transaction}", "data_collections": held})
        self._transaction, self._event_count = self._transaction + 1, 0

    def _tell(self, event: dict[str, Any]) -> None:
        self.ends.append(0, b"{}", json.dumps(event).encode())

    # Reading

    def poll(self, count: int) -> None:
        last = self.feed.position
        try:
            given = self.feed.poll(max_records=count, wait_ms=0)
        except (Unavailable, OSError):
            self._open()
            return
        self._note_order()
        for transaction in given:
            for change in transaction.changes:
                assert change.offset > last
                last = change.offset
                self._note(change)
        assert self.feed.position >= last
        self._tell_shape(given)

    def _tell_shape(self, given: list[Transaction]) -> None:
        """As the engine does: for a reset who began before it begins anew, others have it."""
        if given and given[-1].reset is not None:
            assert self.feed.is_open
            if self.shape.start < self.feed.position:
                self.shape.begin(self.feed)
            return
        for transaction in given:
            for change in transaction.changes:
                self.shape.take(change)

    def _note_order(self) -> None:
        """A range that the journal had once is in the same place in each life."""
        with self._fs.open(f"{self._path}/tables/{_TOPIC}/journal") as file:
            for one in decode_journal(file.read_at(0, file.size()))[0]:
                assert self._order.setdefault(one.first_tx, one) == one

    def _note(self, change: Change) -> None:
        if change.row is None:
            return
        before = self._offsets.setdefault(change.row["n"], change.offset)
        # What others of its transaction stood before, which compaction took away, comes later.
        assert before == change.offset or (self._is_compacted and before < change.offset)
        self._offsets[change.row["n"]] = change.offset

    # Failing

    def _crash(self, left: FaultyFileSystem) -> None:
        self.shape.crash()
        self.feed.close()
        self._fs = left
        self.feed = self._make()
        self._open()

    def _lose_power(self, step: int) -> None:
        self._fs.crash_at(self._fs.steps + step)
        with suppress(PowerLoss):
            self.poll(9)
        modes = list(CrashMode)
        self._crash(self._fs.after_crash(modes[step % len(modes)], step))

    # What must be so in the end

    def finish(self) -> None:
        self._end()
        for _ in range(300):
            before = self.feed.position
            self.poll(7)
            if self.feed.is_caught_up and self.feed.position == before:
                break
            if self.feed.position == before:
                self._clock.advance(BEGUN_WAIT_MS)
        assert self.feed.is_caught_up
        expected = self._expected()
        with self.feed.view() as view:
            assert {key: row["n"] for key, row in view.rows()} == expected
        assert {key: row["n"] for key, row in self.shape.rows.items()} == expected
        assert self.shape.seen >= self.shape.told
        self._check_whole()
        self.feed.close()

    def _expected(self) -> dict[str, bytes]:
        """What the records come to in the order of the journal."""
        rows: dict[str, bytes] = {}
        next_tx = 1
        for _, one in sorted(self._order.items()):
            assert one.first_tx == next_tx
            next_tx = one.next_tx
            for offset, key, value in self.source.logs[one.partition]:
                if one.start <= offset < one.end:
                    _apply(rows, key, value)
        assert next_tx == 1 + sum(self.source.ends)
        return rows

    def _check_whole(self) -> None:
        """What a partition has of a source transaction is one transaction."""
        if self.counts.unfinished or self._is_compacted:
            return
        found: dict[tuple[int, int], set[int]] = defaultdict(set)
        for number, offset in self._offsets.items():
            if number in self._sources:
                found[self._sources[number]].add(offset.tx)
        assert all(len(numbers) == 1 for numbers in found.values())


def _apply(rows: dict[str, bytes], key: bytes, value: bytes | None) -> None:
    told: dict[str, Any] = {"op": "d"} if value is None else json.loads(value)
    if told["op"] == "t":
        rows.clear()
        return
    name = f'"public"."{_TOPIC}"/"{json.loads(key)["id"]}"'
    rows.pop(name, None)
    if told["op"] == "c":
        rows[name] = b"%d" % told["after"]["n"]


@settings(
    machine_settings(40),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(turns=_TURNS, partitions=st.integers(1, 2), is_compacted=st.booleans())
def test_source_transactions_end_with_the_state_that_their_order_comes_to(
    turns: list[Any], partitions: int, is_compacted: bool
) -> None:
    with memory_directory() as path:
        run = _Run(str(path), partitions, is_compacted=is_compacted)
        for name, value in _steps(turns):
            run.step(name, value)
        run.finish()
