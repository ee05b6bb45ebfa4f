"""Real files that need not be durable while a measure is prepared."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from varve.disk import RealFileSystem
from varve.disk.real import RealFile


class _UnsyncedFile(RealFile):
    __slots__ = ()

    def sync(self) -> None:
        """Nobody asks for what it holds after a crash."""


class BenchmarkFileSystem(RealFileSystem):
    """Syncs as the real one does, but for what is made within `unsynced`."""

    def __init__(self) -> None:
        self._is_synced = True

    @contextmanager
    def unsynced(self) -> Iterator[None]:
        """Ten thousand shapes would wait for the disk longer than all that is measured."""
        self._is_synced = False
        try:
            yield
        finally:
            self._is_synced = True

    def open_writable(self, path: str) -> RealFile:
        if self._is_synced:
            return super().open_writable(path)
        return _UnsyncedFile(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))

    def sync_directory(self, path: str) -> None:
        if self._is_synced:
            super().sync_directory(path)
