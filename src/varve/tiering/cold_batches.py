"""Batches in the log object of a cold segment, told by their headers.

Invariant  a batch that is handed out lies within its object, and its offsets within its segment;
           anything else is Corrupt, with the object's key and the position in it.
"""

from struct import Struct
from typing import Final, NamedTuple

from varve.foundation.errors import Corrupt, UnsupportedFormat
from varve.tiering.cold_file import ColdFile

# Base offset, batch length, magic and last offset delta: all that finding a batch needs.
_BOUNDS: Final = Struct(">qi4xb6xi")
_LENGTH_END: Final = 12
_SMALLEST_LENGTH: Final = 49
_MAGIC: Final = 2
_MAGIC_POSITION: Final = 16
_REMEDY: Final = "`varve tier fsck` checks the objects"


class BatchBounds(NamedTuple):
    """The offsets of a batch, both inclusive, and its bytes."""

    base_offset: int
    last_offset: int
    size: int


def get_batch(file: ColdFile, position: int) -> BatchBounds:
    """The batch at a position; raises Corrupt where none of this segment can begin."""
    segment = file.segment
    head = file.view_at(position, min(_BOUNDS.size, segment.size - position))
    if len(head) < _BOUNDS.size:
        raise not_a_batch(file, position)
    base_offset, length, magic, last_delta = _BOUNDS.unpack(head)
    if magic != _MAGIC or length < _SMALLEST_LENGTH:
        raise not_a_batch(file, position)
    batch = BatchBounds(base_offset, base_offset + last_delta, length + _LENGTH_END)
    if position + batch.size > segment.size:
        raise Corrupt(
            f"{_where(file, position)}: the batch of {batch.size} bytes reaches beyond the "
            f"object's end at {segment.size}; {_REMEDY}"
        )
    if not segment.base_offset <= base_offset <= batch.last_offset <= segment.end_offset:
        raise _out_of_place(file, position, base_offset, batch.last_offset)
    return batch


def find_batch(file: ColdFile, offset: int, *, position: int) -> int:
    """The position of the first batch that ends at or behind an offset, else the file's end.

    It is looked for from a position on where a batch begins.
    """
    while position < file.segment.size:
        batch = get_batch(file, position)
        if batch.last_offset >= offset:
            break
        position += batch.size
    return position


def check_offsets(
    file: ColdFile, position: int, data: memoryview, start_offset: int, next_offset: int
) -> None:
    """Raises Corrupt unless batches lie within their segment and lead a reader on."""
    segment = file.segment
    first = int.from_bytes(data[:8], "big", signed=True)
    is_onward = start_offset < next_offset <= segment.end_offset + 1
    if first < segment.base_offset or not is_onward:
        raise _out_of_place(file, position, first, next_offset - 1)


def not_a_batch(file: ColdFile, position: int) -> Corrupt:
    """What to raise where no batch of our format begins."""
    head = file.read_at(position, _BOUNDS.size)
    where = _where(file, position)
    if len(head) == _BOUNDS.size and head[_MAGIC_POSITION] in (0, 1):
        return UnsupportedFormat(
            f"{where}: message format {head[_MAGIC_POSITION]}; rewrite the topic with a Kafka "
            "release that converts message formats 0 and 1"
        )
    return Corrupt(f"{where}: no batch of message format 2 begins here ({head.hex()}); {_REMEDY}")


def _out_of_place(file: ColdFile, position: int, first_offset: int, last_offset: int) -> Corrupt:
    segment = file.segment
    return Corrupt(
        f"{_where(file, position)}: batches of offsets {first_offset} to {last_offset} are out of "
        f"place, the segment holds {segment.base_offset} to {segment.end_offset}; {_REMEDY}"
    )


def _where(file: ColdFile, position: int) -> str:
    return f"{file.store_name}: {file.path!r}: position {position}"
