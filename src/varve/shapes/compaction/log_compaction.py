"""Compacts the entries of log files; larger ones than the memory for it in parts by hash of keys.

A `Block` holds whole entries in memory. A log that is larger than the memory is read window by
window. Each window is compacted, unless that removes little, and divided into scratch files by the
hash of the keys. Every part is compacted in memory; then the entries of all parts are merged by
offset.

Layout     scratch files `part.<n>` and `part.<n>.out` hold entries as a log does. They are removed
           at the end; those of a crash at the next start.
Invariant  entries are in the order of their offsets, also across files; a block holds whole
           entries, and one larger than a window is a block of its own. The result of a compaction
           is again such a block, ends with the same entry, and compacting it again changes nothing.
           Memory is about one and a half times `memory_bytes` and the tables of the kernels, as
           long as the remaining entries of each part fit into half of `memory_bytes`. A balance
           that passes `check` loses no entry without a reason, and no key and no control message.
Threads    one; kernels run without the interpreter's lock.
"""

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from varve.disk import File, FileSystem
from varve.foundation.errors import Corrupt, Unbalanced
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
from varve.shapes.storage.log_reader import FAULTS

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]
Secret = tuple[int, int]
"""The key of the hash, unknown to clients: they choose row keys, and could make them collide."""

_TX = np.arange(8)
_OP = np.arange(8, 16)
_KEY_SIZE = np.arange(16, 20)


ENTRIES_OF_KEY_MAX = 3
"""At most a delete, an insert and an update of a key remain."""


@dataclass(slots=True)
class Balance:
    """Counts of entries of a compaction, and the bytes of the log files.

    `merged` updates were folded into a later one; `superseded` entries precede an insert or delete
    of their key. `rows` counts the keys that have a row at the end. `inserts`, `updates`, `deletes`
    and `controls` are the remaining entries.
    """

    entries_in: int = 0
    bytes_in: int = 0
    controls_in: int = 0
    merged: int = 0
    superseded: int = 0
    keys: int = 0
    rows: int = 0
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    controls: int = 0
    entries_out: int = 0
    bytes_out: int = 0

    @property
    def removed_ratio(self) -> float:
        """The fraction of the entries that is removed."""
        return (self.merged + self.superseded) / self.entries_in if self.entries_in else 0.0

    @property
    def entries_left(self) -> int:
        """The number of entries that remain."""
        return self.entries_in - self.merged - self.superseded

    def check(self, directory: str) -> None:
        """Raises Unbalanced, with the directory, unless the counts add up."""
        remaining = self.inserts + self.updates + self.deletes + self.controls
        rules = (
            self.entries_out == self.entries_left,
            self.entries_out == remaining,
            self.controls_in == self.controls,
            self.keys <= self.entries_out - self.controls <= ENTRIES_OF_KEY_MAX * self.keys,
            self.keys - self.rows <= self.deletes,
            self.entries_out == 0 or self.bytes_out > 0,
        )
        if not all(rules):
            raise Unbalanced(
                f"{directory}: the compaction does not add up, nothing was changed: {asdict(self)}"
            )


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
        raise Corrupt(f"{path}: entry at {position + end}: {FAULTS[EntryStatus(status)]}")
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


PARTS_MAX: Final = 256
WINDOW_BYTES_MIN: Final = 1 << 9


