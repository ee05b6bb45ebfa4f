"""The one who writes a shape's log: takes transactions, flushes them, swaps compacted parts in.

Invariant  the last persisted transaction moves on after the bytes it covers are synced; what
           readers know is published after the bytes are where it says.
Crash      recovery runs before the first write after opening. A failed write or sync ends all
           writing: the files may hold a part of it, and the owner drops the shape.
Threads    any. Order of locks: _flush_lock, then _lock; no sync is made under _lock but the one
           of a compaction's swap, so appends do not wait for the disk.
"""

import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from varve.disk import FileSystem
from varve.foundation.clock import Clock
from varve.foundation.errors import Closed, Corrupt, InvalidRequest, NotFound, StoreError
from varve.shapes.offset import SNAPSHOT_END, Offset
from varve.shapes.storage.chunk_cache import ChunkCache
from varve.shapes.storage.chunk_index import ChunkIndexFile
from varve.shapes.storage.compacted_log import CompactedLog
from varve.shapes.storage.compacted_swap import RestCopy, check_compacted, replaced_files
from varve.shapes.storage.entry import Entry
from varve.shapes.storage.failure import storage_failure
from varve.shapes.storage.layout import LATEST, index_path, log_directory, log_path, new_suffix
from varve.shapes.storage.log_flush import LogFlush, run_flushes
from varve.shapes.storage.log_writer import LogWriter, WriterStart
from varve.shapes.storage.manifest import Manifest, write_manifest
from varve.shapes.storage.pointer import Pointer
from varve.shapes.storage.published import Published
from varve.shapes.storage.recovery import Trimmed, recover
from varve.shapes.storage.settings import StorageSettings


class LogOwner:
    """Writes one log, and publishes what readers may know of it as `record`."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        settings: StorageSettings,
        clock: Clock,
        pointer: Pointer,
        record: Published,
    ) -> None:
        self.record = record  # replaced under _lock, read without
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

    def append(self, entries: list[Entry]) -> None:
        with self._lock:
            writer = self._get_writer_locked()
            latest = self.record.latest
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
        record = self.record
        with self._failing_locked():
            trimmed = recover(self._fs, self._directory, record.manifest, record.persisted)
        return self._begin_locked(trimmed)

    def begin_empty(self) -> None:
        """Begins to write the log of a shape just made, where there is nothing to recover."""
        with self._lock:
            self._begin_locked(Trimmed(WriterStart(SNAPSHOT_END), ChunkCache()))

    def _begin_locked(self, trimmed: Trimmed) -> LogWriter:
        self._writer = LogWriter(
            self._fs,
            self._directory,
            self.record.manifest,
            self._settings,
            trimmed.start,
            trimmed.cache,
        )
        self._publish_locked(self._writer)
        return self._writer

    def _publish_locked(self, writer: LogWriter) -> None:
        record = self.record
        self.record = Published(
            record.manifest,
            writer.written,
            record.persisted,
            writer.latest,
            writer.log_end,
            writer.half_count,
            writer.cache,
            writer.tail,
            len(writer.tail),
            writer.marks,
            len(writer.marks),
        )

    # Flushing

    def _is_flushed_locked(self, writer: LogWriter) -> bool:
        return writer.is_synced and self.record.persisted == self.record.latest

    def flush(self) -> None:
        with self._flush_lock:
            self._flush_held()

    def begin_flush(self) -> LogFlush | None:
        """Begins a flush that others are run with; None where there is nothing to do.

        Nobody else flushes before `end_flush`.
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
            self.record = self.record._replace(persisted=flush.place)
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

    def compaction_target(self, keep_chunks: int) -> tuple[Offset, int] | None:
        with self._lock:
            self._get_writer_locked()
            record = self.record
        number = record.half_count // 2 - keep_chunks - 1
        if number < 0:
            return None
        with self._fs.open(index_path(self._directory, record.manifest.latest)) as file:
            chunk = ChunkIndexFile(file, record.half_count).get(number)
        if chunk.last is None or chunk.end is None or chunk.last > record.persisted:
            return None
        return chunk.last, chunk.end

    def install(self, compacted: CompactedLog) -> list[str]:
        """Gives the paths that nobody needs any more but readers of old."""
        with self._flush_lock:
            self._flush_held()
            self._check_fits(compacted)
            record, now_ms = self.record, self._clock.now_ms()
            latest = new_suffix(self._fs, self._directory, LATEST, now_ms)
            manifest = Manifest(latest, compacted.boundary, compacted.suffix)
            copy = RestCopy(
                self._fs, self._directory, record.manifest, manifest, compacted.position
            )
            with self._failing():
                # The bulk is copied beside appends; only what came meanwhile is copied under lock.
                copy.copy_to(record.log_end)
            with self._lock, self._failing_locked():
                self._swap_locked(copy, manifest, compacted.position)
            return replaced_files(self._directory, record.manifest, manifest)

    def _check_fits(self, compacted: CompactedLog) -> None:
        record = self.record
        if compacted.boundary > record.persisted:
            raise InvalidRequest(
                f"compacted log {compacted.suffix} of {self._directory} ends at "
                f"{compacted.boundary}, beyond what is durable, {record.persisted}"
            )
        for path in (log_path, index_path):
            if not self._fs.exists(path(self._directory, compacted.suffix)):
                raise InvalidRequest(f"{path(self._directory, compacted.suffix)} is not there")
        with self._fs.open(index_path(self._directory, record.manifest.latest)) as file:
            check_compacted(ChunkIndexFile(file, record.half_count), compacted, self._directory)

    def _swap_locked(self, copy: RestCopy, manifest: Manifest, position: int) -> None:
        self._check_locked()
        writer = self._writer
        assert writer is not None  # entries up to the boundary are durable, so one has begun
        writer.write_out()
        copy.copy_to(writer.log_end)
        half_count = copy.write_index(writer.half_count)
        self._fs.sync_directory(log_directory(self._directory))
        write_manifest(self._fs, self._directory, manifest)
        writer.move(manifest, position, half_count)
        self.record = self.record._replace(manifest=manifest)
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
            raise NotFound(f"the shape in {self._directory} was dropped: ask for it anew")

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


def _count_stored(entries: list[Entry], latest: Offset) -> int:
    """How many of the entries, which ascend, are stored already."""
    count = 0
    while count < len(entries) and entries[count].offset <= latest:
        count += 1
    return count
