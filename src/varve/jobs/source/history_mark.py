"""The batch in front of an offset of a partition, by which a later run recognises its history.

What was made of records that a log has lost must not be continued: see `varve.topics.position`.

Layout     docs/formats/snapshot.md, docs/formats/table.md
"""

from contextlib import ExitStack
from functools import partial

import numpy as np

from varve.jobs.source.options import SourceFilters
from varve.jobs.source.piece_reading import filter_of, open_batch_ranges, open_objects
from varve.jobs.source.plan import PartitionSource
from varve.jobs.source.record_blocks import read_batches
from varve.kernels.batch_layout import BatchColumn
from varve.records import BatchHeader, decode_header
from varve.topics import HistoryMark


def find_mark(source: PartitionSource, next_offset: int) -> HistoryMark | None:
    """The mark of what lies in front of an offset; None where no batch is there to be read."""
    header = _find_batch(source, next_offset)
    return None if header is None else HistoryMark.of(header)


def find_break(source: PartitionSource, next_offset: int, mark: HistoryMark | None) -> str | None:
    """Why the log is not the one that was read up to an offset; None if it may be.

    Without a mark, or where its batch has left the log, nothing can be compared.
    """
    end_offset = source.bounds()[1]
    if source.has_end and end_offset < next_offset:
        return f"the log ends at offset {end_offset}, and was read up to {next_offset} before"
    header = None if mark is None else _find_batch(source, next_offset)
    if mark is None or header is None:
        return None
    found = mark.find_break(header)
    return None if found is None else f"in front of offset {next_offset} {found}"


def _find_batch(source: PartitionSource, next_offset: int) -> BatchHeader | None:
    """The batch that holds the offset before this one."""
    offset = next_offset - 1
    start_offset, end_offset = source.bounds()
    if not start_offset <= offset < end_offset:
        return None
    pieces = source.pieces(start_offset=offset, end_offset=next_offset, filters=SourceFilters())
    objects = partial(open_objects, source.address)
    with ExitStack() as stack:
        batch_ranges = [
            batch_range
            for piece in pieces
            for batch_range in open_batch_ranges(piece, filter_of(piece), objects, stack)
        ]
        for buffer, rows, _ in read_batches(batch_ranges):
            holds = (rows[:, BatchColumn.BASE_OFFSET] <= offset) & (
                rows[:, BatchColumn.LAST_OFFSET] >= offset
            )
            if holds.any():
                position = int(rows[int(np.argmax(holds)), BatchColumn.POSITION])
                return decode_header(buffer.data, position)
    return None
