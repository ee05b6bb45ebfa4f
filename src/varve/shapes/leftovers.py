"""What is no shape's any more: directories in the trash, and those that a crash left.

Invariant  a shape is in the catalog before its directory is made; so a directory whose handle is
           not there is a leftover.
Crash      what is not removed is found again.
Threads    any may discard; one runs the rounds. `_lock` guards what is owed.
"""

import logging
import threading
from typing import Final

from varve.disk import FileSystem
from varve.shapes.catalog import Catalog
from varve.shapes.storage.layout import list_handles
from varve.shapes.storage.trash import empty_trash, move_to_trash

logger = logging.getLogger(__name__)

REMOVED_TOGETHER: Final = 20
"""Directories that are removed before it is looked whether the engine stops."""
_TIMES_MAX: Final = 500
"""How often that is done in a round."""


class Leftovers:
    """Removes files that nobody needs; directories are listed once, at the first round."""

    def __init__(self, fs: FileSystem, root: str, catalog: Catalog) -> None:
        self._fs = fs
        self._root = root
        self._catalog = catalog
        self._is_swept = False
        self._is_ended = False
        self._lock = threading.Lock()
        self._owed: set[str] = set()  # guarded by _lock; their directories are to be moved yet

    def discard(self, handle: str) -> None:
        """Moves a shape's directory to the trash, later if the disk does not let it."""
        try:
            # One that is not there is fine.
            move_to_trash(self._fs, self._root, handle)
        except OSError as error:
            self.postpone(handle, error)

    def postpone(self, handle: str, error: OSError) -> None:
        """Notes that a directory could not be moved; the next rounds try again."""
        logger.warning(
            "directory of a dropped shape stays for now", exc_info=error, extra={"handle": handle}
        )
        with self._lock:
            self._owed.add(handle)

    def owes(self, handle: str) -> bool:
        """Whether the directory of a dropped shape is still in its place."""
        return handle in self._owed

    def run_once(self) -> None:
        if not self._is_swept:
            self._sweep()
            self._is_swept = True
        for handle in list(self._owed):
            move_to_trash(self._fs, self._root, handle)
            with self._lock:
                self._owed.remove(handle)
        for _ in range(_TIMES_MAX):
            if not empty_trash(self._fs, self._root, count_max=REMOVED_TOGETHER) or self._is_ended:
                return

    def end(self) -> None:
        """Lets a round end soon: what is left is for the next start."""
        self._is_ended = True

    def _sweep(self) -> None:
        for handle in list_handles(self._fs, self._root):
            if self._catalog.find(handle) is None:
                logger.info("directory of no shape is removed", extra={"handle": handle})
                self.discard(handle)
