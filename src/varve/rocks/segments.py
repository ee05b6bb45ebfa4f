"""The time segments of one store: opens, creates and drops their databases.

Layout     the store's directory holds one directory per segment, a lock file, and the store's own
           small files. docs/reference/formats/window-store.md
Invariant  after a cleanup no registered segment ends before stream time minus retention;
           a segment is registered only while its database is open.
Crash      a segment is renamed before it is deleted, so a partly deleted one is never opened; the
           next opening removes it.
Threads    one thread at a time.
"""

import contextlib
import logging
from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from varve.disk import TEMPORARY_SUFFIX, FileInfo, FileSystem, Lock, to_store_error
from varve.foundation.errors import Closed, Corrupt, InvalidRequest, StoreError
from varve.rocks.database import Database, Databases
from varve.rocks.state_files import (
    Checkpoint,
    StoreMeta,
    find_checkpoint,
    keep_meta,
    write_checkpoint,
)

logger = logging.getLogger(__name__)

DELETING_SUFFIX: Final = ".deleting"
LOCK_NAME: Final = ".lock"
OWN_NAMES: Final = frozenset({LOCK_NAME, "meta.json", "checkpoint.json"})
"""Files of the store beside its segments, also with the suffix of a temporary file."""


class Segment(NamedTuple):
    """An open segment."""

    id: int
    start_ms: int
    database: Database


