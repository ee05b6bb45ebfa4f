"""A copy of a store that follows its changelog, ready to take over.

Invariant  holds the state of the changelog before `offset`, by the same rules as a restore.
Crash      opens at its last checkpoint and goes on.
Threads    one thread at a time; `run_once` is given a thread by its owner.
"""

from typing import Final

from varve.foundation.errors import Closed
from varve.rocks.state_files import Checkpoint
from varve.windows.changelog import Changelog
from varve.windows.logged_store import open_or_wipe
from varve.windows.restore import RestoreProgress, restore
from varve.windows.segmented_store import SegmentedStore

STEP_COUNT: Final = 100_000


class Standby:
    """Follows while another store is written; `promote` ends that and gives its segments away."""

    def __init__(self, store: SegmentedStore, changelog: Changelog) -> None:
        self._store: SegmentedStore | None = store
        self._changelog = changelog
        self._offset = changelog.start_offset

    @property
    def offset(self) -> int:
        """Everything of the changelog before it is in the copy."""
        return self._offset

    @property
    def lag(self) -> int:
        return self._changelog.end_offset - self._offset

    def open(self) -> None:
        self._offset = open_or_wipe(self._get_store(), self._changelog)

    def run_once(self, count_max: int = STEP_COUNT) -> RestoreProgress:
        """Take over what is new in the changelog, about so many entries at most."""
        progress = restore(
            self._get_store(), self._changelog, start_offset=self._offset, count_max=count_max
        )
        self._offset = progress.offset
        return progress

    def checkpoint(self) -> Checkpoint:
        return self._get_store().checkpoint(self._offset)

    def promote(self) -> SegmentedStore:
        """Catch up, checkpoint and close: whoever opens the store next has nothing to restore."""
        while self.lag:
            self.run_once()
        store = self._get_store()
        self.checkpoint()
        self.close()
        return store

    def close(self) -> None:
        """Close the copy; closing twice is harmless."""
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _get_store(self) -> SegmentedStore:
        if self._store is None:
            raise Closed("the standby is closed, or was promoted: open another")
        return self._store
