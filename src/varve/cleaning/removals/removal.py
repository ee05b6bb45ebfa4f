"""A removal: which segments went in, which came out, and why the other records are gone.

Local segments that are evicted because object storage holds them are recorded in the same way,
though no record is removed.

Invariant  a removal that passes `check` accounts for every record of its inputs by one reason, and
           its outputs hold exactly the records, and after a rewrite the keys, that were to stay.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final, TypeVar

import numpy as np

from varve.commit_log import TopicPartition
from varve.commit_log.segment import Segment
from varve.commit_log.segment_reader import BatchTable, BatchWalk
from varve.foundation.errors import Corrupt, Unbalanced
from varve.kernels.batch_layout import BatchColumn
from varve.kernels.crc import extend_crc32c


class Reason(StrEnum):
    """Why a record stayed or went."""

    KEPT = "kept"
    SUPERSEDED = "superseded"
    TOMBSTONE_EXPIRED = "tombstone past its horizon"
    NO_KEY = "no key"
    ABORTED = "aborted transaction"
    MARKER_EXPIRED = "transaction marker past its horizon"
    EXPIRED_TIME = "older than retention.ms"
    EXPIRED_SIZE = "beyond retention.bytes"
    BELOW_LOG_START = "below the log start offset"
    EVICTED = "in object storage alone"
    ERASED = "erased on request"


class RemovalKind(StrEnum):
    """A compaction and an erasure replace segments, an expiry lets whole segments go.

    Segments that were moved left the local disk, and their records stay in object storage.
    """

    COMPACTION = "compaction"
    ERASURE = "erasure"
    EXPIRY = "expiry"
    EVICTION = "moved"


_EXPIRY_REASONS: Final = (Reason.EXPIRED_TIME, Reason.EXPIRED_SIZE, Reason.BELOW_LOG_START)
_REASONS_OF_WHOLE: Final = {
    RemovalKind.EXPIRY: _EXPIRY_REASONS,
    RemovalKind.EVICTION: (Reason.EVICTED,),
}
"""Why whole segments go, by what that is called."""
_REWRITES: Final = (RemovalKind.COMPACTION, RemovalKind.ERASURE)
_ERASURE_REASONS: Final = (Reason.KEPT, Reason.ERASED)
_STAYING: Final = (Reason.KEPT, Reason.EVICTED)
_WORD_MAX: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """One generation of a segment.

    `next_offset` is behind its last batch, the base offset when it has none. `log_crc` is the
    CRC-32C over the CRC fields of all its batches in order; None when nobody read them all.
    """

    base_offset: int
    next_offset: int
    size: int
    records: int
    log_crc: int | None = None

    def is_same(self, other: "SegmentSummary") -> bool:
        """Whether both are one generation, as far as their figures tell."""
        is_crc_same = self.log_crc == other.log_crc or None in (self.log_crc, other.log_crc)
        return is_crc_same and (self.base_offset, self.size, self.records) == (
            other.base_offset,
            other.size,
            other.records,
        )


class SegmentSummaryBuilder:
    """Takes a segment's batches in file order and gives its figure."""

    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset
        self._next_offset = base_offset
        self._size = 0
        self._records = 0
        self._crc = 0

    def add(self, table: BatchTable) -> None:
        rows = table.rows
        if not len(rows):
            return
        fields = np.frombuffer(rows[:, BatchColumn.CRC].astype(">u4").tobytes(), np.uint8)
        self._crc = int(extend_crc32c(self._crc, fields, 0, fields.size))
        self._next_offset = int(rows[-1, BatchColumn.LAST_OFFSET]) + 1
        self._size += int(rows[:, BatchColumn.SIZE].sum())
        # A batch without its records has a count of 0; a header that lies has less.
        self._records += int(np.maximum(rows[:, BatchColumn.RECORD_COUNT], 0).sum())

    def figure(self) -> SegmentSummary:
        return SegmentSummary(
            self._base_offset, self._next_offset, self._size, self._records, self._crc
        )


