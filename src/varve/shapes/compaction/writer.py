"""Writes a compacted log and its chunk index.

Invariant  all chunks are closed, the last one with the last entry. Every other ends at a place of
           this log alone: behind the last entry of a transaction, with an operation that no entry
           and no older log has. A cached answer made from an older log is then never asked for by a
           reader of this one, from whom it could keep what was merged forward.
Crash      both files are synced by `finish`; until a manifest names them they are no part of the
           shape.
"""

import contextlib
from typing import Final

import numpy as np

from varve.disk import FileSystem
from varve.shapes.compaction.blocks import Block
from varve.shapes.offset import ShapeOffset
from varve.shapes.storage.chunk_index import LogChunk, encode_chunks
from varve.shapes.storage.layout import index_path, log_directory, log_path

CHUNK_EXCESS_MAX: Final = 4
"""A chunk waits for the end of a transaction until it is this many times as large as wanted."""


class CompactedLogWriter:
    """Takes the entries that stay, in order; ends with `finish` or `abandon`."""

    def __init__(self, fs: FileSystem, directory: str, suffix: str, *, chunk_bytes: int) -> None:
        self.suffix = suffix
        self.size = 0
        self.entry_count = 0
        self.last: ShapeOffset | None = None
        self._fs = fs
        self._directory = directory
        self._chunk_bytes = chunk_bytes
        self._file = fs.open_writable(log_path(directory, suffix))
        self._chunks: list[LogChunk] = []
        self._first: ShapeOffset | None = None
        self._chunk_start = 0
        self._chunk_json = 0
        self._mark = 2 * int(suffix.rpartition(".")[2]) + 1

    def add(self, block: Block) -> None:
        if not block.starts.size:
            return
        self._file.write_at(self.size, memoryview(block.data))
        tx, op = block.offsets()
        json_ends = np.cumsum(block.json_sizes())
        positions = np.append(block.starts, block.data.size) + self.size
        at, json_before = 0, 0
        while at < tx.size:
            if self._first is None:
                self._first = ShapeOffset(int(tx[at]), int(op[at]))
                self._chunk_start = int(positions[at])
            cut = self._find_cut(tx, json_ends, at, json_before)
            end = tx.size if cut is None else cut
            if end:
                self.last = ShapeOffset(int(tx[end - 1]), int(op[end - 1]))
            json_end = int(json_ends[end - 1]) if end else 0
            self._chunk_json += json_end - json_before
            if cut is not None:
                is_last_of_tx = cut < tx.size and int(tx[cut]) != self._get_last().tx
                self._close(int(positions[cut]), is_marked=is_last_of_tx)
            at, json_before = end, json_end
        self.size += block.data.size
        self.entry_count += block.starts.size

    def _find_cut(
        self, tx: np.ndarray, json_ends: np.ndarray, at: int, json_before: int
    ) -> int | None:
        """How many entries of the block belong to chunks up to the open one; None: all, so far."""
        missing = self._chunk_bytes - self._chunk_json
        if missing <= 0:
            full_tx = self._get_last().tx
        else:
            full = int(np.searchsorted(json_ends, json_before + missing))
            if full == tx.size:
                return None
            full_tx = int(tx[full])
        cut = max(at, int(np.searchsorted(tx, np.uint64(full_tx), side="right")))
        excess = missing + (CHUNK_EXCESS_MAX - 1) * self._chunk_bytes
        cut = min(cut, int(np.searchsorted(json_ends, json_before + excess)) + 1)
        is_known = cut < tx.size or int(json_ends[-1]) >= json_before + excess
        return min(cut, tx.size) if is_known else None

    def _get_last(self) -> ShapeOffset:
        assert self.last is not None, "an entry was added"
        return self.last

    def _close(self, position: int, *, is_marked: bool) -> None:
        assert self._first is not None, "a chunk is open"
        last = self._get_last()
        if is_marked and last.op < self._mark:
            last = ShapeOffset(last.tx, self._mark)
        self._chunks.append(LogChunk(self._first, self._chunk_start, last, position))
        self._first = None
        self._chunk_json = 0

    def finish(self) -> None:
        """Closes the last chunk; the files and their names are durable on return."""
        if self._first is not None:
            self._close(self.size, is_marked=False)
        self._file.sync()
        self._file.close()
        with self._fs.open_writable(index_path(self._directory, self.suffix)) as index:
            index.write_at(0, encode_chunks(self._chunks))
            index.sync()
        self._fs.sync_directory(log_directory(self._directory))

    def abandon(self) -> None:
        """Closes and removes what was written; what cannot be removed is left to recovery."""
        self._file.close()
        remove_compacted(self._fs, self._directory, self.suffix)


def remove_compacted(fs: FileSystem, directory: str, suffix: str) -> None:
    """Removes the files of a compacted log; what cannot be removed is left to recovery."""
    for path in (log_path(directory, suffix), index_path(directory, suffix)):
        with contextlib.suppress(OSError):
            fs.remove(path)
