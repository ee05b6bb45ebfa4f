"""Dumps a key index: what it says of its segment, its entries, batches and marks.

Layout     docs/formats/keys.md
"""

from collections.abc import Iterator
from typing import Final
from uuid import UUID

import numpy as np

from varve.cleaning.key_index.batch_tables import CONTROL_UNKNOWN
from varve.cleaning.key_index.key_index import (
    BATCH_ABORTED,
    CONTROL_EMPTY,
    CONTROL_NONE,
    ENTRY,
    NO_HORIZON,
    KeyIndex,
    KeyIndexHeader,
)
from varve.cli.dump_entry import DumpOptions, Entry, Source
from varve.commit_log import SegmentFiles
from varve.commit_log.directory_files import encode_topic_id
from varve.commit_log.names import LOG, log_name
from varve.commit_log.segment import Segment
from varve.kernels.key_entries import ENTRY_WORDS, FLAG_TOMBSTONE

_BLOCK_ENTRIES: Final = 4096


def dump_key_index(source: Source, options: DumpOptions) -> Iterator[Entry]:
    """The header and all that follows; content whose CRC is wrong is named, not listed."""
    with source.fs.open(source.path) as file:
        index = KeyIndex(file)
        lists_all = not (options.verify_index_only or options.index_sanity_check)
        if lists_all:
            yield Entry("keyIndex", _header_fields(index.header))
        index.verify()
        if options.index_sanity_check:
            yield Entry("saneIndex", {})
            return
        if lists_all:
            yield from _list_entries(index)
            yield from _list_batches(index)
            yield from _list_marks(index)
        if not _is_current(source, index):
            yield Entry("staleKeyIndex", {})


def _header_fields(header: KeyIndexHeader) -> dict[str, object]:
    horizon = header.earliest_horizon
    return {
        "topicId": encode_topic_id(UUID(bytes=header.topic_id)),
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "logSize": header.log_size,
        "lastBatchCrc": header.last_batch_crc,
        "entries": header.entry_count,
        "batches": header.batch_count,
        "marks": header.mark_count,
        "records": header.record_count,
        "nullKeys": header.null_key_count,
        "tombstones": header.tombstone_count,
        "recordBytes": header.record_bytes,
        "earliestDeleteHorizonMs": None if horizon == NO_HORIZON else horizon,
    }


def _list_entries(index: KeyIndex) -> Iterator[Entry]:
    count, base_offset = index.header.entry_count, index.header.base_offset
    block = np.empty((_BLOCK_ENTRIES, ENTRY_WORDS), np.uint64)
    for start in range(0, count, _BLOCK_ENTRIES):
        end = min(start + _BLOCK_ENTRIES, count)
        index.read_entries(start, end, block)
        for high, low, offset, record, size, flags in (
            block[: end - start].view(ENTRY)[:, 0].tolist()
        ):
            yield Entry(
                "keyEntry",
                {
                    "keyHash": f"{high:016x}{low:016x}",
                    "offset": base_offset + offset,
                    "record": record,
                    "size": size,
                    "isTombstone": flags & FLAG_TOMBSTONE != 0,
                },
            )


def _list_batches(index: KeyIndex) -> Iterator[Entry]:
    base_offset = index.header.base_offset
    for position, size, base, last, count, attributes, flags, horizon in index.batches().tolist():
        yield Entry(
            "keyBatch",
            {
                "baseOffset": base_offset + base,
                "lastOffset": base_offset + last,
                "count": count,
                "position": position,
                "size": size,
                "attributes": attributes,
                "isAborted": flags & BATCH_ABORTED != 0,
                "deleteHorizonMs": None if horizon == NO_HORIZON else horizon,
            },
        )


def _list_marks(index: KeyIndex) -> Iterator[Entry]:
    for batch, epoch, control, producer_id in index.marks().tolist():
        yield Entry(
            "keyMark",
            {
                "batch": batch,
                "producerId": producer_id,
                "producerEpoch": epoch,
                "control": _CONTROL_NAMES.get(control, control),
            },
        )


_CONTROL_NAMES: Final[dict[int, object]] = {
    CONTROL_NONE: None,
    CONTROL_EMPTY: "EMPTY",
    CONTROL_UNKNOWN: "UNKNOWN",
    0: "ABORT",
    1: "COMMIT",
}


def _is_current(source: Source, index: KeyIndex) -> bool:
    """Whether it is the index of the data file beside it, if there is one."""
    base_offset = index.header.base_offset
    path = source.beside(log_name(base_offset, LOG))
    if not source.fs.exists(path):
        return True
    segment = Segment(
        SegmentFiles(source.fs),
        path.rpartition("/")[0] or ".",
        base_offset=base_offset,
        size=source.fs.info(path).size,
    )
    return index.is_of(segment, index.header.topic_id)
