"""What is no shape's any more: directories in the trash, and those that a crash left.

Invariant  a shape is in the catalog before its directory is made; so a directory whose handle is
           not there is a leftover. One that cannot be moved or removed keeps no other one.
Crash      what is not removed is found again.
Threads    any may discard; one runs the rounds. `_lock` guards what is owed.
"""

import logging
import threading
from collections.abc import Collection, Iterable
from typing import Final

from varve.disk import FileSystem
from varve.shapes.catalog import Catalog
from varve.shapes.storage.layout import list_handles
from varve.shapes.storage.trash import discard_scratch, list_trash, move_to_trash, sync_place

logger = logging.getLogger(__name__)

REMOVED_MAX: Final = 10_000
"""Directories that one round removes from the trash: upkeep has more to do."""


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

    def begin(self, incomplete: Iterable[str]) -> None:
        """Discards what an earlier run has not finished; nobody uses the directory yet."""
        try:
            discard_scratch(self._fs, self._root)
        except OSError as error:
            logger.warning("scratch of compactions stays for now", exc_info=error)
        for handle in incomplete:
            self.discard(handle)

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
        self.owe([handle])

    def sync(self, handle: str) -> None:
        """Makes durable that a directory was moved, later if the disk does not let it."""
        try:
            sync_place(self._fs, self._root, handle)
        except OSError as error:
            self.postpone(handle, error)

    def owe(self, handles: Collection[str]) -> None:
        """Lets the next rounds move directories that are in their place still."""
        with self._lock:
            self._owed.update(handles)

    def owes(self, handle: str) -> bool:
        """Whether the directory of a dropped shape is still in its place, or may be so again."""
        return handle in self._owed

    def run_once(self) -> None:
        """Removes what it can; raises the first error of the disk behind all of that."""
        failures: list[OSError] = []
        for work in (self._sweep, self._move_owed, self._empty_trash):
            try:
                work(failures)
            except OSError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def end(self) -> None:
        """Lets a round end soon: what is left is for the next start."""
        self._is_ended = True

    def _sweep(self, failures: list[OSError]) -> None:
        if self._is_swept:
            return
        for handle in list_handles(self._fs, self._root):
            if self._catalog.find(handle) is None:
                logger.info("directory of no shape is removed", extra={"handle": handle})
                self.discard(handle)
        self._is_swept = True

    def _move_owed(self, failures: list[OSError]) -> None:
        for handle in list(self._owed):
            try:
                move_to_trash(self._fs, self._root, handle)
                sync_place(self._fs, self._root, handle)
            except OSError as error:
                failures.append(error)
                continue
            with self._lock:
                self._owed.remove(handle)

    def _empty_trash(self, failures: list[OSError]) -> None:
        removed = 0
        for path in list_trash(self._fs, self._root):
            if self._is_ended or removed == REMOVED_MAX:
                return
            try:
                self._fs.remove_tree(path)
                removed += 1
            except OSError as error:
                failures.append(error)
