"""The key index of one segment as a run uses it: opened for each use, so that many cost no files.

Invariant  every opening finds the index that the first one did; another raises FileNotFoundError,
           as for a segment that left the log.
"""

from varve.cleaning.input_segment import FileOpener
from varve.cleaning.key_index import KeyIndex, KeyIndexHeader


class SegmentKeys:
    """What is known of a key index without holding it open."""

    __slots__ = ("_fs", "header", "path")

    def __init__(self, fs: FileOpener, path: str, header: KeyIndexHeader) -> None:
        self._fs = fs
        self.path = path
        self.header = header

    @property
    def base_offset(self) -> int:
        return self.header.base_offset

    @property
    def entry_count(self) -> int:
        return self.header.entry_count

    @property
    def record_count(self) -> int:
        return self.header.record_count

    def open(self) -> KeyIndex:
        file = self._fs.open(self.path)
        try:
            index = KeyIndex(file)
            if index.header != self.header:
                raise FileNotFoundError(2, "replaced meanwhile", self.path)
        except BaseException:
            file.close()
            raise
        return index
