"""The directory of one shape: its snapshot, its log, and what readers know of both.

Invariant  readers take the published value once and need no lock; what it names stays until their
           lease ends. The last persisted transaction moves on after the bytes it covers are synced.
Crash      recovery runs before the first write after opening; until then readers get what is
           durable. A failed write or sync ends writing: the owner drops the shape.
Threads    any. Order of locks: _flush_lock, then _lock; no sync is made under _lock but the one
           of a compaction's swap. Lease counts have a lock of their own, taken last.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from varve.disk import FileSystem
from varve.foundation.clock import Clock
from varve.foundation.errors import Closed, Corrupt, InvalidRequest, NotFound, StoreError
from varve.shapes.offset import BEFORE_ALL, FIRST_CHUNK, SNAPSHOT_END, Offset
from varve.shapes.storage.chunk_index import ChunkIndexFile
from varve.shapes.storage.compacted_log import CompactedLog
from varve.shapes.storage.compacted_swap import RestCopy, check_compacted, replaced_files
from varve.shapes.storage.creation import create_directory
from varve.shapes.storage.entry import Entry
from varve.shapes.storage.failure import storage_failure
from varve.shapes.storage.generations import Generations, Lease
from varve.shapes.storage.layout import (
    LATEST,
    index_path,
    log_directory,
    log_path,
    new_suffix,
    shape_directory,
)
from varve.shapes.storage.log_reader import LogView, open_stream
from varve.shapes.storage.log_writer import LogWriter
from varve.shapes.storage.manifest import Manifest, read_manifest, write_manifest
from varve.shapes.storage.pointer import Pointer, read_pointer
from varve.shapes.storage.published import Published
from varve.shapes.storage.recovery import load_cache, recover
from varve.shapes.storage.settings import StorageSettings
from varve.shapes.storage.snapshot import Snapshot
from varve.shapes.storage.trash import move_to_trash


class ShapeStorage:
    """One shape on disk. Made by `create` or `open`."""

    def __init__(
        self,
        file_system: FileSystem,
        root: str,
        handle: str,
        settings: StorageSettings,
        clock: Clock,
        *,
        snapshot: Snapshot,
        pointer: Pointer,
        record: Published,
    ) -> None:
        self.file_system = file_system
        self.root = root
        self.handle = handle
        self.directory = shape_directory(root, handle)
        self.settings = settings
        self.snapshot = snapshot
        self._clock = clock
        self._flush_lock = threading.Lock()
        self._lock = threading.Lock()
        self._pointer = pointer  # guarded by _flush_lock
        self._record = record  # replaced under _lock, read without
        self._writer: LogWriter | None = None  # guarded by _lock
        self._due_ms: int | None = None  # guarded by _lock
        self._failure: StoreError | None = None  # guarded by _lock
        self._is_closed = False  # guarded by _lock
        self._is_dropped = False  # guarded by _lock
        self._generations = Generations(file_system)

    # Opening

    @classmethod
    def create(
        cls,
        file_system: FileSystem,
        root: str,
        handle: str,
        settings: StorageSettings,
        clock: Clock,
    ) -> "ShapeStorage":
        """Make the directory of a new shape; what a crash left there is wiped. Raises OSError."""
        directory = create_directory(file_system, root, handle)
        return cls(
            file_system,
            root,
            handle,
            settings,
            clock,
            snapshot=Snapshot(file_system, log_directory(directory), settings.chunk_bytes),
            pointer=read_pointer(file_system, directory),
            record=Published(Manifest()),
        )

    @classmethod
    def open(
        cls,
        file_system: FileSystem,
        root: str,
        handle: str,
        settings: StorageSettings,
        clock: Clock,
    ) -> "ShapeStorage":
        """Open a shape whose snapshot is complete; nothing is changed before the first write.

        Raises NotFound and Corrupt: then the shape is to be dropped.
        """
        directory = shape_directory(root, handle)
        manifest = read_manifest(file_system, directory)
        snapshot = Snapshot.open(file_system, log_directory(directory))
        pointer = read_pointer(file_system, directory)
        return cls(
            file_system,
            root,
            handle,
            settings,
            clock,
            snapshot=snapshot,
            pointer=pointer,
            record=_load_record(file_system, directory, manifest, pointer.offset),
        )

    # What is known

    @property
    def latest(self) -> Offset:
        """The last committed transaction's end; the end of the snapshot before there is one."""
        return self._record.committed

    @property
    def persisted(self) -> Offset:
        """The last transaction end that is durable."""
        return self._record.persisted

    @property
    def last_seen(self) -> Offset:
        """The last entry appended, committed or not."""
        with self._lock:
            return self._record.committed if self._writer is None else self._writer.last_seen

    @property
    def manifest(self) -> Manifest:
        return self._record.manifest

    @property
    def is_dirty(self) -> bool:
        """Whether a flush has something to do."""
        return self._due_ms is not None

    @property
    def due_ms(self) -> int | None:
        """When the next flush is due; None when nothing waits for one."""
        return self._due_ms

    @property
    def is_dropped(self) -> bool:
        return self._is_dropped

    @property
    def failure(self) -> StoreError | None:
        """Why it takes no more writes."""
        return self._failure

    @property
    def is_snapshot_complete(self) -> bool:
        return self.snapshot.is_complete

    # Writing

    def append(self, entries: Sequence[Entry], *, is_commit: bool = True) -> None:
        """Take the entries of a transaction, or of a part of it; those already stored are left out.

        Nothing of a transaction is visible before its commit. Raises InvalidRequest when offsets
        do not ascend; what fails otherwise ends all writing.
        """
        with self._lock, self._failing_locked():
            writer = self._get_writer_locked()
            listed = entries if isinstance(entries, list) else list(entries)
            first = _count_stored(listed, self._record.committed)
            has_closed_chunk = writer.append(listed, first)
            if is_commit:
                self._commit_locked(writer)
            elif writer.written != self._record.written:
                self._publish_locked(writer, self._record.committed)
            self._arm_locked(writer, is_due=has_closed_chunk)

    def commit(self) -> None:
        """Make visible what was appended since the last commit."""
        with self._lock, self._failing_locked():
            writer = self._get_writer_locked()
            self._commit_locked(writer)
            self._arm_locked(writer)

    def flush(self) -> None:
        """Make durable what is committed; appends go on meanwhile. Raises on a failed disk."""
        with self._flush_lock:
            self._flush_held()

    def flush_due(self, now_ms: int) -> bool:
        """Flush when the time for it has come; whether it had."""
        due_ms = self._due_ms
        if due_ms is None or now_ms < due_ms:
            return False
        self.flush()
        return True

    def close(self) -> None:
        """Flush and take no more writes; reading goes on. Twice is harmless."""
        with self._flush_lock:
            if self._is_closed or self._is_dropped:
                return
            if self._failure is None:
                self._flush_held()
            self._end(closed=True)

    def drop(self) -> bool:
        """Rename the directory into the trash; False when it was gone. Raises OSError."""
        with self._flush_lock:
            self._end(dropped=True)
            return move_to_trash(self.file_system, self.root, self.handle)

    # Reading

    def chunk_end(self, offset: Offset) -> Offset | None:
        """Where a catch-up answer from this offset ends; None: at the latest offset.

        Raises NotFound when the shape was dropped.
        """
        if offset == BEFORE_ALL:
            return FIRST_CHUNK
        if offset.is_virtual and offset != SNAPSHOT_END:
            last_chunk = self.snapshot.last_chunk
            if last_chunk is None or offset.op < last_chunk:
                return Offset(0, offset.op + 1)
        with self._reading() as record:
            chunk = LogView(self.file_system, self.directory, record).find_chunk(offset)
        if chunk is None or chunk.last is None or chunk.last > record.committed:
            return None
        return chunk.last

    def is_in_memory(self, start: Offset) -> bool:
        """Whether reading from here on touches no file."""
        return start >= SNAPSHOT_END and self._record.written <= start

    def read(self, start: Offset, end: Offset) -> Iterator[bytes]:
        """Messages in (start, end], in pieces of whole messages that commas are to join.

        Waits for a snapshot chunk that is being written. What can fail fails at the call: NotFound
        when the shape was dropped, Corrupt; a stream goes on when the shape is dropped later.
        """
        number = 0 if start < FIRST_CHUNK else start.op + 1
        if start < SNAPSHOT_END and Offset(0, number) <= end:
            pieces = self._read_snapshot(number)
            if pieces is not None:
                following = self._following_chunks(number + 1, end)
                return _chain(pieces, following)
        return self._read_log(max(start, SNAPSHOT_END), end)

    def lease(self) -> Lease:
        """Keep the files of now for as long as it is held, whatever compaction replaces."""
        return self._generations.lease()

    # Compaction

    def compaction_target(self, keep_chunks: int) -> tuple[Offset, int] | None:
        """Last offset and end byte of what may be compacted in the live log; None: nothing.

        Leaves out the newest complete chunks, the open one and all that is not durable.
        """
        with self._lock, self._failing_locked():
            self._get_writer_locked()
            record = self._record
        number = record.half_count // 2 - keep_chunks - 1
        if number < 0:
            return None
        with self.file_system.open(index_path(self.directory, record.manifest.latest)) as file:
            chunk = ChunkIndexFile(file, record.half_count).get(number)
        if chunk.last is None or chunk.end is None or chunk.last > record.persisted:
            return None
        return chunk.last, chunk.end

    def install(self, compacted: CompactedLog) -> None:
        """Put a compacted log, whose files are durable, in the place of what it was made from.

        Raises InvalidRequest when it does not fit the live log, and then nothing has changed.
        """
        with self._flush_lock:
            self._flush_held()
            self._check_fits(compacted)
            record, now_ms = self._record, self._clock.now_ms()
            latest = new_suffix(self.file_system, self.directory, LATEST, now_ms)
            manifest = Manifest(latest, compacted.boundary, compacted.suffix)
            copy = RestCopy(
                self.file_system, self.directory, record.manifest, manifest, compacted.position
            )
            with self._failing():
                # The bulk is copied beside appends; only what came meanwhile is copied under lock.
                copy.copy_to(record.log_end)
            with self._lock, self._failing_locked():
                self._swap_locked(copy, manifest, compacted.position)
            replaced = replaced_files(self.directory, record.manifest, manifest)
        self._generations.retire(replaced)

    def _check_fits(self, compacted: CompactedLog) -> None:
        record = self._record
        if compacted.boundary > record.persisted:
            raise InvalidRequest(
                f"compacted log {compacted.suffix} of {self.directory} ends at "
                f"{compacted.boundary}, beyond what is durable, {record.persisted}"
            )
        for path in (log_path, index_path):
            if not self.file_system.exists(path(self.directory, compacted.suffix)):
                raise InvalidRequest(f"{path(self.directory, compacted.suffix)} is not there")
        with self.file_system.open(index_path(self.directory, record.manifest.latest)) as file:
            check_compacted(ChunkIndexFile(file, record.half_count), compacted, self.directory)

    def _swap_locked(self, copy: RestCopy, manifest: Manifest, position: int) -> None:
        writer = self._get_writer_locked()
        writer.write_out()
        copy.copy_to(writer.log_end)
        half_count = copy.write_index(writer.half_count)
        self.file_system.sync_directory(log_directory(self.directory))
        write_manifest(self.file_system, self.directory, manifest)
        writer.move(manifest, position, half_count)
        self._record = self._record._replace(manifest=manifest)
        self._publish_locked(writer, self._record.committed)

    # Phases of writing

    def _get_writer_locked(self) -> LogWriter:
        self._check_writable_locked()
        if self._writer is None:
            record = self._record
            trimmed = recover(self.file_system, self.directory, record.manifest, record.persisted)
            self._writer = LogWriter(
                self.file_system,
                self.directory,
                record.manifest,
                self.settings,
                trimmed.start,
                trimmed.cache,
            )
            self._publish_locked(self._writer, record.committed)
        return self._writer

    def _commit_locked(self, writer: LogWriter) -> None:
        if writer.last_seen == self._record.committed:
            return
        writer.commit()
        self._publish_locked(writer, writer.last_seen)

    def _publish_locked(self, writer: LogWriter, committed: Offset) -> None:
        record = self._record
        self._record = Published(
            record.manifest,
            writer.written,
            record.persisted,
            committed,
            writer.log_end,
            writer.half_count,
            writer.cache,
            writer.tail,
            len(writer.tail),
            writer.marks,
            len(writer.marks),
        )

    def _arm_locked(self, writer: LogWriter, *, is_due: bool = False) -> None:
        """Note when to flush: at once behind a closed chunk, else a period after the first byte."""
        if is_due:
            self._due_ms = self._clock.now_ms()
        elif self._due_ms is None and not self._is_flushed_locked(writer):
            self._due_ms = self._clock.now_ms() + self.settings.flush_ms

    def _is_flushed_locked(self, writer: LogWriter) -> bool:
        return writer.is_synced and self._record.persisted == self._record.committed

    def _flush_held(self) -> None:
        """Flush under _flush_lock, which keeps the pointer and the order of syncs."""
        with self._lock, self._failing_locked():
            self._check_writable_locked()
            writer = self._writer
            if writer is None or self._is_flushed_locked(writer):
                return
            work = writer.take_sync()
            self._publish_locked(writer, self._record.committed)
            committed = self._record.committed
            self._due_ms = None
        with self._failing():
            work.run(self.file_system)
            if committed != self._pointer.offset:
                self._pointer.write(committed)
        with self._lock:
            self._record = self._record._replace(persisted=committed)
            self._arm_locked(writer)

    def _end(self, *, closed: bool = False, dropped: bool = False) -> None:
        with self._lock:
            self._is_closed = self._is_closed or closed
            self._is_dropped = self._is_dropped or dropped
            self._due_ms = None
            if self._writer is not None:
                self._writer.close()

    def _check_writable_locked(self) -> None:
        self._check_not_dropped()
        if self._is_closed:
            raise Closed(f"shape {self.handle} was closed: open it again")
        if self._failure is not None:
            raise self._failure.again()

    def _check_not_dropped(self) -> None:
        if self._is_dropped:
            raise NotFound(f"shape {self.handle} was dropped: ask for the shape anew")

    @contextmanager
    def _failing_locked(self) -> Iterator[None]:
        """What breaks a write breaks all that would follow: the files may hold a part of it."""
        writer = self._writer
        last_seen = writer.last_seen if writer is not None else None
        try:
            yield
        except OSError as error:
            self._failure = storage_failure(error, self.directory)
            raise self._failure from error
        except Corrupt as error:
            self._failure = error
            raise
        except InvalidRequest as error:
            if self._writer is not None and self._writer.last_seen != last_seen:
                self._failure = error
            raise

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """The same for work that is done without the lock."""
        try:
            yield
        except (OSError, Corrupt) as error:
            with self._lock:
                self._failure = (
                    error if isinstance(error, Corrupt) else storage_failure(error, self.directory)
                )
            raise self._failure from error

    # Phases of reading

    @contextmanager
    def _reading(self) -> Iterator[Published]:
        """The published value, under a lease; a missing file means that the shape is gone."""
        with self._generations.lease():
            self._check_not_dropped()
            try:
                yield self._record
            except FileNotFoundError as error:
                self._check_not_dropped()
                if not self.file_system.exists(self.directory):
                    raise NotFound(f"shape {self.handle} is gone: ask for it anew") from error
                raise Corrupt(f"{error.filename} is missing: drop the shape") from error

    def _read_log(self, after: Offset, until: Offset) -> Iterator[bytes]:
        with self._reading() as record:
            return open_stream(
                self.file_system,
                self.directory,
                record,
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

    def _following_chunks(self, number: int, end: Offset) -> Iterator[bytes]:
        """What comes behind a snapshot chunk, up to an offset; opened when it is its turn."""
        while Offset(0, number) <= end:
            pieces = self._read_snapshot(number)
            if pieces is None:
                yield from self._read_log(SNAPSHOT_END, end)
                return
            yield from pieces
            number += 1


def _load_record(
    file_system: FileSystem, directory: str, manifest: Manifest, durable: Offset
) -> Published:
    """What readers may know before a writer begins: all that is durable, and nothing else."""
    half_count, cache = load_cache(file_system, directory, manifest, durable)
    log_end = 0
    if half_count:
        log_end = file_system.info(log_path(directory, manifest.latest)).size
    return Published(manifest, durable, durable, durable, log_end, half_count, cache)


def _count_stored(entries: list[Entry], committed: Offset) -> int:
    """How many of the entries, which ascend, are stored already."""
    count = 0
    while count < len(entries) and entries[count].offset <= committed:
        count += 1
    return count


def _chain(pieces: Iterator[bytes], following: Iterator[bytes]) -> Iterator[bytes]:
    yield from pieces
    yield from following
