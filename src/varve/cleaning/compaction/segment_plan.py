"""The compaction plan of one segment: an action for each batch, from the key index alone.

Invariant  every record is counted under one reason; a kept record keeps its offset, timestamp, key,
           value and headers. The rules for empty batches, delete horizons and transaction markers
           are Kafka's.
Invariant  a marker is needed while a batch of its transaction exists. A batch that is seen in a run
           keeps its marker, even if the run removes the batch. From an offset on, readers of the
           remote tier may need markers, whose batches a local run does not see. The tracker gets
           all segments of a run once, in offset order; an aborted transaction is kept while its
           marker is needed. From the first held segment on all markers stay: their transactions
           may have records in it.
Threads    one; a run has its own tracker.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from varve.cleaning.key_index.key_index import (
    BATCH_ABORTED,
    NO_HORIZON,
    InputSegment,
    KeyIndexHeader,
    SegmentKeys,
)
from varve.cleaning.removals.removal import Reason, SegmentSummary
from varve.commit_log.producer_state import LastRecord
from varve.commit_log.transaction_index import AbortedTransaction
from varve.foundation.settings import LONG_MAX
from varve.kernels.batch_filter import KEEP_TIMESTAMP, Action
from varve.kernels.batch_layout import CONTROL_BIT, HEADER_BYTES, TRANSACTIONAL_BIT
from varve.kernels.key_merge import Tally, count_bits, set_ranges
from varve.records.building import ControlType

Bits = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
Table = npt.NDArray[Any]
"""Rows of a key index: its batches or its marks. docs/reference/formats/keys.md"""

_HORIZON_GROWTH: Final = 4
"""Bytes that a record's timestamp delta grows by, when its base timestamp becomes a delete horizon
that lies a day to a month away."""


@dataclass(frozen=True, slots=True)
class RunRules:
    """The rules of one run over one partition.

    `producers` are the active ones; `first_uncleanable_offset` is where the run ends. Tombstones
    and markers from `keep_markers_from_offset` on stay without a delete horizon, because the
    remote log may hold records that they delete. Their `delete.retention.ms` begins when it no
    longer does.
    """

    now_ms: int
    delete_retention_ms: int
    first_uncleanable_offset: int
    producers: Mapping[int, LastRecord]
    keep_markers_from_offset: int = LONG_MAX
    keep_empty_batches: bool = False
    """Whether batches stay that had no record before the run."""

    @property
    def horizon_ms(self) -> int:
        """The delete horizon of tombstones and markers that this run is the first to clean."""
        return min(self.now_ms + self.delete_retention_ms, LONG_MAX)

    def protected_ends(self) -> Integers:
        """Last offsets of batches that stay even without a record."""
        ends = [
            producer.last_data_offset
            for producer in self.producers.values()
            if producer.last_data_offset is not None
        ]
        return np.array(sorted({*ends, self.first_uncleanable_offset - 1}), np.int64)

    def epochs_without_data(self) -> dict[int, int]:
        """The epochs of producers without a known data batch, by producer id."""
        return {
            id: producer.epoch
            for id, producer in self.producers.items()
            if producer.last_data_offset is None
        }


@dataclass(frozen=True, slots=True)
class BatchDecisions:
    """An action for each batch of a segment, and the columns needed to carry it out."""

    positions: Integers
    sizes: Integers
    base_offsets: Integers
    counts: Integers
    first_records: Integers
    kept: Integers
    actions: npt.NDArray[np.uint8]
    horizons: Integers

    @property
    def changes_anything(self) -> bool:
        """Whether a rewrite would change a batch; one that is empty already and stays does not."""
        is_same = (self.actions == Action.COPY) | (
            (self.actions == Action.KEEP_HEADER) & (self.counts == 0)
        )
        return not bool(is_same.all())


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFigures:
    """The counts and sizes of a segment's plan, without the arrays that grow with its records."""

    base_offset: int
    size: int
    next_offset: int
    is_dirty: bool
    summary: SegmentSummary
    """The segment before the run."""
    records: dict[Reason, int]
    bytes: dict[Reason, int]
    deleted: int
    digest: tuple[int, int]
    planned_bytes: int
    stamped_bytes: int
    """The part of `planned_bytes` that are unneeded markers which get a delete horizon now."""
    is_changed: bool

    @property
    def stale_share(self) -> float:
        """The share of its record bytes that need not stay."""
        total = sum(self.bytes.values())
        return 1 - self.bytes.get(Reason.KEPT, 0) / total if total else 0.0

    @property
    def stale_bytes(self) -> int:
        """An estimate of the bytes that a rewrite removes from the data file."""
        return round(self.stale_share * self.size)

    @property
    def gain_share(self) -> float:
        """The share of the data file that a rewrite removes, or lets a later run remove.

        Counts empty batches and markers besides stale records.
        """
        remaining = self.planned_bytes - self.stamped_bytes
        return max(self.stale_share, 1 - remaining / self.size if self.size else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPlan(SegmentFigures):
    """The plan of one segment: its bitmaps and their figures."""

    segment: InputSegment
    keys: SegmentKeys
    keep: Bits
    tombstones: Bits
    discardable: npt.NDArray[np.bool_]
    aborted_kept: list[AbortedTransaction]
    rules: RunRules = field(repr=False)

    def figures(self) -> SegmentFigures:
        """The plan without its arrays."""
        return SegmentFigures(
            **{field.name: getattr(self, field.name) for field in fields(SegmentFigures)}
        )

    def decide(self, batches: Table, marks: Table) -> BatchDecisions:
        return decide_batches(
            batches,
            marks,
            base_offset=self.segment.base_offset,
            keep=self.keep,
            tombstones=self.tombstones,
            discardable=self.discardable,
            rules=self.rules,
        )


def summarize_input(segment: InputSegment, header: KeyIndexHeader) -> SegmentSummary:
    """The summary of a segment before the run."""
    end = max(header.last_offset + 1, segment.base_offset)
    return SegmentSummary(segment.base_offset, end, segment.size, header.record_count)


def mark_expired(batches: Table, bits: Bits, *, base_offset: int, rules: RunRules) -> None:
    """Sets the bits of all records in batches whose delete horizon has passed."""
    firsts = first_records(batches)
    is_expired = (batches["horizon"] != NO_HORIZON) & (batches["horizon"] <= rules.now_ms)
    is_expired &= base_offset + batches["last"].astype(np.int64) < rules.keep_markers_from_offset
    set_ranges(bits, firsts[is_expired], batches["count"][is_expired].astype(np.int64))


def first_records(batches: Table) -> Integers:
    """The number, within the segment, of each batch's first record."""
    counts = batches["count"].astype(np.int64)
    return np.cumsum(counts) - counts


def keep_control_records(
    batches: Table,
    marks: Table,
    discardable: npt.NDArray[np.bool_],
    keep: Bits,
    *,
    now_ms: int,
) -> None:
    """Sets the bits of markers and other control records that stay."""
    control = batches["attributes"][marks["batch"]] & CONTROL_BIT != 0
    horizons = batches["horizon"][marks["batch"]]
    is_expired = discardable & (horizons != NO_HORIZON) & (horizons <= now_ms)
    kept = marks["batch"][control & ~is_expired]
    counts = batches["count"][kept].astype(np.int64)
    set_ranges(keep, first_records(batches)[kept], counts)


def decide_batches(
    batches: Table,
    marks: Table,
    *,
    base_offset: int,
    keep: Bits,
    tombstones: Bits,
    discardable: npt.NDArray[np.bool_],
    rules: RunRules,
) -> BatchDecisions:
    """The actions for all batches of a segment, from the bitmap of its kept records."""
    counts = batches["count"].astype(np.int64)
    kept = np.empty(len(batches), np.int64)
    count_bits(keep, 0, counts, kept)
    last_offsets = base_offset + batches["last"].astype(np.int64)
    is_protected = np.isin(last_offsets, rules.protected_ends())
    is_protected[_silent_markers(batches, marks, rules)] = True
    if rules.keep_empty_batches:
        is_protected |= counts == 0
    needs_horizon = _needs_horizon(batches, marks, discardable, kept, tombstones)
    needs_horizon &= last_offsets < rules.keep_markers_from_offset
    actions = np.where(kept == counts, Action.COPY, Action.FILTER).astype(np.uint8)
    actions[needs_horizon] = Action.FILTER
    actions[kept == 0] = Action.SKIP
    actions[(kept == 0) & is_protected] = Action.KEEP_HEADER
    return BatchDecisions(
        positions=batches["position"].astype(np.int64),
        sizes=batches["size"].astype(np.int64),
        base_offsets=base_offset + batches["base"].astype(np.int64),
        counts=counts,
        first_records=np.cumsum(counts) - counts,
        kept=kept,
        actions=actions,
        horizons=np.where(needs_horizon, rules.horizon_ms, KEEP_TIMESTAMP),
    )


def _silent_markers(batches: Table, marks: Table, rules: RunRules) -> Integers:
    """Numbers of the batches that are a producer's only trace: markers of its current epoch."""
    silent = rules.epochs_without_data()
    if not silent or not len(marks):
        return np.empty(0, np.int64)
    ids = np.array(sorted(silent), np.int64)
    epochs = np.array([silent[id] for id in ids.tolist()], np.int64)
    slots = np.searchsorted(ids, marks["producer_id"]).clip(max=len(ids) - 1)
    is_silent = (ids[slots] == marks["producer_id"]) & (epochs[slots] == marks["epoch"])
    is_silent &= batches["attributes"][marks["batch"]] & CONTROL_BIT != 0
    numbers: Integers = marks["batch"][is_silent].astype(np.int64)
    return numbers


def _needs_horizon(
    batches: Table,
    marks: Table,
    discardable: npt.NDArray[np.bool_],
    kept: Integers,
    tombstones: Bits,
) -> npt.NDArray[np.bool_]:
    """Whether each batch needs a delete horizon and has none yet.

    A batch needs one for a surviving tombstone, or for a marker that is no longer needed.
    """
    has_discardable = np.zeros(len(batches), np.bool_)
    has_discardable[marks["batch"][discardable]] = True
    tombstone_counts = np.empty(len(batches), np.int64)
    count_bits(tombstones, 0, batches["count"].astype(np.int64), tombstone_counts)
    has_no_horizon: npt.NDArray[np.bool_] = batches["horizon"] == NO_HORIZON
    return has_no_horizon & (kept > 0) & ((tombstone_counts > 0) | has_discardable)


def estimate_size(
    header: KeyIndexHeader,
    batches: Table,
    decisions: BatchDecisions,
    tally: Mapping[Tally, int],
) -> int:
    """An estimate of the size of a segment after its rewrite.

    Compressed batches are taken to shrink in proportion to their records. A delete horizon replaces
    the base timestamp of a batch, so the timestamp deltas of its records grow.
    """
    is_aborted = batches["flags"] & BATCH_ABORTED != 0
    is_control = batches["attributes"] & CONTROL_BIT != 0
    body_sizes = np.maximum(decisions.sizes - HEADER_BYTES, 0)
    data = int(body_sizes[~is_aborted & ~is_control].sum())
    data = data * tally[Tally.KEPT_BYTES] // max(header.record_bytes, 1)
    control = int(body_sizes[is_control & (decisions.kept > 0)].sum())
    headers = HEADER_BYTES * int(np.count_nonzero(decisions.actions != Action.SKIP))
    stamped = int(decisions.kept[decisions.horizons != KEEP_TIMESTAMP].sum())
    return headers + data + control + stamped * _HORIZON_GROWTH


def stamped_markers_size(batches: Table, decisions: BatchDecisions) -> int:
    """Bytes of the markers that get a horizon."""
    is_control = batches["attributes"] & CONTROL_BIT != 0
    return int(decisions.sizes[is_control & (decisions.horizons != KEEP_TIMESTAMP)].sum())


def count_by_reason(
    header: KeyIndexHeader,
    batches: Table,
    decisions: BatchDecisions,
    tally: Mapping[Tally, int],
) -> tuple[dict[Reason, int], dict[Reason, int]]:
    """Records and bytes of a segment by the reason why they stay or are removed.

    Bytes are those of encoded records; of an aborted batch or marker, those after its batch header.
    The bytes of records without a key count as superseded.
    """
    is_aborted = batches["flags"] & BATCH_ABORTED != 0
    is_control = batches["attributes"] & CONTROL_BIT != 0
    body_sizes = np.maximum(decisions.sizes - HEADER_BYTES, 0)
    control_kept = int(decisions.kept[is_control].sum())
    markers_removed = int((decisions.counts - decisions.kept)[is_control].sum())
    aborted = int(decisions.counts[is_aborted].sum())
    data = header.record_count - aborted - control_kept - markers_removed
    records = {
        Reason.KEPT: tally[Tally.KEPT] + control_kept,
        Reason.SUPERSEDED: data - tally[Tally.KEPT] - tally[Tally.EXPIRED] - header.null_key_count,
        Reason.TOMBSTONE_EXPIRED: tally[Tally.EXPIRED],
        Reason.NO_KEY: header.null_key_count,
        Reason.ABORTED: aborted,
        Reason.MARKER_EXPIRED: markers_removed,
    }
    is_removed = is_control & (decisions.kept == 0)
    bytes = {
        Reason.KEPT: tally[Tally.KEPT_BYTES] + int(body_sizes[is_control & ~is_removed].sum()),
        Reason.SUPERSEDED: header.record_bytes
        - tally[Tally.KEPT_BYTES]
        - tally[Tally.EXPIRED_BYTES],
        Reason.TOMBSTONE_EXPIRED: tally[Tally.EXPIRED_BYTES],
        Reason.ABORTED: int(body_sizes[is_aborted].sum()),
        Reason.MARKER_EXPIRED: int(body_sizes[is_removed].sum()),
    }
    return records, bytes


@dataclass(frozen=True, slots=True)
class MarkVerdicts:
    """Of one segment: per mark whether its marker is discardable, False for a data batch.

    `aborted_kept` goes into the transaction index of the segment that replaces this one.
    """

    discardable: npt.NDArray[np.bool_]
    aborted_kept: list[AbortedTransaction]


class TransactionTracker:
    """The transactions of a run; `aborted` are those that touch its range, in any order.

    Markers at `keep_markers_from_offset` and after it are all needed, and nothing is judged in
    segments from `first_held_offset` on.
    """

    def __init__(
        self,
        aborted: Sequence[AbortedTransaction],
        keep_markers_from_offset: int = LONG_MAX,
        first_held_offset: int = LONG_MAX,
    ) -> None:
        self._kept_from = keep_markers_from_offset
        self._held_from = first_held_offset
        self._aborted = sorted(aborted, key=lambda transaction: transaction.first_offset)
        self._begun = 0
        self._ongoing: dict[int, AbortedTransaction] = {}
        self._seen_aborted: set[int] = set()
        self._seen_committed: set[int] = set()
        self._next_offset = -1

    def judge(
        self, base_offset: int, next_offset: int, batches: Table, marks: Table
    ) -> MarkVerdicts:
        """Judges the marks of the next segment, which ends before `next_offset`."""
        assert base_offset >= self._next_offset, "segments of a run are fed in offset order"
        if base_offset >= self._held_from:
            decided = self._decided_between(base_offset, next_offset)
            return MarkVerdicts(np.zeros(len(marks), np.bool_), decided)
        numbers = marks["batch"]
        attributes = batches["attributes"][numbers]
        verdicts = MarkVerdicts(np.zeros(len(marks), np.bool_), [])
        rows = zip(
            (base_offset + batches["last"][numbers].astype(np.int64)).tolist(),
            (attributes & CONTROL_BIT != 0).tolist(),
            (attributes & TRANSACTIONAL_BIT != 0).tolist(),
            (batches["count"][numbers] == 0).tolist(),
            marks["control"].tolist(),
            marks["producer_id"].tolist(),
            strict=True,
        )
        for slot, (last, is_control, is_transactional, is_empty, control, producer_id) in enumerate(
            rows
        ):
            self._begin_up_to(last)
            if is_control:
                verdicts.discardable[slot] = is_empty or self._is_discardable(
                    control, producer_id, verdicts.aborted_kept, is_kept=last >= self._kept_from
                )
            elif is_transactional:
                self._see(producer_id)
        if len(batches):
            self._next_offset = base_offset + int(batches["last"][-1]) + 1
        return verdicts

    def _decided_between(self, start: int, end: int) -> list[AbortedTransaction]:
        return [
            transaction for transaction in self._aborted if start <= transaction.last_offset < end
        ]

    def fork(self, base_offset: int, next_offset: int) -> "TransactionTracker":
        """A tracker that can judge only the next segment, for another process."""
        fork = TransactionTracker((), self._kept_from, self._held_from)
        if base_offset >= self._held_from:
            fork._aborted = self._decided_between(base_offset, next_offset)
            return fork
        end = bisect_left(
            self._aborted, next_offset, key=lambda transaction: transaction.first_offset
        )
        fork._aborted = self._aborted[self._begun : end]
        fork._ongoing = dict(self._ongoing)
        fork._seen_aborted = set(self._seen_aborted)
        fork._seen_committed = set(self._seen_committed)
        fork._next_offset = self._next_offset
        return fork

    def _begin_up_to(self, offset: int) -> None:
        """Aborted transactions that have begun are ongoing until their producer's next ABORT."""
        aborted = self._aborted
        while self._begun < len(aborted) and aborted[self._begun].first_offset <= offset:
            transaction = aborted[self._begun]
            self._ongoing.setdefault(transaction.producer_id, transaction)
            self._begun += 1

    def _see(self, producer_id: int) -> None:
        if producer_id in self._ongoing:
            self._seen_aborted.add(producer_id)
        else:
            self._seen_committed.add(producer_id)

    def _is_discardable(
        self,
        control: int,
        producer_id: int,
        aborted_kept: list[AbortedTransaction],
        *,
        is_kept: bool,
    ) -> bool:
        """Whether a marker is discardable; ends its producer's transaction."""
        if control == ControlType.ABORT:
            transaction = self._ongoing.pop(producer_id, None)
            is_needed = is_kept or producer_id in self._seen_aborted
            if transaction is None or not is_needed:
                return not is_kept
            self._seen_aborted.discard(producer_id)
            aborted_kept.append(transaction)
            return False
        if control == ControlType.COMMIT:
            is_needed = is_kept or producer_id in self._seen_committed
            self._seen_committed.discard(producer_id)
            return not is_needed
        return False
