"""What a source says to all rows at once: shapes begin anew, once, and with whole transactions.

A row that gets another key keeps what its source leaves out: Debezium's delete and create.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.feed_bench import BenchMaker, FeedBench, build_feed, row_key_of, short
from tests.support.memory_topic import MemoryTopic
from tests.support.shape_engine import Follower, StageMaker
from varve.foundation.errors import Unavailable
from varve.shapes.feed.decoders import (
    UNAVAILABLE,
    DebeziumDecoder,
    Decoded,
    PlainDecoder,
    Record,
    RecordKind,
)
from varve.shapes.feed.source_transactions import SourceTransactions
from varve.shapes.feed.table_store import ResetKind, TableStore
from varve.shapes.feed.topic_feed import TopicFeed
from varve.shapes.shape import DropReason


class _OpenGate:
    """Takes all that there is as complete."""

    position = 0

    def open(self, position: int) -> None:
        pass

    def poll(self) -> None:
        pass

    def ready_count(self, buffer: Any, count: int) -> int:
        return len(buffer.peek())

    def remove(self, buffer: Any, entries: Any) -> None:
        pass

    def close(self) -> None:
        pass


def _envelope(operation: str, n: int | None, transaction: str | None) -> bytes:
    mark = {"id": transaction, "total_order": 1, "data_collection_order": 1}
    reported = {"op": operation, "transaction": None if transaction is None else mark}
    return json.dumps(reported | {"after": None if n is None else {"n": n}}).encode()


def _gate(bench: FeedBench) -> SourceTransactions:
    return cast(SourceTransactions, _OpenGate())


def test_a_reset_takes_the_rest_of_its_transaction_with_it(make_bench: BenchMaker) -> None:
    bench = make_bench(decoder=DebeziumDecoder(), make_grouping=_gate)
    bench.open()
    for key, operation, n, transaction in [
        ("a", "c", 1, "t1"),
        ("x", "t", None, "t2"),
        ("b", "c", 2, "t2"),
        ("x", "t", None, "t2"),
        ("c", "c", 3, "t2"),
        ("d", "c", 4, "t3"),
    ]:
        bench.topic.append(key=key.encode(), value=_envelope(operation, n, transaction))
    options = bench.poll()
    assert [len(item.changes) for item in options] == [1, 0]
    assert options[-1].reset is not None
    assert options[-1].reset.kind is ResetKind.TRUNCATED
    assert bench.rows().keys() == {row_key_of("c")}
    assert bench.feed.position.tx == 5
    assert [item.offset.tx for item in bench.changes()] == [6]
    assert bench.feed.counts.records == 6
    assert bench.rows().keys() == {row_key_of("c"), row_key_of("d")}


def test_a_reset_that_is_read_again_leaves_the_shapes_that_began_behind_it(
    make_stage: StageMaker,
) -> None:
    stage = make_stage(None, decoder=DebeziumDecoder())
    topic = stage.store.create_topic("t")
    topic.append(key=b"a", value=_envelope("c", 1, None))
    early = stage.create("t")
    topic.append(key=b"x", value=_envelope("t", None, None))
    topic.append(key=b"b", value=_envelope("c", 2, None))
    stage.engine.run_turn("t")
    assert early.drop_reason is DropReason.TRUNCATED
    late = Follower(stage, "t")
    assert late.catch_up() == {"b": {"key": "b", "n": 2}}
    stage.crash()
    topic.append(key=b"c", value=_envelope("c", 3, None))
    assert late.catch_up().keys() == {"b", "c"}
    assert late.refetches == 0


def test_a_table_that_cannot_be_read_for_a_while_takes_no_doubt_away(
    make_bench: BenchMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench(settings={"cleanup.policy": "compact"})
    bench.open()
    for number in range(3):
        bench.put("a", {"n": number})
    bench.poll_all()
    bench.store.clean("orders", roll=True, at_once=True)
    bench.crash()

    def fail(store: TableStore, keys: list[str]) -> list[bytes | None]:
        raise Unavailable("the disk")

    with monkeypatch.context() as patched:
        patched.setattr(TableStore, "get_rows", fail)
        with pytest.raises(Unavailable):
            bench.poll()
    assert [item.is_uncertain for item in bench.changes()] == [True]


class _Marked:
    """Plain records, but that a key tells of truncations and of other schemas."""

    def decode_many(self, records: Sequence[Record]) -> list[Decoded]:
        plain = PlainDecoder().decode_many(records)
        kinds = {b"truncate": RecordKind.TRUNCATE, b"schema": RecordKind.SCHEMA_CHANGE}
        return [
            Decoded(kinds[key]) if key in kinds else item
            for (key, _), item in zip(records, plain, strict=True)
        ]


def test_a_truncation_resets_and_empties_the_table(make_bench: BenchMaker) -> None:
    bench = make_bench(decoder=_Marked())
    bench.put("a", {"n": 1})
    bench.open()
    bench.put("b", {"n": 1})
    bench.put("truncate", {"n": 1})
    bench.put("a", {"n": 2})
    options = bench.poll()
    assert [item.reset and item.reset.kind for item in options] == [None, ResetKind.TRUNCATED]
    assert bench.rows() == {}
    assert bench.feed.is_open
    assert [short(item) for item in bench.changes()] == [("a", b"2", None)]
    bench.feed.checkpoint(bench.feed.mark())
    bench.crash()
    assert bench.rows().keys() == {row_key_of("a")}


def test_a_partition_that_comes_between_two_resets_makes_no_table_anew(
    make_bench: BenchMaker,
) -> None:
    bench = make_bench(decoder=_Marked())
    bench.open()
    for key in ("a", "truncate", "b", "truncate", "c"):
        bench.put(key, {"n": 1})
    assert bench.poll()[-1].reset is not None
    bench.store.add_partitions("orders", 2)
    bench.clock.advance(30_000)
    assert bench.poll()[-1].reset is not None
    bench.feed.checkpoint(bench.feed.mark())
    bench.put("d", {"n": 1}, partition=1)
    options = bench.changes()
    assert [short(item)[0] for item in options] == ["c", "d"]
    assert bench.crash() is None
    assert bench.changes() == options


def test_another_schema_resets_and_keeps_the_rows(make_bench: BenchMaker) -> None:
    bench = make_bench(decoder=_Marked())
    bench.put("a", {"n": 1})
    bench.open()
    bench.put("schema", {"n": 1})
    bench.put("a", {"n": 2})
    assert [item.reset and item.reset.kind for item in bench.poll()] == [ResetKind.SCHEMA_CHANGED]
    assert bench.rows().keys() == {row_key_of("a")}
    assert [short(item) for item in bench.changes()] == [("a", b"2", b"1")]


Rows = dict[int, dict[str, Any]]


class _Table:
    """What a source does, as Debezium writes it."""

    def __init__(self, batch_records: int) -> None:
        self.source = MemoryTopic("db.public.items", batch_records=batch_records)

    def put(self, id: int, operation: str = "c", **columns: Any) -> None:
        self._tell(id, {"after": {"id": id, **columns}, "op": operation})

    def delete(self, id: int) -> None:
        self._tell(id, {"before": {"id": id}, "after": None, "op": "d"})
        self.source.append(0, _key(id), None)

    def move(self, old: int, new: int, **columns: Any) -> None:
        self.delete(old)
        self.put(new, **columns, large=UNAVAILABLE)

    def _tell(self, id: int, envelope: dict[str, Any]) -> None:
        self.source.append(0, _key(id), json.dumps(envelope).encode())

    def feed(self, path: Path) -> TopicFeed:
        return build_feed(self.source, path, decoder=DebeziumDecoder())


def _key(id: int) -> bytes:
    return json.dumps({"id": id}).encode()


def _rows(feed: TopicFeed) -> Rows:
    with feed.view() as view:
        result = [{name: json.loads(item) for name, item in row.items()} for _, row in view.rows()]
    return {row["id"]: row for row in result}


def _happen(table: _Table) -> Rows:
    """Moves of every kind, and what they come to."""
    for id in range(1, 6):
        table.put(id, "r", n=0, large=f"large {id}")
    table.move(1, 11, n=1)
    table.move(2, 12, n=1)
    table.move(12, 13, n=2)
    # Told once more by a connector that was killed: nothing is taken from others.
    table.delete(3)
    table.move(1, 11, n=1)
    table.put(4, "u", n=7, large=UNAVAILABLE)
    table.delete(5)
    # An update of a row of which nothing is known takes nothing from a row that went.
    table.put(50, "u", n=8, large=UNAVAILABLE)
    return {
        4: {"id": 4, "n": 7, "large": "large 4"},
        11: {"id": 11, "n": 1, "large": "large 1"},
        13: {"id": 13, "n": 2, "large": "large 2"},
        50: {"id": 50, "n": 8},
    }


@pytest.mark.parametrize("batch_records", [1, 2, 100])
def test_a_feed_completes_rows_that_have_moved(batch_records: int, tmp_path: Path) -> None:
    table = _Table(batch_records)
    feed = table.feed(tmp_path)
    feed.open()
    expected = _happen(table)
    while feed.poll(max_records=batch_records, wait_ms=0) or not feed.is_caught_up:
        pass
    assert _rows(feed) == expected
    feed.close()


@pytest.mark.parametrize("batch_records", [1, 2, 100])
def test_a_filling_completes_rows_that_have_moved(batch_records: int, tmp_path: Path) -> None:
    table = _Table(batch_records)
    expected = _happen(table)
    feed = table.feed(tmp_path)
    feed.open()
    assert _rows(feed) == expected
    feed.close()
