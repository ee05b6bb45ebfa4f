"""A row that gets another key keeps what its source leaves out: Debezium's delete and create."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.memory_topic import MemoryTopic
from varve.disk import RealFileSystem
from varve.foundation.clock import ManualClock
from varve.shapes.feed.decoders import UNAVAILABLE, DebeziumDecoder
from varve.shapes.feed.initial_load import FullScan
from varve.shapes.feed.topic_feed import TopicFeed

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
        return TopicFeed(
            self.source,
            DebeziumDecoder(),
            FullScan,
            directory=str(path),
            fs=RealFileSystem(),
            clock=ManualClock(),
            signature="debezium",
        )


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
