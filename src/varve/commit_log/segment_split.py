"""Splits a segment whose offsets outgrew the 32-bit range that its indexes can express.

Crash      the parts are written aside, synced, and take the old segment's place as one swap: they
           are committed once the last of them has become `.swap`, and `resolve_leftovers` finishes
           the rest.
"""

from dataclasses import dataclass
from typing import Final

from varve.commit_log.leftovers import resolve_leftovers
from varve.commit_log.names import CLEANED, LOG, SWAP, log_name
from varve.commit_log.segment_reader import BatchWalk
from varve.commit_log.sparse_index import RELATIVE_OFFSET_MAX
from varve.disk import File, FileSystem
from varve.kernels.batch_layout import BatchColumn

_COPY_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class _Part:
    base_offset: int
    start: int
    end: int


def split_segment(fs: FileSystem, directory: str, base_offset: int) -> list[int]:
    """Replaces one segment by several.

    Gives their base offsets. Their indexes are left to recovery.
    """
    path = f"{directory}/{log_name(base_offset, LOG)}"
    with fs.open(path) as file:
        parts = _plan_parts(file, base_offset)
        for part in parts:
            _copy_part(fs, directory, file, part)
    fs.sync_directory(directory)
    for part in reversed(parts):
        name = f"{directory}/{log_name(part.base_offset, LOG)}"
        fs.rename(name + CLEANED, name + SWAP)
    fs.sync_directory(directory)
    resolve_leftovers(fs, directory, fs.names(directory))
    return [part.base_offset for part in parts]


def _plan_parts(file: File, base_offset: int) -> list[_Part]:
    """Consecutive ranges of batches, each within range of its base.

    The first keeps the old base offset.

    A first part without a batch stays: its swap file is what replaces the old segment.
    """
    parts: list[_Part] = []
    base, start, end = base_offset, 0, 0
    for table in BatchWalk(file, start=0, end=file.size(), verify_crc=False):
        for row in table.rows.tolist():
            if row[BatchColumn.LAST_OFFSET] - base > RELATIVE_OFFSET_MAX:
                parts.append(_Part(base, start, end))
                base, start = row[BatchColumn.BASE_OFFSET], end
            end += row[BatchColumn.SIZE]
    return [*parts, _Part(base, start, end)]


def _copy_part(fs: FileSystem, directory: str, source: File, part: _Part) -> None:
    with fs.open_writable(f"{directory}/{log_name(part.base_offset, LOG)}{CLEANED}") as target:
        target.truncate(0)
        for position in range(part.start, part.end, _COPY_BYTES):
            data = source.read_at(position, min(_COPY_BYTES, part.end - position))
            target.write_at(position - part.start, data)
        target.sync()
