"""What one cleaning run leaves of a log, told the naive way: whole lists and one dict.

The rules are Apache Kafka's (KIP-58, KIP-98, KIP-534). Everything below the first uncleanable
offset is looked at, and what has to be known is computed from the decoded batches alone.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum, auto
from typing import NamedTuple

from varve.cleaning.removals.removal import Reason
from varve.commit_log.transaction_index import AbortedTransaction
from varve.records import (
    Batch,
    Codec,
    Record,
    TimestampType,
    build_batch,
    decode_control_record,
    decode_header,
    empty_batch,
)
from varve.records.building import ControlType


class Shell(NamedTuple):
    """A producer the log knows: its epoch and where its last data batch ends, if one is known."""

    epoch: int
    last_data_offset: int | None


@dataclass(frozen=True, slots=True)
class ModelBatch:
    """One batch as plain values; `data` are its bytes, None when only the values are foretold."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    codec: Codec
    timestamp_type: TimestampType
    is_transactional: bool
    is_control: bool
    delete_horizon_ms: int | None
    base_timestamp: int
    max_timestamp: int
    records: tuple[Record, ...]
    data: bytes | None = field(default=None, compare=False)

    @staticmethod
    def of(data: bytes) -> "ModelBatch":
        batch = Batch(data)
        header = batch.header
        assert batch.is_valid_crc(), f"batch at offset {header.base_offset} has a wrong CRC"
        return ModelBatch(
            base_offset=header.base_offset,
            last_offset=header.last_offset,
            leader_epoch=header.partition_leader_epoch,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            codec=header.codec,
            timestamp_type=header.timestamp_type,
            is_transactional=header.is_transactional,
            is_control=header.is_control,
            delete_horizon_ms=header.delete_horizon_ms,
            base_timestamp=header.base_timestamp,
            max_timestamp=header.max_timestamp,
            records=tuple(batch.records()),
            data=data,
        )

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1

    @property
    def control_type(self) -> ControlType | None:
        """What a control batch says; None when it was emptied."""
        if not self.records:
            return None
        key, value = self.records[0].key, self.records[0].value
        assert key is not None
        return decode_control_record(key, value).type

    def encoded(self) -> bytes:
        """The bytes that stand for these values when nothing is compressed."""
        assert self.codec is Codec.NONE
        append_time = self.timestamp_type is TimestampType.LOG_APPEND_TIME
        data = build_batch(
            self.records or [Record(None, None)],
            base_offset=self.base_offset,
            timestamp_type=self.timestamp_type,
            log_append_time=self.max_timestamp if append_time else -1,
            leader_epoch=self.leader_epoch,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=self.base_sequence,
            transactional=self.is_transactional,
            control=self.is_control,
            delete_horizon_ms=self.delete_horizon_ms,
            offset_deltas=[record.offset - self.base_offset for record in self.records] or [0],
            last_offset_delta=self.last_offset - self.base_offset,
        )
        if self.records:
            return data
        return empty_batch(decode_header(data)._replace(max_timestamp=self.max_timestamp))


class Verdict(Enum):
    """What transaction tracking says of a batch."""

    LIVE = auto()
    ABORTED = auto()
    NEEDED_MARKER = auto()
    DISCARDABLE_MARKER = auto()


