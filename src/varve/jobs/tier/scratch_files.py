"""Files that leave with the task that writes them: nothing of them has to reach the disk.

Crash      what a killed task leaves is never read.
"""

import os

from varve.disk import RealFileSystem
from varve.disk.real import RealFile


class ScratchFile(RealFile):
    """A file that is never synced: its task uploads what it holds, and ends."""

    __slots__ = ()

    def sync(self) -> None:
        return


class ScratchFileSystem(RealFileSystem):
    """The machine's file system without waiting for the disk."""

    def open_writable(self, path: str) -> ScratchFile:
        return ScratchFile(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))

    def sync_directory(self, path: str) -> None:
        return
