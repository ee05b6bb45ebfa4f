"""A window store's writes without a changelog: what its directory loses is lost.

Crash      keeps what the last checkpoint or flush brought to the disk.
"""

import contextlib

from varve.foundation.errors import StoreError
from varve.rocks.state_files import Checkpoint, Source
from varve.windows.segmented_store import SegmentedStore

_NO_CHANGELOG_OFFSET = 0


class LocalStore:
    """Writes to the segments alone."""

    def __init__(self, store: SegmentedStore) -> None:
        self.store = store

    def open(self) -> None:
        """Raises `Corrupt` for a damaged store: nothing but a wipe helps, and all is lost then."""
        self.store.open()

    def put(
        self, key: bytes, value: bytes | None, time_ms: int, source: Source | None = None
    ) -> bool:
        return self.store.put(key, value, time_ms, source)

    def remove(self, key: bytes, time_ms: int) -> bool:
        return self.store.remove(key, time_ms)

    def flush(self) -> None:
        self.store.flush()

    def checkpoint(self) -> Checkpoint:
        return self.store.checkpoint(_NO_CHANGELOG_OFFSET)

    def close(self) -> None:
        if not self.store.segments.is_open:
            return
        try:
            self.checkpoint()
        except BaseException:
            with contextlib.suppress(StoreError):
                self.store.close()
            raise
        self.store.close()
