"""One epoch of a sink becomes one transaction of the log, exactly once.

The ledger is the coordinator's memory. An epoch is prepared, its batches are appended and synced,
the word `committing` is written, every partition gets its marker, and the epoch is done. What a
crash cut is settled by the next commit to the directory, whosoever it is: aborted before that word,
committed after it.

Invariant  an epoch that is done is never appended again, and one that is refused changes nothing.
Crash      see above; settling may itself be cut and is begun anew.
Threads    one at a time: the store holds the lock of its directories.
"""

import random as random_module
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from varve.commit_log import Log
from varve.commit_log.partition_metadata import encode_topic_id
from varve.embedded import Store, Topic
from varve.foundation.clock import Clock
from varve.foundation.errors import Corrupt, InvalidRequest, NotFound, StoreError
from varve.jobs.sink.batches import SinkTarget, join_transaction
from varve.jobs.sink.ledger import Running, RunState, Sink, SinkLedger
from varve.jobs.sink.staging import RowSummary, StagedTask, Staging, split_batches
from varve.records import decode_header, increment_sequence

PRODUCER_ID_MIN: Final = 1 << 62
"""Producer ids of sinks begin here; those of Kafka's producers count up from 0."""
_PRODUCER_ID_BITS: Final = 61
_PRODUCER_EPOCH_MAX: Final = (1 << 15) - 2


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochWrite:
    """What is to be committed: whose, which epoch, and what its tasks staged.

    With `skips_repeated` an epoch that is done counts as the same, whatever rows it comes with.
    """

    sink_id: str
    query: str | None
    is_once: bool
    epoch: int
    tasks: Sequence[StagedTask]
    skips_repeated: bool = False

    @property
    def summary(self) -> RowSummary:
        return sum((task.summary for task in self.tasks), RowSummary())

    @property
    def partitions(self) -> tuple[int, ...]:
        runs = (run for task in self.tasks for part in task.parts for run in part.runs)
        return tuple(sorted({run.partition for run in runs}))


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What a commit did; `ends` are, by partition, the offsets behind its last records.

    One that was done before (`is_repeated`) appended nothing.
    """

    rows: int
    is_repeated: bool
    ends: Mapping[int, int]


class SinkCommit:
    """Commits to an open store, and settles what earlier commits left."""

    def __init__(
        self, store: Store, ledger: SinkLedger, *, clock: Clock, random: random_module.Random
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._clock = clock
        self._random = random

    def commit(self, write: EpochWrite, target: SinkTarget, staging: Staging) -> CommitResult:
        """Appends an epoch unless it is there; raises InvalidRequest for one that cannot follow."""
        self.settle()
        sinks = self._ledger.read()
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
        logs = {number: topic.partition(number).log for number in write.partitions}
        sink = self._prepare(known, write, target, logs)
        try:
            self._append(sink, write, logs, staging)
            ends = tuple(logs[number].end_offset for number in write.partitions)
            self._ledger.put(sink.with_state(RunState.COMMITTING, ends))
        except StoreError:
            # What cannot be settled now is settled by the next commit.
            with suppress(StoreError):
                self.settle()
            raise
        self._finish(sink.with_state(RunState.COMMITTING, ends), logs, is_committed=True)
        return CommitResult(
            write.summary.rows, is_repeated=False, ends=dict(zip(logs, ends, strict=True))
        )

    def settle(self) -> list[str]:
        """Ends every transaction that a crash left open; gives the ids of their sinks."""
        cut = [sink for sink in self._ledger.read().values() if sink.running is not None]
        for sink in cut:
            # Seen is not yet on disk: the writer may have died before it synced the name.
            self._ledger.put(sink)
            is_committed = sink.running is not None and sink.running.state is RunState.COMMITTING
            logs = self._find_logs(sink)
            if is_committed:
                _check_whole(sink, logs)
            self._finish(sink, logs, is_committed=is_committed)
        return [sink.id for sink in cut]

    def _get_topic(self, target: SinkTarget, partitions: Sequence[int]) -> Topic:
        topic = self._store.topic(target.topic)
        if topic_id_of(topic) != target.topic_id:
            raise InvalidRequest(
                f"topic {target.topic} was deleted and made again while rows were staged for it: "
                "write again"
            )
        if partitions and partitions[-1] >= topic.partition_count:
            raise InvalidRequest(
                f"rows are staged for partition {partitions[-1]} of {target.topic}, which has "
                f"{topic.partition_count}: write again"
            )
        return topic

    def _prepare(
        self,
        known: Sink | None,
        write: EpochWrite,
        target: SinkTarget,
        logs: Mapping[int, Log],
    ) -> Sink:
        running = Running(write.epoch, RunState.PREPARED, write.summary, write.partitions)
        if known is None or known.producer_epoch >= _PRODUCER_EPOCH_MAX:
            producer_id, producer_epoch = self._choose_producer(logs), 0
        else:
            producer_id, producer_epoch = known.producer_id, known.producer_epoch + 1
        fresh = known or Sink(
            id=write.sink_id,
            topic=target.topic,
            topic_id=target.topic_id,
            query=write.query,
            is_once=write.is_once,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )
        sink = replace(
            fresh, producer_id=producer_id, producer_epoch=producer_epoch, running=running
        )
        self._ledger.put(sink)
        return sink

    def _choose_producer(self, logs: Mapping[int, Log]) -> int:
        taken = {sink.producer_id for sink in self._ledger.read().values()}
        taken.update(*(log.active_producers() for log in logs.values()))
        while True:
            chosen = PRODUCER_ID_MIN + self._random.getrandbits(_PRODUCER_ID_BITS)
            if chosen not in taken:
                return chosen

    def _append(
        self, sink: Sink, write: EpochWrite, logs: Mapping[int, Log], staging: Staging
    ) -> None:
        """Appends all batches in the order of tasks, and brings them to the disk."""
        sequences = dict.fromkeys(logs, 0)
        now_ms = self._clock.now_ms()
        for part in (part for task in write.tasks for part in task.parts):
            data = staging.read(part)
            for run in part.runs:
                for batch in split_batches(data[run.start : run.end]):
                    sequence = sequences[run.partition]
                    stamped = join_transaction(
                        bytearray(batch),
                        producer_id=sink.producer_id,
                        producer_epoch=sink.producer_epoch,
                        base_sequence=sequence,
                        now_ms=now_ms,
                    )
                    logs[run.partition].append(stamped)
                    sequences[run.partition] = increment_sequence(
                        sequence, decode_header(batch).last_offset_delta + 1
                    )
        for log in logs.values():
            log.flush()

    def _find_logs(self, sink: Sink) -> dict[int, Log]:
        """The logs that the running epoch reached; none when the topic is gone."""
        assert sink.running is not None
        try:
            topic = self._store.topic(sink.topic)
        except NotFound:
            return {}
        if topic_id_of(topic) != sink.topic_id:
            return {}
        return {number: topic.partition(number).log for number in sink.running.partitions}

    def _finish(self, sink: Sink, logs: Mapping[int, Log], *, is_committed: bool) -> None:
        """Writes the markers that are missing, and then that the epoch is done or undone."""
        for log in logs.values():
            if any(one.producer_id == sink.producer_id for one in log.open_transactions()):
                log.end_transaction(
                    producer_id=sink.producer_id,
                    producer_epoch=sink.producer_epoch,
                    committed=is_committed,
                )
        for log in logs.values():
            log.flush()
        if sink.is_once:
            self._ledger.forget(sink.id)
        elif is_committed:
            self._ledger.put(sink.done(self._clock.now_ms()))
        else:
            self._ledger.put(replace(sink, running=None))


def topic_id_of(topic: Topic) -> str:
    """A topic's id as text; empty where no partition tells it."""
    return "" if topic.id is None else encode_topic_id(topic.id)


