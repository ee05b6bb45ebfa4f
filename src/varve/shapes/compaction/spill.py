"""Compacts logs that are larger than the memory for it, in parts by the hash of keys.

The log is read window by window. What stays of a window, or all of it where little goes, is put
into scratch files, a part of the keys in each; every part is compacted in memory; their entries are
joined again by offset.

Layout     scratch files `part.<n>` and `part.<n>.out` hold entries as a log does. They are removed
           at the end; those of a crash at the next start.
Invariant  about one and a half times `memory_bytes` is held, and the tables of the kernels beside
           it, as long as what stays of each part fits into half of `memory_bytes`.
"""

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Final

import numpy as np

from varve.disk import File, FileSystem
from varve.shapes.compaction.blocks import (
    EMPTY,
    Block,
    CompactedBlock,
    LogPrefix,
    Secret,
    compact_block,
    count_block,
    divide_block,
    index_block,
    join_blocks,
    operation_counts,
    read_blocks,
)
from varve.shapes.compaction.report import Balance

PARTS_MAX: Final = 256
WINDOW_BYTES_MIN: Final = 1 << 9


def compact_ranges(
    ranges: Sequence[LogPrefix],
    *,
    memory_bytes: int,
    secret: Secret,
    fs: FileSystem,
    scratch: str,
    balance: Balance,
    check_open: Callable[[], None],
) -> Generator[Block]:
    """What stays of all entries, in order, counted in the balance.

    The first block comes when it is known what goes; what stays is counted as it is given.
    `check_open` is called between steps, and ends it by what it raises.
    """
    balance.bytes_in = sum(piece.size for piece in ranges)
    if balance.bytes_in <= memory_bytes:
        block = _compact_at_once(ranges, secret, balance)
        count_block(block, balance)
        yield block
        return
    in_parts = _compact_in_parts(ranges, memory_bytes, secret, fs, scratch, balance, check_open)
    with closing(in_parts) as blocks:
        for block in blocks:
            check_open()
            count_block(block, balance)
            yield block


def _compact_at_once(ranges: Sequence[LogPrefix], secret: Secret, balance: Balance) -> Block:
    blocks = list(_counted(read_blocks(ranges, balance.bytes_in), balance))
    joined = join_blocks(blocks) if len(blocks) > 1 else blocks[0]
    blocks.clear()
    stayed = _compact(joined, secret, ranges[0].file.path, balance)
    balance.keys += stayed.keys
    balance.rows += stayed.rows
    return stayed.block


