"""Compacts the log of one shape: reads it, writes new files, records a report, replaces it.

Layout     metadata/compactions.json: {"version": 1, "reports": [...]}, oldest first, a limited
           number. docs/reference/formats/shape-compaction.md
Invariant  reads continue and offsets stay valid: a client that continues from any offset gets the
           rows that the topic has. Only durable entries older than the newest chunks are compacted.
           All chunks of the new log are closed, the last one with the last entry. Every other chunk
           ends at an offset that only this log has: after the last entry of a transaction, with an
           operation that no entry and no older log has. So a reader of this log never requests a
           response that was cached from an older log, which could lack merged updates.
Crash      the change is committed when the manifest is replaced. Before that the new files, and
           after it the old ones, are not part of the shape; recovery removes them. A report is
           durable before its log replaces the old one; one whose log the manifest never named was
           not carried out.
Threads    one compaction of a shape at a time, beside any reads and writes.
"""

import logging
import posixpath
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from random import Random
from typing import Any, Final

import numpy as np

from varve.disk import FileSystem, JsonDocument
from varve.foundation.errors import Closed, Corrupt, Unavailable, Unbalanced
from varve.shapes.compaction.log_compaction import Balance, Block, LogCompaction, LogPrefix, Secret
from varve.shapes.offset import ShapeOffset
from varve.shapes.settings import CompactionSettings
from varve.shapes.storage.chunk_index import LogChunk, encode_chunks
from varve.shapes.storage.layout import (
    COMPACTED,
    index_path,
    log_directory,
    log_path,
    metadata_directory,
    new_suffix,
    scratch_directory,
)
from varve.shapes.storage.log_writer import CompactedLog
from varve.shapes.storage.shape_storage import ShapeStorage

logger = logging.getLogger(__name__)

CHUNK_EXCESS_MAX: Final = 4
"""A chunk waits for the end of a transaction until it has this many times `chunk_bytes`."""


REPORTS_NAME: Final = "compactions.json"
_REPORTS: Final = JsonDocument(version=1, version_name="version", max_bytes=64 << 20, indent=None)


class CompactionOutcome(StrEnum):
    """How an attempt to compact ended."""

    DONE = "done"
    NOTHING = "nothing"
    """No chunk is old enough."""
    NOT_WORTH = "not worth"
    """Too few of the entries would be removed."""


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """An attempt to compact one shape; `boundary` is None when there was nothing to compact."""

    handle: str
    started_ms: int
    outcome: CompactionOutcome
    boundary: ShapeOffset | None
    position: int
    suffix: str | None
    snapshot_rows: int
    balance: Balance

    @property
    def client_entries(self) -> int:
        """Entries that a new client reads up to the boundary: snapshot and remaining log."""
        return self.snapshot_rows + self.balance.entries_left

    @property
    def rows_min(self) -> int:
        """A lower bound of the shape's rows: those of the log, and those only in the snapshot."""
        return self.balance.rows + max(0, self.snapshot_rows - self.balance.keys)

    def needs_new_snapshot(self, settings: CompactionSettings) -> bool:
        """Whether deleted rows outweigh the present ones, so that only a new snapshot helps.

        Compaction cannot remove deletes, nor deleted rows from the snapshot: clients may hold these
        rows, and new clients read the snapshot.
        """
        limit = settings.resnapshot_factor * self.rows_min + settings.resnapshot_entries
        return self.outcome is not CompactionOutcome.NOTHING and self.client_entries > limit

    def to_json(self) -> dict[str, Any]:
        return {
            "handle": self.handle,
            "started_ms": self.started_ms,
            "outcome": str(self.outcome),
            "boundary": None if self.boundary is None else str(self.boundary),
            "suffix": self.suffix,
            "snapshot_rows": self.snapshot_rows,
            "balance": asdict(self.balance),
        }


def record_report(
    fs: FileSystem, directory: str, report: CompactionReport, *, reports_max: int
) -> None:
    """Adds a report durably and removes the oldest; damaged reports are replaced."""
    try:
        earlier = read_reports(fs, directory)
    except Corrupt as error:
        logger.warning("damaged reports of compactions are replaced", extra={"reason": str(error)})
        earlier = []
    reports = [*earlier, report.to_json()][-reports_max:]
    _REPORTS.write(fs, _reports_path(directory), {"reports": reports})


def read_reports(fs: FileSystem, directory: str) -> list[dict[str, Any]]:
    """The reports kept, oldest first; raises Corrupt."""
    path = _reports_path(directory)
    document = _REPORTS.read(fs, path)
    reports = [] if document is None else document.get("reports")
    if not isinstance(reports, list) or not all(isinstance(report, dict) for report in reports):
        raise Corrupt(f"{path} holds no reports of compactions")
    return reports


def _reports_path(directory: str) -> str:
    return posixpath.join(metadata_directory(directory), REPORTS_NAME)


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
