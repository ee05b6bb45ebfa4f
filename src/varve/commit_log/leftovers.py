"""Resolves what a crash left behind in a partition directory.

Deletions, cleanings and swaps in progress.

Invariant  a `.swap` set without `.cleaned` files is committed and takes the place of the old
           segments; with `.cleaned` files it is not, and the old segments stand. An empty
           `.log.swap` behind another one only marks the last segment that is replaced.
Crash      every step may be repeated: swaps stay in place until all they replace is gone.
"""

import logging
from typing import Final

from varve.commit_log.names import (
    CLEANED,
    DELETED,
    LOG,
    SWAP,
    SegmentFileName,
    log_name,
    parse_file_name,
)
from varve.commit_log.segment_reader import BatchWalk
from varve.disk import FileSystem
from varve.kernels.batch_layout import BatchColumn

logger = logging.getLogger(__name__)

_METADATA_SNAPSHOT: Final = ".checkpoint.deleted"


def resolve_leftovers(fs: FileSystem, directory: str, names: list[str]) -> bool:
    """Brings the directory into a state of plain files only; True when something had to change."""
    marked = [name for name in names if name.endswith((DELETED, CLEANED, SWAP))]
    parsed = {name: file for name in marked if (file := parse_file_name(name))}
    deleted = [n for n in marked if n.endswith(DELETED) and not n.endswith(_METADATA_SNAPSHOT)]
    if not parsed and not deleted:
        return False
    cleaned = {name: file for name, file in parsed.items() if file.state == CLEANED}
    swaps = {name: file for name, file in parsed.items() if file.state == SWAP}
    first_cleaned = min((file.offset for file in cleaned.values()), default=None)
    undone = [
        name
        for name, file in swaps.items()
        if first_cleaned is not None and file.offset >= first_cleaned
    ]
    # Swaps go, durably, before the cleaned files that prove them uncommitted.
    _remove(fs, directory, undone)
    _remove(fs, directory, [*cleaned, *deleted])
    committed = {name: file for name, file in swaps.items() if name not in undone}
    _remove(fs, directory, _find_replaced(fs, directory, names, committed))
    marks = _find_marks(fs, directory, committed)
    _remove(fs, directory, marks)
    for name in _swap_order(committed):
        if name in marks:
            continue
        fs.rename(f"{directory}/{name}", f"{directory}/{name.removesuffix(SWAP)}")
    fs.sync_directory(directory)
    logger.info(
        "resolved leftovers",
        extra={
            "directory": directory,
            "deleted": len(deleted),
            "uncommitted": len(undone) + len(cleaned),
            "swapped": len(committed),
        },
    )
    return True


def _remove(fs: FileSystem, directory: str, names: list[str]) -> None:
    """Durably, so that no later step outlives a crash that this one does not."""
    for name in names:
        fs.remove(f"{directory}/{name}")
    if names:
        fs.sync_directory(directory)


def _swap_order(committed: dict[str, SegmentFileName]) -> list[str]:
    """Lowest segment first, each data file before its indexes.

    An index alone is just put in place.
    """
    return sorted(committed, key=lambda n: (committed[n].offset, committed[n].kind != LOG, n))


def _find_marks(fs: FileSystem, directory: str, committed: dict[str, SegmentFileName]) -> list[str]:
    logs = [name for name in _swap_order(committed) if committed[name].kind == LOG]
    return [name for name in logs[1:] if not fs.info(f"{directory}/{name}").size]


def _find_replaced(
    fs: FileSystem, directory: str, names: list[str], committed: dict[str, SegmentFileName]
) -> list[str]:
    """The plain files whose offsets the committed swaps cover, highest first."""
    logs = [file.offset for file in committed.values() if file.kind == LOG]
    if not logs:
        return []
    start = min(logs)
    ends = [_next_offset(fs, directory, offset) for offset in logs]
    end = max(*ends, max(logs) + 1)
    return [
        name
        for name in sorted(names, reverse=True)
        if (file := parse_file_name(name)) is not None
        and not file.state
        and start <= file.offset < end
    ]


def _next_offset(fs: FileSystem, directory: str, base_offset: int) -> int:
    path = f"{directory}/{log_name(base_offset, LOG)}{SWAP}"
    next_offset = base_offset
    with fs.open(path) as file:
        walk = BatchWalk(file, start=0, end=file.size(), verify_crc=False)
        for table in walk:
            next_offset = int(table.rows[-1, BatchColumn.LAST_OFFSET]) + 1
        walk.check_ended(path)
    return next_offset
