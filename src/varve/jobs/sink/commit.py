"""An epoch of a sink becomes one transaction, exactly once: in a directory or through a server.

In a directory the file of sinks is the coordinator's memory. An epoch is prepared, its batches are
appended and synced, the word `committing` is written, every partition gets its marker, and the
epoch is done. What a crash cut is ended by the next commit to the directory, of any sink: aborted
before that word, committed after it.

Through a server the transaction holds the batches of the epoch and a note of it, as a committed
offset of a group that is named after the sink, and of one named after the query. A writer fences
earlier ones of the same name and ends what they left; then the notes say whether the epoch is done.

Layout     docs/formats/sinks.md
Invariant  an epoch that is done is never appended again, and one that is refused changes nothing.
           The note of an epoch is there if, and only if, its batches are.
Crash      see above; what a server has open for a sink is ended after its timeout, too.
Threads    one at a time: the store holds the lock of its directories, and a server fences the older
           of two writers.
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
from varve.topics import KafkaTransaction, StoreTransaction, TransactionalWriter
from varve.topics.store_transaction import (
    FIRST_PRODUCER_ID,
    PRODUCER_EPOCH_MAX,
    PRODUCER_ID_BITS,
    open_transactions_of,
    write_marker,
)

SINK_PREFIX: Final = "varve-sink-"
"""Before a sink's id in its transactional id and in the group of its notes."""
QUERY_PREFIX: Final = "varve-query-"
"""Before a query's id in the group that says under which names it wrote."""
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
    """Appends all batches in the order of tasks; the end offsets by partition.

    Records without a timestamp get `now_ms`. After an error the transaction is aborted.
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
        # What cannot be aborted now is aborted by the next commit.
        with suppress(StoreError):
            writer.abort()
        raise
    return ends


# In a directory


class DirectoryCommit:
    """Commits to an open store, and ends what earlier commits left."""

    def __init__(
        self,
        store: Store,
        sinks: SinkStateFile,
        *,
        clock: Clock,
        random: random_module.Random,
    ) -> None:
        self._store = store
        self._sinks = sinks
        self._clock = clock
        self._random = random

    def commit(self, write: EpochWrite, target: SinkTarget, staging: Staging) -> CommitResult:
        """Appends an epoch unless it is there; raises InvalidRequest for one that cannot follow."""
        self.finish_open_transactions()
        sinks = self._sinks.read()
        known = sinks.get(write.sink_id)
        if known is None:
            check_former_name(sinks.values(), write, target)
        else:
            check_owner(known, write, target)
            if is_done(known, write):
                return CommitResult(write.summary.rows, is_repeated=True, ends={})
        topic = self._get_topic(target, write.partitions)
        if not write.summary.rows:
            return CommitResult(0, is_repeated=False, ends={})
        logs = [topic.partition(number).log for number in write.partitions]
        pending = self._prepare(known, write, target, logs)
        writer = StoreTransaction(self._store, _SinkCoordinator(self, pending))
        writer.init_transactions()
        ends = append_epoch(writer, write, target, staging, now_ms=self._clock.now_ms())
        writer.commit()
        return CommitResult(write.summary.rows, is_repeated=False, ends=dict(sorted(ends.items())))

    def finish_open_transactions(self) -> list[str]:
        """Ends every transaction that a crash left open; the ids of their sinks."""
        cut = [sink for sink in self._sinks.read().values() if sink.running is not None]
        for sink in cut:
            # Seen is not yet on disk: the writer may have died before it synced the name.
            self._sinks.put(sink)
            is_committed = sink.running is not None and sink.running.state is CommitPhase.COMMITTING
            logs = self._find_logs(sink)
            if is_committed:
                _check_whole(sink, logs)
            for log in logs.values():
                if open_transactions_of(log, [sink.producer_id]):
                    write_marker(log, sink.producer, is_committed=is_committed)
            self.finish(sink, logs.values(), is_committed=is_committed)
        return [sink.id for sink in cut]

    def decide(self, sink: SinkState, logs: Mapping[TopicPartition, Log]) -> SinkState:
        """From now on a crash commits the running epoch; its batches are on disk."""
        assert sink.running is not None
        ends = [
            logs[TopicPartition(sink.topic, number)].end_offset
            for number in sink.running.partitions
        ]
        decided = sink.with_phase(CommitPhase.COMMITTING, ends)
        self._sinks.put(decided)
        return decided

    def finish(self, sink: SinkState, logs: Iterable[Log], *, is_committed: bool) -> None:
        """Brings the markers to the disk, and then that the epoch is done or undone."""
        for log in logs:
            log.flush()
        if sink.is_once:
            self._sinks.forget(sink.id)
        elif is_committed:
            self._sinks.put(sink.done(self._clock.now_ms()))
        else:
            self._sinks.put(replace(sink, running=None))

    def _get_topic(self, target: SinkTarget, partitions: Sequence[int]) -> Topic:
        topic = self._store.topic(target.topic)
        check_same_topic(target, topic_id_of(topic))
        check_partitions(target, partitions, topic.partition_count)
        return topic

    def _prepare(
        self,
        known: SinkState | None,
        write: EpochWrite,
        target: SinkTarget,
        logs: Sequence[Log],
    ) -> SinkState:
        """The sink with its epoch under way, by a producer epoch of its own; not yet on disk."""
        running = PendingEpoch(write.epoch, CommitPhase.PREPARED, write.summary, write.partitions)
        if known is None or known.producer_epoch >= PRODUCER_EPOCH_MAX:
            producer_id, producer_epoch = self._choose_producer(logs), 0
        else:
            producer_id, producer_epoch = known.producer_id, known.producer_epoch + 1
        sink = known or SinkState(
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
        taken = {sink.producer_id for sink in self._sinks.read().values()}
        taken.update(*(log.active_producers() for log in logs))
        while True:
            chosen = FIRST_PRODUCER_ID + self._random.getrandbits(PRODUCER_ID_BITS)
            if chosen not in taken:
                return chosen

    def start(self, sink: SinkState) -> None:
        self._sinks.put(sink)

    def _find_logs(self, sink: SinkState) -> dict[int, Log]:
        """The logs that the running epoch reached; none when the topic is gone."""
        assert sink.running is not None
        try:
            topic = self._store.topic(sink.topic)
        except NotFound:
            return {}
        if topic_id_of(topic) != sink.topic_id:
            return {}
        return {number: topic.partition(number).log for number in sink.running.partitions}


class _SinkCoordinator:
    """Decides the transaction of one epoch by the file of sinks."""

    def __init__(self, directory: DirectoryCommit, sink: SinkState) -> None:
        self._directory = directory
        self._sink = sink

    def init_producer(self) -> Producer:
        self._directory.start(self._sink)
        return self._sink.producer

    def decide(self, transaction: StoreTransaction) -> None:
        self._sink = self._directory.decide(self._sink, transaction.logs)

    def finish(self, transaction: StoreTransaction) -> None:
        self._directory.finish(self._sink, transaction.logs.values(), is_committed=True)

    def resolve(self, transaction: StoreTransaction) -> None:
        self._directory.finish_open_transactions()


def topic_id_of(topic: Topic) -> str:
    """A topic's id as text; empty where no partition says it."""
    return "" if topic.id is None else encode_topic_id(topic.id)


