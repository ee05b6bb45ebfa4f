"""Recovers one segment: finds the last valid batch, truncates after it, rebuilds the indexes.

Crash      recovery may be repeated with the same result: it only truncates the data file.
"""

import zlib
from dataclasses import dataclass
from typing import Final

import numpy as np

from varve.commit_log.leader_epochs import LeaderEpochs
from varve.commit_log.names import INDEX, LOG, TIME_INDEX, TXN_INDEX, log_name
from varve.commit_log.producer_snapshots import count_before_bad_marker, replay_batches
from varve.commit_log.producer_state import ProducerStateManager
from varve.commit_log.segment import SegmentContents
from varve.commit_log.segment_reader import CHUNK_BYTES, BatchTable, BatchWalk, read_batch_size
from varve.commit_log.settings import LogSettings
from varve.commit_log.sparse_index import SegmentIndexer
from varve.commit_log.transaction_index import TransactionIndex
from varve.disk import File, FileSystem, write_atomically, write_file
from varve.foundation.errors import UnsupportedFormat
from varve.kernels.batch_layout import BatchColumn, ScanStatus, status_text

_OLD_CRC_START: Final = 16  # formats 0 and 1: the CRC covers everything after itself


@dataclass(frozen=True, slots=True)
class RecoveredSegment:
    """The result of scanning a segment: its valid part and how much follows it."""

    contents: SegmentContents
    bytes_cut: int
    reason: str


def scan_segment(
    fs: FileSystem,
    directory: str,
    *,
    base_offset: int,
    settings: LogSettings,
    producers: ProducerStateManager,
    epochs: LeaderEpochs,
) -> RecoveredSegment:
    """Scans the data file up to its last valid batch; changes no file.

    Replays the valid batches into `producers` and `epochs`. Raises OffsetOverflow for a segment
    that must be split, UnsupportedFormat for message formats 0 and 1.
    """
    path = f"{directory}/{log_name(base_offset, LOG)}"
    with fs.open(path) as file:
        file_size = file.size()
        txn_index = TransactionIndex(base_offset)
        indexer = SegmentIndexer(base_offset, settings, path)
        walk = BatchWalk(file, start=0, end=file_size, verify_crc=True)
        valid_end, reason = 0, ""
        for table in walk:
            readable_count = count_before_bad_marker(table, where=path)
            valid_count = indexer.add(table.rows[:readable_count])
            valid = table.first(valid_count)
            assign_epochs(valid, epochs)
            replay_batches(valid, producers, txn_index, where=path)
            valid_end = valid.end
            if valid_count < len(table.rows):
                is_marker = valid_count == readable_count
                fault = "control record is malformed" if is_marker else "offset does not ascend"
                reason = f"position {valid_end}: the next batch's {fault}"
                break
        else:
            reason = _stop_reason(walk, file, file_size, path)
    time_index = indexer.time_index()
    contents = SegmentContents(
        base_offset=base_offset,
        next_offset=indexer.next_offset,
        size=valid_end,
        first_timestamp=indexer.first_timestamp,
        largest_timestamp=time_index.last,
        offset_index=indexer.offset_index(),
        time_index=time_index,
        txn_index=txn_index,
    )
    return RecoveredSegment(contents, bytes_cut=file_size - valid_end, reason=reason)


def write_recovered(
    fs: FileSystem, directory: str, recovered: RecoveredSegment, *, is_final: bool
) -> None:
    """Truncates the data file after its last valid batch and writes the indexes.

    `is_final` means that no later recovery reads this segment: everything is then synced on return.
    """
    contents = recovered.contents
    if recovered.bytes_cut:
        with fs.open_writable(f"{directory}/{log_name(contents.base_offset, LOG)}") as file:
            file.truncate(contents.size)
            if is_final:
                file.sync()
    _write_indexes(fs, directory, contents, is_durable=is_final)


def _stop_reason(walk: BatchWalk, file: File, file_size: int, path: str) -> str:
    if walk.status == ScanStatus.OLD_MAGIC and is_old_message(file, walk.position, file_size):
        raise UnsupportedFormat(
            f"{path}: position {walk.position}: {status_text(walk.status)}; nothing was changed. "
            "Rewrite the topic with a Kafka release that converts message formats 0 and 1, then "
            "open it again"
        )
    if walk.position == file_size:
        return ""
    return f"position {walk.position}: {status_text(walk.status)}"


def is_old_message(file: File, position: int, file_size: int) -> bool:
    """Whether a message of format 0 or 1 begins at the position.

    A torn batch without its magic on disk looks like one; only the CRC tells them apart.
    """
    head = file.read_at(position, _OLD_CRC_START)
    size = read_batch_size(file, position)
    if position + size > file_size:
        return False
    crc = 0
    for start in range(position + _OLD_CRC_START, position + size, CHUNK_BYTES):
        end = min(start + CHUNK_BYTES, position + size)
        crc = zlib.crc32(file.read_at(start, end - start), crc)
    return crc == int.from_bytes(head[12:16], "big")


def assign_epochs(table: BatchTable, epochs: LeaderEpochs) -> None:
    """Records the epochs that begin in a table; the caller walks the log in order."""
    leader_epochs = table.rows[:, BatchColumn.LEADER_EPOCH]
    latest = epochs.latest
    if not leader_epochs.size or (latest is not None and leader_epochs.max() <= latest.epoch):
        return
    changes = np.flatnonzero(np.diff(leader_epochs, prepend=leader_epochs[0] - 1))
    for row in changes.tolist():
        epoch = int(leader_epochs[row])
        latest = epochs.latest
        if epoch >= 0 and (latest is None or epoch > latest[0]):
            epochs.assign(epoch, int(table.rows[row, BatchColumn.BASE_OFFSET]))


def _write_indexes(
    fs: FileSystem, directory: str, contents: SegmentContents, *, is_durable: bool
) -> None:
    """Writes the index files of a segment; an empty transaction index has no file.

    The offset index comes last: while it is missing, loading recovers the segment again.
    """
    files = {
        TIME_INDEX: contents.time_index.encode(),
        TXN_INDEX: contents.txn_index.encode(),
        INDEX: contents.offset_index.encode(),
    }
    for kind, data in files.items():
        path = f"{directory}/{log_name(contents.base_offset, kind)}"
        if kind == TXN_INDEX and not data:
            if fs.exists(path):
                fs.remove(path)
            continue
        if is_durable:
            write_atomically(fs, path, data)
            continue
        write_file(fs, path, data, sync=False)
