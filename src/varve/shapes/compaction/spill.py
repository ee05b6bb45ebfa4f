"""Compacts logs that are larger than the memory for it, in parts by the hash of keys.

The log is read window by window. Each window is compacted, unless that removes little, and divided
into scratch files by the hash of the keys. Every part is compacted in memory; then the entries of
all parts are merged by offset.

Layout     scratch files `part.<n>` and `part.<n>.out` hold entries as a log does. They are removed
           at the end; those of a crash at the next start.
Invariant  memory is about one and a half times `memory_bytes` and the tables of the kernels, as
           long as the remaining entries of each part fit into half of `memory_bytes`.
"""

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Final

import numpy as np

from varve.disk import FileSystem
from varve.shapes.compaction.blocks import (
    EMPTY,
    Block,
    CompactedBlock,
    LogPrefix,
    Secret,
    compact_block,
    count_block,
    divide_block,
    join_blocks,
    operation_counts,
    read_blocks,
)
from varve.shapes.compaction.report import Balance

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
                _Part(self._fs, f"{self._scratch}/part.{number}", stack) for number in range(count)
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


class _Part:
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


class _Cursor:
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
    cursors = [_Cursor(output, piece_bytes) for output in outputs]
    while True:
        for cursor in cursors:
            cursor.fill()
        cursors = [cursor for cursor in cursors if cursor.block.starts.size]
        if not cursors:
            return
        limit = min(cursor.block.last for cursor in cursors)
        yield join_blocks([cursor.take_until(*limit) for cursor in cursors])
