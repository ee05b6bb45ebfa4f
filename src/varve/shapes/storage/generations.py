"""Files that are no longer part of a shape stay until nobody can still look for them by name.

Invariant  a file retired in one generation is removed when every lease taken until then has ended.
           A reader takes its lease before it looks at what is published.
Crash      files that were not removed are found by recovery, as the manifest does not name them.
Threads    any; files are removed outside the lock.
"""

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from varve.disk import FileSystem

logger = logging.getLogger(__name__)


class Generations:
    """Leases, and the files that wait for them."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._lock = threading.Lock()
        self._current = 0  # guarded by _lock
        self._leases: Counter[int] = Counter()  # guarded by _lock
        self._retired: list[tuple[int, list[str]]] = []  # guarded by _lock

    @contextmanager
    def lease(self) -> Iterator[None]:
        """While it is held no file that was published at its beginning is removed."""
        with self._lock:
            generation = self._current
            self._leases[generation] += 1
        try:
            yield
        finally:
            self._give_back(generation)

    def retire(self, paths: list[str]) -> None:
        """Removes these files when no lease of now is left; what replaces them is published."""
        with self._lock:
            self._retired.append((self._current, paths))
            self._current += 1
            unused = self._take_unused_locked()
        self._remove(unused)

    def _give_back(self, generation: int) -> None:
        with self._lock:
            self._leases[generation] -= 1
            if not self._leases[generation]:
                del self._leases[generation]
            unused = self._take_unused_locked()
        self._remove(unused)

    def _take_unused_locked(self) -> list[str]:
        oldest = min(self._leases, default=self._current)
        unused = [path for number, paths in self._retired if number < oldest for path in paths]
        self._retired = [retired for retired in self._retired if retired[0] >= oldest]
        return unused

    def _remove(self, paths: list[str]) -> None:
        for path in paths:
            try:
                self._fs.remove(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                # The next recovery removes it; a reader must not fail for it.
                logger.warning("old file of a shape stays", extra={"path": path, "error": error})
