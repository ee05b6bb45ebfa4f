"""A shape's storage for tests, the plainest model of its log, and the plainest compaction."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.support.shape_entries import StoredEntry, decode_entries
from varve.disk import FileSystem
from varve.foundation.clock import Clock, ManualClock
from varve.shapes.offset import LAST, SNAPSHOT_END, ShapeOffset
from varve.shapes.settings import StorageSettings
from varve.shapes.storage.chunk_index import LogChunk, encode_chunks
from varve.shapes.storage.layout import index_path, log_path, new_suffix
from varve.shapes.storage.log_writer import INSERT, UPDATE, CompactedLog, ShapeEntry
from varve.shapes.storage.shape_storage import ShapeStorage
from varve.shapes.storage.snapshot import SnapshotWriter

ROOT = "/shapes"
HANDLE = "4711-1"
SMALL = StorageSettings(chunk_bytes=200, buffer_bytes=128, read_bytes=96)
CLOCK = ManualClock()


def make_entry(tx: int, op: int = 0, *, size: int = 30, key: str | None = None) -> ShapeEntry:
    """An entry whose message tells its offset, padded to about a size."""
    message = {"offset": f"{tx}_{op}", "pad": "x" * max(0, size - 30)}
    text = json.dumps(message, separators=(",", ":")).encode()
    name = f"k{tx % 7}" if key is None else key
    return ShapeEntry(ShapeOffset(tx, op), name.encode(), INSERT if tx % 3 else UPDATE, text)


def create_storage(
    fs: FileSystem,
    settings: StorageSettings = SMALL,
    *,
    handle: str = HANDLE,
    clock: Clock = CLOCK,
) -> ShapeStorage:
    """A new shape whose snapshot is one message and complete."""
    storage = ShapeStorage.create(fs, ROOT, handle, settings, clock)
    SnapshotWriter(storage.snapshot).finish(b'{"snapshot":"end"}')
    return storage


def open_storage(
    fs: FileSystem,
    settings: StorageSettings = SMALL,
    *,
    handle: str = HANDLE,
    clock: Clock = CLOCK,
) -> ShapeStorage:
    return ShapeStorage.open(fs, ROOT, handle, settings, clock)


def joined(pieces: Iterator[bytes]) -> list[object]:
    """The messages of a stream; every piece is whole messages without a comma at either end."""
    messages: list[object] = []
    for piece in pieces:
        found = json.loads(b"[" + piece + b"]")
        assert found
        messages += found
    return messages


def messages_of(entries: list[ShapeEntry]) -> list[object]:
    return [json.loads(entry.json) for entry in entries]


def read_messages(
    storage: ShapeStorage, start: ShapeOffset = SNAPSHOT_END, end: ShapeOffset = LAST
) -> list[object]:
    return joined(storage.read(start, end))


def follow(storage: ShapeStorage, start: ShapeOffset = SNAPSHOT_END) -> list[object]:
    """What a client gets that asks chunk by chunk until it has everything."""
    messages: list[object] = []
    while start < storage.latest:
        end = storage.chunk_end(start) or storage.latest
        assert start < end <= storage.latest
        messages += joined(storage.read(start, end))
        start = end
    return messages


@dataclass(slots=True)
class LogModel:
    """A list of committed entries, and of those that wait for their commit."""

    committed: list[ShapeEntry] = field(default_factory=list)
    pending: list[ShapeEntry] = field(default_factory=list)
    durable_count: int = 0
    """How many committed entries a crash must leave."""

    @property
    def latest(self) -> ShapeOffset:
        return self.committed[-1].offset if self.committed else SNAPSHOT_END

    def append(self, entries: list[ShapeEntry]) -> None:
        self.pending += [entry for entry in entries if entry.offset > self.latest]

    def commit(self) -> None:
        self.committed += self.pending
        self.pending = []

    def flush(self) -> None:
        self.durable_count = len(self.committed)

    def between(self, start: ShapeOffset, end: ShapeOffset) -> list[object]:
        return messages_of([e for e in self.committed if start < e.offset <= end])

    def crash(self, latest: ShapeOffset) -> None:
        """What is left ends at this offset: a transaction end, at least the durable one."""
        left = [entry for entry in self.committed if entry.offset <= latest]
        assert len(left) >= self.durable_count, (latest, self.durable_count)
        assert latest == (left[-1].offset if left else SNAPSHOT_END)
        self.committed, self.pending = left, []
        self.durable_count = len(left)


def stored_entries(storage: ShapeStorage, suffix: str, end: int | None = None) -> list[StoredEntry]:
    data = storage.fs.read(log_path(storage.directory, suffix))
    return list(decode_entries(data[:end]))


def compact_plainly(storage: ShapeStorage, keep_chunks: int, *, now_ms: int = 5) -> bool:
    """Put the oldest chunks into a compacted log as they are; False when there is nothing to do."""
    compacted = write_compacted(storage, keep_chunks, now_ms=now_ms)
    if compacted is None:
        return False
    storage.install(compacted)
    return True


def write_compacted(
    storage: ShapeStorage, keep_chunks: int, *, now_ms: int = 5
) -> CompactedLog | None:
    """The files of such a compacted log, ready to be installed."""
    target = storage.compaction_target(keep_chunks)
    if target is None:
        return None
    boundary, position = target
    fs, directory, manifest = storage.fs, storage.directory, storage.manifest
    data = fs.read(log_path(directory, manifest.latest))[:position]
    if manifest.compacted is not None:
        data = fs.read(log_path(directory, manifest.compacted)) + data
    suffix = new_suffix(fs, directory, "compacted", now_ms)
    for path, content in (
        (log_path(directory, suffix), data),
        (index_path(directory, suffix), encode_chunks(_cut_chunks(data, storage.settings))),
    ):
        with fs.open_writable(path) as file:
            file.write_at(0, content)
            file.sync()
    return CompactedLog(boundary, position, suffix)


def _cut_chunks(data: bytes, settings: StorageSettings) -> list[LogChunk]:
    chunks: list[LogChunk] = []
    group: list[StoredEntry] = []
    for stored in decode_entries(data):
        group.append(stored)
        if sum(len(one.entry.json) for one in group) >= settings.chunk_bytes:
            chunks.append(_chunk(group))
            group = []
    return [*chunks, _chunk(group)] if group else chunks


def _chunk(group: list[StoredEntry]) -> LogChunk:
    first, last = group[0], group[-1]
    return LogChunk(first.entry.offset, first.position, last.entry.offset, last.end)
