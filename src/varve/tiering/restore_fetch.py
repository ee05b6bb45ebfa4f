"""Brings objects back into files, each held against the size and checksum of the manifest.

Crash      a file counts as there when its size and CRC-32C are right, so what a crash left is kept
           or fetched again, file by file.
Threads    `fetch_all` works with some of its own; the rest is for one.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np

from varve.disk import File, FileSystem
from varve.foundation.errors import Corrupt, ObjectNotFound
from varve.kernels.crc import extend_crc32c
from varve.object_store import ObjectStore

CHUNK_BYTES: Final = 8 << 20

Advance = Callable[[int], None]
"""Takes how many bytes more are done."""


@dataclass(frozen=True, slots=True)
class WantedFile:
    """A file to be made of an object."""

    name: str
    key: str
    size: int
    crc32c: int


class Fetcher:
    """Makes the files of a directory; `workers` of them at a time."""

    def __init__(
        self, objects: ObjectStore, fs: FileSystem, *, workers: int, advance: Advance
    ) -> None:
        self._objects = objects
        self._fs = fs
        self._workers = workers
        self._advance = advance
        self._is_stopped = threading.Event()

    def fetch_all(self, directory: str, files: Sequence[WantedFile]) -> tuple[int, int]:
        """The bytes fetched, and those of files that were there already.

        Every file is synced; their names are not. Raises Corrupt when an object is missing or not
        what the manifest says.
        """

        def bring(file: WantedFile) -> tuple[int, int]:
            if self._is_there(directory, file):
                self._advance(file.size)
                return 0, file.size
            self._fetch(directory, file)
            return file.size, 0

        if self._workers == 1:
            counts = [bring(file) for file in files]
        else:
            with ThreadPoolExecutor(self._workers, thread_name_prefix="varve-restore") as pool:
                try:
                    counts = list(pool.map(bring, files))
                except BaseException:
                    self._is_stopped.set()
                    pool.shutdown(cancel_futures=True)
                    raise
        return sum(count for count, _ in counts), sum(count for _, count in counts)

    def _is_there(self, directory: str, wanted: WantedFile) -> bool:
        path = f"{directory}/{wanted.name}"
        if not self._fs.exists(path) or self._fs.info(path).size != wanted.size:
            return False
        with self._fs.open(path) as file:
            if _checksum(file, wanted.size) != wanted.crc32c:
                return False
            # It may have been written by a run that did not come to its sync.
            file.sync()
        return True

    def _fetch(self, directory: str, wanted: WantedFile) -> None:
        with self._fs.open_writable(f"{directory}/{wanted.name}") as file:
            if file.size():
                file.truncate(0)
            try:
                size, crc = self._copy(wanted, file)
            except ObjectNotFound as error:
                raise self._corrupt(wanted, "is not there") from error
            if size != wanted.size:
                more = "more" if size > wanted.size else f"{size}"
                raise self._corrupt(wanted, f"has {more} bytes instead of {wanted.size}")
            if crc != wanted.crc32c:
                raise self._corrupt(wanted, f"has CRC-32C {crc:08x} instead of {wanted.crc32c:08x}")
            file.sync()

    def _copy(self, wanted: WantedFile, file: File) -> tuple[int, int]:
        position = crc = 0
        # One byte more is asked for, to notice an object that goes on where it should end.
        while position <= wanted.size and not self._is_stopped.is_set():
            end = min(position + CHUNK_BYTES, wanted.size + 1)
            chunk = self._objects.get_range(wanted.key, position, end)
            if not chunk:
                break
            file.write_at(position, chunk)
            crc = int(extend_crc32c(crc, np.frombuffer(chunk, np.uint8), 0, len(chunk)))
            position += len(chunk)
            self._advance(len(chunk))
        return position, crc

    def _corrupt(self, wanted: WantedFile, fault: str) -> Corrupt:
        return Corrupt(
            f"{self._objects.name}: {wanted.key} {fault}, as the manifest says: `varve tier fsck` "
            "shows what else is damaged; put the object back, or restore up to the segment before "
            "it with --until-offset"
        )


def _checksum(file: File, size: int) -> int:
    crc = 0
    for position in range(0, size, CHUNK_BYTES):
        chunk = file.read_at(position, min(CHUNK_BYTES, size - position))
        crc = int(extend_crc32c(crc, np.frombuffer(chunk, np.uint8), 0, len(chunk)))
    return crc
