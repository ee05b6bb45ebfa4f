"""The storage of one shape: reads and writes its snapshot and its log.

Invariant  the last persisted transaction advances after the bytes it covers are synced, and a flush
           is done once the pointer is synced too; a flush that fails delays no other. Readers take
           the published state once and need no lock; a new state is published after its bytes are
           written. A compaction changes no file: it writes new ones, the manifest names them in one
           step, and the old ones are removed. A reader that does not find a removed file takes the
           state again; one that has it open continues.
Crash      until the first write after opening, readers get the durable entries; recovery runs
           before that write. The manifest is written last when a directory is created: a directory
           without it is wiped before use. A failed write or sync ends all writing: the files may
           hold a part of it, and the shape must be dropped. Recovery removes files that no manifest
           names. docs/reference/formats/shape-log.md
Threads    any. Lock order: _flush_lock, then _lock; no sync is made under _lock except that of a
           replacement, so appends do not wait for the disk.
"""

import errno
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from varve.disk import File, FileSystem, make_durable_directory
from varve.foundation.clock import Clock
from varve.foundation.errors import (
    Closed,
    Corrupt,
    DiskFull,
    InvalidRequest,
    NotFound,
    StoreError,
    Unavailable,
)
from varve.shapes.offset import BEFORE_ALL, FIRST_CHUNK, SNAPSHOT_END, ShapeOffset
from varve.shapes.settings import StorageSettings
from varve.shapes.storage import layout
from varve.shapes.storage.chunk_index import ChunkIndexFile
from varve.shapes.storage.layout import Pointer, ShapeManifest
from varve.shapes.storage.log_reader import LogView, open_stream
from varve.shapes.storage.log_writer import (
    CompactedLog,
    LogEnd,
    LogFlush,
    LogRemainderCopy,
    LogWriter,
    ShapeEntry,
    ShapeLogState,
    check_compacted,
    run_flushes,
)
from varve.shapes.storage.recovery import (
    check_compacted_end,
    find_beyond,
    find_last_end,
    locate_end,
    recover,
)
from varve.shapes.storage.snapshot import ShapeSnapshot

logger = logging.getLogger(__name__)

T = TypeVar("T")


class ChunkEnd(NamedTuple):
    """Where a chunk ends; None for the open one, which ends at the latest offset."""

    offset: ShapeOffset | None


