"""What is counted and what it costs."""

import pytest

from varve.foundation.errors import ObjectNotFound
from varve.foundation.metrics import exposition
from varve.object_store import (
    MemoryObjectStore,
    MeteredObjectStore,
    PriceTable,
    RequestKind,
    default_prices,
)
from varve.object_store.metering import AZURE_HOT, FREE, GCS_STANDARD, S3_STANDARD

PRICES = PriceTable(
    name="test",
    as_of="2000-01",
    write_per_1000=1000.0,
    read_per_1000=10.0,
    list_per_1000=1.0,
    delete_per_1000=0.0,
    stored_per_gib_month=2.0,
    read_per_gib=float(1 << 30),
)


class Ticks:
    """A timer that moves by a second whenever it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def _store() -> MeteredObjectStore:
    return MeteredObjectStore(MemoryObjectStore(), prices=PRICES, part_bytes=10, timer=Ticks())


def test_requests_bytes_and_seconds_are_counted() -> None:
    store = _store()
    store.put("a", b"12345")
    store.create("b", b"123")
    store.put_parts("c", [bytes(35)], size=35)
    store.put_parts("d", [bytes(10)], size=10)
    store.get("a")
    store.get_range("a", 1, 3)
    store.get_range("a", 3, 3)
    store.head("a")
    list(store.list(""))
    store.list_directories("")
    store.delete(["a", "b"])
    usage = store.usage()
    assert usage.requests == {
        RequestKind.WRITE: 1 + 1 + 6 + 1,
        RequestKind.READ: 1 + 1 + 0 + 1,
        RequestKind.LIST: 1 + 1,
        RequestKind.DELETE: 1,
    }
    assert usage.written_bytes == 5 + 3 + 35 + 10
    assert usage.read_bytes == 5 + 2
    assert usage.errors == 0
    assert usage.seconds == 10 + 5  # a list is timed object by object, and at its end
    assert usage.cost == pytest.approx(9 * 1.0 + 3 * 0.01 + 2 * 0.001 + 7)
    assert usage.prices is PRICES


def test_errors_are_counted_and_cost_their_request() -> None:
    store = _store()
    with pytest.raises(ObjectNotFound):
        store.get("missing")
    usage = store.usage()
    assert (usage.errors, usage.requests[RequestKind.READ]) == (1, 1)
    text = exposition(store.table)
    assert 'error="ObjectNotFound",operation="get",store="memory:"} 1.0' in text


def test_a_list_costs_a_request_per_thousand_objects() -> None:
    store = _store()
    for number in range(2001):
        store.put(f"{number}", b"")
    found = store.list("")
    next(found)
    assert store.usage().requests[RequestKind.LIST] == 1
    assert len(list(found)) == 2000
    assert store.usage().requests[RequestKind.LIST] == 3
    store.delete([f"{number}" for number in range(2001)])
    assert store.usage().requests[RequestKind.DELETE] == 3


def test_prices_are_found_by_the_stores_scheme() -> None:
    assert default_prices("s3://bucket") is S3_STANDARD
    assert default_prices("gs://bucket") is GCS_STANDARD
    assert default_prices("az://container") is AZURE_HOT
    assert default_prices("file:///data") is default_prices("memory:") is FREE
