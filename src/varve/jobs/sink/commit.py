"""Commits an epoch of a sink as one transaction, exactly once: to a directory or through a server.

In a directory, the sink state file takes the part of the transaction coordinator. A commit writes
the epoch as `prepared`, appends and syncs its batches, writes `committing`, appends a marker to
every partition, and records the epoch as done. After a crash, the next commit to the directory by
any sink ends the transaction: it aborts a `prepared` epoch and commits a `committing` one.

Through a server, the transaction contains the batches and a note of the epoch: a committed offset
of a group named after the sink and, for a stream, of one named after the query. A writer fences
earlier writers of the same sink, which ends their transactions; then the notes show whether the
epoch is done.

Layout     docs/reference/formats/sinks.md
Invariant  a done epoch is never appended again, and a refused epoch changes nothing. The note of
           an epoch exists if, and only if, its batches are committed.
Crash      see above; a server also aborts an open transaction after its timeout.
Threads    one commit at a time: the store holds the lock of its directories, and a server fences
           the older of two writers.
"""

import json
import random as random_module
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, Final

from varve.commit_log import Log, TopicPartition
from varve.commit_log.directory_files import encode_topic_id
from varve.embedded import Store, Topic
from varve.foundation.clock import Clock
from varve.foundation.errors import Corrupt, NotFound, StoreError
from varve.jobs.sink.batch_builder import SinkTarget
from varve.jobs.sink.sink_state import (
    CommitPhase,
    CommitResult,
    EpochWrite,
    PendingEpoch,
    SinkState,
    SinkStateFile,
    check_former_name,
    check_owner,
    check_partitions,
    check_same_topic,
    is_done,
)
from varve.jobs.sink.staging import RowSummary, Staging, split_batches
from varve.kafka_client.client import KafkaClient
from varve.kafka_client.transaction import CommittedOffset, fetch_offsets
from varve.records import Producer
from varve.topics import KafkaTransactionalWriter, StoreTransactionalWriter, TransactionalWriter
from varve.topics.store_cluster import (
    FIRST_PRODUCER_ID,
    PRODUCER_EPOCH_MAX,
    PRODUCER_ID_BITS,
    open_transactions_of,
    write_marker,
)

SINK_PREFIX: Final = "varve-sink-"
"""Prefix of the transactional id of a sink and of the group of its notes."""
QUERY_PREFIX: Final = "varve-query-"
"""Prefix of the group that notes the sinks of a query."""
_NOTE_FORMAT: Final = 1
_NO_PRODUCER: Final = -1


def append_epoch(
    writer: TransactionalWriter,
    write: EpochWrite,
    target: SinkTarget,
    staging: Staging,
    *,
    now_ms: int,
) -> dict[int, int]:
    """Appends all batches in the order of tasks; returns the end offsets by partition.

    Records without a timestamp get `now_ms`. An error aborts the transaction.
    """
    ends: dict[int, int] = {}
    try:
        for part in write.parts():
            data = staging.read(part)
            batches: dict[TopicPartition, list[bytes | bytearray]] = {}
            for run in part.runs:
                partition = TopicPartition(target.topic, run.partition)
                run_batches = map(bytearray, split_batches(data[run.start : run.end]))
                batches.setdefault(partition, []).extend(run_batches)
            appended = writer.append(batches, default_timestamp=now_ms)
            ends |= {partition.partition: end for partition, end in appended.items()}
    except StoreError:
        # If the abort fails too, the next commit aborts the transaction.
        with suppress(StoreError):
            writer.abort()
        raise
    return ends


# In a directory


