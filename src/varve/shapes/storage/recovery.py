"""Finds the end of a log and its chunk index, and cuts both to the last persisted transaction.

Invariant  afterwards the last entry is the durable one, or the log is empty and the durable offset
           is virtual or the boundary of the compacted log. A log that ends before the durable
           offset has lost data, as has a compacted log whose files do not end at the boundary:
           Corrupt. What follows the durable entry was not durable; `find_beyond` finds it, so that
           a caller who knows what was durable detects an end that is too early.
Crash      recovery can be repeated.
"""

import struct
from typing import Final

import numpy as np

from varve.disk import File, FileSystem
from varve.foundation.errors import Corrupt
from varve.shapes.kernels.log_entries import ENTRY_CRC, EntryStatus, scan_entries
from varve.shapes.offset import INFINITE_OP, LAST, SNAPSHOT_END, ShapeOffset
from varve.shapes.storage.chunk_index import (
    CACHED_COUNT,
    EDGE_BYTES,
    ChunkCache,
    ChunkIndexFile,
    find_edge,
)
from varve.shapes.storage.layout import (
    ShapeManifest,
    find_suffix,
    index_path,
    log_directory,
    log_path,
)
from varve.shapes.storage.log_writer import (
    TRANSACTION_END,
    LogEnd,
    from_kernel_offset,
    kernel_offset,
)

_ENTRY_OFFSET: Final = struct.Struct(">qq")
"""Transaction and operation, with which an entry begins."""
_FIRST_ENTRY: Final = ShapeOffset(1, 0)
_BLOCK_BYTES = 256 << 10
"""Bytes of one read of the log."""


def _find_index_end(file: File, durable: ShapeOffset) -> tuple[int, int]:
    """The number of valid edges, and a position at or before the log's end. Raises Corrupt.

    Leaves out torn edges and those above the durable offset. Without its closing edge a chunk is
    open again.
    """
    count = file.size() // EDGE_BYTES
    while count:
        edge = find_edge(file.read_at((count - 1) * EDGE_BYTES, EDGE_BYTES))
        if edge is None or edge.offset > durable:
            count -= 1
            continue
        if count % 2:
            return count, edge.position
        if edge.offset < durable:
            raise Corrupt(
                f"{file.path}: the last chunk ends at {edge.offset}, and the shape is durable up "
                f"to {durable}: drop it"
            )
        opening = find_edge(file.read_at((count - 2) * EDGE_BYTES, EDGE_BYTES))
        if opening is None:
            raise Corrupt(f"{file.path}: the edge before {edge.offset} does not match its CRC-32C")
        return count, opening.position
    return 0, 0


def locate_end(
    fs: FileSystem, directory: str, manifest: ShapeManifest, durable: ShapeOffset
) -> LogEnd:
    """The end of the live log after its durable entry; read-only. Raises OSError, Corrupt.

    `recover` truncates the files there.
    """
    edge_count, search_start, chunks = 0, 0, []
    path = index_path(directory, manifest.latest)
    if fs.exists(path):
        with fs.open(path) as index:
            edge_count, search_start = _find_index_end(index, durable)
            chunks = ChunkIndexFile(index, edge_count).last_chunks(CACHED_COUNT + 1)
    last, position, json_bytes = _log_begin(manifest), 0, 0
    if edge_count:
        path = log_path(directory, manifest.latest)
        _check_exists(fs, path)
        with fs.open(path) as log:
            last, position, json_bytes = find_log_end(log, search_start, last, durable)
    if last != durable:
        raise Corrupt(f"{path} ends at {last}, and the shape is durable up to {durable}: drop it")
    cache = ChunkCache.of(chunks, manifest.boundary)
    return LogEnd(durable, position, edge_count, json_bytes if edge_count % 2 else 0, cache)


def find_beyond(
    fs: FileSystem, directory: str, manifest: ShapeManifest, end: LogEnd, *, is_certain: bool
) -> ShapeOffset | None:
    """The first entry after the end of a log; None if there is none. Raises OSError.

    Without a certain pointer the end may be too early because an entry is damaged: other bytes
    than an entry then count as the first transaction.
    """
    path = log_path(directory, manifest.latest)
    if not fs.exists(path):
        return None
    with fs.open(path) as log:
        head = log.read_at(end.position, _ENTRY_OFFSET.size)
        if len(head) < _ENTRY_OFFSET.size:
            return _FIRST_ENTRY if head and not is_certain else None
        offset = ShapeOffset(*_ENTRY_OFFSET.unpack(head))
        if not is_certain:
            return max(offset, _FIRST_ENTRY)
        last, _, _ = find_log_end(log, end.position, end.last, offset)
        return offset if last == offset else None


