"""Ranges are views of what obstore received, not copies of it."""

import obstore

from varve.object_store import MemoryObjectStore


def test_a_range_is_a_view_of_what_was_received() -> None:
    store = MemoryObjectStore()
    store.put("a", bytes(100))
    assert isinstance(store.get_range("a", 10, 20).obj, obstore.Bytes)
