"""The directory of one shape: its snapshot, its log, and how both are read and written.

Invariant  readers take the state of the log once and need no lock; the files that it names stay
           until their lease ends. A file replaced in one generation is removed when every lease
           taken until then has ended. A reader takes its lease before it takes the state.
Crash      until the first write after opening, readers get what is durable. When a directory is
           created the manifest comes last: without it the directory is wiped before use. Replaced
           files that were not removed are found by recovery. docs/formats/shape-log.md
Threads    any; see `ShapeLog` for the locks. Leases have a lock of their own, taken last; files are
           removed outside of it.
"""

import logging
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from varve.disk import FileSystem, make_durable_directory
from varve.foundation.clock import Clock
from varve.foundation.errors import Corrupt, InvalidRequest, NotFound, StoreError
from varve.shapes.offset import BEFORE_ALL, FIRST_CHUNK, SNAPSHOT_END, ShapeOffset
from varve.shapes.settings import StorageSettings
from varve.shapes.storage.entry import ShapeEntry
from varve.shapes.storage.layout import (
    Pointer,
    ShapeManifest,
    create_pointer,
    log_directory,
    manifest_path,
    metadata_directory,
    move_to_trash,
    read_manifest,
    read_pointer,
    shape_directory,
    write_manifest,
)
from varve.shapes.storage.log_reader import LogView, open_stream
from varve.shapes.storage.log_writer import ShapeLogState
from varve.shapes.storage.recovery import check_compacted_end, find_durable_end, find_last_end
from varve.shapes.storage.shape_log import CompactedLog, LogFlush, ShapeLog, run_flushes
from varve.shapes.storage.snapshot import ShapeSnapshot

logger = logging.getLogger(__name__)


def create_directory(fs: FileSystem, root: str, handle: str) -> str:
    """Makes it durably, empty; raises InvalidRequest when the shape exists, OSError."""
    directory = shape_directory(root, handle)
    if fs.exists(manifest_path(directory)):
        raise InvalidRequest(f"shape {handle} exists in {root}: a handle is used once")
    if fs.exists(directory):
        fs.remove_tree(directory)
    make_durable_directory(fs, directory)
    fs.make_directory(log_directory(directory))
    fs.make_directory(metadata_directory(directory))
    fs.sync_directory(directory)
    create_pointer(fs, directory)
    write_manifest(fs, directory, ShapeManifest())
    return directory


