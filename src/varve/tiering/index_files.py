"""The indexes of cold segments as files on the local disk, up to a limit of bytes.

Layout     `<base offset>_<segment id>` with `.index`, `.timeindex` or `.txnindex` behind it, as
           Kafka names them; `.tmp` behind that while a file is written. Each kind is there for
           itself, if it was wanted; an empty one has no file.
Invariant  what is handed out has the size and the CRC-32C that the manifest says; the files that
           are held together have at most the limit.
Crash      nothing is synced: a file that a crash lost, emptied or tore fails its check when it is
           next wanted, and is fetched again.
Threads    any, but one at a time for each file in `find` and `keep`; `_disk_lock` is held while
           files change, `_lock` for the books alone, in that order.
"""

import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

import numpy as np

from varve.commit_log.names import DELETED, INDEX, OFFSET_MAX, TIME_INDEX, TXN_INDEX
from varve.disk import TEMPORARY_SUFFIX, Buffer, FileInfo, FileSystem
from varve.kernels.crc import crc32c
from varve.tiering.cold_segment import ColdSegment, ObjectPart

logger = logging.getLogger(__name__)

_SUFFIXES: Final = {"index": INDEX, "timeindex": TIME_INDEX, "txnindex": TXN_INDEX}
_ENTRY_BYTES: Final = {INDEX: 8, TIME_INDEX: 12, TXN_INDEX: 34}
_NAME: Final = re.compile(
    r"(0|[1-9][0-9]{0,18})_[A-Za-z0-9_-]{1,64}(\.index|\.timeindex|\.txnindex)"
    rf"({re.escape(TEMPORARY_SUFFIX)}|{re.escape(DELETED)})?"
)


def index_name(segment: ColdSegment, kind: str) -> str:
    """The name of the file that holds one kind of index: index, timeindex or txnindex."""
    return f"{segment.base_offset}_{segment.id}{_SUFFIXES[kind]}"


