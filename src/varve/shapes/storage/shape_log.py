"""The log of a shape: appends transactions, flushes them, replaces its start by a compacted log.

Invariant  the last persisted transaction advances after the bytes it covers are synced, and a flush
           is done once the pointer is synced too; a flush that fails delays no other. Readers see a
           new state after the bytes are where it says. Replacing changes no file that readers may
           hold: new files are written, and the manifest names them in one step.
Crash      recovery runs before the first write after opening. A failed write or sync ends all
           writing: the files may hold a part of it, and the shape is to be dropped. Before the
           manifest is replaced the new files belong to no shape; recovery removes them.
Threads    any. Lock order: _flush_lock, then _lock; no sync is made under _lock except that of a
           replacement, so appends do not wait for the disk.
"""

import errno
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from varve.disk import File, FileSystem
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
from varve.shapes.offset import SNAPSHOT_END, ShapeOffset
from varve.shapes.settings import StorageSettings
from varve.shapes.storage.chunk_index import (
    ChunkCache,
    ChunkIndexFile,
    LogChunk,
    encode_chunks,
    shift_chunk,
)
from varve.shapes.storage.entry import ShapeEntry
from varve.shapes.storage.layout import (
    LATEST,
    Pointer,
    ShapeManifest,
    index_path,
    log_directory,
    log_path,
    new_suffix,
    write_manifest,
)
from varve.shapes.storage.log_writer import LogWriter, ShapeLogState, SyncWork, WriterStart
from varve.shapes.storage.recovery import RecoveredLog, recover


def storage_failure(error: OSError, directory: str) -> StoreError:
    """The error to raise in its place: the shape takes no more writes and is to be dropped."""
    reason = f"{error.strerror or error} ({error.filename or directory})"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"shape in {directory}: {reason}; free some space and drop the shape")
    return Unavailable(f"shape in {directory}: {reason}; repair the disk and drop the shape")


@dataclass(frozen=True, slots=True)
class CompactedLog:
    """It holds all entries up to `boundary`: the compacted log before, and the live one's bytes
    up to `position`. Its files lie in the log directory under `suffix`, durable.
    """

    boundary: ShapeOffset
    position: int
    suffix: str


_COPY_BYTES = 1 << 20


