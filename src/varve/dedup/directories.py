"""The directories of remembered ids, and their removal.

Layout     `<log directory>.dedup/` has a directory for each deduplication, with one for each
           partition, and one for each partition of a topic with `varve.dedup.by`.
           docs/reference/formats/dedup-ids.md
Invariant  ids on disk are a copy of a changelog or of the log: the next start restores them. A
           directory is removed only if it is that of ids, and no process has it open.
"""

import posixpath
from collections.abc import Iterator
from typing import Final

from varve.disk import FileSystem
from varve.rocks.state_files import META_NAME

STATE_FILE_SUFFIX: Final = ".json"
"""Follows the name of a served partition's ids, in that of the file with their state."""
_STATE_SUFFIX: Final = ".dedup"


def state_root(log_directory: str) -> str:
    """The directory with the ids of a log directory's partitions."""
    return log_directory + _STATE_SUFFIX


def remove_state(fs: FileSystem, directory: str) -> None:
    """Removes the ids of a served partition and then their state file; raises OSError."""
    if fs.exists(directory):
        fs.remove_tree(directory)
    if fs.exists(directory + STATE_FILE_SUFFIX):
        fs.remove(directory + STATE_FILE_SUFFIX)


def list_partitions(fs: FileSystem, directory: str) -> Iterator[str]:
    """The directories of a deduplication's partitions."""
    for entry in fs.scan(directory) if fs.exists(directory) else ():
        path = posixpath.join(directory, entry.name)
        if entry.is_directory and entry.name.isdecimal() and fs.exists(f"{path}/{META_NAME}"):
            yield path


def remove_partition(fs: FileSystem, directory: str) -> None:
    """Removes the ids of one partition; raises Locked while a deduplication has them open."""
    # Imported here: a server without deduplicated topics starts without the database.
    from varve.rocks.segments import LOCK_NAME

    lock = fs.lock(posixpath.join(directory, LOCK_NAME))
    try:
        fs.remove_tree(directory)
    finally:
        lock.release()
    fs.sync_directory(posixpath.dirname(directory))
