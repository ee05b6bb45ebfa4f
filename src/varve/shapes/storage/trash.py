"""Shapes go by a rename, and their files later.

Layout     <root>/.trash/<handle>, with a number behind it when that is taken; likewise .tmp.
Crash      a directory is in its place or in the trash, never half; in its place again, perhaps,
           before that is synced.
"""

import posixpath
from contextlib import suppress

from varve.disk import FileSystem
from varve.shapes.storage.layout import SCRATCH, TRASH, shape_directory


def trash_directory(root: str) -> str:
    return posixpath.join(root, TRASH)


def move_to_trash(fs: FileSystem, root: str, handle: str) -> bool:
    """Renames a shape's directory away; False when there is none. Raises OSError of the disk."""
    return _move(fs, root, shape_directory(root, handle), handle)


def discard_scratch(fs: FileSystem, root: str) -> bool:
    """Renames the scratch of all compactions away; False when there is none. Raises OSError."""
    return _move(fs, root, posixpath.join(root, SCRATCH), SCRATCH)


def _move(fs: FileSystem, root: str, source: str, name: str) -> bool:
    trash = trash_directory(root)
    fs.make_directory(trash)
    # Not by a list of what is there: thousands may be dropped at once.
    path, number = posixpath.join(trash, name), 0
    while fs.exists(path):
        number += 1
        path = posixpath.join(trash, f"{name}.{number}")
    try:
        fs.rename(source, path)
    except FileNotFoundError:
        return False
    return True


def sync_parent(fs: FileSystem, root: str, handle: str) -> None:
    """Makes durable that a shape's directory was moved away. Raises OSError."""
    with suppress(FileNotFoundError):  # without its parent there was no directory
        fs.sync_directory(posixpath.dirname(shape_directory(root, handle)))


def list_trash(fs: FileSystem, root: str) -> list[str]:
    """The paths in the trash. Raises OSError."""
    trash = trash_directory(root)
    names = fs.names(trash) if fs.exists(trash) else []
    return [posixpath.join(trash, name) for name in names]
