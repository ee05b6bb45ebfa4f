"""What a key index under construction cannot hold in memory, in one file beside it.

Layout     runs of sorted entries and pieces of tables, in the order they were written; the places
           are known to the builder alone.
Invariant  a run lists a key once; of two runs the later has the later records.
Crash      never synced and of no use to anybody else: the next build writes over it.
Threads    one.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from varve.cleaning.key_search import ENTRY_BYTES, Entries, find_lower_bound, read_entries_at
from varve.disk import File, FileSystem
from varve.foundation.errors import Corrupt
from varve.kernels.key_sort import sort_entries

RUN_SUFFIX: Final = ".run"
_HASH_END: Final = 1 << 64
_COPY_BYTES: Final = 1 << 20


class _Slice(NamedTuple):
    """The entries [start, end) of a run, whose entry 0 lies at `position`."""

    position: int
    start: int
    end: int


class SpillFile:
    """The file beside; it comes into being with the first write."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self.path = path
        self._file: File | None = None
        self._size = 0

    def write(self, rows: npt.NDArray[Any]) -> int:
        """Gives the position of what was written."""
        if self._file is None:
            self._file = self._fs.open_writable(self.path)
            self._file.truncate(0)
        position = self._size
        self._file.write_at(position, rows.reshape(-1).view(np.uint8).data)
        self._size += rows.nbytes
        return position

    @property
    def file(self) -> File:
        assert self._file is not None
        return self._file

    def remove(self) -> None:
        """Closes and removes the file, if there is one."""
        if self._file is not None:
            self._file.close()
            self._fs.remove(self.path)
            self._file = None


class EntryRuns:
    """Sorted runs of entries, given back as one sorted sequence without equals."""

    def __init__(self, spill: SpillFile) -> None:
        self._spill = spill
        self._slices: list[_Slice] = []

    def __len__(self) -> int:
        return len(self._slices)

    def add(self, entries: Entries) -> None:
        self._slices.append(_Slice(self._spill.write(entries), 0, len(entries)))

    def merge(self, entries: Entries, scratch: Entries) -> Iterator[Entries]:
        """The entries in pieces, through the two arrays, which are of one size."""
        yield from self._merge(0, _HASH_END, self._slices, entries, scratch)

    def _merge(
        self, low: int, high: int, slices: list[_Slice], entries: Entries, scratch: Entries
    ) -> Iterator[Entries]:
        """The entries with `low` <= first word < `high`: at once if they fit, else in halves."""
        total = sum(part.end - part.start for part in slices)
        if total > len(entries) and high - low > 1:
            middle = (low + high) // 2
            file = self._spill.file
            cuts = [find_lower_bound(file, *part, middle) for part in slices]
            below = [part._replace(end=cut) for part, cut in zip(slices, cuts, strict=True)]
            above = [part._replace(start=cut) for part, cut in zip(slices, cuts, strict=True)]
            yield from self._merge(low, middle, below, entries, scratch)
            yield from self._merge(middle, high, above, entries, scratch)
            return
        if total > len(entries):
            # One hash in more runs than there is room for entries: the runs bound it.
            entries, scratch = np.empty((total, 4), np.uint64), np.empty((total, 4), np.uint64)
        filled = 0
        for position, start, end in slices:
            part = entries[filled : filled + end - start]
            read_entries_at(self._spill.file, position + start * ENTRY_BYTES, part)
            filled += end - start
        if filled:
            yield entries[: sort_entries(entries[:filled], scratch)]


class SpilledTable:
    """Rows of one kind in the order they came; beyond its bound they go to the file."""

    def __init__(self, spill: SpillFile, bytes_max: int) -> None:
        self._spill = spill
        self._bytes_max = bytes_max
        self._held: list[npt.NDArray[Any]] = []
        self._held_bytes = 0
        self._pieces: list[tuple[int, int]] = []
        self.count = 0

    def add(self, rows: npt.NDArray[Any]) -> None:
        if not len(rows):
            return
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        self.count += len(rows)
        if self._held_bytes > self._bytes_max:
            rows = np.concatenate(self._held)
            self._pieces.append((self._spill.write(rows), rows.nbytes))
            self._held, self._held_bytes = [], 0

    def pieces(self) -> Iterator[npt.NDArray[np.uint8]]:
        """All rows as bytes."""
        for position, size in self._pieces:
            for start in range(0, size, _COPY_BYTES):
                wanted = min(_COPY_BYTES, size - start)
                data = self._spill.file.read_at(position + start, wanted)
                if len(data) != wanted:
                    raise Corrupt(f"{self._spill.path}: the file was cut while in use")
                yield np.frombuffer(data, np.uint8)
        for rows in self._held:
            yield rows.view(np.uint8)
