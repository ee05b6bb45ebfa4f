"""Shapes go by a rename, and their files later.

Layout     <root>/.trash/<handle>, with a number behind it when that is taken.
Crash      a directory is in its place or in the trash, never half.
"""

import posixpath

from varve.disk import FileSystem
from varve.shapes.storage.layout import TRASH, check_handle, shape_directory


def trash_directory(root: str) -> str:
    return posixpath.join(root, TRASH)


def move_to_trash(file_system: FileSystem, root: str, handle: str) -> bool:
    """Renames a shape's directory away; False when there is none. Raises OSError of the disk."""
    check_handle(handle)
    trash = trash_directory(root)
    file_system.make_directory(trash)
    taken = set(file_system.names(trash))
    name, number = handle, 0
    while name in taken:
        number += 1
        name = f"{handle}.{number}"
    try:
        file_system.rename(shape_directory(root, handle), posixpath.join(trash, name))
    except FileNotFoundError:
        return False
    return True


def empty_trash(file_system: FileSystem, root: str, *, count_max: int) -> int:
    """Removes up to so many directories from the trash; gives how many. Raises OSError."""
    trash = trash_directory(root)
    if not file_system.exists(trash):
        return 0
    names = file_system.names(trash)[:count_max]
    for name in names:
        file_system.remove_tree(posixpath.join(trash, name))
    return len(names)