class FileLeases:
    """Leases, and the files that wait for them."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._lock = threading.Lock()
        self._current = 0  # guarded by _lock
        self._held: Counter[int] = Counter()  # guarded by _lock
        self._retired: list[tuple[int, list[str]]] = []  # guarded by _lock

    @contextmanager
    def hold(self) -> Iterator[None]:
        """While it is held no file that was published at its beginning is removed."""
        with self._lock:
            generation = self._current
            self._held[generation] += 1
        try:
            yield
        finally:
            self._give_back(generation)

    def retire(self, paths: list[str]) -> None:
        """Removes these files when no lease of now is left; what replaces them is published."""
        with self._lock:
            self._retired.append((self._current, paths))
            self._current += 1
            unused = self._take_unused_locked()
        self._remove(unused)

    def _give_back(self, generation: int) -> None:
        with self._lock:
            self._held[generation] -= 1
            if not self._held[generation]:
                del self._held[generation]
            unused = self._take_unused_locked()
        self._remove(unused)

    def _take_unused_locked(self) -> list[str]:
        oldest = min(self._held, default=self._current)
        unused = [path for number, paths in self._retired if number < oldest for path in paths]
        self._retired = [retired for retired in self._retired if retired[0] >= oldest]
        return unused

    def _remove(self, paths: list[str]) -> None:
        for path in paths:
            try:
                self._fs.remove(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                # The next recovery removes it; a reader must not fail for it.
                logger.warning("old file of a shape stays", extra={"path": path, "error": error})


class ChunkEnd(NamedTuple):
    """Where a chunk ends; None for the open one, which ends at the latest offset."""

    offset: ShapeOffset | None


class ShapeStorage:
    """One shape on disk. Made by `create` or `open`."""

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        handle: str,
        settings: StorageSettings,
        clock: Clock,
        *,
        snapshot: ShapeSnapshot,
        pointer: Pointer,
        state: ShapeLogState,
    ) -> None:
        self.fs = fs
        self.root = root
        self.handle = handle
        self.directory = shape_directory(root, handle)
        self.settings = settings
        self.snapshot = snapshot
        self._log = ShapeLog(fs, self.directory, settings, clock, pointer, state)
        self._leases = FileLeases(fs)

    @classmethod
    def create(
        cls,
        fs: FileSystem,
        root: str,
        handle: str,
        settings: StorageSettings,
        clock: Clock,
    ) -> "ShapeStorage":
        """Makes the directory of a new shape; what a crash left there is wiped. Raises OSError."""
        directory = create_directory(fs, root, handle)
        storage = cls(
            fs,
            root,
            handle,
            settings,
            clock,
            snapshot=ShapeSnapshot(fs, log_directory(directory), settings.chunk_bytes),
            pointer=read_pointer(fs, directory),
            state=ShapeLogState(ShapeManifest()),
        )
        storage._log.begin_empty()
        return storage

    @classmethod
    def open(
        cls,
        fs: FileSystem,
        root: str,
        handle: str,
        settings: StorageSettings,
        clock: Clock,
    ) -> "ShapeStorage":
        """Opens a shape whose snapshot is complete; nothing is changed before the first write.

        Raises NotFound and Corrupt: then the shape is to be dropped.
        """
        directory = shape_directory(root, handle)
        manifest = read_manifest(fs, directory)
        snapshot = ShapeSnapshot.open(fs, log_directory(directory))
        check_compacted_end(fs, directory, manifest)
        pointer = read_pointer(fs, directory)
        if not pointer.is_certain:
            last = find_last_end(fs, directory, manifest)
            pointer.offset = max(pointer.offset, last)
        return cls(
            fs,
            root,
            handle,
            settings,
            clock,
            snapshot=snapshot,
            pointer=pointer,
            state=_load_state(fs, directory, manifest, pointer.offset),
        )

    # What is known

    @property
    def latest(self) -> ShapeOffset:
        """The end of the last transaction; the end of the snapshot before there is one."""
        return self._log.state.latest

    @property
    def persisted(self) -> ShapeOffset:
        """The last transaction end that is durable."""
        return self._log.state.persisted

    @property
    def manifest(self) -> ShapeManifest:
        return self._log.state.manifest

    @property
    def failure(self) -> StoreError | None:
        """Why it takes no more writes."""
        return self._log.failure

    # Writing

    def append(self, entries: Sequence[ShapeEntry]) -> None:
        """Takes the entries of whole transactions, which are seen together; leaves out stored ones.

        Raises InvalidRequest when offsets do not ascend; a failing disk ends all writing.
        """
        self._log.append(entries if isinstance(entries, list) else list(entries))

    def flush(self) -> None:
        """Makes durable what was appended; appends go on meanwhile. A failure ends all writing."""
        self._log.flush()

    def close(self) -> None:
        """Flushes and takes no more writes; reading goes on. Twice is harmless."""
        self._log.close()

    def drop(self) -> bool:
        """Renames the directory into the trash; False when it was gone. Raises OSError."""
        self._log.drop()
        return move_to_trash(self.fs, self.root, self.handle)

    # Reading

    def chunk_end(self, offset: ShapeOffset) -> ShapeOffset | None:
        """Where a catch-up response from this offset ends; None: at the latest offset.

        Raises NotFound when the shape was dropped.
        """
        cached = self.find_cached_chunk_end(offset)
        if cached is not None:
            return cached.offset
        with self._reading() as state:
            chunk = LogView(self.fs, self.directory, state).find_chunk(offset)
        return None if chunk is None else chunk.last

    def find_cached_chunk_end(self, offset: ShapeOffset) -> ChunkEnd | None:
        """The same without reading a file; None if only a file knows it."""
        if offset == BEFORE_ALL:
            return ChunkEnd(FIRST_CHUNK)
        if offset < SNAPSHOT_END:
            last_chunk = self.snapshot.last_chunk
            if last_chunk is None or offset.op < last_chunk:
                return ChunkEnd(ShapeOffset(0, offset.op + 1))
        self._log.check_not_dropped()
        state, log_offset = self._log.state, max(offset, SNAPSHOT_END)
        if log_offset < state.manifest.boundary or not state.cache.covers(log_offset):
            return None
        chunk = state.cache.find(log_offset)
        return ChunkEnd(None if chunk is None else chunk.last)

    def is_in_memory(self, start: ShapeOffset) -> bool:
        """Whether reading from here on touches no file."""
        return start >= SNAPSHOT_END and self._log.state.written <= start

    def read(self, start: ShapeOffset, end: ShapeOffset) -> Iterator[bytes]:
        """Messages in (start, end], in pieces of whole messages that commas are to join.

        Of the snapshot one chunk at most, where `chunk_end` says; waits for one that is being
        written. What can fail fails at the call: NotFound when the shape was dropped, Corrupt; a
        stream goes on when the shape is dropped later.
        """
        number = 0 if start < FIRST_CHUNK else start.op + 1
        if start < SNAPSHOT_END and ShapeOffset(0, number) <= end:
            pieces = self._read_snapshot(number)
            if pieces is not None:
                return pieces
        return self._read_log(max(start, SNAPSHOT_END), end)

    def hold_files(self) -> AbstractContextManager[None]:
        """Keeps the files of now for as long as it is held, whatever compaction replaces."""
        return self._leases.hold()

    # Compaction

    @property
    def live_bytes(self) -> int:
        """Bytes of the live log's file."""
        return self._log.state.log_end

    def close_chunk(self) -> None:
        """Ends the open chunk, so that it may be compacted, and makes all durable."""
        self._log.close_chunk()

    def compaction_target(self, keep_chunks: int) -> tuple[ShapeOffset, int] | None:
        """Last offset and end byte of what may be compacted in the live log; None: nothing.

        Leaves out the newest complete chunks, the open one and all that is not durable. Files of a
        compacted log may be written afterwards only, since this recovers a log just opened.
        """
        with self._leases.hold():
            return self._log.compaction_target(keep_chunks)

    def install(self, compacted: CompactedLog) -> None:
        """Puts a compacted log, whose files are durable, in the place of what it was made from.

        Raises InvalidRequest when it does not fit the live log, and then nothing has changed.
        """
        self._leases.retire(self._log.install(compacted))

    # Phases of reading

    @contextmanager
    def _reading(self) -> Iterator[ShapeLogState]:
        """What is published, under a lease; a missing file may mean that the shape is gone."""
        with self._leases.hold():
            self._log.check_not_dropped()
            try:
                yield self._log.state
            except FileNotFoundError as error:
                self._log.check_not_dropped()
                if not self.fs.exists(self.directory):
                    raise NotFound(f"shape {self.handle} is gone: request it again") from error
                raise Corrupt(f"{error.filename} is missing: drop the shape") from error

    def _read_log(self, after: ShapeOffset, until: ShapeOffset) -> Iterator[bytes]:
        with self._reading() as state:
            return open_stream(
                self.fs,
                self.directory,
                state,
                after=after,
                until=until,
                read_bytes=self.settings.read_bytes,
            )

    def _read_snapshot(self, number: int) -> Iterator[bytes] | None:
        last_chunk = self.snapshot.last_chunk
        if last_chunk is not None and number > last_chunk:
            return None
        with self._reading():
            return self.snapshot.read_chunk(number)


def flush_storages(storages: Sequence[ShapeStorage]) -> dict[ShapeStorage, StoreError]:
    """Makes durable what was appended to many shapes, with few syncs; gives those that failed."""
    failed: dict[ShapeStorage, StoreError] = {}
    begun: list[tuple[ShapeStorage, LogFlush]] = []
    try:
        for storage in storages:
            try:
                flush = storage._log.begin_flush()
            except StoreError as error:
                failed[storage] = error
                continue
            if flush is not None:
                begun.append((storage, flush))
        if begun:
            run_flushes(storages[0].fs, [flush for _, flush in begun])
    finally:
        for storage, flush in begun:
            failure = storage._log.end_flush(flush)
            if failure is not None:
                failed[storage] = failure
    return failed


def _load_state(
    fs: FileSystem, directory: str, manifest: ShapeManifest, durable: ShapeOffset
) -> ShapeLogState:
    """What readers may know before a writer begins: all that is durable, and nothing else."""
    log_end, edge_count, cache = find_durable_end(fs, directory, manifest, durable)
    return ShapeLogState(manifest, durable, durable, durable, log_end, edge_count, cache)
