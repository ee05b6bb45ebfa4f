"""Make directories that outlive the power.

Crash      a name is durable once the directory above it is synced; before, what is below may go.
"""

import posixpath

from varve.disk.file_system import FileSystem


def make_durable_directory(file_system: FileSystem, path: str) -> None:
    """Make the directory and missing parents, and sync what names them; one that is there is fine.

    Raises OSError.
    """
    missing: list[str] = []
    above = path
    while above and not file_system.exists(above):
        missing.append(above)
        above = posixpath.dirname(above)
    file_system.make_directory(path)
    for made in reversed(missing):
        file_system.sync_directory(posixpath.dirname(made) or ".")
