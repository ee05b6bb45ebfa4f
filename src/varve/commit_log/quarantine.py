"""Keeps what a repair takes away: bytes cut off data files, and files it replaces.

Layout     `<quarantine>/<partition>/<file>.cut-<position>`; a name in use gets `.1`, `.2`.
Crash      a copy is on disk, with its name, before the original is touched.
"""

import posixpath
from typing import Final

from varve.disk import FileSystem

_COPY_BYTES: Final = 4 << 20


class Quarantine:
    """A directory beside the log directory, made when first needed."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._path = path

    def keep(self, path: str, *, position: int = 0) -> str:
        """Copies a file from a position on; gives the copy's path."""
        parent, name = posixpath.split(path)
        directory = f"{self._path}/{posixpath.basename(parent)}"
        self._fs.make_directory(directory)
        target = self._free_name(f"{directory}/{name}.cut-{position}")
        with self._fs.open(path) as source, self._fs.open_writable(target) as copy:
            size = source.size()
            for start in range(position, size, _COPY_BYTES):
                data = source.read_at(start, min(_COPY_BYTES, size - start))
                copy.write_at(start - position, data)
            copy.sync()
        self._fs.sync_directory(directory)
        self._fs.sync_directory(self._path)
        return target

    def _free_name(self, wanted: str) -> str:
        name, number = wanted, 0
        while self._fs.exists(name):
            number += 1
            name = f"{wanted}.{number}"
        return name
