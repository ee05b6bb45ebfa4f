"""The task of one partition: reads a chunk, judges it, commits it, and updates the id store.

Invariant  the id store holds committed ids only: it is updated after the transaction of a chunk.
           Position, stream time and counts are those of the last commit.
Crash      a chunk that was not committed is read again from the same position, and judged by the
           same ids. The id store is a copy of the changelog, from which missing ids are restored.
Threads    one thread at a time.
"""

import logging
import random as random_module
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from varve.commit_log.settings import NO_ERASURE
from varve.dedup.backend import DedupBackend, PartitionWriter, TaskCommit
from varve.dedup.id_store import IdStore
from varve.dedup.ids import Arrivals, decode_entries, encode_entries, fold_chunk
from varve.dedup.judge import Judge, Judgement
from varve.dedup.output import InputChunk, build_kept_batches
from varve.dedup.progress import SECRET_BYTES, Progress
from varve.dedup.rules import Counts, DedupRules, Route, route
from varve.disk import FileSystem
from varve.foundation.clock import Clock
from varve.foundation.errors import Corrupt, InvalidRequest, OffsetOutOfRange, StoreError
from varve.records import HEADER_BYTES, CommittedBatches, build_batch_from_columns
from varve.rocks.database import Databases
from varve.rocks.segments import check_free
from varve.topics import HistoryMark, LogTruncated, Position, TopicReader, find_break, read_range

logger = logging.getLogger(__name__)

CHUNK_BYTES: Final = 4 << 20
"""Approximate input bytes of one transaction, which a crash repeats."""
_CHUNK_RECORDS_MAX: Final = 200_000
"""Bounds a chunk of small records, of which CHUNK_BYTES would hold too many."""
_ENTRIES_PER_BATCH_MAX: Final = 16_000
_ENTRY_BYTES_MAX: Final = 64
"""Upper bound of a changelog record: 37 bytes of key and value, and its framing."""
_CHECKPOINT_MS: Final = 60_000
_CHECKPOINT_ENTRIES: Final = 2_000_000
"""Changelog entries that a start restores at most, beside those of the last interval."""
_MAINTAIN_MS: Final = 10_000
_ERASURE_CHECK_MS: Final = 30_000
_TRUNCATED_REMEDY: Final = "the input was truncated; start again with another --name"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """Sizes and intervals of a task; none of them affects which records are duplicates.

    With `skips_lost` the task continues after records that the input deleted before they were read.
    """

    chunk_bytes: int = CHUNK_BYTES
    checkpoint_ms: int = _CHECKPOINT_MS
    checkpoint_entries: int = _CHECKPOINT_ENTRIES
    maintain_ms: int = _MAINTAIN_MS
    skips_lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """The state of a partition: offsets of the input, the stream time, and all counts so far.

    `restored` and `restore_end` are offsets of the changelog while the ids are restored.
    """

    partition: int
    position: int
    end_offset: int
    stream_time_ms: int
    counts: Counts
    restored: int = 0
    restore_end: int = 0

    @property
    def lag(self) -> int:
        return max(0, self.end_offset - self.position)


