"""A file system that lets a repair lose only the data it has announced.

Invariant  a data file is cut, renamed away or removed only from a position on that was allowed
           before, or where nothing but zeros goes; everything else passes through.
"""

from collections.abc import Mapping, Sequence

from varve.commit_log.names import DELETED, LOG
from varve.disk import Buffer, File, FileInfo, FileSystem, Lock, sync_each
from varve.foundation.errors import PolicyViolation


class GuardedFileSystem:
    """Wraps a file system; `losses` maps data files to the position they may be cut at."""

    def __init__(self, fs: FileSystem, losses: Mapping[str, int]) -> None:
        self._fs = fs
        self._losses = losses

    def open_writable(self, path: str) -> File:
        file = self._fs.open_writable(path)
        return _GuardedFile(file, self) if path.endswith(LOG) else file

    def open_private(self, path: str) -> File:
        return self._fs.open_private(path)

    def rename(self, source: str, target: str) -> None:
        if source.endswith(LOG) and target == source + DELETED:
            self.check_cut(source, 0)
        self._fs.rename(source, target)

    def check_cut(self, path: str, position: int) -> None:
        """Raises PolicyViolation when bytes would go that nobody has agreed to lose."""
        allowed = self._losses.get(path)
        if allowed is not None and position >= allowed:
            return
        with self._fs.open(path) as file:
            lost = file.size() - position
            if lost > 0 and file.read_at(position, lost).count(0) < lost:
                raise PolicyViolation(
                    f"{path}: {lost} bytes from position {position} on would be lost, which the "
                    "check did not announce; nothing was cut"
                )

    def open(self, path: str) -> File:
        return self._fs.open(path)

    def scan(self, path: str) -> list[FileInfo]:
        return self._fs.scan(path)

    def names(self, path: str) -> list[str]:
        return self._fs.names(path)

    def info(self, path: str) -> FileInfo:
        return self._fs.info(path)

    def exists(self, path: str) -> bool:
        return self._fs.exists(path)

    def read(self, path: str) -> bytes:
        return self._fs.read(path)

    def remove(self, path: str) -> None:
        self._fs.remove(path)

    def remove_tree(self, path: str) -> None:
        self._fs.remove_tree(path)

    def make_directory(self, path: str) -> None:
        self._fs.make_directory(path)

    def sync_directory(self, path: str) -> None:
        self._fs.sync_directory(path)

    def sync_files(self, files: Sequence[File]) -> list[OSError | None]:
        return sync_each(files)

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        self._fs.set_modified_ms(path, modified_ms)

    def lock(self, path: str) -> Lock:
        return self._fs.lock(path)


class _GuardedFile:
    """A data file open for writing."""

    def __init__(self, file: File, guard: GuardedFileSystem) -> None:
        self._file = file
        self._guard = guard
        self.path = file.path

    def truncate(self, size: int) -> None:
        if size < self._file.size():
            self._guard.check_cut(self.path, size)
        self._file.truncate(size)

    def write_at(self, position: int, *buffers: Buffer) -> None:
        self._file.write_at(position, *buffers)

    def read_at(self, position: int, size: int) -> bytes:
        return self._file.read_at(position, size)

    def read_into(self, position: int, buffer: memoryview) -> int:
        return self._file.read_into(position, buffer)

    def size(self) -> int:
        return self._file.size()

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "_GuardedFile":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
