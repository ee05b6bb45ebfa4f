"""Compacts the log of one shape: reads it, writes new files, records a report, replaces it.

Invariant  reads continue and offsets stay valid: a client that continues from any offset gets the
           rows that the topic has. Only durable entries older than the newest chunks are compacted.
           All chunks of the new log are closed, the last one with the last entry. Every other chunk
           ends at an offset that only this log has: after the last entry of a transaction, with an
           operation that no entry and no older log has. So a reader of this log never requests a
           response that was cached from an older log, which could lack merged updates.
Crash      the change is committed when the manifest is replaced. Before that the new files, and
           after it the old ones, are not part of the shape; recovery removes them.
Threads    one compaction of a shape at a time, beside any reads and writes.
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from random import Random
from typing import Final

import numpy as np

from varve.disk import FileSystem
from varve.foundation.errors import Closed, Unavailable, Unbalanced
from varve.shapes.compaction.log_compaction import Block, LogCompaction, LogPrefix, Secret
from varve.shapes.compaction.report import (
    Balance,
    CompactionOutcome,
    CompactionReport,
    record_report,
)
from varve.shapes.offset import ShapeOffset
from varve.shapes.settings import CompactionSettings
from varve.shapes.storage.chunk_index import LogChunk, encode_chunks
from varve.shapes.storage.layout import (
    COMPACTED,
    index_path,
    log_directory,
    log_path,
    new_suffix,
    scratch_directory,
)
from varve.shapes.storage.log_writer import CompactedLog
from varve.shapes.storage.shape_storage import ShapeStorage

CHUNK_EXCESS_MAX: Final = 4
"""A chunk waits for the end of a transaction until it has this many times `chunk_bytes`."""


class Compactor:
    """Compacts shapes, each at most once at a time."""

    def __init__(self, settings: CompactionSettings, random: Random) -> None:
        self._settings = settings
        self._random = random
        self._changed = threading.Condition()
        self._running: set[str] = set()  # guarded by _changed
        self.is_ended = False

    def compact(
        self, storage: ShapeStorage, *, now_ms: int, is_forced: bool = False
    ) -> CompactionReport:
        """Compacts one shape; forced, all of it, however few entries are removed.

        Raises Unavailable while the same shape is being compacted, Corrupt when its files are
        broken, OSError when the new files cannot be written, and Closed after `end`: the shape is
        then as before.
        """
        with self._one_at_a_time(storage.handle) as secret:
            target = self._choose_target(storage, is_forced)
            if target is None:
                return _report(storage, now_ms, CompactionOutcome.NOTHING, Balance())
            balance = Balance()
            min_ratio = 0.0 if is_forced else self._settings.min_cleanable_ratio
            suffix = self._write(storage, *target, now_ms, secret, min_ratio, balance)
            if suffix is None:
                return _report(storage, now_ms, CompactionOutcome.NOT_WORTH, balance, target)
            report = _report(storage, now_ms, CompactionOutcome.DONE, balance, target, suffix)
            self._install(storage, report, CompactedLog(*target, suffix))
            return report

    def end(self) -> None:
        """Starts no more compactions; running ones end after their current step."""
        with self._changed:
            self.is_ended = True

    def join(self) -> None:
        """Returns when none is running. After `end`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running)

    def _check_open(self) -> None:
        if self.is_ended:
            raise Closed(
                "the server stops and compacts no more shapes: try again after the restart"
            )

    @contextmanager
    def _one_at_a_time(self, handle: str) -> Iterator[Secret]:
        with self._changed:
            self._check_open()
            if handle in self._running:
                raise Unavailable(f"shape {handle} is being compacted: try again later")
            self._running.add(handle)
            secret = self._random.getrandbits(64), self._random.getrandbits(64)
        try:
            yield secret
        finally:
            with self._changed:
                self._running.discard(handle)
                self._changed.notify_all()

    def _choose_target(
        self, storage: ShapeStorage, is_forced: bool
    ) -> tuple[ShapeOffset, int] | None:
        """Where to compact up to: the newest chunks, or the end of a log without old chunks."""
        target = None if is_forced else storage.compaction_target(self._settings.keep_chunks)
        if target is None and (is_forced or storage.live_bytes >= self._settings.min_bytes):
            storage.close_chunk()
            target = storage.compaction_target(0)
        return target

    def _write(
        self,
        storage: ShapeStorage,
        boundary: ShapeOffset,
        position: int,
        now_ms: int,
        secret: Secret,
        min_ratio: float,
        balance: Balance,
    ) -> str | None:
        """Writes the compacted log up to a boundary; its suffix, None if too little is removed."""
        with ExitStack() as stack:
            compaction = LogCompaction(
                _open_ranges(storage, position, stack),
                memory_bytes=self._settings.memory_bytes,
                secret=secret,
                fs=storage.fs,
                scratch=scratch_directory(storage.root, storage.handle),
                balance=balance,
                check_open=self._check_open,
            )
            blocks = stack.enter_context(closing(compaction.blocks()))
            first = next(blocks)
            if balance.removed_ratio < min_ratio:
                return None
            return _write_blocks(storage, now_ms, first, blocks, balance, boundary)

    def _install(
        self, storage: ShapeStorage, report: CompactionReport, compacted: CompactedLog
    ) -> None:
        try:
            self._check_open()
            reports_max = self._settings.reports_max
            record_report(storage.fs, storage.directory, report, reports_max=reports_max)
            storage.install(compacted)
        except Exception:
            # A shape whose files could not be replaced is dropped as a whole.
            if storage.failure is None:
                remove_compacted(storage.fs, storage.directory, compacted.suffix)
            raise


