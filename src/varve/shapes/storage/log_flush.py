"""Flushes of logs, one or many in one go.

Invariant  a pointer is written once its log is synced, and a flush is done once the pointer is. One
           that fails holds up no other.
"""

from collections.abc import Sequence

from varve.disk import File, FileSystem
from varve.shapes.offset import Offset
from varve.shapes.storage.log_writer import SyncWork
from varve.shapes.storage.pointer import Pointer


class LogFlush:
    """One log on its way to be durable up to a place."""

    __slots__ = ("_directory", "_fs", "_pointer", "error", "files", "is_done", "place")

    def __init__(self, fs: FileSystem, work: SyncWork, pointer: Pointer, place: Offset) -> None:
        self.place = place
        self.files: list[File] = work.files
        """To be synced before the next step."""
        self.error: OSError | None = None
        self.is_done = False
        self._directory = work.directory
        self._fs = fs
        self._pointer = pointer

    def point(self) -> None:
        """Writes the pointer behind a log that is synced. Raises OSError."""
        self.close()
        if self._directory is not None:
            self._fs.sync_directory(self._directory)
        if self.place != self._pointer.offset:
            self.files = [self._pointer.write(self.place)]

    def close(self) -> None:
        """Gives the files back."""
        files, self.files = self.files, []
        for file in files:
            file.close()


def run_flushes(fs: FileSystem, flushes: Sequence[LogFlush]) -> None:
    """Brings flushes to their end; each is done then, or has an error."""
    _sync(fs, flushes)
    for flush in flushes:
        if flush.error is None:
            try:
                flush.point()
            except OSError as error:
                flush.error = error
    _sync(fs, flushes)
    for flush in flushes:
        flush.close()
        flush.is_done = flush.error is None


def _sync(fs: FileSystem, flushes: Sequence[LogFlush]) -> None:
    waiting = [(flush, file) for flush in flushes if flush.error is None for file in flush.files]
    errors = fs.sync_files([file for _, file in waiting])
    for (flush, _), error in zip(waiting, errors, strict=True):
        flush.error = flush.error or error
