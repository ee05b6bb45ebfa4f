"""The directories of new partitions, made many at a time.

Layout     `<topic>-<partition>/partition.metadata`; docs/formats/directory.md
Invariant  a topic id stands in its file whole or not at all: its bytes are on disk before it has
           its name.
Crash      until `sync` has returned any of it may be missing, a directory, its topic id or its
           name; making them again puts right what is there.
Threads    one making at a time; the disk is waited for by several threads, so that what they ask
           of it reaches it together.
"""

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar
from uuid import UUID

from varve.commit_log.directory_files import encode_partition_metadata
from varve.commit_log.names import PARTITION_METADATA_FILE
from varve.disk import TEMPORARY_SUFFIX, File, FileSystem

T = TypeVar("T")

_FEW: Final = 4
"""So many are synced in turn, without threads."""
_SYNC_THREADS: Final = 8


class PartitionMaking:
    """The making of some partitions' directories, below one log directory."""

    def __init__(self, fs: FileSystem, parent: str, directories: Sequence[str]) -> None:
        self._fs = fs
        self._parent = parent
        self._directories = directories
        self._new = {directory for directory in directories if not fs.exists(directory)}

    def write(self, topic_id: UUID) -> None:
        """Makes the directories, each with the topic's id in it."""
        data = encode_partition_metadata(topic_id)
        paths = [f"{one}/{PARTITION_METADATA_FILE}" for one in self._directories]
        with contextlib.ExitStack() as stack:
            files = []
            for directory, path in zip(self._directories, paths, strict=True):
                self._fs.make_directory(directory)
                files.append(stack.enter_context(self._write_aside(path, data)))
            _for_each(lambda file: file.sync(), files)
        for path in paths:
            self._fs.rename(path + TEMPORARY_SUFFIX, path)

    def _write_aside(self, path: str, data: bytes) -> File:
        file = self._fs.open_writable(path + TEMPORARY_SUFFIX)
        try:
            if file.size():
                file.truncate(0)
            file.write_at(0, data)
        except BaseException:
            file.close()
            raise
        return file

    def sync(self) -> None:
        """Brings the directories and all names in them to the disk."""
        _for_each(self._fs.sync_directory, self._directories)
        self._fs.sync_directory(self._parent)

    def undo(self) -> None:
        """Removes the directories that were made, as far as the disk lets it.

        Another log directory may take a partition: it must not stand in both.
        """
        for directory in self._directories:
            with contextlib.suppress(OSError):
                if directory in self._new:
                    self._fs.remove_tree(directory)
                else:
                    self._fs.remove(f"{directory}/{PARTITION_METADATA_FILE}{TEMPORARY_SUFFIX}")


def _for_each(work: Callable[[T], None], items: Sequence[T]) -> None:
    if len(items) <= _FEW:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(_SYNC_THREADS, "varve-make") as pool:
        for _ in pool.map(work, items):
            pass
