"""Records of one source transaction become one transaction of the shapes.

A new table is loaded up to where none lies across.

Carries S2.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.support.feed_bench import build_feed
from tests.support.memory_topic import MemoryTopic
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Unavailable
from varve.records import CommittedBatches
from varve.shapes.feed.changes import FeedCounts, Transaction
from varve.shapes.feed.decoders import DebeziumDecoder, Decoded, RecordKind, SourceTransaction
from varve.shapes.feed.initial_load import TransactionAlignedScan, find_boundary
from varve.shapes.feed.order import Entry, PartitionBuffer
from varve.shapes.feed.source_transactions import BYTES_MAX, SourceTransactions
from varve.shapes.feed.topic_feed import TopicFeed
from varve.shapes.offset import ShapeOffset
from varve.topics import Position


class _Bench:
    def __init__(self, path: Path, partitions: int = 1, bytes_max: int = BYTES_MAX) -> None:
        self.path = path
        self._bytes_max = bytes_max
        self.clock = ManualClock()
        self.counts = FeedCounts()
        self.source = MemoryTopic("db.public.items", partitions=partitions)
        self.ends = MemoryTopic("db.transaction")
        self._orders: dict[str, int] = {}
        self.feed = self._open()

    def begin_anew(self) -> None:
        """As a server does that has no table yet."""
        self.feed.close()
        shutil.rmtree(self.path / "tables")
        self.feed = self._open()

    def rows(self) -> dict[int, int]:
        with self.feed.view() as view:
            return {int(row["id"]): int(row["n"]) for _, row in view.rows()}

    def _open(self) -> TopicFeed:
        self.gate = SourceTransactions(
            self.ends,
            self.source.topic,
            self.counts,
            self.clock,
            records_max=50,
            bytes_max=self._bytes_max,
        )
        feed = build_feed(
            self.source,
            self.path / "tables",
            decoder=DebeziumDecoder(),
            rows=lambda reader: TransactionAlignedScan(reader, DebeziumDecoder()),
            clock=self.clock,
            grouping=self.gate,
        )
        if feed.open() is not None:
            feed.checkpoint(feed.mark())
        return feed

    def crash(self) -> None:
        self.feed.close()
        self.feed = self._open()

    def put(self, key: int, n: int, transaction: str | None, partition: int = 0) -> None:
        mark = None if transaction is None else self._mark(transaction)
        value: dict[str, Any] = {
            "before": None,
            "after": {"id": key, "n": n},
            "op": "c",
            "transaction": mark,
        }
        self.source.append(partition, json.dumps({"id": key}).encode(), json.dumps(value).encode())

    def delete(self, key: int, transaction: str) -> None:
        """As Debezium does: the event, and a tombstone that says nothing of the transaction."""
        mark = self._mark(transaction)
        value = {"before": {"id": key}, "after": None, "op": "d", "transaction": mark}
        encoded = json.dumps({"id": key}).encode()
        self.source.append(0, encoded, json.dumps(value).encode())
        self.source.append(0, encoded, None)

    def _mark(self, transaction: str) -> dict[str, Any]:
        number = transaction.partition(":")[0]
        order = self._orders[number] = self._orders.get(number, 0) + 1
        return {"id": transaction, "total_order": order, "data_collection_order": order}

    def tell_again(self, transaction: str) -> None:
        """As a connector does after a crash: from the first record of a transaction on."""
        del self._orders[transaction]

    def begin(self, transaction: str) -> None:
        value = {"status": "BEGIN", "id": transaction, "data_collections": None}
        self.ends.append(0, b"{}", json.dumps(value).encode())

    def end(self, transaction: str, count: int) -> None:
        collections = [
            {"data_collection": "public.items", "event_count": count},
            {"data_collection": "public.others", "event_count": 9},
        ]
        value = {"status": "END", "id": transaction, "data_collections": collections}
        self.ends.append(0, b"{}", json.dumps(value).encode())

    def poll(self) -> list[Transaction]:
        options: list[Transaction] = []
        for _ in range(5):
            options += self.feed.poll(max_records=100, wait_ms=0)
        return options


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[_Bench]:
    created = _Bench(tmp_path)
    yield created
    created.feed.close()


def _numbers(options: list[Transaction]) -> list[list[int]]:
    return [
        [int(change.row["n"]) for change in item.changes if change.row is not None]
        for item in options
    ]


def test_a_transaction_is_given_when_its_end_and_all_its_records_are_there(
    bench: _Bench,
) -> None:
    bench.put(1, 1, "7:1")
    bench.end("7:1", 2)
    assert bench.poll() == []
    bench.put(2, 2, "7:1")
    (only,) = bench.poll()
    assert [item.offset for item in only.changes] == [ShapeOffset(1, 0), ShapeOffset(1, 2)]
    assert bench.feed.position == ShapeOffset(2, 0)
    assert bench.feed.is_caught_up


def test_a_record_of_another_transaction_ends_the_one_before(bench: _Bench) -> None:
    bench.put(1, 1, "a")
    bench.put(2, 2, "a")
    bench.put(3, 3, "b")
    assert _numbers(bench.poll()) == [[1, 2]]
    bench.put(4, 4, None)
    assert _numbers(bench.poll()) == [[3], [4]]


def test_a_tombstone_does_not_cut_its_transaction(bench: _Bench) -> None:
    bench.put(1, 1, None)
    bench.put(2, 2, None)
    bench.poll()
    bench.put(3, 3, "a")
    bench.delete(1, "a")
    bench.delete(2, "a")
    bench.end("a", 4)
    assert bench.poll() == []
    bench.put(4, 4, "a")
    (only,) = bench.poll()
    places = [item.offset for item in only.changes]
    assert places == [ShapeOffset(3, 0), ShapeOffset(3, 2), ShapeOffset(3, 6), ShapeOffset(3, 10)]
    bench.crash()
    assert bench.poll()[-1] == only
    assert bench.feed.is_caught_up


def test_a_tombstone_that_comes_behind_its_transaction_holds_up_nothing(bench: _Bench) -> None:
    bench.put(1, 1, None)
    bench.poll()
    bench.end("a", 1)
    bench.delete(1, "a")
    bench.put(2, 2, "b")
    bench.end("b", 1)
    options = bench.poll()
    assert [[item.row is None for item in each.changes] for each in options] == [[True], [False]]
    assert bench.feed.is_caught_up
    assert bench.counts.unfinished == 0


def test_records_keep_their_offsets_where_others_of_the_transaction_are_gone(
    bench: _Bench,
) -> None:
    bench.put(1, 1, "a")
    bench.put(2, 2, "a")
    bench.put(2, 3, "a")
    bench.end("a", 3)
    (only,) = bench.poll()
    assert [item.offset for item in only.changes] == [
        ShapeOffset(1, 0),
        ShapeOffset(1, 2),
        ShapeOffset(1, 4),
    ]
    bench.source.compact(0)
    bench.crash()
    (again,) = bench.poll()
    assert [item.offset for item in again.changes] == [ShapeOffset(1, 0), ShapeOffset(1, 4)]


def test_ends_that_came_before_a_checkpoint_are_known_after_it(bench: _Bench) -> None:
    bench.put(1, 1, "a")
    bench.end("a", 2)
    assert bench.poll() == []
    bench.feed.checkpoint(bench.feed.mark())
    bench.crash()
    bench.put(2, 2, "a")
    assert _numbers(bench.poll()) == [[1, 2]]


def test_a_transaction_whose_end_stays_away_is_given_in_the_end(bench: _Bench) -> None:
    bench.put(1, 1, "a")
    assert bench.poll() == []
    bench.clock.advance(5_000)
    assert _numbers(bench.poll()) == [[1]]
    assert bench.counts.unfinished == 1


def test_parts_whose_end_stays_away_do_not_wait_for_each_other(tmp_path: Path) -> None:
    bench = _Bench(tmp_path, partitions=3)
    for number in range(3):
        bench.put(number, number, "a", partition=number)
    assert bench.poll() == []
    bench.clock.advance(5_000)
    assert sorted(_numbers(bench.poll())) == [[0], [1], [2]]
    assert bench.counts.unfinished == 3
    bench.feed.close()


def test_a_transaction_that_is_too_large_is_given_in_parts(tmp_path: Path) -> None:
    bench = _Bench(tmp_path, partitions=2, bytes_max=2_000)
    bench.begin("a")
    bench.begin("b")
    bench.put(0, 0, "a", partition=1)
    for number in range(1, 11):
        bench.put(number, number, "b")
    assert bench.poll() == []
    for number in range(11, 21):
        bench.put(number, number, "b")
    (large,) = bench.poll()
    # The small one of the other partition is not what memory is needed for.
    assert {change.key_columns["id"] for change in large.changes}.isdisjoint({b"0"})
    assert 10 < len(large.changes) <= 20
    assert bench.counts.unfinished == 1
    bench.feed.close()


def test_entries_that_are_held_are_looked_at_once() -> None:
    class Buffer(PartitionBuffer):
        held: ClassVar[list[Any]] = []

        def peek(self, count: int | None = None) -> Sequence[Entry]:
            return self.held

    gate = SourceTransactions(
        MemoryTopic("db.transaction"), "db.public.items", FeedCounts(), ManualClock()
    )
    gate.open(0)
    buffer = Buffer(0, DebeziumDecoder())

    def hold(offset: int) -> None:
        reported = SourceTransaction("a", offset + 1, offset + 1)
        buffer.held.append((offset, 0, 10, Decoded(RecordKind.UPSERT, transaction=reported)))

    for offset in range(10):
        hold(offset)
    assert gate.ready_count(buffer, 1) == 0
    buffer.held[:10] = [None] * 10
    hold(10)
    assert gate.ready_count(buffer, 1) == 0


def test_events_of_postgres_belong_together_by_the_number_before_the_colon(bench: _Bench) -> None:
    bench.put(1, 1, "733:22234624")
    bench.put(2, 2, "733:22241720")
    bench.put(3, 3, "734:22242120")
    assert _numbers(bench.poll()) == [[1, 2]]
    bench.end("734:22242936", 1)
    assert _numbers(bench.poll()) == [[3]]
    assert bench.counts.unfinished == 0


def test_records_that_were_told_twice_make_no_transaction_whole(bench: _Bench) -> None:
    bench.put(1, 1, "a")
    bench.put(2, 2, "a")
    bench.tell_again("a")
    bench.put(1, 1, "a")
    bench.end("a", 3)
    assert bench.poll() == []
    bench.put(2, 2, "a")
    bench.put(3, 3, "a")
    assert _numbers(bench.poll()) == [[1, 2, 3]]
    assert bench.counts.unfinished == 0


def test_the_topic_of_transactions_may_come_later(bench: _Bench) -> None:
    bench.ends.is_missing = True
    bench.crash()
    bench.put(1, 1, None)
    assert _numbers(bench.poll()) == [[1]]
    bench.put(2, 2, "a")
    bench.end("a", 1)
    assert bench.poll() == []
    bench.ends.is_missing = False
    bench.clock.advance(1_000)
    assert _numbers(bench.poll()) == [[2]]
    assert bench.counts.unfinished == 0


def test_ends_that_nobody_waits_for_are_forgotten(bench: _Bench) -> None:
    bench.put(1, 1, "a")
    bench.put(2, 2, "b")
    bench.poll()
    bench.end("a", 1)
    bench.end("b", 1)
    bench.poll()
    assert bench.gate.position == 0
    bench.clock.advance(60_000)
    bench.poll()
    assert bench.gate.position == 2


def test_a_collection_is_known_by_what_a_topic_may_be_called() -> None:
    counts = FeedCounts()
    ends = MemoryTopic("db.transaction")
    gate = SourceTransactions(ends, "db.public.my_items", counts, ManualClock())
    gate.open(0)
    reported = [{"data_collection": "public.my items", "event_count": 1}]
    value = {"status": "END", "id": "a", "data_collections": reported}
    ends.append(0, b"{}", json.dumps(value).encode())
    ends.append(0, b"{}", json.dumps({**value, "id": "b", "data_collections": []}).encode())
    gate.poll()
    assert gate.position == 0


def test_a_new_table_does_not_begin_within_a_transaction(bench: _Bench) -> None:
    bench.put(1, 1, None)
    bench.put(2, 2, "a")
    bench.put(3, 3, "a")
    bench.put(1, 4, "b")
    bench.put(2, 4, "b")
    bench.begin_anew()
    assert bench.rows() == {1: 1, 2: 2, 3: 3}
    assert bench.poll() == []
    bench.put(3, 4, "b")
    bench.end("b", 3)
    assert _numbers(bench.poll()) == [[4, 4, 4]]
    assert bench.counts.unfinished == 0


def test_a_connector_that_is_away_within_a_transaction_is_waited_for(bench: _Bench) -> None:
    bench.begin("7:1")
    bench.put(1, 1, "7:1")
    assert bench.poll() == []
    bench.feed.checkpoint(bench.feed.mark())
    bench.clock.advance(100_000)
    assert bench.poll() == []
    bench.crash()
    assert bench.poll() == []
    bench.clock.advance(100_000)
    assert bench.poll() == []
    bench.put(2, 2, "7:5")
    bench.end("7:9", 2)
    assert _numbers(bench.poll()) == [[1, 2]]
    assert bench.counts.unfinished == 0
    assert bench.gate.position == 2
    bench.begin("8:1")
    bench.put(1, 3, "8:1")
    assert bench.poll() == []
    bench.clock.advance(300_000)
    assert _numbers(bench.poll()) == [[3]]


class _Source(MemoryTopic):
    """Has nothing to say at times."""

    silences = 0

    def put(self, transaction: str | None, op: str = "c") -> None:
        mark = {"id": transaction, "total_order": 1, "data_collection_order": 1}
        value = {"op": op, "after": {"id": 1}, "transaction": mark if transaction else None}
        self.append(0, b'{"id":1}', json.dumps(value).encode())

    def fetch(
        self, positions: Mapping[int, Position], *, max_bytes: int, wait_ms: int
    ) -> Mapping[int, CommittedBatches]:
        if self.silences:
            self.silences -= 1
            return {}
        return super().fetch(positions, max_bytes=max_bytes, wait_ms=wait_ms)

    def find(self, start: int = 0) -> int:
        return find_boundary(self, DebeziumDecoder(), 0, start, self.ends[0])


@pytest.fixture
def source() -> _Source:
    return _Source("db.public.items", batch_records=400)


@pytest.mark.parametrize("tail", [1, 1_500])
def test_where_the_last_transaction_begins(source: _Source, tail: int) -> None:
    assert source.find() == 0
    source.put(None)
    assert source.find() == 1
    source.put("a")
    for _ in range(tail):
        source.put("b")
    assert source.find() == 2
    assert source.find(start=2) == 2
    source.put(None)
    assert source.find() == 3 + tail


def test_a_tombstone_whose_delete_was_not_read_begins_no_transaction(source: _Source) -> None:
    source.put("a")
    source.put("b", op="d")
    source.append(0, b'{"id":1}', None)
    for _ in range(999):  # the tombstone is the first of the thousand that are read at first
        source.put("b")
    assert source.find() == 1


def test_a_source_that_is_silent_for_a_while_is_not_at_its_end(source: _Source) -> None:
    for name in ("a", "a", "b"):
        source.put(name)
    source.silences = 3
    assert source.find() == 2
    source.silences = 1_000
    with pytest.raises(Unavailable, match="returns nothing at offset 0"):
        source.find()