def _check_whole(sink: SinkState, logs: Mapping[int, Log]) -> None:
    """Raises Corrupt where a log has lost what it had on disk."""
    assert sink.running is not None
    ends = dict(zip(sink.running.partitions, sink.running.ends, strict=True))
    for number, log in logs.items():
        if log.end_offset < ends[number]:
            raise Corrupt(
                f"{log.topic_partition} ends at offset {log.end_offset}, but epoch "
                f"{sink.running.epoch} of sink {sink.id} was on disk up to {ends[number]}: the log "
                "was cut; put its files back, or take the sink out of the ledger to give the "
                "epoch up"
            )


# Through a server


class ServerCommit:
    """Commits through a server."""

    def __init__(self, client: KafkaClient, *, clock: Clock, timeout_ms: int) -> None:
        self._client = client
        self._clock = clock
        self._timeout_ms = timeout_ms

    def commit(self, write: EpochWrite, target: SinkTarget, staging: Staging) -> CommitResult:
        """Appends an epoch unless it is there; raises InvalidRequest for one that cannot follow."""
        writer = KafkaTransaction(
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
        known = [self._decode_note(note) for note in fetch_offsets(self._client, groups[0])]
        for sink in known:
            check_owner(sink, write, target)
        if not known:
            former = fetch_offsets(self._client, groups[-1])
            check_former_name([self._decode_note(note) for note in former], write, target)
        done = [is_done(sink, write) for sink in known]
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
                f"{note.topic} has the text {note.metadata!r:.120}, which no sink wrote: another "
                "program commits to this group; choose another sinkId"
            ) from error

    def _check_topic(self, target: SinkTarget, write: EpochWrite) -> None:
        topic = self._client.topic(target.topic)
        check_same_topic(target, encode_topic_id(topic.id))
        check_partitions(target, write.partitions, len(topic.leaders))


def _note_groups(write: EpochWrite) -> tuple[str, ...]:
    """The groups that note an epoch: that of the sink, and for a stream that of its query."""
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