def _compact_in_parts(
    ranges: Sequence[LogPrefix],
    memory_bytes: int,
    secret: Secret,
    fs: FileSystem,
    scratch: str,
    balance: Balance,
    check_open: Callable[[], None],
) -> Generator[Block]:
    window = max(WINDOW_BYTES_MIN, memory_bytes // 2)
    count = min(PARTS_MAX, math.ceil(balance.bytes_in / window))
    with ExitStack() as stack:
        stack.enter_context(_removing_scratch(fs, scratch))
        fs.make_directory(scratch)
        parts = [_Part(fs, f"{scratch}/part.{number}", stack) for number in range(count)]
        for stayed in compact_windows(ranges, window, secret, balance):
            check_open()
            for part, divided in zip(parts, divide_block(stayed, secret, count), strict=True):
                part.add(divided)
        for part in parts:
            part.compact(secret, window, balance, check_open)
        yield from _join([part.output for part in parts], window // count)


def compact_windows(
    ranges: Sequence[LogPrefix], window: int, secret: Secret, balance: Balance
) -> Iterator[Block]:
    """What stays of each window; the parts fold what is left in any case.

    Once little goes, as where a row changes in many windows, the others are left as they are:
    their entries would be written twice.
    """
    is_worth_it = True
    for block in _counted(read_blocks(ranges, window), balance):
        if not is_worth_it:
            yield block
            continue
        stayed = _compact(block, secret, ranges[0].file.path, balance).block
        is_worth_it = 2 * stayed.data.size < block.data.size
        yield stayed


@contextmanager
def _removing_scratch(fs: FileSystem, scratch: str) -> Iterator[None]:
    """Removes what a crash left, then what is written now."""
    _remove_scratch(fs, scratch)
    try:
        yield
    finally:
        # What stays is removed by the next compaction or start; the error before it counts more.
        with suppress(OSError):
            _remove_scratch(fs, scratch)


def _remove_scratch(fs: FileSystem, scratch: str) -> None:
    if fs.exists(scratch):
        fs.remove_tree(scratch)


def _counted(blocks: Iterator[Block], balance: Balance) -> Iterator[Block]:
    for block in blocks:
        balance.entries_in += block.starts.size
        balance.controls_in += int(operation_counts(block)[ord("c")])
        yield block


def _compact(block: Block, secret: Secret, path: str, balance: Balance) -> CompactedBlock:
    compacted = compact_block(block, secret, path)
    balance.merged += compacted.merged
    balance.superseded += compacted.superseded
    return compacted


class _Part:
    """The entries of some keys in a scratch file, and what stays of them in another."""

    def __init__(self, fs: FileSystem, path: str, stack: ExitStack) -> None:
        self._input = stack.enter_context(fs.open_writable(path))
        self._output = stack.enter_context(fs.open_writable(f"{path}.out"))
        self._input_size = 0
        self._output_size = 0

    @property
    def output(self) -> LogPrefix:
        return LogPrefix(self._output, self._output_size)

    def add(self, block: Block) -> None:
        if block.data.size:
            self._input.write_at(self._input_size, memoryview(block.data))
            self._input_size += block.data.size

    def compact(
        self, secret: Secret, window: int, balance: Balance, check_open: Callable[[], None]
    ) -> None:
        """A row that changed more often than memory holds shrinks window by window."""
        stayed = CompactedBlock(EMPTY, 0, 0, 0, 0)
        for block in read_blocks([LogPrefix(self._input, self._input_size)], window):
            check_open()
            joined = join_blocks([stayed.block, block]) if stayed.block.starts.size else block
            stayed = _compact(joined, secret, self._input.path, balance)
        self._input.truncate(0)
        if stayed.block.data.size:
            self._output.write_at(0, memoryview(stayed.block.data))
        self._output_size = stayed.block.data.size
        balance.keys += stayed.keys
        balance.rows += stayed.rows


class _Cursor:
    """Reads a part's output piece by piece."""

    def __init__(self, source: LogPrefix, piece_bytes: int) -> None:
        self._file: File = source.file
        self._size = source.size
        self._position = 0
        self._piece_bytes = max(piece_bytes, WINDOW_BYTES_MIN)
        self.block = EMPTY

    @property
    def is_at_end(self) -> bool:
        return self._position >= self._size

    def fill(self) -> None:
        """Has entries in hand, unless there are no more."""
        wanted = self._piece_bytes
        while not self.block.starts.size and not self.is_at_end:
            data = np.empty(min(wanted, self._size - self._position), np.uint8)
            self._file.read_into(self._position, memoryview(data))
            self.block = index_block(data, self._file.path, self._position)
            self._position += self.block.data.size
            wanted *= 2

    def take_until(self, tx: int, op: int) -> Block:
        """The entries in hand up to an offset; the others stay in hand."""
        all_tx, all_op = self.block.offsets()
        count = int(np.count_nonzero((all_tx < tx) | ((all_tx == tx) & (all_op <= op))))
        taken = self.block.take(np.arange(count))
        self.block = self.block.take(np.arange(count, self.block.starts.size))
        return taken


def _join(outputs: Sequence[LogPrefix], piece_bytes: int) -> Iterator[Block]:
    """The entries of all parts by offset: of each as many as no other part can precede."""
    cursors = [_Cursor(output, piece_bytes) for output in outputs]
    while True:
        for cursor in cursors:
            cursor.fill()
        cursors = [cursor for cursor in cursors if cursor.block.starts.size]
        if not cursors:
            return
        limit = min(cursor.block.last for cursor in cursors)
        yield join_blocks([cursor.take_until(*limit) for cursor in cursors])