def hex_digest(*digests: tuple[int, int]) -> str:
    """The order-independent digests of several segments as one, in 32 hex digits."""
    high = sum(digest[0] for digest in digests) & _WORD_MAX
    low = sum(digest[1] for digest in digests) & _WORD_MAX
    return f"{high:016x}{low:016x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What one removal took from which segments, and by which rule.

    `id` counts the lines of the evidence file; `EvidenceFile.next_id` gives it. `bytes` are encoded
    record bytes, uncompressed, of a compaction and file bytes where whole segments go.
    `keys_before` is the digest of the keys and offsets that were planned to survive, `keys_after`
    of those that the outputs hold; both are empty where whole segments go. `end_offset` is where
    the removal stopped looking.
    """

    id: int
    partition: TopicPartition
    kind: RemovalKind
    at_ms: int
    inputs: tuple[SegmentSummary, ...]
    outputs: tuple[SegmentSummary, ...]
    records: dict[Reason, int]
    bytes: dict[Reason, int]
    keys_before: str = ""
    keys_after: str = ""
    rule: str
    end_offset: int

    @property
    def records_before(self) -> int:
        return sum(figure.records for figure in self.inputs)

    @property
    def records_after(self) -> int:
        return sum(figure.records for figure in self.outputs)

    @property
    def records_removed(self) -> int:
        """Those that no tier holds any more because of it."""
        return sum(count for reason, count in self.records.items() if reason not in _STAYING)

    @property
    def takes_whole(self) -> bool:
        """Whether whole segments leave the local disk, and nothing takes their place."""
        return self.kind not in _REWRITES

    def check(self) -> None:
        """Raises Unbalanced, naming the numbers, unless everything adds up."""
        if fault := self._find_fault():
            raise Unbalanced(
                f"{self.partition}: {self.kind} {self.id} of offsets {_range(self.inputs)}: {fault}"
            )

    def _find_fault(self) -> str | None:
        return (
            self._find_negative()
            or self._find_wrong_sum()
            or _find_disorder("inputs", self.inputs)
            or _find_disorder("outputs", self.outputs)
            or (
                self._find_fault_of_rewrite()
                if not self.takes_whole
                else self._find_fault_of_whole(_REASONS_OF_WHOLE[self.kind])
            )
        )

    def _find_negative(self) -> str | None:
        for name, counts in (("records", self.records), ("bytes", self.bytes)):
            for reason, count in counts.items():
                if count < 0:
                    return f"{count} {name} are counted as {reason.value!r}"
        return None

    def _find_wrong_sum(self) -> str | None:
        counted = sum(self.records.values())
        if counted != self.records_before:
            listed = ", ".join(f"{reason.value} {n}" for reason, n in self.records.items())
            return (
                f"{counted} records are accounted for ({listed}), but the inputs hold "
                f"{self.records_before}"
            )
        kept = self.records.get(Reason.KEPT, 0)
        if kept != self.records_after:
            return f"{kept} records were to stay, but the outputs hold {self.records_after}"
        return None

    def _find_fault_of_rewrite(self) -> str | None:
        if fault := self._find_foreign_reason():
            return fault
        if not self.inputs or not self.outputs:
            return f"{len(self.inputs)} inputs and {len(self.outputs)} outputs: both are needed"
        if self.outputs[0].base_offset < self.inputs[0].base_offset:
            return f"the outputs begin at offset {self.outputs[0].base_offset}, below the inputs"
        if self.outputs[-1].next_offset > self.inputs[-1].next_offset:
            return f"the outputs reach offset {self.outputs[-1].next_offset}, beyond the inputs"
        if not self.keys_before or self.keys_before != self.keys_after:
            return (
                f"the keys that were to stay have digest {self.keys_before or 'none'}, those of "
                f"the outputs {self.keys_after or 'none'}"
            )
        return None

    def _find_foreign_reason(self) -> str | None:
        """A reason that lets no record go in a rewrite of this kind."""
        is_erasure = self.kind is RemovalKind.ERASURE
        whole = [reason for reasons in _REASONS_OF_WHOLE.values() for reason in reasons]
        for reason, count in self.records.items():
            is_foreign = (
                reason not in _ERASURE_REASONS if is_erasure else reason in (*whole, Reason.ERASED)
            )
            if count and is_foreign:
                return f"{count} records are {reason.value!r}: that is for the kind {_kind(reason)}"
        return None

    def _find_fault_of_whole(self, reasons: Sequence[Reason]) -> str | None:
        if not self.inputs:
            return "no segment is named"
        if self.outputs:
            return f"{len(self.outputs)} segments would come out, where whole ones go"
        for reason, count in self.records.items():
            if count and reason not in reasons:
                return f"{count} records are {reason.value!r}, which lets no segment go"
        return None


def _kind(reason: Reason) -> RemovalKind:
    """The kind of removal that has a reason."""
    for kind, reasons in _REASONS_OF_WHOLE.items():
        if reason in reasons:
            return kind
    return RemovalKind.ERASURE if reason is Reason.ERASED else RemovalKind.COMPACTION


def _find_disorder(name: str, figures: Sequence[SegmentSummary]) -> str | None:
    for figure in figures:
        if figure.next_offset < figure.base_offset or figure.size < 0 or figure.records < 0:
            return f"{name}: impossible figure {figure}"
    for before, after in pairwise(figures):
        is_behind = after.base_offset >= before.next_offset
        if not is_behind or after.base_offset == before.base_offset:
            return (
                f"{name}: segment {after.base_offset} does not lie behind segment "
                f"{before.base_offset}, which ends at {before.next_offset}"
            )
    return None


def _range(figures: Sequence[SegmentSummary]) -> str:
    return f"{figures[0].base_offset}..{figures[-1].next_offset}" if figures else "(none)"


@dataclass(frozen=True, slots=True)
class CountedSegment:
    """A segment's figure; `damage` says where the reading stopped, empty if it did not."""

    figure: SegmentSummary
    damage: str


