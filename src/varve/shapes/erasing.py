"""Removes everything of a topic from the directory of a server of shapes, for an erasure.

Shapes cannot be rewritten: their clients hold the rows too, and leave them only when they must
fetch again. The next start reads the topic again.

Invariant  no file with a row of the topic is left: rows, logs, snapshots, scratch files and the
           trash. Definitions, which may hold values of a row, are overwritten in the registry.
Crash      a shape leaves the registry before its files are removed; those are removed by the next
           erasure, or by the maintenance of the next server.
Threads    one; the directory is locked, so that no server has it open.
"""

import os
import posixpath
import shutil
from contextlib import suppress

from varve.disk import FileSystem, to_store_error
from varve.foundation.clock import Clock
from varve.foundation.errors import NotFound
from varve.shapes.engine import LOCK_FILE
from varve.shapes.opening import TABLES
from varve.shapes.registry import FILE_NAME, ShapeRegistry
from varve.shapes.storage.layout import SCRATCH, TRASH, list_handles, shape_directory


def erase_shapes(root: str, topic: str, *, fs: FileSystem, clock: Clock) -> list[str]:
    """Drops the shapes of a topic and its rows; returns the removed paths.

    Raises Locked while a server has the directory open, NotFound where there is none.
    """
    _check(root)
    try:
        lock = fs.lock(f"{root}/{LOCK_FILE}")
        try:
            return _erase(root, topic, fs, clock)
        finally:
            lock.release()
    except OSError as error:
        raise to_store_error(error, f"removal of the shapes of {topic}", path=root) from error


def count_shapes(root: str, topic: str, *, fs: FileSystem, clock: Clock) -> int:
    """How many shapes of a topic, and directories of none, are left; its rows count as one."""
    _check(root)
    registry = ShapeRegistry.open(root, clock)
    try:
        kept = registry.handles()
        shapes = registry.handles(topic)
    finally:
        registry.close()
    orphans = [handle for handle in list_handles(fs, root) if handle not in kept]
    return len(shapes) + len(orphans) + os.path.exists(_rows(root, topic))


def _check(root: str) -> None:
    if not os.path.exists(f"{root}/{FILE_NAME}"):
        raise NotFound(f"{root} is not a directory of shapes: it has no {FILE_NAME}")


def _rows(root: str, topic: str) -> str:
    return posixpath.join(root, TABLES, topic)


def _erase(root: str, topic: str, fs: FileSystem, clock: Clock) -> list[str]:
    registry = ShapeRegistry.open(root, clock)
    try:
        registry.forget(topic)
        kept = registry.handles()
    finally:
        registry.close()
    paths = [
        shape_directory(root, handle) for handle in list_handles(fs, root) if handle not in kept
    ]
    paths += [posixpath.join(root, name) for name in (TRASH, SCRATCH)]
    paths += [_rows(root, topic)]
    paths += [
        posixpath.join(root, name) for name in os.listdir(root) if name.startswith(f"{FILE_NAME}.")
    ]
    removed = [path for path in paths if os.path.exists(path)]
    for path in removed:
        with suppress(NotADirectoryError):
            shutil.rmtree(path)
        with suppress(FileNotFoundError):
            os.remove(path)
    for parent in {posixpath.dirname(path) for path in removed}:
        fs.sync_directory(parent)
    fs.make_directory(posixpath.join(root, TRASH))
    return [path for path in removed if not path.endswith((TRASH, SCRATCH))]
