"""Both ends of a deduplication in an open store, whose lock keeps other processes out.

A chunk is a transaction of a producer of its own. The marker in the progress topic decides it:
the input, batches and progress are on disk before that marker is written, and the other markers
follow it.

Invariant  a transaction is committed iff its marker stands in the progress topic. Markers elsewhere
           say the same, sooner or later.
Crash      an open transaction in the progress topic is aborted. One that is open elsewhere is
           committed iff the last committed progress has its producer and its last sequence.
Threads    see `ends`; the store's logs have locks of their own.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from varve.commit_log import Isolation, Log
from varve.commit_log.partition_metadata import encode_topic_id
from varve.commit_log.producer_state import ProducerEntry
from varve.dedup.chunk import InputRead, make_chunk
from varve.dedup.committed import CommittedBatch, CommittedBatches
from varve.dedup.ends import (
    DedupTopics,
    TaskCommit,
    TopicIds,
    check_own_topics,
    check_partitions,
    longer_retention,
)
from varve.dedup.producing import Producer, join_all, join_transaction
from varve.dedup.progress import Progress, find_last_progress, progress_batch
from varve.dedup.survivors import BatchLimit
from varve.embedded import Store, Topic
from varve.foundation.clock import Clock
from varve.foundation.errors import Closed, Corrupt, NotFound, StoreError
from varve.records import Batch, RecordColumns, increment_sequence
from varve.records.sequence import INT_MAX

PRODUCER_ID_MIN: Final = 1 << 62
"""Kafka's producers count up from 0; those of sinks and deduplications begin here."""
_PRODUCER_ID_BITS: Final = 61
_PRODUCER_EPOCH_MAX: Final = (1 << 15) - 2
_READ_BYTES: Final = 1 << 20
_MISSING_MAX: Final = 1 << 30
"""Sequences wrap: what would be missing by more than this is ahead."""


@dataclass(slots=True)
class _Writer:
    """Who writes to a partition now; `sequences` are the next ones by topic."""

    producer: Producer
    generation: int
    sequences: dict[str, int]


