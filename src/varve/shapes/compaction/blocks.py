"""Blocks of shape log entries in memory: reading, compacting, dividing and joining them.

Invariant  entries are in the order of their offsets, also across files; a block holds whole
           entries, and one larger than a window is a block of its own. The result of a compaction
           is again such a block, ends with the same entry, and compacting it again changes nothing.
Threads    pure functions; kernels run without the interpreter's lock.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from varve.disk import File
from varve.foundation.errors import Corrupt
from varve.shapes.compaction.report import Balance
from varve.shapes.kernels.compaction_plan import (
    Action,
    count_entries,
    divide_entries,
    gather_entries,
    index_entries,
    plan_entries,
)
from varve.shapes.kernels.compaction_rewrite import FoldStatus, rewrite_entries
from varve.shapes.kernels.log_entries import ENTRY_BYTES_MIN, EntryStatus
from varve.shapes.offset import BEFORE_ALL, ShapeOffset

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]
Secret = tuple[int, int]
"""The key of the hash, unknown to clients: they choose row keys, and could make them collide."""

_FAULTS = {
    EntryStatus.BAD_CRC: "does not match its CRC-32C",
    EntryStatus.BAD_FIELD: "has a size or an operation that no entry has",
    EntryStatus.BAD_ORDER: "is not above the entry before it",
}
_TX = np.arange(8)
_OP = np.arange(8, 16)
_KEY_SIZE = np.arange(16, 20)


class Block(NamedTuple):
    """Whole entries back to back, and where each starts."""

    data: Bytes
    starts: Numbers

    @property
    def sizes(self) -> Numbers:
        return np.diff(self.starts, append=self.data.size)

    @property
    def last(self) -> ShapeOffset:
        """The offset of the last entry."""
        start = int(self.starts[-1])
        tx, op = self.data[start : start + 16].view(">u8")
        return ShapeOffset(int(tx), int(op))

    def offsets(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Transactions and operations of all entries."""
        return self._columns(_TX, ">u8"), self._columns(_OP, ">u8")

    def json_sizes(self) -> Numbers:
        key_sizes: Numbers = self._columns(_KEY_SIZE, ">u4").astype(np.int64)
        return self.sizes - key_sizes - ENTRY_BYTES_MIN

    def _columns(self, positions: Numbers, kind: str) -> npt.NDArray[np.uint64]:
        """Numbers of all entries at these bytes of each."""
        fields: npt.NDArray[np.uint64] = self.data[self.starts[:, None] + positions].view(kind)[
            :, 0
        ]
        return fields.astype(np.uint64)

    def take(self, order: Numbers) -> "Block":
        """These entries, by their indexes, in this order."""
        sizes = self.sizes[order]
        out = np.empty(int(sizes.sum()), np.uint8)
        gather_entries(self.data, self.starts[order], sizes, out)
        return Block(out, np.cumsum(sizes) - sizes)


EMPTY = Block(np.empty(0, np.uint8), np.empty(0, np.int64))


class CompactedBlock(NamedTuple):
    """A compacted block; `keys` counts its distinct keys, `rows` those that are not deleted."""

    block: Block
    merged: int
    superseded: int
    keys: int
    rows: int


def index_block(data: Bytes, path: str, position: int, last: ShapeOffset = BEFORE_ALL) -> Block:
    """The checked whole entries at the start of a buffer; an incomplete last entry is cut off.

    Raises Corrupt with the path and position of a bad entry; the buffer starts at `position`.
    """
    starts = np.empty(data.size // ENTRY_BYTES_MIN + 1, np.int64)
    status, count, end = index_entries(data, last.tx, last.op, starts)
    if status != EntryStatus.MORE:
        raise Corrupt(f"{path}: the entry at {position + end} {_FAULTS[EntryStatus(status)]}")
    return Block(data[:end], starts[:count].copy())


def compact_block(block: Block, secret: Secret, path: str) -> CompactedBlock:
    """Folds updates and drops superseded entries; raises Corrupt for an invalid message."""
    count = block.starts.size
    actions = np.zeros(count, np.uint8)
    links = np.zeros(count, np.int64)
    keys, rows = plan_entries(
        block.data, block.starts, np.uint64(secret[0]), np.uint64(secret[1]), actions, links
    )
    counts = np.bincount(actions, minlength=len(Action))
    remaining_count = int(counts[Action.KEEP] + counts[Action.FOLD])
    out = np.empty(block.data.size, np.uint8)
    starts = np.empty(remaining_count, np.int64)
    status, number, size = rewrite_entries(block.data, block.starts, actions, links, out, starts)
    if status != FoldStatus.OK:
        raise Corrupt(
            f"{path}: the entry at offset {block.take(np.array([number])).last} holds no message "
            "of a shape: drop the shape"
        )
    # A view would keep all of `out` in memory.
    remaining = out[:size] if 2 * size > out.size else out[:size].copy()
    return CompactedBlock(
        Block(remaining, starts),
        int(counts[Action.MERGED]),
        int(counts[Action.SUPERSEDED]),
        keys,
        rows,
    )


def divide_block(block: Block, secret: Secret, part_count: int) -> list[Block]:
    """The entries of each part, a part for each range of the keys' hash."""
    parts = np.empty(block.starts.size, np.int64)
    k0, k1 = np.uint64(secret[0]), np.uint64(secret[1])
    divide_entries(block.data, block.starts, k0, k1, part_count, parts)
    return [block.take(np.flatnonzero(parts == part)) for part in range(part_count)]


def join_blocks(blocks: list[Block]) -> Block:
    """All entries of several blocks, in the order of their offsets."""
    shifts = np.cumsum([0, *(block.data.size for block in blocks)])
    joined = Block(
        np.concatenate([block.data for block in blocks]),
        np.concatenate(
            [block.starts + shift for block, shift in zip(blocks, shifts, strict=False)]
        ),
    )
    tx, op = joined.offsets()
    return joined.take(np.lexsort((op, tx)))


def count_block(block: Block, balance: Balance) -> None:
    """Adds the entries of a block to the remaining ones of a balance."""
    counts = operation_counts(block)
    inserts, updates, deletes, controls = (int(counts[operation]) for operation in b"iudc")
    balance.inserts += inserts
    balance.updates += updates
    balance.deletes += deletes
    balance.controls += controls


def operation_counts(block: Block) -> Numbers:
    counts = np.zeros(256, np.int64)
    count_entries(block.data, block.starts, counts)
    return counts


class LogPrefix(NamedTuple):
    """The first `size` bytes of a log file."""

    file: File
    size: int


def read_blocks(ranges: Sequence[LogPrefix], window_bytes: int) -> Iterator[Block]:
    """All entries; raises Corrupt for a broken one, or a range that does not end with one."""
    last = BEFORE_ALL
    for file, size in ranges:
        position, read_bytes = 0, window_bytes
        while position < size:
            data = np.empty(min(read_bytes, size - position), np.uint8)
            read_count = file.read_into(position, memoryview(data))
            if read_count < data.size:
                raise Corrupt(
                    f"{file.path} ends at {position + read_count}, {size} bytes were written"
                )
            block = index_block(data, file.path, position, last)
            if block.starts.size:
                yield block
                last, position, read_bytes = block.last, position + block.data.size, window_bytes
            elif data.size == size - position:
                raise Corrupt(f"{file.path}: the entry at {position} does not end before {size}")
            else:
                read_bytes *= 2
