"""Up to where a new table is loaded: no source transaction lies across.

Carries S2.
"""

import json
from collections.abc import Mapping

import pytest

from tests.support.memory_topic import MemoryTopic
from varve.foundation.errors import Unavailable
from varve.records import CommittedBatches
from varve.shapes.feed.decoders import DebeziumDecoder
from varve.shapes.feed.initial_load import find_boundary
from varve.topics import Position


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