class Segments:
    """The registry of one store's segments."""

    def __init__(
        self,
        *,
        name: str,
        directory: str,
        databases: Databases,
        file_system: FileSystem,
        segment_ms: int,
        retention_ms: int,
    ) -> None:
        if segment_ms < 1 or retention_ms < 0:
            raise InvalidRequest(
                f"store {name}: segment_ms {segment_ms} must be at least 1 and retention_ms "
                f"{retention_ms} at least 0"
            )
        self.name = name
        self.directory = directory
        self.segment_ms = segment_ms
        self.retention_ms = retention_ms
        self.removal_failure_count = 0
        """Expired directories that could not be removed; the next opening tries again."""
        self._databases = databases
        self._file_system = file_system
        self._by_id: dict[int, Segment] = {}
        self._ids: list[int] = []
        self._missing_ids: list[int] = []
        self._lock: Lock | None = None
        self._opening_count = 0
        self.opening = 0
        """The number of the present opening; 0 while the store is closed."""
        self._has_new_directory = False

    def __iter__(self) -> Iterator[Segment]:
        return iter([self._by_id[id] for id in self._ids])

    @property
    def is_open(self) -> bool:
        return self._lock is not None

    def segment_id(self, time_ms: int) -> int:
        return time_ms // self.segment_ms

    def is_live(self, id: int, stream_time_ms: int) -> bool:
        """Whether the segment may exist at this stream time."""
        return id >= self.segment_id(stream_time_ms - self.retention_ms)

    def find(self, id: int) -> Segment | None:
        return self._by_id.get(id)

    def live(self, from_ms: int, to_ms: int, *, backward: bool = False) -> list[Segment]:
        """The open segments that overlap `[from_ms, to_ms]`, oldest first unless backward."""
        start = bisect_left(self._ids, self.segment_id(from_ms))
        end = bisect_right(self._ids, self.segment_id(to_ms))
        ids = self._ids[start:end]
        return [self._by_id[id] for id in (reversed(ids) if backward else ids)]

    def get_or_create_if_live(self, id: int, stream_time_ms: int) -> Segment | None:
        """The segment, created if absent; None when it is expired. Cleans up in either case."""
        segment = None
        if self.is_live(id, stream_time_ms):
            segment = self._by_id.get(id) or self._create(id)
        self.cleanup(stream_time_ms)
        return segment

    def cleanup(self, stream_time_ms: int) -> int:
        """Drops segments expired at this stream time, oldest first; returns their number."""
        first_live_id = self.segment_id(stream_time_ms - self.retention_ms)
        if not self._ids or self._ids[0] >= first_live_id:
            return 0
        expired_ids = self._ids[: bisect_left(self._ids, first_live_id)]
        self._remove_directories([self._drop(id) for id in expired_ids])
        return len(expired_ids)

    def lost_ids(self, stream_time_ms: int) -> list[int]:
        """The expected segments that are missing although they are live at this stream time."""
        return [id for id in self._missing_ids if self.is_live(id, stream_time_ms)]

    # Open and close

    def _acquire(self) -> None:
        """Create the directory if absent and lock it."""
        try:
            self._file_system.make_directory(self.directory)
            self._lock = self._file_system.lock(f"{self.directory}/{LOCK_NAME}")
            self._opening_count += 1
            self.opening = self._opening_count
        except OSError as error:
            raise to_store_error(error, f"open of {self.directory}") from error

    def has_directories(self) -> bool:
        """Whether the store has a directory of any segment, open or not."""
        try:
            names = self._file_system.names(self.directory)
        except OSError as error:
            raise to_store_error(error, f"scan of {self.directory}") from error
        return any(decode_directory_name(self.name, name) is not None for name in names)

    def wipe(self) -> None:
        """Close, and remove every segment and file of the store; foreign names stay.

        The checkpoint is removed first, durably: a store left by a crash is restored from the
        start.
        """
        with contextlib.suppress(StoreError):
            self.close()
        self._acquire()
        try:
            names = self._file_system.names(self.directory)
            for name in sorted(names, key=lambda name: name not in OWN_NAMES):
                self._wipe_name(name)
        except OSError as error:
            raise to_store_error(error, f"wipe of {self.directory}") from error
        finally:
            self.close()

    def open(self, meta: StoreMeta, stream_time_ms: int) -> Checkpoint | None:
        """Opens a store of these settings, at its checkpoint or a later stream time, and cleans up.

        Returns the checkpoint; None if there is none. Raises `Corrupt` when a segment is damaged,
        or a live one of the checkpoint is missing, or `MetaChanged` when the store was created with
        other settings: the owner wipes the store and restores it. Nothing is open then. Missing
        segments older than all existing ones were dropped after the checkpoint; only an owner that
        knows the stream time can decide whether that was right: see `lost_ids`.
        """
        if self._lock is not None:
            raise InvalidRequest(f"store {self.name}: {self.directory} is open already")
        self._acquire()
        try:
            is_empty = not self.has_directories()
            keep_meta(self._file_system, self.directory, meta, is_empty=is_empty)
            checkpoint = find_checkpoint(self._file_system, self.directory)
            expected: list[int] = []
            if checkpoint is not None:
                stream_time_ms = max(stream_time_ms, checkpoint.stream_time_ms)
                expected = [self.segment_id(start_ms) for start_ms in checkpoint.segment_starts_ms]
            self._open_all(expected, stream_time_ms)
            self.cleanup(stream_time_ms)
        except BaseException as error:
            with contextlib.suppress(StoreError):
                self.close()
            if isinstance(error, OSError):
                raise to_store_error(error, f"open of {self.directory}") from error
            raise
        return checkpoint

    def checkpoint(
        self, stream_time_ms: int, changelog_offset: int, mark: Mapping[str, int] | None = None
    ) -> Checkpoint:
        """Flushes, and records that all of the changelog before this offset is on disk."""
        self.flush()
        checkpoint = Checkpoint(
            stream_time_ms=stream_time_ms,
            changelog_offset=changelog_offset,
            segment_starts_ms=tuple(segment.start_ms for segment in self),
            changelog_mark=mark,
        )
        write_checkpoint(self._file_system, self.directory, checkpoint)
        return checkpoint

    def flush(self) -> None:
        """Sync every segment, and the names of new directories."""
        self.check_open()
        for segment in self:
            segment.database.flush()
        if self._has_new_directory:
            try:
                self._file_system.sync_directory(self.directory)
            except OSError as error:
                raise to_store_error(error, f"sync of {self.directory}") from error
            self._has_new_directory = False

    def close(self) -> None:
        """Close all segments, then raise the first error; closing twice is harmless."""
        errors: list[StoreError] = []
        self.opening = 0
        try:
            while self._ids:
                try:
                    self._by_id.pop(self._ids.pop(0)).database.close()
                except StoreError as error:
                    errors.append(error)
        finally:
            lock, self._lock = self._lock, None
            if lock is not None:
                lock.release()
        if errors:
            raise errors[0]

    def _open_all(self, expected_ids: Collection[int], stream_time_ms: int) -> None:
        starts = []
        for info in self._file_system.scan(self.directory):
            start_ms = decode_directory_name(self.name, info.name)
            if start_ms is not None and start_ms % self.segment_ms == 0:
                starts.append(start_ms)
            elif self._is_leftover(info):
                self._remove_tree(f"{self.directory}/{info.name}")
            elif not _is_own(info.name):
                logger.warning(
                    "foreign name in a store's directory",
                    extra={"store": self.name, "path": f"{self.directory}/{info.name}"},
                )
        existing_ids = sorted(self.segment_id(start_ms) for start_ms in starts)
        self._missing_ids = sorted(set(expected_ids).difference(existing_ids))
        for id in self.lost_ids(stream_time_ms):
            if not existing_ids or id > existing_ids[0]:
                raise Corrupt(f"{self._path(id)}: a segment of the checkpoint is missing")
        for id in existing_ids:
            self._open(id, must_exist=id in expected_ids)

    def _wipe_name(self, name: str) -> None:
        path = f"{self.directory}/{name}"
        if _is_own(name):
            if name != LOCK_NAME:
                self._file_system.remove(path)
                self._file_system.sync_directory(self.directory)
        elif decode_directory_name(self.name, name.removesuffix(DELETING_SUFFIX)) is not None:
            if self._file_system.info(path).is_directory:
                self._file_system.remove_tree(path)
            else:
                self._file_system.remove(path)

    def _is_leftover(self, info: FileInfo) -> bool:
        stem = info.name.removesuffix(DELETING_SUFFIX)
        return stem != info.name and decode_directory_name(self.name, stem) is not None

    # One segment

    def _create(self, id: int) -> Segment:
        self.check_open()
        self._has_new_directory = True
        return self._open(id)

    def _open(self, id: int, *, must_exist: bool = False) -> Segment:
        database = self._databases.open(self._path(id), must_exist=must_exist)
        segment = Segment(id=id, start_ms=id * self.segment_ms, database=database)
        self._by_id[id] = segment
        insort(self._ids, id)
        return segment

    def _drop(self, id: int) -> str:
        """Unregister and close a segment; returns the directory to remove."""
        self._ids.remove(id)
        segment = self._by_id.pop(id)
        path = self._path(id)
        try:
            segment.database.close()
        except StoreError as error:
            logger.error(
                "an expired segment did not close",
                extra={"store": self.name, "path": path, "error": str(error)},
            )
        logger.info("segment dropped", extra={"store": self.name, "path": path})
        return path

    def _remove_directories(self, paths: list[str]) -> None:
        """Rename, and delete once the new names are on disk: a crash leaves complete segments.

        Failures are counted; the next opening tries again.
        """
        renamed = [path + DELETING_SUFFIX for path in paths if self._rename(path)]
        try:
            self._file_system.sync_directory(self.directory)
        except OSError as error:
            self._count_failure(self.directory, error)
            return
        for path in renamed:
            self._remove_tree(path)

    def _rename(self, path: str) -> bool:
        try:
            self._file_system.rename(path, path + DELETING_SUFFIX)
        except OSError as error:
            self._count_failure(path, error)
            return False
        return True

    def _remove_tree(self, path: str) -> None:
        try:
            self._file_system.remove_tree(path)
        except OSError as error:
            self._count_failure(path, error)

    def _count_failure(self, path: str, error: OSError) -> None:
        self.removal_failure_count += 1
        logger.error(
            "a segment's directory was not removed",
            extra={"store": self.name, "path": path, "error": str(error)},
        )

    def _path(self, id: int) -> str:
        return f"{self.directory}/{encode_directory_name(self.name, id * self.segment_ms)}"

    def check_open(self) -> None:
        """Raises `Closed` unless the directory is locked by this registry."""
        if self._lock is None:
            raise Closed(f"store {self.name}: {self.directory} is closed: open it again")


def check_free(file_system: FileSystem, directory: str) -> None:
    """Raises `Locked` while the store of a directory is open."""
    try:
        file_system.make_directory(directory)
        file_system.lock(f"{directory}/{LOCK_NAME}").release()
    except OSError as error:
        raise to_store_error(error, f"lock of {directory}") from error


def _is_own(name: str) -> bool:
    return name.removesuffix(TEMPORARY_SUFFIX) in OWN_NAMES


def encode_directory_name(store_name: str, start_ms: int) -> str:
    return f"{store_name}.{start_ms}"


def decode_directory_name(store_name: str, name: str) -> int | None:
    """The start in a segment's directory name; None for other names."""
    prefix, _, digits = name.rpartition(".")
    if prefix != store_name or not (digits.isascii() and digits.isdecimal()):
        return None
    start_ms = int(digits)
    return start_ms if str(start_ms) == digits else None