def _open_ranges(storage: ShapeStorage, position: int, stack: ExitStack) -> list[LogPrefix]:
    """The earlier compacted log, if any, and the live log up to a byte."""
    manifest, fs = storage.manifest, storage.fs
    ranges = []
    if manifest.compacted is not None:
        file = stack.enter_context(fs.open(log_path(storage.directory, manifest.compacted)))
        ranges.append(LogPrefix(file, file.size()))
    live = stack.enter_context(fs.open(log_path(storage.directory, manifest.latest)))
    return [*ranges, LogPrefix(live, position)]


def _write_blocks(
    storage: ShapeStorage,
    now_ms: int,
    first: Block,
    others: Iterator[Block],
    balance: Balance,
    boundary: ShapeOffset,
) -> str:
    """Writes blocks under a new suffix; raises Unbalanced unless the counts add up."""
    fs, directory = storage.fs, storage.directory
    suffix = new_suffix(fs, directory, COMPACTED, now_ms)
    writer = CompactedLogWriter(fs, directory, suffix, chunk_bytes=storage.settings.chunk_bytes)
    try:
        writer.add(first)
        for block in others:
            writer.add(block)
        balance.entries_out, balance.bytes_out = writer.entry_count, writer.size
        balance.check(directory)
        if writer.last != boundary:
            raise Unbalanced(
                f"{directory}: the compacted log would end at {writer.last}, not at {boundary}"
            )
        writer.finish()
    except Exception:
        writer.abandon()
        raise
    return suffix


def _report(
    storage: ShapeStorage,
    now_ms: int,
    outcome: CompactionOutcome,
    balance: Balance,
    target: tuple[ShapeOffset, int] | None = None,
    suffix: str | None = None,
) -> CompactionReport:
    boundary, position = target or (None, 0)
    return CompactionReport(
        storage.handle,
        now_ms,
        outcome,
        boundary,
        position,
        suffix,
        storage.snapshot.rows,
        balance,
    )


