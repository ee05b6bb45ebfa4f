"""One epoch of a sink becomes one transaction of a server, exactly once.

The transaction holds the batches of the epoch and a note of it, as a committed offset of a group
that is named after the sink, and of one named after the query. To begin is to fence whoever writes
by the same name and to have ended what he left; then the notes tell whether the epoch is there.

Invariant  the note of an epoch is there if, and only if, its batches are: an epoch that is done is
           never appended again, and one that is refused changes nothing.
Crash      a transaction that was left open is aborted, or committed if the server had noted its
           end, by the next commit of the sink, or by the server when its time is over.
Threads    one at a time; of two by the same name the older is fenced.
"""

import json
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final

from varve.commit_log.partition_metadata import encode_topic_id
from varve.foundation.clock import Clock
from varve.foundation.errors import Corrupt, InvalidRequest, StoreError
from varve.jobs.sink.batches import SinkTarget, join_transaction
from varve.jobs.sink.commit import (
    CommitResult,
    EpochWrite,
    check_former_name,
    check_owner,
    is_done,
)
from varve.jobs.sink.ledger import Sink
from varve.jobs.sink.staging import RowSummary, Staging, split_batches
from varve.kafka_client.client import KafkaClient
from varve.kafka_client.transaction import CommittedOffset, TransactionalProducer, fetch_offsets
from varve.records import decode_header, increment_sequence

SINK_PREFIX: Final = "varve-sink-"
"""Before a sink's id in its transactional id and in the group of its notes."""
QUERY_PREFIX: Final = "varve-query-"
"""Before a query's id in the group that tells under which names it wrote."""
_FORMAT: Final = 1
_NOBODY: Final = -1


class ServerCommit:
    """Commits through a server."""

    def __init__(self, client: KafkaClient, *, clock: Clock, timeout_ms: int) -> None:
        self._client = client
        self._clock = clock
        self._timeout_ms = timeout_ms

    def commit(self, write: EpochWrite, target: SinkTarget, staging: Staging) -> CommitResult:
        """Appends an epoch unless it is there; raises InvalidRequest for one that cannot follow."""
        name = f"{SINK_PREFIX}{write.sink_id}"
        producer = TransactionalProducer(self._client, name, timeout_ms=self._timeout_ms)
        producer.begin()
        if not write.is_once and self._is_done(write, target):
            return CommitResult(write.summary.rows, is_repeated=True, ends={})
        self._check_topic(target, write)
        if not write.summary.rows:
            return CommitResult(0, is_repeated=False, ends={})
        producer.add_partitions(target.topic, write.partitions)
        try:
            self._append(producer, write, target, staging)
            for group in _groups(write):
                producer.commit_offset(group, _make_note(write, target))
        except StoreError:
            # What cannot be aborted now is aborted by the next commit, or when its time is over.
            with suppress(StoreError):
                producer.end(is_committed=False)
            raise
        producer.end(is_committed=True)
        return CommitResult(write.summary.rows, is_repeated=False, ends={})

    def _is_done(self, write: EpochWrite, target: SinkTarget) -> bool:
        known = [self._read(one) for one in fetch_offsets(self._client, _groups(write)[0])]
        for sink in known:
            check_owner(sink, write, target)
        if not known:
            former = fetch_offsets(self._client, _groups(write)[-1])
            check_former_name([self._read(one) for one in former], write, target)
        done = [is_done(sink, write) for sink in known]
        return any(done)

    def _read(self, note: CommittedOffset) -> Sink:
        try:
            told: dict[str, Any] = json.loads(note.metadata)
            if told["format"] != _FORMAT:
                raise ValueError(f"format {told['format']!r:.40}, this varve knows {_FORMAT}")
            return Sink(
                id=told["sink"],
                topic=note.topic,
                topic_id=told["topic_id"],
                query=told["query"],
                is_once=False,
                producer_id=_NOBODY,
                producer_epoch=_NOBODY,
                epoch=note.offset,
                summary=RowSummary(**told["summary"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(
                f"{self._client.address.name}: offset {note.offset} of a sink's group for topic "
                f"{note.topic} has the text {note.metadata!r:.120}, which no sink wrote: another "
                "program commits to this group; choose another sinkId"
            ) from error

    def _check_topic(self, target: SinkTarget, write: EpochWrite) -> None:
        topic = self._client.topic(target.topic)
        if encode_topic_id(topic.id) != target.topic_id:
            raise InvalidRequest(
                f"topic {target.topic} was deleted and made again while rows were staged for it: "
                "write again"
            )
        lacking = sorted({*write.partitions} - topic.leaders.keys())
        if lacking:
            raise InvalidRequest(
                f"rows are staged for partition {lacking[-1]} of {target.topic}, which has "
                f"{len(topic.leaders)}: write again"
            )

    def _append(
        self,
        producer: TransactionalProducer,
        write: EpochWrite,
        target: SinkTarget,
        staging: Staging,
    ) -> None:
        """Appends all batches in the order of tasks."""
        sequences = dict.fromkeys(write.partitions, 0)
        now_ms = self._clock.now_ms()
        for part in (part for task in write.tasks for part in task.parts):
            data = staging.read(part)
            for run in part.runs:
                for batch in split_batches(data[run.start : run.end]):
                    sequence = sequences[run.partition]
                    stamped = join_transaction(
                        bytearray(batch),
                        producer_id=producer.producer_id,
                        producer_epoch=producer.producer_epoch,
                        base_sequence=sequence,
                        now_ms=now_ms,
                    )
                    producer.append(target.topic, run.partition, stamped)
                    sequences[run.partition] = increment_sequence(
                        sequence, decode_header(batch).last_offset_delta + 1
                    )


def _groups(write: EpochWrite) -> tuple[str, ...]:
    """The groups that note an epoch: that of the sink, and for a stream that of its query."""
    if write.is_once:
        return ()
    query = () if write.query is None else (f"{QUERY_PREFIX}{write.query}",)
    return (f"{SINK_PREFIX}{write.sink_id}", *query)


def _make_note(write: EpochWrite, target: SinkTarget) -> CommittedOffset:
    told = {
        "format": _FORMAT,
        "sink": write.sink_id,
        "query": write.query,
        "topic_id": target.topic_id,
        "summary": asdict(write.summary),
    }
    return CommittedOffset(target.topic, write.epoch, json.dumps(told))