class DirectoryCommit:
    """Commits to an open store, and ends the transactions of killed commits."""

    def __init__(
        self,
        store: Store,
        sinks: SinkStateFile,
        *,
        clock: Clock,
        random: random_module.Random,
    ) -> None:
        self._store = store
        self.sinks = sinks
        self._clock = clock
        self._random = random

    def commit(self, write: EpochWrite, target: SinkTarget, staging: Staging) -> CommitResult:
        """Appends an epoch unless it is done; raises InvalidRequest if it cannot follow."""
        self.finish_open_transactions()
        sinks = self.sinks.read()
        sink = sinks.get(write.sink_id)
        if sink is None:
            check_former_name(sinks.values(), write, target)
        else:
            check_owner(sink, write, target)
            if is_done(sink, write):
                return CommitResult(write.summary.rows, is_repeated=True, ends={})
        topic = self._get_topic(target, write.partitions)
        if not write.summary.rows:
            return CommitResult(0, is_repeated=False, ends={})
        logs = [topic.partition(number).log for number in write.partitions]
        pending = self._prepare(sink, write, target, logs)
        writer = StoreTransactionalWriter(self._store, _SinkCoordinator(self, pending))
        writer.init_transactions()
        ends = append_epoch(writer, write, target, staging, now_ms=self._clock.now_ms())
        writer.commit()
        return CommitResult(write.summary.rows, is_repeated=False, ends=dict(sorted(ends.items())))

    def finish_open_transactions(self) -> list[str]:
        """Ends every transaction that a crash left open; returns the ids of their sinks."""
        unfinished = [sink for sink in self.sinks.read().values() if sink.running is not None]
        for sink in unfinished:
            # Write it again: the killed writer may not have synced the rename of the file.
            self.sinks.put(sink)
            is_committed = sink.running is not None and sink.running.state is CommitPhase.COMMITTING
            logs = self._find_logs(sink)
            if is_committed:
                _check_not_truncated(sink, logs)
            for log in logs.values():
                if open_transactions_of(log, [sink.producer_id]):
                    write_marker(log, sink.producer, is_committed=is_committed)
            self.finish(sink, logs.values(), is_committed=is_committed)
        return [sink.id for sink in unfinished]

    def record_commit(self, sink: SinkState, logs: Mapping[TopicPartition, Log]) -> SinkState:
        """Records that the running epoch, whose batches are on disk, is to be committed."""
        assert sink.running is not None
        ends = [
            logs[TopicPartition(sink.topic, number)].end_offset
            for number in sink.running.partitions
        ]
        decided = sink.with_phase(CommitPhase.COMMITTING, ends)
        self.sinks.put(decided)
        return decided

    def finish(self, sink: SinkState, logs: Iterable[Log], *, is_committed: bool) -> None:
        """Flushes the markers to disk, then records that the epoch is committed or aborted."""
        for log in logs:
            log.flush()
        if sink.is_once:
            self.sinks.forget(sink.id)
        elif is_committed:
            self.sinks.put(sink.done(self._clock.now_ms()))
        else:
            self.sinks.put(replace(sink, running=None))

    def _get_topic(self, target: SinkTarget, partitions: Sequence[int]) -> Topic:
        topic = self._store.topic(target.topic)
        check_same_topic(target, topic_id_of(topic))
        check_partitions(target, partitions, topic.partition_count)
        return topic

    def _prepare(
        self,
        previous: SinkState | None,
        write: EpochWrite,
        target: SinkTarget,
        logs: Sequence[Log],
    ) -> SinkState:
        """The sink with its running epoch and the next producer epoch; not yet on disk."""
        running = PendingEpoch(write.epoch, CommitPhase.PREPARED, write.summary, write.partitions)
        if previous is None or previous.producer_epoch >= PRODUCER_EPOCH_MAX:
            producer_id, producer_epoch = self._choose_producer(logs), 0
        else:
            producer_id, producer_epoch = previous.producer_id, previous.producer_epoch + 1
        sink = previous or SinkState(
            id=write.sink_id,
            topic=target.topic,
            topic_id=target.topic_id,
            query=write.query,
            is_once=write.is_once,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )
        return replace(
            sink, producer_id=producer_id, producer_epoch=producer_epoch, running=running
        )

    def _choose_producer(self, logs: Sequence[Log]) -> int:
        used_ids = {sink.producer_id for sink in self.sinks.read().values()}
        used_ids.update(*(log.active_producers() for log in logs))
        while True:
            producer_id = FIRST_PRODUCER_ID + self._random.getrandbits(PRODUCER_ID_BITS)
            if producer_id not in used_ids:
                return producer_id

    def _find_logs(self, sink: SinkState) -> dict[int, Log]:
        """The logs of the running epoch, by partition; none if the topic was deleted."""
        assert sink.running is not None
        try:
            topic = self._store.topic(sink.topic)
        except NotFound:
            return {}
        if topic_id_of(topic) != sink.topic_id:
            return {}
        return {number: topic.partition(number).log for number in sink.running.partitions}


class _SinkCoordinator:
    """Coordinates the transaction of one epoch with the sink state file."""

    def __init__(self, directory: DirectoryCommit, sink: SinkState) -> None:
        self._directory = directory
        self._sink = sink

    def init_producer(self) -> Producer:
        self._directory.sinks.put(self._sink)
        return self._sink.producer

    def record_commit(self, writer: StoreTransactionalWriter) -> None:
        self._sink = self._directory.record_commit(self._sink, writer.logs)

    def finish(self, writer: StoreTransactionalWriter) -> None:
        self._directory.finish(self._sink, writer.logs.values(), is_committed=True)

    def end_as_decided(self, writer: StoreTransactionalWriter) -> None:
        self._directory.finish_open_transactions()