class CompactedLogWriter:
    """Writes the remaining entries in order; ends with `finish` or `abandon`."""

    def __init__(self, fs: FileSystem, directory: str, suffix: str, *, chunk_bytes: int) -> None:
        self.suffix = suffix
        self.size = 0
        self.entry_count = 0
        self.last: ShapeOffset | None = None
        self._fs = fs
        self._directory = directory
        self._chunk_bytes = chunk_bytes
        self._file = fs.open_writable(log_path(directory, suffix))
        self._chunks: list[LogChunk] = []
        self._first: ShapeOffset | None = None
        self._chunk_start = 0
        self._chunk_json = 0
        self._mark = 2 * int(suffix.rpartition(".")[2]) + 1

    def add(self, block: Block) -> None:
        if not block.starts.size:
            return
        self._file.write_at(self.size, memoryview(block.data))
        tx, op = block.offsets()
        json_ends = np.cumsum(block.json_sizes())
        positions = np.append(block.starts, block.data.size) + self.size
        at, json_before = 0, 0
        while at < tx.size:
            if self._first is None:
                self._first = ShapeOffset(int(tx[at]), int(op[at]))
                self._chunk_start = int(positions[at])
            cut = self._find_cut(tx, json_ends, at, json_before)
            end = tx.size if cut is None else cut
            if end:
                self.last = ShapeOffset(int(tx[end - 1]), int(op[end - 1]))
            json_end = int(json_ends[end - 1]) if end else 0
            self._chunk_json += json_end - json_before
            if cut is not None:
                is_last_of_tx = cut < tx.size and int(tx[cut]) != self._get_last().tx
                self._close(int(positions[cut]), is_marked=is_last_of_tx)
            at, json_before = end, json_end
        self.size += block.data.size
        self.entry_count += block.starts.size

    def _find_cut(
        self, tx: np.ndarray, json_ends: np.ndarray, at: int, json_before: int
    ) -> int | None:
        """The number of entries up to the end of the open chunk; None if it ends after them."""
        missing_bytes = self._chunk_bytes - self._chunk_json
        if missing_bytes <= 0:
            full_tx = self._get_last().tx
        else:
            full = int(np.searchsorted(json_ends, json_before + missing_bytes))
            if full == tx.size:
                return None
            full_tx = int(tx[full])
        cut = max(at, int(np.searchsorted(tx, np.uint64(full_tx), side="right")))
        excess = missing_bytes + (CHUNK_EXCESS_MAX - 1) * self._chunk_bytes
        cut = min(cut, int(np.searchsorted(json_ends, json_before + excess)) + 1)
        is_decided = cut < tx.size or int(json_ends[-1]) >= json_before + excess
        return min(cut, tx.size) if is_decided else None

    def _get_last(self) -> ShapeOffset:
        assert self.last is not None, "an entry was added"
        return self.last

    def _close(self, position: int, *, is_marked: bool) -> None:
        assert self._first is not None, "a chunk is open"
        last = self._get_last()
        if is_marked and last.op < self._mark:
            last = ShapeOffset(last.tx, self._mark)
        self._chunks.append(LogChunk(self._first, self._chunk_start, last, position))
        self._first = None
        self._chunk_json = 0

    def finish(self) -> None:
        """Closes the last chunk; the files and their names are durable on return."""
        if self._first is not None:
            self._close(self.size, is_marked=False)
        self._file.sync()
        self._file.close()
        with self._fs.open_writable(index_path(self._directory, self.suffix)) as index:
            index.write_at(0, encode_chunks(self._chunks))
            index.sync()
        self._fs.sync_directory(log_directory(self._directory))

    def abandon(self) -> None:
        """Closes and removes the new files; recovery removes those that cannot be removed now."""
        self._file.close()
        remove_compacted(self._fs, self._directory, self.suffix)


def remove_compacted(fs: FileSystem, directory: str, suffix: str) -> None:
    """Removes the files of a compacted log; recovery removes those that cannot be removed now."""
    for path in (log_path(directory, suffix), index_path(directory, suffix)):
        with suppress(OSError):
            fs.remove(path)
