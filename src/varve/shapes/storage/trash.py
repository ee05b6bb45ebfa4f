"""Shapes go by a rename, and their files later.

Layout     <root>/.trash/<handle>, with a number behind it when that is taken.
Crash      a directory is in its place or in the trash, never half; in its place again, perhaps,
           before that is synced.
"""

import posixpath
from contextlib import suppress

from varve.disk import FileSystem
from varve.shapes.storage.layout import TRASH, check_handle, shape_directory


def trash_directory(root: str) -> str:
    return posixpath.join(root, TRASH)


def move_to_trash(fs: FileSystem, root: str, handle: str) -> bool:
    """Renames a shape's directory away; False when there is none. Raises OSError of the disk."""
    check_handle(handle)
    trash = trash_directory(root)
    fs.make_directory(trash)
    # Not by a list of what is there: thousands may be dropped at once.
    path, number = posixpath.join(trash, handle), 0
    while fs.exists(path):
        number += 1
        path = posixpath.join(trash, f"{handle}.{number}")
    try:
        fs.rename(shape_directory(root, handle), path)
    except FileNotFoundError:
        return False
    return True


def sync_place(fs: FileSystem, root: str, handle: str) -> None:
    """Makes durable that a shape's directory was moved away. Raises OSError."""
    with suppress(FileNotFoundError):  # without a place there was no directory
        fs.sync_directory(posixpath.dirname(shape_directory(root, handle)))


def list_trash(fs: FileSystem, root: str) -> list[str]:
    """The paths in the trash. Raises OSError."""
    trash = trash_directory(root)
    names = fs.names(trash) if fs.exists(trash) else []
    return [posixpath.join(trash, name) for name in names]
