"""Walks every invariant of partitions and log directories and names what is broken.

Invariant  a check never writes. While it looks it holds the directory's lock, so that no owner
           changes the files under it; without the lock findings may be of the moment.
"""

import contextlib
import posixpath
from collections.abc import Callable, Iterator

from varve.commit_log.check_directory import CHECKPOINT_FILES, DirectoryCheck, DirectoryFacts
from varve.commit_log.check_open_log import check_log
from varve.commit_log.check_partition import (
    PartitionCheck,
    PartitionContext,
    PartitionFacts,
    show_nothing,
)
from varve.commit_log.finding import Finding, Severity
from varve.commit_log.names import (
    LEADER_EPOCH_FILE,
    LOCK_FILE,
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
    DirectoryState,
    TopicPartition,
    parse_file_name,
    parse_partition_directory,
)
from varve.disk import FileSystem
from varve.foundation.errors import Corrupt

__all__ = [
    "Finding",
    "Severity",
    "check_log",
    "check_log_directory",
    "check_partition",
    "find_partition",
    "hold_lock",
    "inspect_directory",
    "inspect_partition",
    "is_log_directory",
    "is_partition_directory",
]

_OWN_FILES = (META_PROPERTIES_FILE, LOCK_FILE, *CHECKPOINT_FILES)


def check_partition(
    fs: FileSystem,
    directory: str,
    *,
    now_ms: int = 0,
    deep: bool = False,
    lock: bool = True,
    advance: Callable[[int], None] = show_nothing,
) -> list[Finding]:
    """Checks one partition directory, with what the log directory around it says about it.

    Raises Locked when an owner has the log directory open, unless `lock` is False.
    """
    context = PartitionContext(now_ms=now_ms, deep=deep, advance=advance)
    parent = posixpath.dirname(directory.rstrip("/")) or "."
    with hold_lock(fs, parent, wanted=lock):
        return inspect_partition(fs, directory, context).findings


def check_log_directory(
    fs: FileSystem,
    path: str,
    *,
    now_ms: int = 0,
    deep: bool = False,
    lock: bool = True,
    advance: Callable[[int], None] = show_nothing,
) -> list[Finding]:
    """Checks a log directory and every partition in it; `lock` as above."""
    context = PartitionContext(now_ms=now_ms, deep=deep, advance=advance)
    with hold_lock(fs, path, wanted=lock):
        return inspect_directory(fs, path, context).findings


def inspect_directory(fs: FileSystem, path: str, context: PartitionContext) -> DirectoryFacts:
    """The facts behind `check_log_directory`, for callers that hold the lock."""
    return DirectoryCheck(fs, path.rstrip("/") or "/", context).run()


def inspect_partition(fs: FileSystem, directory: str, context: PartitionContext) -> DirectoryFacts:
    """One partition as part of its log directory; alone when it does not lie in one."""
    directory = directory.rstrip("/")
    parent = posixpath.dirname(directory) or "."
    partition = find_partition(directory)
    if partition is not None and is_log_directory(fs, parent):
        return DirectoryCheck(fs, parent, context).run(only=partition)
    facts = PartitionCheck(fs, directory, context).run()
    known: dict[TopicPartition, PartitionFacts] = {}
    known[partition or TopicPartition(posixpath.basename(directory), 0)] = facts
    return DirectoryFacts(parent, facts.findings, known)


def find_partition(directory: str) -> TopicPartition | None:
    """The partition that a directory's name tells; None for other names and those set aside."""
    try:
        parsed = parse_partition_directory(posixpath.basename(directory.rstrip("/")))
    except Corrupt:
        return None
    return parsed.topic_partition if parsed.state is DirectoryState.ACTIVE else None


def is_log_directory(fs: FileSystem, path: str) -> bool:
    """Whether the files that only a log directory has are there."""
    return any(fs.exists(f"{path}/{name}") for name in _OWN_FILES)


def is_partition_directory(fs: FileSystem, path: str) -> bool:
    """Whether a directory holds a partition's files rather than partitions."""
    if is_log_directory(fs, path):
        return False
    return any(
        parse_file_name(name) is not None or name in (PARTITION_METADATA_FILE, LEADER_EPOCH_FILE)
        for name in fs.names(path)
    )


@contextlib.contextmanager
def hold_lock(fs: FileSystem, log_directory: str, *, wanted: bool = True) -> Iterator[None]:
    """Holds the directory's lock if it has one: without the file nobody can be holding it.

    Raises Locked when an owner has it.
    """
    path = f"{log_directory}/{LOCK_FILE}"
    if not wanted or not fs.exists(path):
        yield
        return
    lock = fs.lock(path)
    try:
        yield
    finally:
        lock.release()