def recover(
    fs: FileSystem, directory: str, manifest: ShapeManifest, durable: ShapeOffset
) -> LogEnd:
    """Truncates both files and removes those that no manifest names. Raises OSError, Corrupt."""
    _remove_unnamed(fs, directory, manifest)
    end = locate_end(fs, directory, manifest, durable)
    _truncate(fs, index_path(directory, manifest.latest), end.edge_count * EDGE_BYTES)
    _truncate(fs, log_path(directory, manifest.latest), end.position)
    return end


def find_last_end(fs: FileSystem, directory: str, manifest: ShapeManifest) -> ShapeOffset:
    """The end of the last whole transaction in a chunk of the live log; else the log's start.

    For a shape whose pointer may be older than the log. Raises OSError, Corrupt.
    """
    begin = _log_begin(manifest)
    paths = (index_path(directory, manifest.latest), log_path(directory, manifest.latest))
    for path in paths:
        # A flush syncs both before it writes the pointer.
        _check_exists(fs, path)
    with fs.open(paths[0]) as index, fs.open(paths[1]) as log:
        last = _find_transaction_end(log, begin, LAST)
        for number in reversed(range(index.size() // EDGE_BYTES)):
            edge = find_edge(index.read_at(number * EDGE_BYTES, EDGE_BYTES))
            if edge is not None and edge.offset <= last:
                return _find_transaction_end(log, begin, edge.offset) if number % 2 else last
    return begin


def _find_transaction_end(log: File, begin: ShapeOffset, until: ShapeOffset) -> ShapeOffset:
    """A crash may leave a part of the last transaction; the one before it is whole."""
    last, position, _ = find_log_end(log, 0, begin, until)
    size = len(TRANSACTION_END)
    if position and log.read_at(position - ENTRY_CRC - size, size) != TRANSACTION_END:
        last, _, _ = find_log_end(log, 0, begin, ShapeOffset(last.tx - 1, INFINITE_OP))
    return last


def check_compacted_end(fs: FileSystem, directory: str, manifest: ShapeManifest) -> None:
    """Raises Corrupt unless index and log of the compacted part end at the boundary, and those of
    the live log are there, which a compaction creates; OSError."""
    if manifest.compacted is None:
        return
    paths = (index_path(directory, manifest.compacted), log_path(directory, manifest.compacted))
    latest = (index_path(directory, manifest.latest), log_path(directory, manifest.latest))
    for path in (*paths, *latest):
        _check_exists(fs, path)
    with fs.open(paths[0]) as file, fs.open(paths[1]) as log:
        index = ChunkIndexFile(file)
        chunk = index.get(index.complete_count - 1) if index.complete_count else None
        end = (chunk and chunk.last, chunk and chunk.end)
        if index.edge_count % 2 or end != (manifest.boundary, log.size()):
            raise Corrupt(
                f"{file.path} ends at {end[0]}, byte {end[1]}, and should end at "
                f"{manifest.boundary}, byte {log.size()}: drop the shape"
            )


def _log_begin(manifest: ShapeManifest) -> ShapeOffset:
    return max(manifest.boundary, SNAPSHOT_END)


def _check_exists(fs: FileSystem, path: str) -> None:
    if not fs.exists(path):
        raise Corrupt(f"{path} is missing: drop the shape")


def find_log_end(
    log: File, start: int, before: ShapeOffset, durable: ShapeOffset
) -> tuple[ShapeOffset, int, int]:
    """The last entry up to the durable offset, the position after it, and the JSON bytes before."""
    position, json_bytes, needed = start, 0, 0
    tx, op = kernel_offset(before)
    end = log.size()
    while position < end:
        size = min(max(_BLOCK_BYTES, needed), end - position)
        if needed > size:
            break
        data = np.frombuffer(log.read_at(position, size), np.uint8)
        status, consumed, tx, op, json_size, needed = scan_entries(
            data, tx, op, *kernel_offset(durable)
        )
        position += consumed
        json_bytes += json_size
        if status != EntryStatus.MORE:
            break
    return from_kernel_offset(tx, op), position, json_bytes


def _truncate(fs: FileSystem, path: str, size: int) -> None:
    """Truncates a file, which is created if it does not exist."""
    with fs.open_writable(path) as file:
        if file.size() != size:
            file.truncate(size)


def _remove_unnamed(fs: FileSystem, directory: str, manifest: ShapeManifest) -> None:
    folder = log_directory(directory)
    for name in fs.names(folder):
        suffix = find_suffix(name)
        if suffix is not None and suffix not in manifest.suffixes:
            fs.remove(f"{folder}/{name}")