OnProgress = Callable[[TaskState], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """The dependencies that all tasks of a deduplication share."""

    backend: DedupBackend
    rules: DedupRules
    settings: TaskSettings
    state_directory: str
    databases: Databases
    file_system: FileSystem
    clock: Clock
    random: random_module.Random
    on_progress: OnProgress


class Task:
    """Deduplicates one partition; call `open` first."""

    def __init__(self, context: TaskContext, partition: int) -> None:
        self.partition = partition
        self._context = context
        self._backend = context.backend
        self._rules = context.rules
        self._where = f"{context.backend.topics.input}-{partition}"
        self._limits = context.backend.limits()
        self._progress: Progress | None = None
        self._store: IdStore | None = None
        self._writer: PartitionWriter | None = None
        self._position = Position(0)
        self._end_offset = 0
        self._changelog_end = 0
        self._new_entries = 0
        self._checkpoint_ms = self._maintain_ms = context.clock.now_ms()
        self._directory, self._erasure = "", NO_ERASURE
        self._erasure_checked_ms = self._maintain_ms

    # Open

    def open(self) -> None:
        """Fences the previous owner, completes its transaction, restores missing ids.

        Raises InvalidRequest if the progress does not fit, and Locked while the state directory is
        in use; both before the previous owner is fenced.
        """
        committed = self._backend.find_progress(self.partition)
        if committed is not None:
            self._resume(committed)
        directory = f"{self._context.state_directory}/{self.partition}"
        check_free(self._context.file_system, directory)
        self._writer = self._backend.open_writer(self.partition)
        progress = self._backend.find_progress(self.partition)
        self._progress = self._first_progress() if progress is None else self._resume(progress)
        self._position = self._check_position(self._progress.input_position)
        if progress is not None and progress.rules != self._rules:
            # Before ids expire by the new rules: a later start must see that some may be missing.
            self._commit_progress()
        self._open_store(directory)
        self._report()

    def _open_store(self, directory: str) -> None:
        """Opens the ids, without those from before the last erasure, and restores the missing."""
        self._directory, self._erasure = directory, self._backend.last_erasure()
        self._erasure_checked_ms = self._context.clock.now_ms()
        self._store = IdStore.open(
            directory=directory,
            rules=self._rules,
            secret=self._get_progress().secret_words,
            databases=self._context.databases,
            file_system=self._context.file_system,
            erasure=self._erasure,
        )
        self._restore(self._store)

    def _first_progress(self) -> Progress:
        ids, topics = self._backend.topic_ids(), self._backend.topics
        return Progress(
            position=self._backend.input.offsets(self.partition).start,
            secret=self._context.random.randbytes(SECRET_BYTES).hex(),
            rules=self._rules,
            input=topics.input,
            output=topics.output,
            input_id=ids.input,
            output_id=ids.output,
        )

    def _resume(self, progress: Progress) -> Progress:
        """Raises InvalidRequest for progress of other topics or with incompatible rules."""
        topics, ids = self._backend.topics, self._backend.topic_ids()
        stored_rules, rules = progress.rules.fingerprint(), self._rules.fingerprint()
        if stored_rules != rules:
            raise InvalidRequest(
                f"the deduplication {topics.name} was started with the rules {stored_rules!r}, and "
                f"cannot continue with {rules!r}: use the original rules, or start again with "
                "another --name"
            )
        if (progress.input, progress.output) != (topics.input, topics.output):
            raise InvalidRequest(
                f"the deduplication {topics.name} is from {progress.input} to {progress.output}, "
                f"not from {topics.input} to {topics.output}: choose another name with --name"
            )
        for topic, stored_id, current_id in (
            (progress.input, progress.input_id, ids.input),
            (progress.output, progress.output_id, ids.output),
        ):
            if stored_id and current_id and stored_id != current_id:
                raise InvalidRequest(
                    f"topic {topic} was deleted and created again since the deduplication "
                    f"{topics.name} used it: start again with another --name"
                )
        return progress.with_rules(self._rules)

    def _check_position(self, position: Position) -> Position:
        """The position, or with `skips_lost` the log start offset if records were deleted unread.

        Raises LogTruncated if the input lost records that were read: the output may hold them.
        """
        start, self._end_offset = self._backend.input.offsets(self.partition)
        if position.offset >= start:
            reason = find_break(self._backend.input, self.partition, position)
            if reason is not None:
                raise LogTruncated(f"{self._where}: {reason}; {_TRUNCATED_REMEDY}")
            return position
        if not self._context.settings.skips_lost:
            raise OffsetOutOfRange(
                f"{self._where} begins at offset {start}, and was read up to {position.offset}: "
                "records between them were deleted unread; continue after them with --skip-lost"
            )
        logger.warning(
            "records were deleted before they were read",
            extra={"partition": self._where, "from": position.offset, "to": start},
        )
        return Position(start)

    def _restore(self, store: IdStore) -> None:
        changelog = self._backend.read_changelog()
        try:
            self._restore_from(changelog, store)
        finally:
            changelog.close()
        store.maintain(self._get_progress().stream_time_ms)

    def _restore_from(self, changelog: TopicReader, store: IdStore) -> None:
        start, end = changelog.offsets(self.partition)
        checkpoint_offset = store.changelog_offset
        if checkpoint_offset is not None:
            position = Position(checkpoint_offset, store.changelog_mark)
            reason = find_break(changelog, self.partition, position)
            if reason is not None:
                logger.warning(
                    "the changelog lost entries of the checkpoint: ids are restored from its start",
                    extra={
                        "partition": self._where,
                        "checkpoint": checkpoint_offset,
                        "reason": reason,
                    },
                )
                store.reset()
                checkpoint_offset = None
        offset = start if checkpoint_offset is None else max(start, checkpoint_offset)
        where = f"{changelog.topic}-{self.partition}"
        for fetched in read_range(changelog, self.partition, start=offset, end=end):
            for columns in fetched.columns():
                if len(columns):
                    store.restore(decode_entries(columns, where))
                    self._new_entries += len(columns)
            if len(fetched):
                self._report(restored=fetched.next_offset, restore_end=end)
        self._changelog_end = end

    # Work

    @property
    def position(self) -> Position:
        """The next position of the input."""
        return self._position

    def run_once(self, *, wait_ms: int = 0) -> bool:
        """Fetches and processes one chunk; False if the input has no more records for now."""
        positions = {self.partition: self._position}
        reader, max_bytes = self._backend.input, self._context.settings.chunk_bytes
        try:
            fetched = reader.fetch(positions, max_bytes=max_bytes, wait_ms=wait_ms)
        except StoreError as error:
            self.recover_position(error)
            return True
        return self.process(fetched.get(self.partition))

    def recover_position(self, error: StoreError) -> None:
        """Skips deleted records if a fetch failed because of them, else raises the error."""
        if isinstance(error, LogTruncated):
            raise LogTruncated(f"{error}; {_TRUNCATED_REMEDY}") from error
        if not isinstance(error, OffsetOutOfRange):
            raise _with_location(error, f"{self._where}, offset {self._position.offset}") from error
        before = self._position
        self._position = self._check_position(before)
        if self._position == before:
            raise error

    def process(self, fetched: CommittedBatches | None) -> bool:
        """Processes one chunk; False if the input has no more records for now."""
        try:
            if fetched is not None:
                self._process(fetched)
            self._checkpoint_if_due()
        except StoreError as error:
            raise _with_location(error, f"{self._where}, offset {self._position.offset}") from error
        return self.has_more

    def _process(self, fetched: CommittedBatches) -> None:
        self._end_offset = max(fetched.end_offset, fetched.next_offset)
        part = fetched.first_batches(max_records=_CHUNK_RECORDS_MAX).first_part()
        chunk = InputChunk(part.batches.batches, part.columns, part.ends)
        next_position = Position.after(part.batches)
        if len(chunk.columns):
            self._process_chunk(chunk, next_position)
            return
        self._position = next_position
        if not self.has_more and next_position.offset > self._get_progress().position:
            self._commit_progress()

    def refresh_end_offset(self) -> int:
        """Reads the current end offset of the input, and returns it."""
        self._end_offset = self._backend.input.offsets(self.partition).end
        return self._end_offset

    @property
    def has_more(self) -> bool:
        """Whether the input had more when it was last read."""
        return self._position.offset < self._end_offset

    def _process_chunk(self, chunk: InputChunk, next_position: Position) -> None:
        store, before = self._get_store(), self._get_progress()
        arrivals = fold_chunk([chunk.columns], self._rules.by, store.secret)
        judged = self._judge(arrivals, before)
        now_ms = self._context.clock.now_ms()
        after = replace(
            before,
            position=next_position.offset,
            mark=next_position.mark,
            stream_time_ms=judged.stream_time_after,
            counts=before.counts + judged.counts,
            committed_ms=now_ms,
        )
        self._commit(self._make_commit(chunk, judged, after))
        self._progress, self._position = after, next_position
        store.apply(judged.new_ids, judged.stream_time_after)
        self._new_entries += len(judged.new_ids.entries)
        self._report()

    def _judge(self, arrivals: Arrivals, before: Progress) -> Judgement:
        """Judges a chunk; if the ids are damaged, restores them and judges again, once."""
        store = self._get_store()
        judge = partial(
            Judge(self._rules, store).judge,
            arrivals,
            self._context.clock.now_ms(),
            before.stream_time_ms,
            whole_from_ms=before.whole_from_ms,
        )
        try:
            return judge()
        except Corrupt as error:
            logger.warning(
                "ids are damaged and are restored",
                extra={"partition": self._where, "error": str(error)},
            )
        store.reset()
        self._restore(store)
        return judge()

    def _make_commit(self, chunk: InputChunk, judged: Judgement, after: Progress) -> TaskCommit:
        topics = self._backend.topics
        routes = route(judged.verdicts, self._rules)
        output = build_kept_batches(chunk, routes == Route.OUTPUT, self._limits[topics.output])
        side: list[bytes | bytearray] = []
        if topics.side is not None:
            side = build_kept_batches(chunk, routes == Route.SIDE, self._limits[topics.side])
        entries, limit = judged.new_ids.entries, self._limits[topics.changelog]
        return TaskCommit(output, side, _changelog_batches(entries, limit.max_bytes), after)

    def _commit_progress(self) -> None:
        """Commits progress without records: for changed rules, or offsets without records."""
        after = replace(
            self._get_progress(),
            position=self._position.offset,
            mark=self._position.mark,
            committed_ms=self._context.clock.now_ms(),
        )
        self._commit(TaskCommit((), (), (), after))
        self._progress = after
        self._report()

    def _commit(self, commit: TaskCommit) -> None:
        assert self._writer is not None, "call open first"
        self._changelog_end = max(self._changelog_end, self._writer.commit(commit))

    # Maintenance

    def maintain_if_due(self) -> None:
        """Runs due maintenance while the input is idle: expires ids by stream time, checkpoints."""
        now_ms = self._context.clock.now_ms()
        if now_ms - self._maintain_ms >= self._context.settings.maintain_ms:
            self._maintain_ms = now_ms
            self._get_store().maintain(self._get_progress().stream_time_ms)
        self._checkpoint_if_due()

    def _restore_if_erased(self) -> None:
        """Restores the ids when records were erased since they were opened."""
        now_ms = self._context.clock.now_ms()
        if 0 <= now_ms - self._erasure_checked_ms < _ERASURE_CHECK_MS:
            return
        self._erasure_checked_ms = now_ms
        erasure = self._backend.last_erasure()
        if erasure != self._erasure:
            logger.info(
                "records were erased: ids are restored",
                extra={"partition": self._where, "erasure": erasure},
            )
            self._get_store().close()
            self._open_store(self._directory)

    def _checkpoint_if_due(self) -> None:
        self._restore_if_erased()
        settings, now_ms = self._context.settings, self._context.clock.now_ms()
        is_old = now_ms - self._checkpoint_ms >= settings.checkpoint_ms
        if self._new_entries and (is_old or self._new_entries >= settings.checkpoint_entries):
            self.checkpoint()

    def checkpoint(self) -> None:
        """Syncs the ids to the disk, so that the next start restores only later ones."""
        self._get_store().checkpoint(self._changelog_end, self._find_changelog_mark())
        self._checkpoint_ms, self._new_entries = self._context.clock.now_ms(), 0

    def _find_changelog_mark(self) -> HistoryMark | None:
        """The mark of the changelog's last batch; None if it cannot be read."""
        changelog = self._backend.read_changelog()
        try:
            header = changelog.find_batch_before(self.partition, self._changelog_end)
        except StoreError:
            return None
        finally:
            changelog.close()
        return None if header is None else HistoryMark.of(header)

    def close(self, *, is_clean: bool = True) -> None:
        """Closes the store; with `is_clean`, after a checkpoint."""
        store, self._store = self._store, None
        if store is not None:
            if is_clean:
                store.checkpoint(self._changelog_end, self._find_changelog_mark())
            store.close()

    def state(self) -> TaskState:
        progress = self._get_progress()
        return TaskState(
            partition=self.partition,
            position=self._position.offset,
            end_offset=self._end_offset,
            stream_time_ms=progress.stream_time_ms,
            counts=progress.counts,
        )

    def _report(self, *, restored: int = 0, restore_end: int = 0) -> None:
        state = replace(self.state(), restored=restored, restore_end=restore_end)
        self._context.on_progress(state)

    def _get_store(self) -> IdStore:
        assert self._store is not None, "call open first"
        return self._store

    def _get_progress(self) -> Progress:
        assert self._progress is not None, "call open first"
        return self._progress


def _changelog_batches(entries: Arrivals, max_bytes: int) -> list[bytes]:
    batches = []
    count = min(_ENTRIES_PER_BATCH_MAX, max(1, (max_bytes - HEADER_BYTES) // _ENTRY_BYTES_MAX))
    for start in range(0, len(entries), count):
        part = entries.take(np.arange(start, min(start + count, len(entries))))
        columns = encode_entries(part)
        batches.append(build_batch_from_columns(columns.keys, columns.values, columns.timestamps))
    return batches


def _with_location(error: StoreError, where: str) -> StoreError:
    """The error with its location as a prefix, unless the message starts with it."""
    text = str(error)
    return error if text.startswith(where) else type(error)(f"{where}: {text}")
