"""The keys of pieces that no key index tells of: the end of a log, a segment cut by a bound.

Layout     as a key index has them, without batches and marks. docs/formats/keys.md
Invariant  of each key only the last record of the piece is listed. Records without a key, of
           control batches and of aborted transactions are not counted.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from varve.cleaning.key_index.key_index import ENTRY, NO_HORIZON, KeyIndexHeader
from varve.jobs.source.keys import TopicHash
from varve.jobs.source.piece_stretches import open_stretches, wanted_of
from varve.jobs.source.pieces import Piece
from varve.jobs.source.record_blocks import read_blocks
from varve.jobs.tier.remote_files import checksum
from varve.kernels.batch_layout import RecordColumn
from varve.object_store import ObjectStore

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PieceKeys:
    """The keys of one piece: `data` is a key index, whose record r has offset `offsets[r]`."""

    piece: Piece
    header: KeyIndexHeader
    data: bytes
    offsets: Integers


def scan_keys(piece: Piece, topic_id: str, objects: Callable[[], ObjectStore]) -> PieceKeys:
    """Reads a piece for its keys."""
    hashed = TopicHash.of(topic_id)
    hashes: list[npt.NDArray[np.uint64]] = [np.empty((0, 2), np.uint64)]
    rows: list[Integers] = [np.empty((0, 3), np.int64)]
    with ExitStack() as stack:
        for block in read_blocks(open_stretches(piece, wanted_of(piece), objects, stack)):
            records = block.records
            chosen = block.chosen() & (records[:, RecordColumn.KEY_SIZE] >= 0)
            hashes.append(hashed.hash_block(block)[chosen])
            sizes = records[chosen, RecordColumn.RECORD_END]
            sizes = sizes - records[chosen, RecordColumn.RECORD_START]
            rows.append(
                np.column_stack(
                    (
                        records[chosen, RecordColumn.OFFSET],
                        sizes,
                        records[chosen, RecordColumn.VALUE_SIZE] < 0,
                    )
                )
            )
    return _make(piece, topic_id, np.concatenate(hashes), np.concatenate(rows))


def _make(piece: Piece, topic_id: str, hashes: npt.NDArray[np.uint64], rows: Integers) -> PieceKeys:
    order = np.lexsort((hashes[:, 1], hashes[:, 0]))  # stable: of equal hashes the last is latest
    ordered = hashes[order]
    is_last = np.ones(len(order), np.bool_)
    is_last[:-1] = (ordered[1:] != ordered[:-1]).any(axis=1)
    latest = order[is_last]
    entries = np.empty(len(latest), ENTRY)
    entries["hash_high"], entries["hash_low"] = hashes[latest, 0], hashes[latest, 1]
    entries["offset"] = rows[latest, 0] - piece.start_offset
    entries["record"] = latest
    entries["size"] = rows[latest, 1]
    entries["flags"] = rows[latest, 2]
    body = entries.tobytes()
    header = KeyIndexHeader(
        topic_id=TopicHash.secret(topic_id),
        base_offset=piece.start_offset,
        last_offset=piece.end_offset - 1,
        log_size=piece.size,
        last_batch_crc=0,
        entry_count=len(entries),
        batch_count=0,
        mark_count=0,
        record_count=len(rows),
        null_key_count=0,
        tombstone_count=int(rows[latest, 2].sum()),
        record_bytes=int(rows[:, 1].sum()),
        earliest_horizon=NO_HORIZON,
        sections_crc=checksum(body),
    )
    return PieceKeys(piece, header, header.encode() + body, rows[:, 0])
