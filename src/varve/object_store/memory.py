"""Objects in the memory of this process, for tests and trials; gone with it."""

from typing import Final

from obstore.store import MemoryStore

from varve.foundation.clock import Clock, SystemClock
from varve.object_store.obstore_store import ObstoreObjectStore

_PART_BYTES: Final = 8 << 20


class MemoryObjectStore(ObstoreObjectStore):
    """An ObjectStore in memory; each is empty at first and shares nothing with others."""

    def __init__(self, name: str = "memory:", *, clock: Clock | None = None) -> None:
        client = MemoryStore()
        super().__init__(name, client, client, part_bytes=_PART_BYTES, clock=clock or SystemClock())