class IndexFiles:
    """The files of one directory, by their names; a disk that fails costs a fetch, never a read."""

    def __init__(self, fs: FileSystem, directory: str, *, limit_bytes: int) -> None:
        self._fs = fs
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._disk_lock = threading.Lock()
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()  # guarded by _lock, oldest first
        self._held_bytes = 0  # guarded by _lock
        self._evicted = 0  # guarded by _lock
        self._has_noted_trouble = False  # guarded by _lock

    def load(self) -> None:
        """Takes over what a former process left, the latest written as the last to go.

        Files that are empty or have no whole number of entries are deleted, and so is what was
        being written or deleted. Content is checked when it is wanted.
        """
        with self._disk_lock:
            found, leftovers = self._scan()
            found.sort(key=lambda file: file.modified_ms)
            with self._lock:
                self._sizes = OrderedDict((file.name, file.size) for file in found)
                self._held_bytes = sum(self._sizes.values())
                surplus = self._make_room_locked(0)
            self._remove_files([*leftovers, *surplus])

    def _scan(self) -> tuple[list[FileInfo], list[str]]:
        """The files that may be whole, and the names of leftovers."""
        found: list[FileInfo] = []
        leftovers: list[str] = []
        try:
            files = self._fs.scan(self._directory) if self._fs.exists(self._directory) else []
        except OSError as error:
            self._note_trouble(error)
            return [], []
        for file in files:
            match = _NAME.fullmatch(file.name)
            if match is None or file.is_directory:
                continue
            offset, suffix, mark = match.groups()
            is_whole = file.size > 0 and file.size % _ENTRY_BYTES[suffix] == 0
            if mark or int(offset) > OFFSET_MAX or not is_whole:
                leftovers.append(file.name)
            else:
                found.append(file)
        return found, leftovers

    def holds(self, name: str) -> bool:
        with self._lock:
            return name in self._sizes

    def touch(self, name: str) -> None:
        """An index was wanted, though its file was not read."""
        with self._lock:
            if name in self._sizes:
                self._sizes.move_to_end(name)

    def find(self, name: str, part: ObjectPart) -> bytes | None:
        """What a file holds; None, and it is gone, unless that is as listed."""
        with self._lock:
            if name not in self._sizes:
                return None
            self._sizes.move_to_end(name)
        data = self._read(name, part)
        if data is None:
            self.forget(name)
        return data

    def _read(self, name: str, part: ObjectPart) -> bytes | None:
        path = f"{self._directory}/{name}"
        try:
            with self._fs.open(path) as file:
                size = file.size()
                data = file.read_at(0, part.size) if size == part.size else b""
        except FileNotFoundError:
            return None
        except OSError as error:
            self._note_trouble(error)
            return None
        fault = find_fault(data, part) if size == part.size else describe_size(size, part)
        if fault is None:
            return data
        logger.info("cached index is fetched again", extra={"path": path, "fault": fault})
        return None

    def keep(self, name: str, data: Buffer) -> None:
        """Writes a file, unless it exceeds the limit; others make room."""
        size = len(data)
        with self._disk_lock:
            self._drop(name)
            if size > self._limit_bytes:
                return
            with self._lock:
                evicted = self._make_room_locked(size)
            self._remove_files(evicted)
            try:
                self._write(name, data)
            except OSError as error:
                self._note_trouble(error)
                return
            with self._lock:
                self._sizes[name] = size
                self._held_bytes += size

    def _write(self, name: str, data: Buffer) -> None:
        path = f"{self._directory}/{name}"
        temporary = path + TEMPORARY_SUFFIX
        self._fs.make_directory(self._directory)
        try:
            with self._fs.open_writable(temporary) as file:
                if file.size():
                    file.truncate(0)
                file.write_at(0, data)
            self._fs.rename(temporary, path)
        except OSError:
            self._remove_files((name + TEMPORARY_SUFFIX,))
            raise

    def forget(self, name: str) -> None:
        """Deletes a file, if it is held."""
        with self._disk_lock:
            self._drop(name)

    def _drop(self, name: str) -> None:
        with self._lock:
            size = self._sizes.pop(name, None)
            if size is None:
                return
            self._held_bytes -= size
        self._remove_files((name,))

    def _make_room_locked(self, size: int) -> list[str]:
        """Takes the least recently wanted out of the books until so many bytes fit."""
        evicted = []
        while self._held_bytes + size > self._limit_bytes:
            name, freed = self._sizes.popitem(last=False)
            self._held_bytes -= freed
            evicted.append(name)
        self._evicted += len(evicted)
        return evicted

    def _remove_files(self, names: Iterable[str]) -> None:
        """What cannot be removed stays until the next `load`."""
        for name in names:
            try:
                self._fs.remove(f"{self._directory}/{name}")
            except FileNotFoundError:
                continue
            except OSError as error:
                self._note_trouble(error)

    def _note_trouble(self, error: OSError) -> None:
        with self._lock:
            if self._has_noted_trouble:
                return
            self._has_noted_trouble = True
        logger.warning(
            "indexes of cold segments cannot be kept on the local disk; they are read from object "
            "storage as often as they are wanted",
            extra={"path": self._directory, "error": str(error)},
        )

    def usage(self) -> tuple[int, int]:
        """The files evicted so far, and the bytes held."""
        with self._lock:
            return self._evicted, self._held_bytes


def find_fault(data: Buffer, part: ObjectPart) -> str | None:
    """How bytes differ from what the manifest says of them; None when they do not."""
    size = len(data)
    if size != part.size:
        return describe_size(size, part)
    crc = int(crc32c(np.frombuffer(data, np.uint8), 0, size)) if size else 0
    if crc != part.crc32c:
        return f"has CRC-32C {crc:08x}, but the manifest says {part.crc32c:08x}"
    return None


def describe_size(size: int, part: ObjectPart) -> str:
    shown = f"more than {part.size}" if size > part.size else str(size)
    return f"has {shown} bytes, but the manifest says {part.size}"