class EmbeddedEnds:
    """Ends in a store; the store stays the caller's."""

    def __init__(
        self,
        store: Store,
        topics: DedupTopics,
        *,
        settings: Mapping[str, Mapping[str, str]],
        clock: Clock,
    ) -> None:
        self.topics = topics
        self._store = store
        self._settings = settings
        self._clock = clock
        self._writers: dict[int, _Writer] = {}

    @property
    def place(self) -> str:
        return ", ".join(one.path for one in self._store.directories)

    def prepare(self) -> int:
        topics = self.topics
        count = self._store.topic(topics.input).partition_count
        names = {one.name for one in self._store.topics()}
        check_own_topics(topics, names, place=self.place, has_entries=self._has_entries)
        for name in topics.written:
            try:
                found = self._store.topic(name)
            except NotFound:
                given = dict(self._settings[name])
                self._store.create_topic(name, partitions=count, settings=given or None)
            else:
                check_partitions(topics, name, found.partition_count, wanted=count)
        made_with = self._settings[topics.changelog]
        had_ms = self._store.topic(topics.changelog).settings.retention_ms
        altered = longer_retention(had_ms, made_with)
        if altered:
            self._store.alter_topic(topics.changelog, altered)
        return count

    def _has_entries(self) -> bool:
        """Whether anything was ever written to the changelog."""
        partitions = self._store.topic(self.topics.changelog).partitions
        return any(one.log.end_offset for one in partitions)

    def partition_count(self, topic: str) -> int:
        return self._store.topic(topic).partition_count

    def topic_ids(self) -> TopicIds:
        topics = self.topics
        return TopicIds(
            _id_of(self._store.topic(topics.input)), _id_of(self._store.topic(topics.output))
        )

    def limits(self) -> Mapping[str, BatchLimit]:
        found = {}
        for name in self.topics.written:
            settings = self._store.topic(name).settings
            found[name] = BatchLimit(name, min(settings.max_message_bytes, settings.segment_bytes))
        return found

    # A task's beginning and end

    def find_progress(self, partition: int) -> Progress | None:
        log = self._log(self.topics.progress, partition)
        where = str(log.topic_partition)

        def read(offset: int) -> tuple[list[Batch], int]:
            found = _read_once(log, offset, _READ_BYTES)
            return [one.batch for one in found.batches], found.next_offset

        bounds = _committed_bounds(log)
        return find_last_progress(read, start=bounds[0], end=bounds[1], where=where)

    def open_task(self, partition: int) -> Progress | None:
        generation, producer = self._next_producer(partition)
        former = self._producer_id(partition, max(0, generation - 1))
        own = self._log(self.topics.progress, partition)
        # From here on no earlier user can decide anything: the progress may be read.
        _fence(own, producer, {former}, is_committed=lambda entry: False)
        own.flush()
        progress = self.find_progress(partition)
        for name, log in self._find_logs(partition, progress):
            is_needed = name in self.topics.written
            if is_needed or _open_entries(log, {producer.id, former}):
                _fence(log, producer, {former}, is_committed=partial(_is_decided, log, progress))
                log.flush()
        sequences = dict.fromkeys(self.topics.written, 0)
        self._writers[partition] = _Writer(producer, generation, sequences)
        return progress

    def _next_producer(self, partition: int) -> tuple[int, Producer]:
        """The generation and the producer to go on with; fences all that wrote before."""
        progress = self.find_progress(partition)
        generation = 0 if progress is None else progress.generation
        following = self._producer_id(partition, generation + 1)
        epochs = self._epochs_of(partition, following)
        if epochs:
            generation += 1
        else:
            epochs = self._epochs_of(partition, self._producer_id(partition, generation))
            if progress is not None and progress.producer is not None:
                epochs.append(progress.producer.epoch)
        epoch = max(epochs, default=-1)
        if epoch >= _PRODUCER_EPOCH_MAX:
            generation, epoch = generation + 1, -1
        return generation, Producer(self._producer_id(partition, generation), epoch + 1)

    def close_task(self, partition: int) -> None:
        self._writers.pop(partition, None)

    def close(self) -> None:
        self._writers.clear()

    def _find_logs(self, partition: int, progress: Progress | None) -> Iterator[tuple[str, Log]]:
        """All but that of the progress: other topics were written under other settings."""
        needed = {*self.topics.written, *(() if progress is None else progress.sequences)}
        for topic in self._store.topics():
            if topic.name == self.topics.progress or partition >= topic.partition_count:
                continue
            try:
                yield topic.name, topic.partition(partition).log
            except StoreError:
                if topic.name in needed:
                    raise

    def _epochs_of(self, partition: int, producer_id: int) -> list[int]:
        """The epochs by which the logs know a producer."""
        logs = [self._log(name, partition) for name in self.topics.written]
        shells = (log.active_producers().get(producer_id) for log in logs)
        return [shell.epoch for shell in shells if shell is not None]

    def _producer_id(self, partition: int, generation: int) -> int:
        text = f"{self.topics.name}/{partition}/{generation}".encode()
        digest = hashlib.blake2b(text, digest_size=8).digest()
        return PRODUCER_ID_MIN + (int.from_bytes(digest) >> (64 - _PRODUCER_ID_BITS))

    # Reading

    def input_bounds(self, partition: int) -> tuple[int, int]:
        return _committed_bounds(self._log(self.topics.input, partition))

    def read(self, partition: int, start: int, *, max_bytes: int, wait_ms: int) -> InputRead:
        """Does not wait: who follows the end asks again."""
        log = self._log(self.topics.input, partition)
        batches: list[CommittedBatch] = []
        size, offset = 0, start
        end = log.last_stable_offset
        while offset < end and size < max_bytes:
            found = _read_once(log, offset, min(max_bytes - size, _READ_BYTES))
            if found.next_offset <= offset:
                break
            batches += found.batches
            size += sum(len(one.data) for one in found.batches)
            offset = found.next_offset
        return InputRead(batches, offset, end)

    def changelog_bounds(self, partition: int) -> tuple[int, int]:
        return _committed_bounds(self._log(self.topics.changelog, partition))

    def read_changelog(self, partition: int, start: int) -> Iterator[tuple[RecordColumns, int]]:
        log = self._log(self.topics.changelog, partition)
        end = log.last_stable_offset
        offset = start
        while offset < end:
            found = _read_once(log, offset, _READ_BYTES)
            if found.next_offset <= offset:
                return
            yield make_chunk(found.batches, start_offset=start).columns, found.next_offset
            offset = found.next_offset

    # Writing

    def commit(self, partition: int, commit: TaskCommit) -> int:
        writer = self._writers.pop(partition, None)
        if writer is None:
            raise Closed(f"{self.topics.output}-{partition}: open the task before a commit")
        try:
            changelog_end = self._commit(writer, partition, commit)
        except StoreError:
            # Readers wait for what stays open. What cannot be ended now is by the next start.
            with suppress(StoreError):
                self._end_own(writer, partition)
            raise
        self._writers[partition] = writer
        return changelog_end

    def _commit(self, writer: _Writer, partition: int, commit: TaskCommit) -> int:
        logs = {name: self._log(name, partition) for name in self.topics.written}
        own = logs.pop(self.topics.progress)
        written = self._append(writer, commit, logs)
        changelog_end = logs[self.topics.changelog].end_offset
        self._append_progress(writer, commit.progress, own)
        # A position must not outlive what it counts: its offsets would be given out again.
        for log in (self._log(self.topics.input, partition), *written, own):
            log.flush()
        _mark(own, writer.producer, is_committed=True)
        own.flush()
        for log in written:
            _mark(log, writer.producer, is_committed=True)
        return changelog_end

    def _append(self, writer: _Writer, commit: TaskCommit, logs: Mapping[str, Log]) -> list[Log]:
        """Appends all but the progress; gives the logs that got something."""
        topics = self.topics
        parts = {topics.changelog: commit.changelog, topics.output: commit.output}
        if topics.side is not None:
            parts[topics.side] = commit.side
        for name, batches in parts.items():
            joined, following = join_all(batches, writer.producer, writer.sequences[name])
            for batch in joined:
                logs[name].append(batch, waits=False)
            logs[name].settle()
            writer.sequences[name] = following
        return [logs[name] for name, batches in parts.items() if batches]

    def _append_progress(self, writer: _Writer, progress: Progress, log: Log) -> None:
        name = self.topics.progress
        sequence = writer.sequences[name]
        writer.sequences[name] = increment_sequence(sequence, 1)
        noted = progress.by(writer.producer, writer.generation, writer.sequences)
        batch = progress_batch(noted, self._clock.now_ms())
        log.append(join_transaction(batch, writer.producer, sequence))

    def _end_own(self, writer: _Writer, partition: int) -> None:
        """Ends what a failed commit left open, unless another user has come meanwhile."""
        own = self._log(self.topics.progress, partition)
        entries = _open_entries(own, {writer.producer.id})
        if any(entry.epoch != writer.producer.epoch for entry in entries):
            return
        for entry in entries:
            _end(own, entry, is_committed=False)
        own.flush()
        progress = self.find_progress(partition)
        for name in self.topics.written:
            log = self._log(name, partition)
            for entry in _open_entries(log, {writer.producer.id}):
                if entry.epoch == writer.producer.epoch:
                    _end(log, entry, is_committed=_is_decided(log, progress, entry))

    def _log(self, topic: str, partition: int) -> Log:
        return self._store.topic(topic).partition(partition).log


