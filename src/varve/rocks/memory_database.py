"""Databases in memory with a log of flushed entries: for small states and for tests.

Layout     `entries.log` in the database's directory, one frame per flush: size of the body (u32),
           CRC-32 of the body (u32), then per entry key size (u32), value size (i32, -1 for a
           deletion), key, value; all little-endian.
Invariant  the log is at most about twice as long as its entries, and a MiB.
Crash      an incomplete frame, or a last one with a wrong CRC, is an unfinished flush and is
           truncated; a wrong CRC before other frames is `Corrupt`.
Threads    one thread at a time per database.
"""

import posixpath
import struct
import weakref
import zlib
from collections.abc import Iterator, Sequence
from typing import Final

from varve.disk import FileSystem, to_store_error, write_atomically
from varve.foundation.errors import Closed, Corrupt, LogPoisoned
from varve.rocks.database import Entry, Put, end_scans

LOG_NAME: Final = "entries.log"
_FRAME: Final = struct.Struct("<II")
_SIZES: Final = struct.Struct("<Ii")
_DELETED: Final = -1
_REWRITE_BYTES: Final = 1 << 20
"""Excess over twice the entries at which the log is rewritten."""


class MemoryScan:
    """A copy of the entries in its range, taken at its first step."""

    def __init__(
        self, database: "MemoryDatabase", lower: bytes | None, upper: bytes | None, backward: bool
    ) -> None:
        self._database: MemoryDatabase | None = database
        self._bounds = (lower, upper, backward)
        self._entries: Iterator[Entry] | None = None

    @property
    def is_begun(self) -> bool:
        return self._entries is not None

    def __iter__(self) -> "MemoryScan":
        return self

    def __next__(self) -> Entry:
        if self._database is None:
            raise StopIteration
        if self._entries is None:
            self._entries = iter(self._database.copy_range(*self._bounds))
        for entry in self._entries:
            return entry
        self.close()
        raise StopIteration

    def close(self) -> None:
        self._database = None
        self._entries = None


class MemoryDatabase:
    """A dict, and the puts that are not yet in the log; a scan sorts the keys of its range."""

    def __init__(self, path: str, file_system: FileSystem) -> None:
        self.path = path
        self._file_system = file_system
        self._is_open = True
        self._is_poisoned = False
        self._entries: dict[bytes, bytes] = {}
        self._entry_bytes = 0
        self._unflushed: list[Put] = []
        self._scans: weakref.WeakSet[MemoryScan] = weakref.WeakSet()
        self._log_path = f"{path}/{LOG_NAME}"
        self._log_end = self._load()

    def get(self, key: bytes) -> bytes | None:
        self._check_open()
        return self._entries.get(key)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        self._check_open()
        find = self._entries.get
        return [find(key) for key in keys]

    def write(self, puts: Sequence[Put]) -> None:
        self._check_open()
        self._apply(puts)
        self._unflushed.extend(puts)

    def scan(self, lower: bytes | None, upper: bytes | None, *, backward: bool) -> MemoryScan:
        self._check_open()
        scan = MemoryScan(self, lower, upper, backward)
        self._scans.add(scan)
        return scan

    def copy_range(self, lower: bytes | None, upper: bytes | None, backward: bool) -> list[Entry]:
        """The current entries of a range, in order of their keys."""
        return sorted(
            (
                entry
                for entry in self._entries.items()
                if (lower is None or lower <= entry[0]) and (upper is None or entry[0] <= upper)
            ),
            reverse=backward,
        )

    def flush(self) -> None:
        self._check_open()
        if not self._unflushed:
            return
        if self._is_poisoned:
            raise LogPoisoned(f"{self._log_path}: an earlier sync failed; open the store again")
        try:
            self._append(_encode_frame(self._unflushed))
            self._unflushed = []
            if self._log_end > 2 * self._entry_bytes + _REWRITE_BYTES:
                self._rewrite()
        except OSError as error:
            raise to_store_error(error, f"flush of {self._log_path}") from error

    def size(self) -> int:
        self._check_open()
        return self._log_end

    def close(self) -> None:
        if not self._is_open:
            return
        try:
            self.flush()
        finally:
            self.forget()

    def forget(self) -> None:
        """Close without a flush, as a crash does."""
        self._is_open = False
        end_scans(self._scans, self.path)

    def _append(self, frame: bytes) -> None:
        with self._file_system.open_writable(self._log_path) as file:
            file.write_at(self._log_end, frame)
            self._is_poisoned = True
            file.sync()
        if self._log_end == 0:
            self._file_system.sync_directory(self.path)
        self._is_poisoned = False
        self._log_end += len(frame)

    def _rewrite(self) -> None:
        """Replace the log by one frame that holds the current entries."""
        frame = _encode_frame(list(self._entries.items()))
        write_atomically(self._file_system, self._log_path, frame)
        self._log_end = len(frame)

    def _load(self) -> int:
        if not self._file_system.exists(self._log_path):
            return 0
        data = self._file_system.read(self._log_path)
        end = 0
        while frame_end := _find_frame_end(data, end, self._log_path):
            self._apply(_decode_body(data[end + _FRAME.size : frame_end], self._log_path))
            end = frame_end
        if end < len(data):
            with self._file_system.open_writable(self._log_path) as file:
                file.truncate(end)
        return end

    def _apply(self, puts: Sequence[Put]) -> None:
        entries = self._entries
        for key, value in puts:
            old = entries.get(key)
            if old is not None:
                self._entry_bytes -= _SIZES.size + len(key) + len(old)
            if value is not None:
                self._entry_bytes += _SIZES.size + len(key) + len(value)
                entries[key] = value
            elif old is not None:
                del entries[key]

    def _check_open(self) -> None:
        if not self._is_open:
            raise Closed(f"database {self.path} is closed: open the store again")