@dataclass(slots=True)
class Transactions:
    """The transactions that are going on while batches are looked at in offset order."""

    pending: list[AbortedTransaction]
    aborting: dict[int, AbortedTransaction] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    committing: set[int] = field(default_factory=set)
    still_indexed: list[AbortedTransaction] = field(default_factory=list)

    def judge(self, batch: ModelBatch) -> Verdict:
        while self.pending and self.pending[0].first_offset <= batch.last_offset:
            one = self.pending.pop(0)
            self.aborting.setdefault(one.producer_id, one)
        if batch.is_control:
            return self._judge_marker(batch)
        if not batch.is_transactional:
            return Verdict.LIVE
        if batch.producer_id in self.aborting:
            self.seen.add(batch.producer_id)
            return Verdict.ABORTED
        self.committing.add(batch.producer_id)
        return Verdict.LIVE

    def _judge_marker(self, batch: ModelBatch) -> Verdict:
        producer_id = batch.producer_id
        match batch.control_type:
            case None:
                return Verdict.DISCARDABLE_MARKER
            case ControlType.ABORT:
                ended = self.aborting.pop(producer_id, None)
                if ended is None or producer_id not in self.seen:
                    return Verdict.DISCARDABLE_MARKER
                self.seen.remove(producer_id)
                self.still_indexed.append(ended)
                return Verdict.NEEDED_MARKER
            case ControlType.COMMIT:
                if producer_id not in self.committing:
                    return Verdict.DISCARDABLE_MARKER
                self.committing.remove(producer_id)
                return Verdict.NEEDED_MARKER
            case _:
                return Verdict.NEEDED_MARKER


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All a run goes by: the batches below the first uncleanable offset, and their surroundings."""

    batches: Sequence[ModelBatch]
    aborted: Sequence[AbortedTransaction]
    producers: Mapping[int, Shell]
    first_uncleanable_offset: int
    now_ms: int
    delete_retention_ms: int


@dataclass(slots=True)
class Outcome:
    """What a run leaves, and why the rest went."""

    batches: list[ModelBatch] = field(default_factory=list)
    aborted: list[AbortedTransaction] = field(default_factory=list)
    records: Counter[Reason] = field(default_factory=Counter)


def clean(run: Run) -> Outcome:
    """One cleaning run over everything below the first uncleanable offset."""
    transactions = Transactions(sorted(run.aborted, key=lambda one: one.first_offset))
    judged = [(batch, transactions.judge(batch)) for batch in run.batches]
    newest = newest_offsets(judged)
    outcome = Outcome()
    for batch, verdict in judged:
        left = _clean_batch(run, batch, verdict, newest, outcome.records)
        if left is not None:
            outcome.batches.append(left)
    undecided_here = [one for one in run.aborted if one.last_offset >= run.first_uncleanable_offset]
    outcome.aborted = transactions.still_indexed + undecided_here
    return outcome


def newest_offsets(judged: Sequence[tuple[ModelBatch, Verdict]]) -> dict[bytes, int]:
    """The offset of the last record of each key, aborted and control records left out."""
    return {
        record.key: record.offset
        for batch, verdict in judged
        if verdict is Verdict.LIVE
        for record in batch.records
        if record.key is not None
    }


def _clean_batch(
    run: Run,
    batch: ModelBatch,
    verdict: Verdict,
    newest: Mapping[bytes, int],
    counts: Counter[Reason],
) -> ModelBatch | None:
    is_past_horizon = batch.delete_horizon_ms is not None and run.now_ms >= batch.delete_horizon_ms
    kept = []
    for record in batch.records:
        reason = _judge_record(record, verdict, newest, is_past_horizon)
        counts[reason] += 1
        if reason is Reason.KEPT:
            kept.append(record)
    if not kept:
        return _emptied(batch) if is_kept_empty(run, batch) else None
    is_stamped = batch.delete_horizon_ms is None and (
        verdict is Verdict.DISCARDABLE_MARKER
        or (not batch.is_control and any(record.value is None for record in kept))
    )
    if len(kept) == len(batch.records) and not is_stamped:
        return batch
    horizon_ms = run.now_ms + run.delete_retention_ms if is_stamped else batch.delete_horizon_ms
    return _rebuilt(batch, kept, horizon_ms)


def _judge_record(
    record: Record, verdict: Verdict, newest: Mapping[bytes, int], is_past_horizon: bool
) -> Reason:
    if verdict is Verdict.ABORTED:
        return Reason.ABORTED
    if verdict is Verdict.DISCARDABLE_MARKER and is_past_horizon:
        return Reason.MARKER_EXPIRED
    if verdict is not Verdict.LIVE:
        return Reason.KEPT
    if record.key is None:
        return Reason.NO_KEY
    if record.offset < newest[record.key]:
        return Reason.SUPERSEDED
    if record.value is None and is_past_horizon:
        return Reason.TOMBSTONE_EXPIRED
    return Reason.KEPT


def is_kept_empty(run: Run, batch: ModelBatch) -> bool:
    """Whether a batch stays though its records go: for its producer, or for the log's end."""
    if batch.next_offset == run.first_uncleanable_offset:
        return True
    known = run.producers.get(batch.producer_id) if batch.producer_id >= 0 else None
    if known is None:
        return False
    if known.last_data_offset is not None:
        return known.last_data_offset == batch.last_offset
    return batch.is_control and batch.producer_epoch == known.epoch


def _emptied(batch: ModelBatch) -> ModelBatch:
    return replace(
        batch,
        codec=Codec.NONE,
        delete_horizon_ms=None,
        base_timestamp=-1,
        records=(),
        data=None,
    )


def _rebuilt(batch: ModelBatch, kept: Sequence[Record], horizon_ms: int | None) -> ModelBatch:
    max_timestamp = batch.max_timestamp
    if batch.timestamp_type is TimestampType.CREATE_TIME:
        max_timestamp = max(record.timestamp for record in kept)
    return replace(
        batch,
        delete_horizon_ms=horizon_ms,
        base_timestamp=kept[0].timestamp if horizon_ms is None else horizon_ms,
        max_timestamp=max_timestamp,
        records=tuple(kept),
        data=None,
    )


def check_batches(found: Sequence[ModelBatch], expected: Sequence[ModelBatch]) -> None:
    """The batches of a cleaned log are those foretold: value by value, and byte by byte where no
    codec has a say.
    """
    bases = [batch.base_offset for batch in found]
    assert bases == [batch.base_offset for batch in expected]
    for one, foretold in zip(found, expected, strict=True):
        assert one == foretold, _difference(one, foretold)
        if foretold.data is not None:
            assert one.data == foretold.data, f"{one} was not copied as it is"
        elif foretold.codec is Codec.NONE:
            assert one.data == foretold.encoded(), f"{one} is encoded in another way"


def _difference(one: ModelBatch, other: ModelBatch) -> str:
    names = [item.name for item in fields(one) if item.compare]
    parts = [
        f"{name} is {getattr(one, name)!r}, not {getattr(other, name)!r}"
        for name in names
        if getattr(one, name) != getattr(other, name)
    ]
    return f"batch at offset {other.base_offset}: " + "; ".join(parts)
