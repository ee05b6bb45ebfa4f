"""The indexes of cold segments as files on the local disk, up to a limit of bytes.

Layout     `<base offset>_<segment id>` with `.index`, `.timeindex` and `.txnindex` behind it, as
           Kafka names them; `.tmp` behind that while a file is written.
Invariant  what is handed out has the size and the CRC-32C that the manifest says; the files that
           are held together have at most the limit.
Crash      nothing is synced: a file that a crash lost, emptied or tore fails its check when it is
           next wanted, and is fetched again.
Threads    any, but one at a time for each segment in `find` and `keep`; `_disk_lock` is held while
           files change, `_lock` for the books alone, in that order.
"""

import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from varve.commit_log.names import DELETED, INDEX, OFFSET_MAX, TIME_INDEX, TXN_INDEX
from varve.disk import TEMPORARY_SUFFIX, Buffer, FileInfo, FileSystem
from varve.kernels.crc import crc32c
from varve.tiering.cold_segment import ColdSegment, ObjectPart

logger = logging.getLogger(__name__)

SUFFIXES: Final = {"index": INDEX, "timeindex": TIME_INDEX, "txnindex": TXN_INDEX}
"""The parts of a segment that are kept, and the ends of their files' names."""

_ENTRY_BYTES: Final = {INDEX: 8, TIME_INDEX: 12, TXN_INDEX: 34}
_NAME: Final = re.compile(
    r"((0|[1-9][0-9]{0,18})_([A-Za-z0-9_-]{1,64}))(\.index|\.timeindex|\.txnindex)"
    rf"({re.escape(TEMPORARY_SUFFIX)}|{re.escape(DELETED)})?"
)


@dataclass(frozen=True, slots=True)
class _Held:
    """The three files of a segment, by what their names begin with."""

    stem: str
    size: int


class IndexFiles:
    """The files of one directory; a disk that fails costs a fetch, never a read."""

    def __init__(self, fs: FileSystem, directory: str, *, limit_bytes: int) -> None:
        self._fs = fs
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._disk_lock = threading.Lock()
        self._lock = threading.Lock()
        self._held: OrderedDict[str, _Held] = OrderedDict()  # by segment id; guarded by _lock
        self._held_bytes = 0  # guarded by _lock
        self._evicted = 0  # guarded by _lock
        self._has_noted_trouble = False  # guarded by _lock

    def load(self) -> None:
        """Takes over what a former process left, the latest written as the last to go.

        Segments that lack a file, or whose sizes are not those of whole entries, are deleted, and
        so is what was being written or deleted. Content is checked when it is wanted.
        """
        with self._disk_lock:
            triples, leftovers = self._scan()
            found: OrderedDict[str, _Held] = OrderedDict()
            for stem, files in sorted(triples.items(), key=lambda item: _age(item[1].values())):
                id = stem.partition("_")[2]
                if not _is_sane(files):
                    leftovers += [file.name for file in files.values()]
                    continue
                if id in found:
                    leftovers += [found[id].stem + suffix for suffix in SUFFIXES.values()]
                found[id] = _Held(stem, sum(file.size for file in files.values()))
            with self._lock:
                self._held = found
                self._held_bytes = sum(held.size for held in found.values())
                surplus = self._make_room_locked(0)
            self._remove_files([*leftovers, *_names(surplus)])

    def _scan(self) -> tuple[dict[str, dict[str, FileInfo]], list[str]]:
        """The files of each stem by the end of their names, and the names of leftovers."""
        triples: dict[str, dict[str, FileInfo]] = {}
        leftovers = []
        try:
            files = self._fs.scan(self._directory) if self._fs.exists(self._directory) else []
        except OSError as error:
            self._note_trouble(error)
            return {}, []
        for file in files:
            match = _NAME.fullmatch(file.name)
            if match is None or file.is_directory:
                continue
            if match[5] or int(match[2]) > OFFSET_MAX:
                leftovers.append(file.name)
            else:
                triples.setdefault(match[1], {})[match[4]] = file
        return triples, leftovers

    def touch(self, id: str) -> None:
        """A segment was wanted, though its files were not read."""
        with self._lock:
            if id in self._held:
                self._held.move_to_end(id)

    def find(self, segment: ColdSegment, parts: Sequence[ObjectPart]) -> list[bytes] | None:
        """What the files of a segment hold; None, and they are gone, unless all are as listed."""
        with self._lock:
            if segment.id not in self._held:
                return None
            self._held.move_to_end(segment.id)
        found = []
        for part in parts:
            data = self._read(_stem(segment) + SUFFIXES[part.name], part)
            if data is None:
                self.forget(segment.id)
                return None
            found.append(data)
        return found

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

    def keep(
        self, segment: ColdSegment, parts: Sequence[ObjectPart], contents: Sequence[Buffer]
    ) -> None:
        """Writes the files of a segment, unless they exceed the limit; others make room."""
        held = _Held(_stem(segment), sum(part.size for part in parts))
        with self._disk_lock:
            self._drop(segment.id)
            if held.size > self._limit_bytes:
                return
            with self._lock:
                evicted = self._make_room_locked(held.size)
            self._remove_files(_names(evicted))
            try:
                self._fs.make_directory(self._directory)
                for part, data in zip(parts, contents, strict=True):
                    self._write(held.stem + SUFFIXES[part.name], data)
            except OSError as error:
                self._note_trouble(error)
                self._remove_files(_names((held,)))
                return
            with self._lock:
                self._held[segment.id] = held
                self._held_bytes += held.size

    def _write(self, name: str, data: Buffer) -> None:
        path = f"{self._directory}/{name}"
        temporary = path + TEMPORARY_SUFFIX
        try:
            with self._fs.open_writable(temporary) as file:
                if file.size():
                    file.truncate(0)
                if data:
                    file.write_at(0, data)
            self._fs.rename(temporary, path)
        except OSError:
            self._remove_files((name + TEMPORARY_SUFFIX,))
            raise

    def forget(self, id: str) -> None:
        """Deletes the files of a segment, if there are any."""
        with self._disk_lock:
            self._drop(id)

    def _drop(self, id: str) -> None:
        with self._lock:
            held = self._held.pop(id, None)
            if held is None:
                return
            self._held_bytes -= held.size
        self._remove_files(_names((held,)))

    def _make_room_locked(self, size: int) -> list[_Held]:
        """Takes the least recently wanted out of the books until so many bytes fit."""
        evicted = []
        while self._held_bytes + size > self._limit_bytes:
            _, held = self._held.popitem(last=False)
            self._held_bytes -= held.size
            evicted.append(held)
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
        """The segments evicted so far, and the bytes held."""
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


def _stem(segment: ColdSegment) -> str:
    return f"{segment.base_offset}_{segment.id}"


def _names(triples: Iterable[_Held]) -> Iterator[str]:
    return (held.stem + suffix for held in triples for suffix in SUFFIXES.values())


def _is_sane(files: dict[str, FileInfo]) -> bool:
    return len(files) == len(SUFFIXES) and not any(
        file.size % _ENTRY_BYTES[suffix] for suffix, file in files.items()
    )


def _age(files: Iterable[FileInfo]) -> int:
    return max(file.modified_ms for file in files)