class LogCompaction:
    """Compacts the entries of log files, and counts them in a balance."""

    def __init__(
        self,
        ranges: Sequence[LogPrefix],
        *,
        memory_bytes: int,
        secret: Secret,
        fs: FileSystem,
        scratch: str,
        balance: Balance,
        check_open: Callable[[], None],
    ) -> None:
        """`check_open` is called between steps, and may raise to end the compaction."""
        self._ranges = ranges
        self._memory_bytes = memory_bytes
        self._secret = secret
        self._fs = fs
        self._scratch = scratch
        self._balance = balance
        self._check_open = check_open
        balance.bytes_in = sum(piece.size for piece in ranges)

    def blocks(self) -> Generator[Block]:
        """The remaining entries, in order; each block is counted as it is returned.

        All removed entries are counted before the first block is returned.
        """
        is_small = self._balance.bytes_in <= self._memory_bytes
        with closing(self._compact_at_once() if is_small else self._compact_in_parts()) as blocks:
            for block in blocks:
                self._check_open()
                count_block(block, self._balance)
                yield block

    def _compact_at_once(self) -> Generator[Block]:
        blocks = list(self._read(self._balance.bytes_in))
        joined = join_blocks(blocks) if len(blocks) > 1 else blocks[0]
        blocks.clear()
        compacted = self.compact(joined)
        self.count_keys(compacted)
        yield compacted.block

    def _compact_in_parts(self) -> Generator[Block]:
        window = max(WINDOW_BYTES_MIN, self._memory_bytes // 2)
        count = min(PARTS_MAX, math.ceil(self._balance.bytes_in / window))
        with ExitStack() as stack:
            stack.enter_context(self._scratch_directory())
            parts = [
                _HashPart(self._fs, f"{self._scratch}/part.{number}", stack)
                for number in range(count)
            ]
            for block in self.windows(window):
                self._check_open()
                divided = divide_block(block, self._secret, count)
                for part, entries in zip(parts, divided, strict=True):
                    part.add(entries)
            for part in parts:
                part.compact(self, window)
            yield from _merge_parts([part.output for part in parts], window // count)

    def windows(self, window: int) -> Iterator[Block]:
        """The remaining entries of each window; the parts fold the others later in any case.

        Once compacting a window removes little, as when rows change in many windows, later windows
        are not compacted: their entries would be rewritten twice.
        """
        is_worth_it = True
        for block in self._read(window):
            if is_worth_it:
                compacted = self.compact(block).block
                is_worth_it = 2 * compacted.data.size < block.data.size
                yield compacted
            else:
                yield block

    def _read(self, window: int) -> Iterator[Block]:
        for block in read_blocks(self._ranges, window):
            self._balance.entries_in += block.starts.size
            self._balance.controls_in += int(operation_counts(block)[ord("c")])
            yield block

    def compact(self, block: Block) -> CompactedBlock:
        """Compacts a block, and counts the removed entries."""
        self._check_open()
        compacted = compact_block(block, self._secret, self._ranges[0].file.path)
        self._balance.merged += compacted.merged
        self._balance.superseded += compacted.superseded
        return compacted

    def count_keys(self, compacted: CompactedBlock) -> None:
        """Counts the keys of a block that has all entries of its keys."""
        self._balance.keys += compacted.keys
        self._balance.rows += compacted.rows

    @contextmanager
    def _scratch_directory(self) -> Iterator[None]:
        """Creates an empty scratch directory, and removes it at the end."""
        self._remove_scratch()
        try:
            self._fs.make_directory(self._scratch)
            yield
        finally:
            # The next compaction or start removes remaining files; an earlier error is more
            # important.
            with suppress(OSError):
                self._remove_scratch()

    def _remove_scratch(self) -> None:
        if self._fs.exists(self._scratch):
            self._fs.remove_tree(self._scratch)


class _HashPart:
    """The entries of some keys in one scratch file, and the remaining ones in another."""

    def __init__(self, fs: FileSystem, path: str, stack: ExitStack) -> None:
        self._input = LogPrefix(stack.enter_context(fs.open_writable(path)), 0)
        self.output = LogPrefix(stack.enter_context(fs.open_writable(f"{path}.out")), 0)

    def add(self, block: Block) -> None:
        self._input = _append(self._input, block)

    def compact(self, compaction: LogCompaction, window: int) -> None:
        """Compacts window by window, so that many changes of one row need not fit into memory."""
        compacted = CompactedBlock(EMPTY, 0, 0, 0, 0)
        for block in read_blocks([self._input], window):
            kept = compacted.block
            compacted = compaction.compact(
                join_blocks([kept, block]) if kept.starts.size else block
            )
        self._input.file.truncate(0)
        self.output = _append(self.output, compacted.block)
        compaction.count_keys(compacted)


def _append(prefix: LogPrefix, block: Block) -> LogPrefix:
    if block.data.size:
        prefix.file.write_at(prefix.size, memoryview(block.data))
    return LogPrefix(prefix.file, prefix.size + block.data.size)


class _PartCursor:
    """Reads the output of a part piece by piece."""

    def __init__(self, source: LogPrefix, piece_bytes: int) -> None:
        self._blocks = read_blocks([source], max(piece_bytes, WINDOW_BYTES_MIN))
        self.block = EMPTY

    def fill(self) -> None:
        """Reads entries if none are left; the block is empty at the end."""
        if not self.block.starts.size:
            self.block = next(self._blocks, EMPTY)

    def take_until(self, tx: int, op: int) -> Block:
        """Removes the entries up to an offset from the block, and returns them."""
        all_tx, all_op = self.block.offsets()
        count = int(np.count_nonzero((all_tx < tx) | ((all_tx == tx) & (all_op <= op))))
        entries = self.block.take(np.arange(count))
        self.block = self.block.take(np.arange(count, self.block.starts.size))
        return entries


def _merge_parts(outputs: Sequence[LogPrefix], piece_bytes: int) -> Iterator[Block]:
    """Merges the entries of all parts by offset, up to the first part that must be read again."""
    cursors = [_PartCursor(output, piece_bytes) for output in outputs]
    while True:
        for cursor in cursors:
            cursor.fill()
        cursors = [cursor for cursor in cursors if cursor.block.starts.size]
        if not cursors:
            return
        limit = min(cursor.block.last for cursor in cursors)
        yield join_blocks([cursor.take_until(*limit) for cursor in cursors])