class ShapeStorage:
    """One shape on disk, opened by `create` or `open`."""

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
        self.directory = layout.shape_directory(root, handle)
        self.settings = settings
        self.snapshot = snapshot
        self.failure: StoreError | None = None  # set under _lock, read without
        """Why it accepts no more writes."""
        self._state = state  # replaced under _lock, read without
        self._clock = clock
        self._flush_lock = threading.RLock()
        self._lock = threading.Lock()
        self._pointer = pointer  # guarded by _flush_lock
        self._writer: LogWriter | None = None  # guarded by _lock
        self._is_dropped = False  # set under _lock, read without
        self._is_closed = False  # guarded by _lock
        self._beyond: ShapeOffset | None = None
        """The first entry after the durable end when it was opened."""

    # Opening

    @classmethod
    def create(
        cls, fs: FileSystem, root: str, handle: str, settings: StorageSettings, clock: Clock
    ) -> "ShapeStorage":
        """Creates the directory of a new shape; removes files that a crash left there.

        Raises InvalidRequest if the shape exists, OSError.
        """
        directory = layout.shape_directory(root, handle)
        if fs.exists(layout.manifest_path(directory)):
            raise InvalidRequest(f"shape {handle} exists in {root}: a handle is used once")
        if fs.exists(directory):
            fs.remove_tree(directory)
        make_durable_directory(fs, directory)
        fs.make_directory(layout.log_directory(directory))
        fs.make_directory(layout.metadata_directory(directory))
        fs.sync_directory(directory)
        layout.create_pointer(fs, directory)
        layout.write_manifest(fs, directory, ShapeManifest())
        snapshot = ShapeSnapshot(fs, layout.log_directory(directory), settings.chunk_bytes)
        pointer, state = layout.read_pointer(fs, directory), ShapeLogState(ShapeManifest())
        storage = cls(
            fs, root, handle, settings, clock, snapshot=snapshot, pointer=pointer, state=state
        )
        with storage._lock:
            storage._start_writer_locked(LogEnd(SNAPSHOT_END))
        return storage

    @classmethod
    def open(
        cls, fs: FileSystem, root: str, handle: str, settings: StorageSettings, clock: Clock
    ) -> "ShapeStorage":
        """Opens a shape whose snapshot is complete; nothing is changed before the first write.

        Raises NotFound and Corrupt: then the shape is to be dropped.
        """
        directory = layout.shape_directory(root, handle)
        manifest = layout.read_manifest(fs, directory)
        snapshot = ShapeSnapshot.open(fs, layout.log_directory(directory))
        check_compacted_end(fs, directory, manifest)
        pointer = layout.read_pointer(fs, directory)
        if not pointer.is_certain:
            pointer.offset = max(pointer.offset, find_last_end(fs, directory, manifest))
        durable = pointer.offset
        end = locate_end(fs, directory, manifest, durable)
        state = ShapeLogState(
            manifest, durable, durable, durable, end.position, end.edge_count, end.cache
        )
        storage = cls(
            fs, root, handle, settings, clock, snapshot=snapshot, pointer=pointer, state=state
        )
        is_certain = pointer.is_certain
        storage._beyond = find_beyond(fs, directory, manifest, end, is_certain=is_certain)
        return storage

    def check_end(self, tx: int) -> None:
        """Raises Corrupt if the log lost entries up to a transaction that was durable everywhere.

        Only before the first write after opening it can be known.
        """
        beyond, self._beyond = self._beyond, None
        if beyond is not None and beyond.tx <= tx:
            raise Corrupt(
                f"the log in {self.directory} ends at {self.persisted}, and transaction {tx} was "
                "durable: drop the shape"
            )

    @property
    def latest(self) -> ShapeOffset:
        """The end of the last transaction; the end of the snapshot before there is one."""
        return self._state.latest

    @property
    def persisted(self) -> ShapeOffset:
        """The last transaction end that is durable."""
        return self._state.persisted

    @property
    def manifest(self) -> ShapeManifest:
        return self._state.manifest

    @property
    def live_bytes(self) -> int:
        """Bytes of the live log's file."""
        return self._state.log_end

    # Appending

    def append(self, entries: Sequence[ShapeEntry]) -> None:
        """Appends the entries of whole transactions, visible all at once; skips stored entries.

        Raises InvalidRequest when offsets do not ascend; an I/O error ends all writing.
        """
        entry_list = entries if isinstance(entries, list) else list(entries)
        with self._lock:
            writer = self._get_writer_locked()
            latest = self._state.latest
            try:
                writer.append(entry_list, _count_stored(entry_list, latest))
            except OSError as error:
                raise self._fail_locked(error) from error
            except InvalidRequest as error:
                if writer.latest != latest:
                    self.failure = error
                raise
            self._publish_locked(writer)

    def _get_writer_locked(self) -> LogWriter:
        """The writer; recovers the log before the first write."""
        self._check_locked()
        if self._writer is not None:
            return self._writer
        with self._failing_locked():
            end = recover(self.fs, self.directory, self.manifest, self.persisted)
        return self._start_writer_locked(end)

    def _start_writer_locked(self, end: LogEnd) -> LogWriter:
        self._beyond = None
        self._writer = LogWriter(self.fs, self.directory, self.manifest, self.settings, end)
        self._publish_locked(self._writer)
        return self._writer

    def _publish_locked(self, writer: LogWriter) -> None:
        state = self._state
        self._state = ShapeLogState(
            state.manifest,
            writer.written,
            state.persisted,
            writer.latest,
            writer.log_end,
            writer.edge_count,
            writer.cache,
            writer.tail,
            len(writer.tail),
            writer.marks,
            len(writer.marks),
        )

    # Flushing

    def flush(self) -> None:
        """Syncs the appended entries; appends continue meanwhile. A failure ends all writing."""
        failed = flush_storages([self])
        if failed:
            raise failed[self]

    def begin_flush(self) -> LogFlush | None:
        """Starts a flush; None when there is nothing to sync. No other runs before `end_flush`."""
        self._flush_lock.acquire()
        flush = None
        try:
            with self._lock:
                flush = self._take_flush_locked()
        finally:
            if flush is None:
                self._flush_lock.release()
        return flush

    def _take_flush_locked(self) -> LogFlush | None:
        self._check_locked()
        writer = self._writer
        if writer is None or (writer.is_synced and self.persisted == self.latest):
            return None
        with self._failing_locked():
            files, directory = writer.take_unsynced()
        self._publish_locked(writer)
        return LogFlush(self.fs, files, directory, self._pointer, writer.latest)

    def end_flush(self, flush: LogFlush) -> StoreError | None:
        """Publishes the result of a flush; returns its error, if any."""
        try:
            if flush.error is None and not flush.is_done:
                # The flush took the writer's files, so no later flush would sync them.
                flush.error = OSError(errno.EIO, "the flush was broken off")
            with self._lock:
                if flush.error is not None:
                    return self._fail_locked(flush.error)
                self._state = self._state._replace(persisted=flush.offset)
                return None
        finally:
            self._flush_lock.release()

    # Reading

    def chunk_end(self, offset: ShapeOffset) -> ShapeOffset | None:
        """Where a catch-up response from this offset ends; None: at the latest offset.

        Raises NotFound when the shape was dropped.
        """
        cached = self.find_cached_chunk_end(offset)
        if cached is not None:
            return cached.offset
        chunk = self._read_files(
            lambda state: LogView(self.fs, self.directory, state).find_chunk(offset)
        )
        return None if chunk is None else chunk.last

    def find_cached_chunk_end(self, offset: ShapeOffset) -> ChunkEnd | None:
        """As `chunk_end` without reading a file; None if that takes a file."""
        if offset == BEFORE_ALL:
            return ChunkEnd(FIRST_CHUNK)
        if offset < SNAPSHOT_END:
            last_chunk = self.snapshot.last_chunk
            if last_chunk is None or offset.op < last_chunk:
                return ChunkEnd(ShapeOffset(0, offset.op + 1))
        self._check_not_dropped()
        state, log_offset = self._state, max(offset, SNAPSHOT_END)
        if log_offset < state.manifest.boundary or not state.cache.covers(log_offset):
            return None
        chunk = state.cache.find(log_offset)
        return ChunkEnd(None if chunk is None else chunk.last)

    def is_in_memory(self, start: ShapeOffset) -> bool:
        """Whether reading from here on opens no file."""
        return start >= SNAPSHOT_END and self._state.written <= start

    def read(self, start: ShapeOffset, end: ShapeOffset) -> Iterator[bytes]:
        """The messages in (start, end], in pieces of whole messages; join the pieces by commas.

        Reads at most one chunk of the snapshot, up to `chunk_end`; waits for a chunk that is being
        written. Raises NotFound when the shape was dropped, and Corrupt, at the call where
        possible; a stream continues when the shape is dropped later.
        """
        number = 0 if start < FIRST_CHUNK else start.op + 1
        if start < SNAPSHOT_END and ShapeOffset(0, number) <= end:
            pieces = self._read_files(lambda _: self.snapshot.read_chunk(number))
            if pieces is not None:
                return pieces
        return self._read_files(
            lambda state: open_stream(
                self.fs,
                self.directory,
                state,
                after=max(start, SNAPSHOT_END),
                until=end,
                read_bytes=self.settings.read_bytes,
            )
        )

    def _read_files(self, read: Callable[[ShapeLogState], T]) -> T:
        """Reads files of the published state; repeats if a compaction replaced them meanwhile."""
        while True:
            self._check_not_dropped()
            state = self._state
            try:
                return read(state)
            except FileNotFoundError as error:
                if self.manifest != state.manifest:
                    continue
                self._check_not_dropped()
                if not self.fs.exists(self.directory):
                    raise NotFound(f"shape {self.handle} is gone: request it again") from error
                raise Corrupt(f"{error.filename} is missing: drop the shape") from error

    # Compaction

    def close_chunk(self) -> None:
        """Ends the open chunk, so that it may be compacted, and makes all durable."""
        with self._flush_lock:
            with self._lock:
                writer = self._get_writer_locked()
                with self._failing_locked():
                    writer.close_chunk()
                self._publish_locked(writer)
            self.flush()

    def compaction_target(self, keep_chunks: int) -> tuple[ShapeOffset, int] | None:
        """Last offset and end byte of the part of the live log that may be compacted, or None.

        Leaves out the newest complete chunks, the open one and all that is not durable. Call it
        before writing files of a compacted log, because it recovers a log that was just opened.
        """
        with self._lock:
            self._get_writer_locked()

        def find(state: ShapeLogState) -> tuple[ShapeOffset, int] | None:
            number = state.edge_count // 2 - keep_chunks - 1
            if number < 0:
                return None
            with self._open_index(state) as file:
                chunk = ChunkIndexFile(file, state.edge_count).get(number)
            if chunk.last is None or chunk.end is None or chunk.last > state.persisted:
                return None
            return chunk.last, chunk.end

        return self._read_files(find)

    def install(self, compacted: CompactedLog) -> None:
        """Replaces entries by the log that was compacted from them; its files are durable.

        Raises InvalidRequest, without changes, when it does not fit the live log.
        """
        with self._flush_lock:
            self.flush()
            self._check_fits(compacted)
            old, now_ms = self._state, self._clock.now_ms()
            latest = layout.new_suffix(self.fs, self.directory, layout.LATEST, now_ms)
            manifest = ShapeManifest(latest, compacted.boundary, compacted.suffix)
            copy = LogRemainderCopy(
                self.fs, self.directory, old.manifest, manifest, compacted.position
            )
            try:
                # Most is copied while appends continue; only the rest is copied under the lock.
                copy.copy_to(old.log_end)
            except (OSError, Corrupt) as error:
                with self._lock:
                    raise self._fail_locked(error) from error
            with self._lock, self._failing_locked():
                self._swap_locked(copy, manifest, compacted.position)
        for suffix in sorted(old.manifest.suffixes - manifest.suffixes):
            self._remove(layout.log_path(self.directory, suffix))
            self._remove(layout.index_path(self.directory, suffix))

    def _check_fits(self, compacted: CompactedLog) -> None:
        if compacted.boundary > self.persisted:
            raise InvalidRequest(
                f"compacted log {compacted.suffix} of {self.directory} ends at "
                f"{compacted.boundary}, beyond what is durable, {self.persisted}"
            )
        for path_of in (layout.log_path, layout.index_path):
            path = path_of(self.directory, compacted.suffix)
            if not self.fs.exists(path):
                raise InvalidRequest(f"{path} does not exist: write it before it is installed")
        with self._open_index(self._state) as file:
            check_compacted(ChunkIndexFile(file, self._state.edge_count), compacted, self.directory)

    def _open_index(self, state: ShapeLogState) -> File:
        return self.fs.open(layout.index_path(self.directory, state.manifest.latest))

    def _swap_locked(self, copy: LogRemainderCopy, manifest: ShapeManifest, position: int) -> None:
        self._check_locked()
        writer = self._writer
        assert writer is not None  # entries up to the boundary are durable, so there is one
        writer.write_out()
        copy.copy_to(writer.log_end)
        edge_count = copy.write_index(writer.edge_count)
        self.fs.sync_directory(layout.log_directory(self.directory))
        layout.write_manifest(self.fs, self.directory, manifest)
        writer.move(manifest, position, edge_count)
        self._state = self._state._replace(manifest=manifest)
        self._publish_locked(writer)

    def _remove(self, path: str) -> None:
        try:
            self.fs.remove(path)
        except OSError as error:
            # The next recovery removes it.
            logger.warning("old file of a shape stays", extra={"path": path, "error": error})

    # Ending

    def close(self) -> None:
        """Flushes and takes no more writes; reading continues. Closing twice is harmless."""
        with self._flush_lock:
            if self.failure is None and not self._is_dropped and not self._is_closed:
                self.flush()
            with self._lock:
                self._is_closed = True
                self._release_locked()

    def drop(self) -> bool:
        """Renames the directory into the trash; False when it does not exist. Raises OSError."""
        with self._flush_lock, self._lock:
            self._is_dropped = True
            self._release_locked()
        return layout.move_to_trash(self.fs, self.root, self.handle)

    def _release_locked(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _check_not_dropped(self) -> None:
        if self._is_dropped:
            raise NotFound(f"the shape in {self.directory} was dropped: request it again")

    def _check_locked(self) -> None:
        self._check_not_dropped()
        if self._is_closed:
            raise Closed(f"the shape in {self.directory} was closed: open it again")
        if self.failure is not None:
            raise self.failure.again()

    def _fail_locked(self, error: OSError | Corrupt) -> StoreError:
        failure = error if isinstance(error, Corrupt) else _to_store_error(error, self.directory)
        self.failure = failure
        return failure

    @contextmanager
    def _failing_locked(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._fail_locked(error) from error
        except Corrupt as error:
            self._fail_locked(error)
            raise


def flush_storages(storages: Sequence[ShapeStorage]) -> dict[ShapeStorage, StoreError]:
    """Makes the appended entries of many shapes durable, with few syncs; returns the failures."""
    failed: dict[ShapeStorage, StoreError] = {}
    flushes: dict[ShapeStorage, LogFlush] = {}
    try:
        for storage in storages:
            try:
                flush = storage.begin_flush()
            except StoreError as error:
                failed[storage] = error
                continue
            if flush is not None:
                flushes[storage] = flush
        if flushes:
            run_flushes(storages[0].fs, list(flushes.values()))
    finally:
        for storage, flush in flushes.items():
            failure = storage.end_flush(flush)
            if failure is not None:
                failed[storage] = failure
    return failed


def _count_stored(entries: list[ShapeEntry], latest: ShapeOffset) -> int:
    """How many of the entries, which ascend, are stored already."""
    count = 0
    while count < len(entries) and entries[count].offset <= latest:
        count += 1
    return count


def _to_store_error(error: OSError, directory: str) -> StoreError:
    """The error to raise instead: the shape accepts no more writes and must be dropped."""
    reason = f"{error.strerror or error} ({error.filename or directory})"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"shape in {directory}: {reason}; free some space and drop the shape")
    return Unavailable(f"shape in {directory}: {reason}; repair the disk and drop the shape")
