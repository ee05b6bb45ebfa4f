"""Ranges are views of what obstore received, not copies of it."""

import obstore

from varve.object_store import MemoryObjectStore


def test_a_range_is_a_view_of_what_was_received() -> None:
    store = MemoryObjectStore()
    store.put("a", bytes(100))
    assert isinstance(store.get_range("a", 10, 20).obj, obstore.Bytes)


def test_near_ranges_are_views_of_one_answer() -> None:
    store = MemoryObjectStore()
    store.put("a", bytes(range(100)))
    first, second = store.get_ranges("a", [(10, 20), (40, 50)])
    assert first.obj is second.obj
    assert first.readonly
