"""Replace a small file as a whole.

Crash      the target is the old file or the new one, complete; a `.tmp` beside it may be left.
"""

import contextlib
import posixpath

from varve.disk.file_system import FileSystem

TEMPORARY_SUFFIX = ".tmp"


def write_atomically(
    file_system: FileSystem, path: str, data: bytes, *, is_private: bool = False
) -> None:
    """Write aside, sync, rename over the target, sync the directory: durable on return.

    A private file is its owner's alone to read, whoever might read the one it replaces.
    After an `OSError` the target is whole, old or new, and the temporary file is removed if that
    works.
    """
    temporary = path + TEMPORARY_SUFFIX
    open_file = file_system.open_private if is_private else file_system.open_writable
    try:
        with open_file(temporary) as file:
            if file.size():
                file.truncate(0)
            file.write_at(0, data)
            file.sync()
        file_system.rename(temporary, path)
        file_system.sync_directory(posixpath.dirname(path) or ".")
    except OSError:
        with contextlib.suppress(OSError):
            file_system.remove(temporary)
        raise