def check_owner(known: Sink, write: EpochWrite, target: SinkTarget) -> None:
    """Raises InvalidRequest where the sink's epochs are not those of this write."""
    if known.topic != target.topic:
        raise InvalidRequest(
            f"sink {known.id} writes to topic {known.topic}, not to {target.topic}: choose another "
            "sinkId, or for a stream another queryName"
        )
    if known.topic_id != target.topic_id:
        raise InvalidRequest(
            f"topic {known.topic} was deleted and made again since sink {known.id} committed epoch "
            f"{known.epoch}: choose another sinkId, or for a stream another queryName"
        )
    if known.query != write.query:
        raise InvalidRequest(
            f"sink {known.id} belongs to {_tell_query(known.query)}, which committed epoch "
            f"{known.epoch}, and this is {_tell_query(write.query)}: its epochs count anew and "
            "would be taken for done; go on with the checkpoint of that query, or choose another "
            "sinkId or queryName, and what the new query reads is appended"
        )


def check_former_name(sinks: Iterable[Sink], write: EpochWrite, target: SinkTarget) -> None:
    """Raises InvalidRequest where the query committed the epoch under another name."""
    if write.query is None:
        return
    for one in sinks:
        is_same = (one.query, one.topic_id) == (write.query, target.topic_id)
        if is_same and one.epoch is not None and one.epoch >= write.epoch:
            raise InvalidRequest(
                f"{_tell_query(write.query)} committed epoch {one.epoch} as sink {one.id}, and "
                f"epoch {write.epoch} as {write.sink_id} would be written twice: give it its "
                "former name, at least until this epoch is done"
            )


def _tell_query(query: str | None) -> str:
    return "batch writes" if query is None else f"the streaming query {query}"


def is_done(known: Sink, write: EpochWrite) -> bool:
    """Whether the epoch was committed before; raises InvalidRequest for one that cannot follow."""
    if known.epoch is None or write.epoch > known.epoch:
        return False
    if write.epoch < known.epoch:
        raise InvalidRequest(
            f"sink {known.id} has committed epoch {known.epoch}, and epoch {write.epoch} comes "
            "after it: an older checkpoint was put in place, or a batch write counts backwards; "
            "put the right checkpoint back, or choose another sinkId to append these rows"
        )
    if known.summary != write.summary and not write.skips_repeated:
        raise InvalidRequest(
            f"epoch {write.epoch} of sink {known.id} was committed with {_tell(known.summary)}, "
            f"and comes again with {_tell(write.summary)}: these are other rows, so they are not "
            "taken for the same; give them another epoch or sinkId, for a stream put the right "
            "checkpoint back, or where a query gives other rows each time it is run, let the first "
            "ones count with skipRepeated=true"
        )
    return True


def _tell(summary: RowSummary | None) -> str:
    if summary is None:
        return "no rows"
    return f"{summary.rows} rows of {summary.content_bytes} bytes"


def _check_whole(sink: Sink, logs: Mapping[int, Log]) -> None:
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