class RestCopy:
    """The live log behind a compacted part, on its way to a file of its own."""

    def __init__(
        self, fs: FileSystem, directory: str, old: ShapeManifest, new: ShapeManifest, position: int
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._old = old
        self._new = new
        self._position = position
        self._copied = position

    def copy_to(self, end: int) -> None:
        """Copies entries up to this byte of the old log, and syncs them. Raises OSError."""
        with (
            self._fs.open(log_path(self._directory, self._old.latest)) as source,
            self._fs.open_writable(log_path(self._directory, self._new.latest)) as target,
        ):
            for data in _blocks(source, self._copied, end):
                target.write_at(self._copied - self._position, data)
                self._copied += len(data)
            target.sync()

    def write_index(self, edge_count: int) -> int:
        """Writes the chunks behind the boundary, synced; gives how many edges. Raises OSError."""
        with self._fs.open(index_path(self._directory, self._old.latest)) as source:
            chunks = _chunks_behind(ChunkIndexFile(source, edge_count), self._new, self._position)
        data = encode_chunks(chunks)
        path = index_path(self._directory, self._new.latest)
        with self._fs.open_writable(path) as target:
            target.write_at(0, data)
            target.sync()
        return sum(1 if chunk.is_open else 2 for chunk in chunks)


def _blocks(source: File, start: int, end: int) -> Iterator[bytes]:
    while start < end:
        data = source.read_at(start, min(_COPY_BYTES, end - start))
        if not data:
            raise Corrupt(f"{source.path} ends at {start}, and entries were written up to {end}")
        yield data
        start += len(data)


def _chunks_behind(index: ChunkIndexFile, new: ShapeManifest, position: int) -> list[LogChunk]:
    chunks = index.last_chunks(index.edge_count)
    return [shift_chunk(chunk, position) for chunk in chunks if chunk.reaches_beyond(new.boundary)]


def check_compacted(index: ChunkIndexFile, compacted: CompactedLog, directory: str) -> None:
    """Raises InvalidRequest when it ends at no chunk of the live log."""
    for chunk in index.complete():
        if chunk.last == compacted.boundary and chunk.end == compacted.position:
            return
    raise InvalidRequest(
        f"compacted log {compacted.suffix} of {directory} ends at {compacted.boundary}, byte "
        f"{compacted.position}, where no chunk of the live log ends: compact again"
    )


def replaced_files(directory: str, old: ShapeManifest, new: ShapeManifest) -> list[str]:
    """Files that the old manifest names and the new one does not."""
    return [
        path_of(directory, suffix)
        for suffix in sorted(old.suffixes - new.suffixes)
        for path_of in (log_path, index_path)
    ]


class LogFlush:
    """One log on its way to be durable up to a place."""

    __slots__ = ("_directory", "_fs", "_pointer", "error", "files", "is_done", "place")

    def __init__(
        self, fs: FileSystem, work: SyncWork, pointer: Pointer, place: ShapeOffset
    ) -> None:
        self.place = place
        self.files: list[File] = work.files
        """To be synced before the next step."""
        self.error: OSError | None = None
        self.is_done = False
        self._directory = work.directory
        self._fs = fs
        self._pointer = pointer

    def point(self) -> None:
        """Writes the pointer behind a log that is synced. Raises OSError."""
        self.close()
        if self._directory is not None:
            self._fs.sync_directory(self._directory)
        if self.place != self._pointer.offset:
            self.files = [self._pointer.write(self.place)]

    def close(self) -> None:
        """Gives the files back."""
        files, self.files = self.files, []
        for file in files:
            file.close()


def run_flushes(fs: FileSystem, flushes: Sequence[LogFlush]) -> None:
    """Brings flushes to their end; each is done then, or has an error."""
    _sync(fs, flushes)
    for flush in flushes:
        if flush.error is None:
            try:
                flush.point()
            except OSError as error:
                flush.error = error
    _sync(fs, flushes)
    for flush in flushes:
        flush.close()
        flush.is_done = flush.error is None


def _sync(fs: FileSystem, flushes: Sequence[LogFlush]) -> None:
    waiting = [(flush, file) for flush in flushes if flush.error is None for file in flush.files]
    errors = fs.sync_files([file for _, file in waiting])
    for (flush, _), error in zip(waiting, errors, strict=True):
        flush.error = flush.error or error


class ShapeLog:
    """Writes one log, and publishes what readers may know of it as `state`."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        settings: StorageSettings,
        clock: Clock,
        pointer: Pointer,
        state: ShapeLogState,
    ) -> None:
        self.state = state  # replaced under _lock, read without
        self.failure: StoreError | None = None  # set under _lock, read without
        self.is_dropped = False  # set under _lock, read without
        self._fs = fs
        self._directory = directory
        self._settings = settings
        self._clock = clock
        self._flush_lock = threading.Lock()
        self._lock = threading.Lock()
        self._pointer = pointer  # guarded by _flush_lock
        self._writer: LogWriter | None = None  # guarded by _lock
        self._is_closed = False  # guarded by _lock

    # Appending

    def append(self, entries: list[ShapeEntry]) -> None:
        with self._lock:
            writer = self._get_writer_locked()
            latest = self.state.latest
            try:
                writer.append(entries, _count_stored(entries, latest))
            except OSError as error:
                raise self._fail_locked(error) from error
            except InvalidRequest as error:
                if writer.latest != latest:
                    self.failure = error
                raise
            self._publish_locked(writer)

    def _get_writer_locked(self) -> LogWriter:
        self._check_locked()
        return self._writer or self._start_locked()

    def _start_locked(self) -> LogWriter:
        """Recovers the log and begins to write."""
        state = self.state
        with self._failing_locked():
            trimmed = recover(self._fs, self._directory, state.manifest, state.persisted)
        return self._begin_locked(trimmed)

    def begin_empty(self) -> None:
        """Begins to write the log of a shape just made, where there is nothing to recover."""
        with self._lock:
            self._begin_locked(RecoveredLog(WriterStart(SNAPSHOT_END), ChunkCache()))

    def _begin_locked(self, trimmed: RecoveredLog) -> LogWriter:
        self._writer = LogWriter(
            self._fs,
            self._directory,
            self.state.manifest,
            self._settings,
            trimmed.start,
            trimmed.cache,
        )
        self._publish_locked(self._writer)
        return self._writer

    def _publish_locked(self, writer: LogWriter) -> None:
        state = self.state
        self.state = ShapeLogState(
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

    def _is_flushed_locked(self, writer: LogWriter) -> bool:
        return writer.is_synced and self.state.persisted == self.state.latest

    def flush(self) -> None:
        with self._flush_lock:
            self._flush_held()

    def begin_flush(self) -> LogFlush | None:
        """Begins a flush that others are run with; None where there is nothing to do.

        No other flush runs before `end_flush`.
        """
        self._flush_lock.acquire()
        flush = None
        try:
            flush = self._begin_held()
        finally:
            if flush is None:
                self._flush_lock.release()
        return flush

    def end_flush(self, flush: LogFlush) -> StoreError | None:
        """Publishes what a flush came to; gives what failed."""
        try:
            return self._end_held(flush)
        finally:
            self._flush_lock.release()

    def _flush_held(self) -> None:
        """Flushes under _flush_lock, which keeps the pointer and the order of syncs."""
        flush = self._begin_held()
        if flush is not None:
            try:
                run_flushes(self._fs, [flush])
            finally:
                failure = self._end_held(flush)
            if failure is not None:
                raise failure from flush.error

    def _begin_held(self) -> LogFlush | None:
        with self._lock:
            self._check_locked()
            writer = self._writer
            if writer is None or self._is_flushed_locked(writer):
                return None
            with self._failing_locked():
                work = writer.take_sync()
            self._publish_locked(writer)
            return LogFlush(self._fs, work, self._pointer, writer.latest)

    def _end_held(self, flush: LogFlush) -> StoreError | None:
        if flush.error is None and not flush.is_done:
            # The writer has given its files away, so no later flush would sync them.
            flush.error = OSError(errno.EIO, "the flush was broken off")
        with self._lock:
            if flush.error is not None:
                return self._fail_locked(flush.error)
            self.state = self.state._replace(persisted=flush.place)
            return None

    # Compaction

    def close_chunk(self) -> None:
        with self._flush_lock:
            with self._lock:
                writer = self._get_writer_locked()
                with self._failing_locked():
                    writer.close_chunk()
                self._publish_locked(writer)
            self._flush_held()

    def compaction_target(self, keep_chunks: int) -> tuple[ShapeOffset, int] | None:
        with self._lock:
            self._get_writer_locked()
            state = self.state
        number = state.edge_count // 2 - keep_chunks - 1
        if number < 0:
            return None
        with self._fs.open(index_path(self._directory, state.manifest.latest)) as file:
            chunk = ChunkIndexFile(file, state.edge_count).get(number)
        if chunk.last is None or chunk.end is None or chunk.last > state.persisted:
            return None
        return chunk.last, chunk.end

    def install(self, compacted: CompactedLog) -> list[str]:
        """Returns the paths of replaced files, which only earlier readers use."""
        with self._flush_lock:
            self._flush_held()
            self._check_fits(compacted)
            state, now_ms = self.state, self._clock.now_ms()
            latest = new_suffix(self._fs, self._directory, LATEST, now_ms)
            manifest = ShapeManifest(latest, compacted.boundary, compacted.suffix)
            copy = RestCopy(self._fs, self._directory, state.manifest, manifest, compacted.position)
            with self._failing():
                # The bulk is copied beside appends; only what came meanwhile is copied under lock.
                copy.copy_to(state.log_end)
            with self._lock, self._failing_locked():
                self._swap_locked(copy, manifest, compacted.position)
            return replaced_files(self._directory, state.manifest, manifest)

    def _check_fits(self, compacted: CompactedLog) -> None:
        state = self.state
        if compacted.boundary > state.persisted:
            raise InvalidRequest(
                f"compacted log {compacted.suffix} of {self._directory} ends at "
                f"{compacted.boundary}, beyond what is durable, {state.persisted}"
            )
        for path in (log_path, index_path):
            if not self._fs.exists(path(self._directory, compacted.suffix)):
                raise InvalidRequest(f"{path(self._directory, compacted.suffix)} is not there")
        with self._fs.open(index_path(self._directory, state.manifest.latest)) as file:
            check_compacted(ChunkIndexFile(file, state.edge_count), compacted, self._directory)

    def _swap_locked(self, copy: RestCopy, manifest: ShapeManifest, position: int) -> None:
        self._check_locked()
        writer = self._writer
        assert writer is not None  # entries up to the boundary are durable, so one has begun
        writer.write_out()
        copy.copy_to(writer.log_end)
        edge_count = copy.write_index(writer.edge_count)
        self._fs.sync_directory(log_directory(self._directory))
        write_manifest(self._fs, self._directory, manifest)
        writer.move(manifest, position, edge_count)
        self.state = self.state._replace(manifest=manifest)
        self._publish_locked(writer)

    # Ending

    def close(self) -> None:
        with self._flush_lock:
            if self.failure is None and not self.is_dropped and not self._is_closed:
                self._flush_held()
            with self._lock:
                self._is_closed = True
                self._release_locked()

    def drop(self) -> None:
        with self._flush_lock, self._lock:
            self.is_dropped = True
            self._release_locked()

    def _release_locked(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def check_not_dropped(self) -> None:
        if self.is_dropped:
            raise NotFound(f"the shape in {self._directory} was dropped: request it again")

    def _check_locked(self) -> None:
        self.check_not_dropped()
        if self._is_closed:
            raise Closed(f"the shape in {self._directory} was closed: open it again")
        if self.failure is not None:
            raise self.failure.again()

    def _fail_locked(self, error: OSError | Corrupt) -> StoreError:
        failure = error if isinstance(error, Corrupt) else storage_failure(error, self._directory)
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

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """The same for work that is done without the lock."""
        try:
            yield
        except (OSError, Corrupt) as error:
            with self._lock:
                failure = self._fail_locked(error)
            raise failure from error


def _count_stored(entries: list[ShapeEntry], latest: ShapeOffset) -> int:
    """How many of the entries, which ascend, are stored already."""
    count = 0
    while count < len(entries) and entries[count].offset <= latest:
        count += 1
    return count