def count_segment(segment: Segment) -> CountedSegment:
    """Counts by the batch headers; a damaged segment as far as it can be read."""
    builder = SegmentSummaryBuilder(segment.base_offset)
    walk = BatchWalk(segment.file(), start=0, end=segment.size, verify_crc=False)
    for table in walk:
        builder.add(table)
    if walk.position >= segment.size:
        return CountedSegment(builder.figure(), "")
    return CountedSegment(
        replace(builder.figure(), size=segment.size, log_crc=None),
        f"segment {segment.base_offset} is damaged at position {walk.position} of "
        f"{segment.size}, records behind that are not counted",
    )


T = TypeVar("T")

_NUMBER_MAX: Final = 2**63 - 1
_CRC_MAX: Final = 2**32 - 1
_FIGURE_FIELDS: Final = 5
_STORED_NAMES: Final = {
    reason: "moved" if reason is Reason.EVICTED else reason.name.lower() for reason in Reason
}
"""The name of a reason on disk; evictions were called moves when the format was fixed."""
_REASONS: Final = {name: reason for reason, name in _STORED_NAMES.items()}


def encode_removal(balance: Removal) -> dict[str, object]:
    """All fields but the id, in the order they are written."""
    return {
        "kind": str(balance.kind),
        "topic": balance.partition.topic,
        "partition": balance.partition.partition,
        "at_ms": balance.at_ms,
        "end_offset": balance.end_offset,
        "rule": balance.rule,
        "records": _encode_counts(balance.records),
        "bytes": _encode_counts(balance.bytes),
        "keys_before": balance.keys_before,
        "keys_after": balance.keys_after,
        "inputs": [_encode_figure(figure) for figure in balance.inputs],
        "outputs": [_encode_figure(figure) for figure in balance.outputs],
    }


def decode_removal(id: int, document: dict[str, Any]) -> Removal:
    """The balance of a line; raises Corrupt for a field that is missing or out of its range."""
    kind = _get(document, "kind", str)
    if kind not in tuple(RemovalKind):
        raise Corrupt(f"kind {kind[:40]!r} is unknown, {', '.join(RemovalKind)} are known")
    return Removal(
        id=id,
        partition=TopicPartition(
            _get(document, "topic", str), check_number(document.get("partition"), "partition")
        ),
        kind=RemovalKind(kind),
        at_ms=check_number(document.get("at_ms"), "at_ms"),
        end_offset=check_number(document.get("end_offset"), "end_offset"),
        rule=_get(document, "rule", str),
        records=_decode_counts(document, "records"),
        bytes=_decode_counts(document, "bytes"),
        keys_before=_get(document, "keys_before", str),
        keys_after=_get(document, "keys_after", str),
        inputs=_decode_figures(document, "inputs"),
        outputs=_decode_figures(document, "outputs"),
    )


def check_number(value: object, name: str, *, at_most: int = _NUMBER_MAX) -> int:
    """A number of the format; true and false are none."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= at_most:
        raise Corrupt(f"{name} is {str(value)[:40]}, a number of 0 to {at_most} is needed")
    return value


def _encode_counts(counts: dict[Reason, int]) -> dict[str, int]:
    return {_STORED_NAMES[reason]: count for reason, count in counts.items()}


def _encode_figure(figure: SegmentSummary) -> list[int | None]:
    return [figure.base_offset, figure.next_offset, figure.size, figure.records, figure.log_crc]


def _get(document: dict[str, Any], name: str, kind: type[T]) -> T:
    value = document.get(name)
    if not isinstance(value, kind):
        raise Corrupt(f"{name} is {str(value)[:40]!r}, which is no {kind.__name__}")
    return value


def _decode_counts(document: dict[str, Any], name: str) -> dict[Reason, int]:
    counts: dict[Reason, int] = {}
    listed: dict[str, object] = _get(document, name, dict)
    for reason, count in listed.items():
        if reason not in _REASONS:
            raise Corrupt(f"{name} names the reason {reason[:40]!r}, which is unknown")
        counts[_REASONS[reason]] = check_number(count, f"{name} of {reason}")
    return counts


def _decode_figures(document: dict[str, Any], name: str) -> tuple[SegmentSummary, ...]:
    figures: list[object] = _get(document, name, list)
    return tuple(_decode_figure(figure, name) for figure in figures)


def _decode_figure(figure: object, name: str) -> SegmentSummary:
    if not isinstance(figure, list) or len(figure) != _FIGURE_FIELDS:
        raise Corrupt(f"{name} lists {str(figure)[:40]}, {_FIGURE_FIELDS} numbers are needed")
    base_offset, next_offset, size, records = (check_number(field, name) for field in figure[:4])
    log_crc = None if figure[4] is None else check_number(figure[4], name, at_most=_CRC_MAX)
    return SegmentSummary(base_offset, next_offset, size, records, log_crc)