class MemoryDatabases:
    """The engine of databases in memory, over any file system."""

    name = "memory"

    def __init__(self, file_system: FileSystem) -> None:
        self._file_system = file_system
        self._opened: weakref.WeakSet[MemoryDatabase] = weakref.WeakSet()

    def open(self, path: str, *, must_exist: bool = False) -> MemoryDatabase:
        try:
            if must_exist and not self._file_system.exists(f"{path}/{LOG_NAME}"):
                raise Corrupt(f"open of {path}: there is no database")
            if not self._file_system.exists(path):
                self._file_system.make_directory(path)
                self._file_system.sync_directory(posixpath.dirname(path) or ".")
            elif not self._file_system.info(path).is_directory:
                raise Corrupt(f"open of {path}: it is not a directory")
            database = MemoryDatabase(path, self._file_system)
        except OSError as error:
            raise to_store_error(error, f"open of {path}") from error
        self._opened.add(database)
        return database

    def crash(self) -> None:
        """Close every open database without a flush."""
        for database in list(self._opened):
            database.forget()


def _encode_frame(puts: Sequence[Put]) -> bytes:
    parts = []
    for key, value in puts:
        parts.append(_SIZES.pack(len(key), _DELETED if value is None else len(value)))
        parts.append(key)
        parts.append(value or b"")
    body = b"".join(parts)
    return _FRAME.pack(len(body), zlib.crc32(body)) + body


def _find_frame_end(data: bytes, start: int, path: str) -> int | None:
    """Where the frame at `start` ends; None if no complete frame is there."""
    if start + _FRAME.size > len(data):
        return None
    size, checksum = _FRAME.unpack_from(data, start)
    end = start + _FRAME.size + int(size)
    if end > len(data):
        return None
    if zlib.crc32(data[start + _FRAME.size : end]) == checksum:
        return end
    if end == len(data):
        return None
    raise Corrupt(f"{path}: the frame at {start} of {size} bytes has a wrong checksum")


def _decode_body(body: bytes, path: str) -> list[Put]:
    puts: list[Put] = []
    position = 0
    while position < len(body):
        if position + _SIZES.size > len(body):
            raise Corrupt(f"{path}: an entry's sizes end after {len(body)} bytes of its frame")
        key_size, value_size = _SIZES.unpack_from(body, position)
        key_end = position + _SIZES.size + key_size
        end = key_end + max(value_size, 0)
        if end > len(body) or value_size < _DELETED:
            raise Corrupt(f"{path}: an entry of {key_size} and {value_size} bytes leaves its frame")
        value = None if value_size == _DELETED else body[key_end:end]
        puts.append((body[position + _SIZES.size : key_end], value))
        position = end
    return puts