def _id_of(topic: Topic) -> str:
    return "" if topic.id is None else encode_topic_id(topic.id)


def _committed_bounds(log: Log) -> tuple[int, int]:
    return log.log_start_offset, max(log.log_start_offset, log.last_stable_offset)


def _read_once(log: Log, offset: int, max_bytes: int) -> InputRead:
    fetched = log.read(start_offset=offset, max_bytes=max_bytes, isolation=Isolation.READ_COMMITTED)
    aborted = [(one.producer_id, one.first_offset) for one in fetched.aborted]
    where = str(log.topic_partition)
    batches = list(CommittedBatches(fetched.data, aborted, start=offset, where=where))
    return InputRead(batches, fetched.next_offset, fetched.last_stable_offset)


def _open_entries(log: Log, ids: set[int]) -> list[ProducerEntry]:
    """The producers among these that have a transaction open."""
    if not any(one.producer_id in ids for one in log.open_transactions()):
        return []
    return [
        one
        for one in log.producer_entries()
        if one.producer_id in ids and one.transaction_first_offset is not None
    ]


def _fence(
    log: Log,
    producer: Producer,
    former: set[int],
    *,
    is_committed: Callable[[ProducerEntry], bool],
) -> None:
    """Ends what is open, and lets the log know the producer's epoch, so that it takes no lower."""
    is_decided = False
    for entry in _open_entries(log, {producer.id} | former):
        if entry.producer_id == producer.id:
            is_decided = is_committed(entry)
        else:
            _end(log, entry, is_committed=is_committed(entry))
    _mark(log, producer, is_committed=is_decided)


def _is_decided(log: Log, progress: Progress | None, entry: ProducerEntry) -> bool:
    """Whether the open transaction belongs to the progress that was committed.

    Raises Corrupt where the log has lost a part of it.
    """
    if progress is None or progress.producer != Producer(entry.producer_id, entry.epoch):
        return False
    noted = progress.sequences.get(log.topic_partition.topic, 0)
    following = increment_sequence(entry.last_sequence, 1)
    missing = (noted - following) % (INT_MAX + 1)
    if 0 < missing < _MISSING_MAX:
        raise Corrupt(
            f"{log.topic_partition} has records up to sequence {entry.last_sequence} of a "
            f"transaction that was on disk up to {noted - 1} when it was committed: the log was "
            "cut; put its files back from a copy, or begin anew with another name"
        )
    return following == noted


def _end(log: Log, entry: ProducerEntry, *, is_committed: bool) -> None:
    _mark(log, Producer(entry.producer_id, entry.epoch), is_committed=is_committed)


def _mark(log: Log, producer: Producer, *, is_committed: bool) -> None:
    log.end_transaction(
        producer_id=producer.id, producer_epoch=producer.epoch, committed=is_committed
    )
