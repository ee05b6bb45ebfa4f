"""A closed segment: a data file that no longer grows, with its indexes.

Layout     `<base offset>.log .index .timeindex` and, when needed, `.txnindex .keys .snapshot`.
           docs/formats/segment-and-indexes.md
Invariant  base offset and size never change; truncation and cleaning make a new object.
Threads    any; carries no lock and holds no file open itself.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from varve.commit_log.names import DELETED, INDEX, KEYS, LOG, TIME_INDEX, TXN_INDEX, log_name
from varve.commit_log.offset_index import OffsetIndex
from varve.commit_log.segment_files import SegmentFiles
from varve.commit_log.time_index import TimeIndex
from varve.commit_log.txn_index import TransactionIndex
from varve.disk import File, FileSystem

SEGMENT_KINDS = (LOG, INDEX, TIME_INDEX, TXN_INDEX, KEYS)
_ALWAYS_THERE = (LOG, INDEX, TIME_INDEX)


class ReadableSegment(Protocol):
    """What reading needs of a segment, closed or active."""

    @property
    def base_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def max_timestamp_offset(self) -> int: ...
    def file(self) -> File: ...
    def offset_index(self) -> OffsetIndex: ...
    def time_index(self) -> TimeIndex: ...
    def txn_index(self) -> TransactionIndex: ...
    def path(self, kind: str) -> str: ...


class Segment:
    """A closed segment."""

    __slots__ = ("_files", "_newest", "base_offset", "directory", "has_txn_index", "size")

    def __init__(
        self,
        files: SegmentFiles,
        directory: str,
        *,
        base_offset: int,
        size: int,
        has_txn_index: bool = False,
    ) -> None:
        self._files = files
        self.directory = directory
        self.base_offset = base_offset
        self.size = size
        self.has_txn_index = has_txn_index
        self._newest: tuple[int, int] | None = None

    def path(self, kind: str) -> str:
        return f"{self.directory}/{log_name(self.base_offset, kind)}"

    def file(self) -> File:
        return self._files.get(self).file

    def offset_index(self) -> OffsetIndex:
        return self._files.get(self).offset_index()

    def time_index(self) -> TimeIndex:
        return self._files.get(self).time_index()

    def txn_index(self) -> TransactionIndex:
        return self._files.get(self).txn_index()

    @property
    def max_timestamp(self) -> int:
        """Largest record timestamp; -1 when the segment has none."""
        return self._find_newest()[0]

    @property
    def max_timestamp_offset(self) -> int:
        """Last offset of the earliest batch that holds `max_timestamp`."""
        return self._find_newest()[1]

    def _find_newest(self) -> tuple[int, int]:
        if self._newest is None:
            self._newest = self.time_index().last
        return self._newest

    @property
    def kinds(self) -> Sequence[str]:
        """The files that recovery trusts: data, its two indexes and perhaps the aborted ones."""
        return (*_ALWAYS_THERE, TXN_INDEX) if self.has_txn_index else _ALWAYS_THERE

    def sync(self) -> None:
        """Brings its files to the disk."""
        sync_files(self._files.fs, self.path, self.kinds)

    def mark_deleted(self) -> None:
        """Renames the files aside; readers that hold them go on. The caller removes them later."""
        self._files.forget(self)
        rename_segment_files(self._files, self.directory, self.base_offset, "", DELETED)


def sync_files(fs: FileSystem, path: Callable[[str], str], kinds: Sequence[str]) -> None:
    for kind in kinds:
        with fs.open(path(kind)) as file:
            file.sync()


def rename_segment_files(
    files: SegmentFiles, directory: str, base_offset: int, old: str, new: str
) -> None:
    """Renames a segment's files from one state suffix to another, the data file first.

    Missing ones are passed over.
    """
    for kind in SEGMENT_KINDS:
        path = f"{directory}/{log_name(base_offset, kind)}"
        try:
            files.fs.rename(path + old, path + new)
        except FileNotFoundError:
            continue
