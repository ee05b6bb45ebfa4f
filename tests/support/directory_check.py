"""Checks directories that nobody else has open, as `varve check` does."""

import posixpath
from collections.abc import Callable

from varve.commit_log.check import (
    Finding,
    PartitionContext,
    hold_lock,
    ignore_progress,
    inspect_directory,
    inspect_partition,
)
from varve.disk import FileSystem


def check_partition(
    fs: FileSystem,
    directory: str,
    *,
    now_ms: int = 0,
    deep: bool = False,
    lock: bool = True,
    advance: Callable[[int], None] = ignore_progress,
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
    advance: Callable[[int], None] = ignore_progress,
) -> list[Finding]:
    """Checks a log directory and every partition in it; `lock` as above."""
    context = PartitionContext(now_ms=now_ms, deep=deep, advance=advance)
    with hold_lock(fs, path, wanted=lock):
        return inspect_directory(fs, path, context).findings
