"""Compacts the log of one shape: reads it, writes new files, records a report, replaces it.

Invariant  readers are not disturbed and offsets stay: a client that continues from any offset gets
           the rows that the topic has. What is compacted is durable, and older than the newest
           chunks.
Crash      the manifest's replacement is the one moment at which anything changes; before it the new
           files, and after it the old ones, are no part of the shape and go with its recovery.
Threads    one compaction of a shape at a time, beside any reads and writes.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from random import Random

from varve.foundation.errors import Closed, Unavailable, Unbalanced
from varve.shapes.compaction.blocks import Block, LogPrefix, Secret
from varve.shapes.compaction.report import (
    Balance,
    CompactionOutcome,
    CompactionReport,
    record_report,
)
from varve.shapes.compaction.spill import compact_ranges
from varve.shapes.compaction.writer import CompactedLogWriter, remove_compacted
from varve.shapes.offset import ShapeOffset
from varve.shapes.settings import CompactionSettings
from varve.shapes.storage.compacted_log import CompactedLog
from varve.shapes.storage.layout import COMPACTED, log_path, new_suffix, scratch_directory
from varve.shapes.storage.shape_storage import ShapeStorage


class Compactor:
    """Compacts shapes, each at most once at a time."""

    def __init__(self, settings: CompactionSettings, random: Random) -> None:
        self.settings = settings
        self._random = random
        self._changed = threading.Condition()
        self._running: set[str] = set()  # guarded by _changed
        self._is_ended = False

    def compact(
        self, storage: ShapeStorage, *, now_ms: int, is_forced: bool = False
    ) -> CompactionReport:
        """Compacts one shape; forced, all of it and however little would go.

        Raises Unavailable while the same shape is being compacted, Corrupt when its files are
        broken, OSError when the new files cannot be written, and Closed behind `end`: the shape is
        then as before.
        """
        with self._one_at_a_time(storage.handle) as secret:
            return compact_shape(
                storage,
                self.settings,
                now_ms=now_ms,
                secret=secret,
                is_forced=is_forced,
                check_open=self._check_open,
            )

    @property
    def is_ended(self) -> bool:
        return self._is_ended

    def end(self) -> None:
        """There are no more compactions, and those under way end with the step in hand."""
        with self._changed:
            self._is_ended = True

    def join(self) -> None:
        """Returns when none is under way. Behind `end`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running)

    def _check_open(self) -> None:
        if self._is_ended:
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


def compact_shape(
    storage: ShapeStorage,
    settings: CompactionSettings,
    *,
    now_ms: int,
    secret: Secret,
    is_forced: bool,
    check_open: Callable[[], None],
) -> CompactionReport:
    """One compaction, by a caller who sees to it that there is no other of this shape."""
    balance = Balance()
    target = _choose(storage, settings, is_forced)
    if target is None:
        return _report(storage, now_ms, CompactionOutcome.NOTHING, balance)
    with ExitStack() as stack:
        ranges = _open_ranges(storage, target[1], stack)
        scratch = scratch_directory(storage.root, storage.handle)
        blocks = compact_ranges(
            ranges,
            memory_bytes=settings.memory_bytes,
            secret=secret,
            fs=storage.fs,
            scratch=scratch,
            balance=balance,
            check_open=check_open,
        )
        with closing(blocks):
            first = next(blocks)
            if not is_forced and balance.removed_ratio < settings.min_cleanable_ratio:
                return _report(storage, now_ms, CompactionOutcome.NOT_WORTH, balance, target)
            suffix = _write(storage, now_ms, first, blocks, balance, target[0])
    report = _report(storage, now_ms, CompactionOutcome.DONE, balance, target, suffix)
    try:
        check_open()
        record_report(storage.fs, storage.directory, report, reports_max=settings.reports_max)
        storage.install(CompactedLog(boundary=target[0], position=target[1], suffix=suffix))
    except Exception:
        # Whatever the manifest names behind a swap that failed, that shape goes as a whole.
        if storage.failure is None:
            remove_compacted(storage.fs, storage.directory, suffix)
        raise
    return report


def _choose(
    storage: ShapeStorage, settings: CompactionSettings, is_forced: bool
) -> tuple[ShapeOffset, int] | None:
    """How far to go: to the newest chunks, or to the end of a log that has none so old."""
    target = None if is_forced else storage.compaction_target(settings.keep_chunks)
    if target is None and (is_forced or storage.live_bytes >= settings.min_bytes):
        storage.close_chunk()
        target = storage.compaction_target(0)
    return target


def _open_ranges(storage: ShapeStorage, position: int, stack: ExitStack) -> list[LogPrefix]:
    """The compacted log there is, and the live one up to a byte."""
    manifest, fs = storage.manifest, storage.fs
    ranges = []
    if manifest.compacted is not None:
        file = stack.enter_context(fs.open(log_path(storage.directory, manifest.compacted)))
        ranges.append(LogPrefix(file, file.size()))
    live = stack.enter_context(fs.open(log_path(storage.directory, manifest.latest)))
    return [*ranges, LogPrefix(live, position)]


def _write(
    storage: ShapeStorage,
    now_ms: int,
    first: Block,
    others: Iterator[Block],
    balance: Balance,
    boundary: ShapeOffset,
) -> str:
    """Writes what stays under a new suffix, and sees that the figures add up."""
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