def topic_id_of(topic: Topic) -> str:
    """The id of a topic as text; empty if it has none."""
    return "" if topic.id is None else encode_topic_id(topic.id)


def _check_not_truncated(sink: SinkState, logs: Mapping[int, Log]) -> None:
    """Raises Corrupt if a log lost batches that were on disk."""
    assert sink.running is not None
    ends = dict(zip(sink.running.partitions, sink.running.ends, strict=True))
    for number, log in logs.items():
        if log.end_offset < ends[number]:
            raise Corrupt(
                f"{log.topic_partition} ends at offset {log.end_offset}, but epoch "
                f"{sink.running.epoch} of sink {sink.id} was on disk up to {ends[number]}: the log "
                "was truncated; restore its files, or remove the sink from varve-sinks.json to "
                "give up the epoch"
            )


# Through a server


class ServerCommit:
    """Commits epochs through a server."""

    def __init__(self, client: KafkaClient, *, clock: Clock, timeout_ms: int) -> None:
        self._client = client
        self._clock = clock
        self._timeout_ms = timeout_ms

    def commit(self, write: EpochWrite, target: SinkTarget, staging: Staging) -> CommitResult:
        """Appends an epoch unless it is done; raises InvalidRequest if it cannot follow."""
        writer = KafkaTransactionalWriter(
            self._client, f"{SINK_PREFIX}{write.sink_id}", timeout_ms=self._timeout_ms
        )
        writer.init_transactions()
        if not write.is_once and self._is_done(write, target):
            return CommitResult(write.summary.rows, is_repeated=True, ends={})
        self._check_topic(target, write)
        if not write.summary.rows:
            return CommitResult(0, is_repeated=False, ends={})
        append_epoch(writer, write, target, staging, now_ms=self._clock.now_ms())
        for group in _note_groups(write):
            writer.commit_offset(group, _encode_note(write, target))
        writer.commit()
        return CommitResult(write.summary.rows, is_repeated=False, ends={})

    def _is_done(self, write: EpochWrite, target: SinkTarget) -> bool:
        groups = _note_groups(write)
        noted = [self._decode_note(note) for note in fetch_offsets(self._client, groups[0])]
        for sink in noted:
            check_owner(sink, write, target)
        if not noted:
            former = fetch_offsets(self._client, groups[-1])
            check_former_name([self._decode_note(note) for note in former], write, target)
        done = [is_done(sink, write) for sink in noted]
        return any(done)

    def _decode_note(self, note: CommittedOffset) -> SinkState:
        try:
            document: dict[str, Any] = json.loads(note.metadata)
            if document["format"] != _NOTE_FORMAT:
                raise ValueError(
                    f"format {document['format']!r:.40}, this varve knows {_NOTE_FORMAT}"
                )
            return SinkState(
                id=document["sink"],
                topic=note.topic,
                topic_id=document["topic_id"],
                query=document["query"],
                is_once=False,
                producer_id=_NO_PRODUCER,
                producer_epoch=_NO_PRODUCER,
                epoch=note.offset,
                summary=RowSummary(**document["summary"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(
                f"{self._client.address.name}: offset {note.offset} of a sink's group for topic "
                f"{note.topic} has metadata {note.metadata!r:.120}, which no sink wrote: another "
                "program commits to this group; choose another sinkId"
            ) from error

    def _check_topic(self, target: SinkTarget, write: EpochWrite) -> None:
        topic = self._client.topic(target.topic)
        check_same_topic(target, encode_topic_id(topic.id))
        check_partitions(target, write.partitions, len(topic.leaders))


def _note_groups(write: EpochWrite) -> tuple[str, ...]:
    """The groups that note an epoch: of the sink and, for a stream, of its query."""
    if write.is_once:
        return ()
    query = () if write.query is None else (f"{QUERY_PREFIX}{write.query}",)
    return (f"{SINK_PREFIX}{write.sink_id}", *query)


def _encode_note(write: EpochWrite, target: SinkTarget) -> CommittedOffset:
    document = {
        "format": _NOTE_FORMAT,
        "sink": write.sink_id,
        "query": write.query,
        "topic_id": target.topic_id,
        "summary": asdict(write.summary),
    }
    return CommittedOffset(target.topic, write.epoch, json.dumps(document))
