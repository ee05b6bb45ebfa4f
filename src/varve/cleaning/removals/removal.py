"""A removal: its input and output segments, and the reason for every record that was removed.

Local segments that are evicted because object storage holds them are recorded in the same way,
though no record is removed.

Invariant  a removal that passes `check` accounts for every record of its inputs by one reason, and
           its outputs hold exactly the records, and after a rewrite the keys, that were to stay.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final, TypeVar

import numpy as np

from varve.commit_log import TopicPartition
from varve.commit_log.segment_reader import BatchTable, BatchWalk
from varve.disk import File
from varve.foundation.errors import Corrupt, Unbalanced
from varve.kernels.batch_layout import BatchColumn, status_text
from varve.kernels.crc import extend_crc32c


class Reason(StrEnum):
    """Why a record stayed or was removed."""

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
    """A compaction and an erasure replace segments, an expiry removes whole segments.

    Evicted segments are removed from the local disk, and their records stay in object storage.
    """

    COMPACTION = "compaction"
    ERASURE = "erasure"
    EXPIRY = "expiry"
    EVICTION = "moved"


_REASONS_OF: Final = {
    RemovalKind.COMPACTION: (
        Reason.KEPT,
        Reason.SUPERSEDED,
        Reason.TOMBSTONE_EXPIRED,
        Reason.NO_KEY,
        Reason.ABORTED,
        Reason.MARKER_EXPIRED,
    ),
    RemovalKind.ERASURE: (Reason.KEPT, Reason.ERASED),
    RemovalKind.EXPIRY: (Reason.EXPIRED_TIME, Reason.EXPIRED_SIZE, Reason.BELOW_LOG_START),
    RemovalKind.EVICTION: (Reason.EVICTED,),
}
_REWRITES: Final = (RemovalKind.COMPACTION, RemovalKind.ERASURE)
_STAYING: Final = (Reason.KEPT, Reason.EVICTED)
_WORD_MAX: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """One generation of a segment.

    `next_offset` is the offset after its last batch, the base offset without a batch. `log_crc` is
    the CRC-32C over the CRC fields of all its batches in order; None when not all were read.
    """

    base_offset: int
    next_offset: int
    size: int
    records: int
    log_crc: int | None = None

    def is_same(self, other: "SegmentSummary") -> bool:
        """Whether both are the same generation; a CRC that is None is not compared."""
        is_crc_same = self.log_crc == other.log_crc or None in (self.log_crc, other.log_crc)
        return is_crc_same and (self.base_offset, self.size, self.records) == (
            other.base_offset,
            other.size,
            other.records,
        )


class SegmentSummaryBuilder:
    """Summarizes a segment from its batches in file order."""

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
        # An empty batch has a count of 0; a damaged header may have a negative one.
        self._records += int(np.maximum(rows[:, BatchColumn.RECORD_COUNT], 0).sum())

    def summary(self) -> SegmentSummary:
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
    """A removal of records or segments from one partition, and the rule it followed.

    `id` is the number of its line in the removal log, from `RemovalLog.next_id`. `bytes` are
    encoded record bytes, uncompressed, of a rewrite and file bytes where whole segments are
    removed. `keys_before` is the digest of the keys and offsets that were planned to survive,
    `keys_after` of those that the outputs hold; both are empty where whole segments are removed.
    The removal considered offsets before `end_offset`.
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
        return sum(summary.records for summary in self.inputs)

    @property
    def records_after(self) -> int:
        return sum(summary.records for summary in self.outputs)

    @property
    def records_removed(self) -> int:
        """The records that no tier holds any more."""
        return sum(count for reason, count in self.records.items() if reason not in _STAYING)

    @property
    def removes_whole_segments(self) -> bool:
        """Whether whole segments are removed from the local disk and not replaced."""
        return self.kind not in _REWRITES

    def check(self) -> None:
        """Raises Unbalanced, with the numbers, unless everything adds up."""
        fault = next(self._find_faults(), None)
        if fault is not None:
            inputs = self.inputs
            offsets = f"{inputs[0].base_offset}..{inputs[-1].next_offset}" if inputs else "(none)"
            name = f"{self.partition}: {self.kind} {self.id}"
            raise Unbalanced(f"{name} of offsets {offsets}: {fault}")

    def _find_faults(self) -> Iterator[str]:
        for name, counts in (("records", self.records), ("bytes", self.bytes)):
            for reason, count in counts.items():
                if count < 0:
                    yield f"{count} {name} are counted as {reason.value!r}"
        counted = sum(self.records.values())
        if counted != self.records_before:
            listed = ", ".join(f"{reason.value} {n}" for reason, n in self.records.items())
            yield (
                f"{counted} records are accounted for ({listed}), but the inputs hold "
                f"{self.records_before}"
            )
        kept = self.records.get(Reason.KEPT, 0)
        if kept != self.records_after:
            yield f"{kept} records were to stay, but the outputs hold {self.records_after}"
        yield from _find_disorder("inputs", self.inputs)
        yield from _find_disorder("outputs", self.outputs)
        for reason, count in self.records.items():
            if count and reason not in _REASONS_OF[self.kind]:
                kind = self.kind
                yield f"{count} records are {reason.value!r}, a reason that {kind} does not have"
        if not self.removes_whole_segments:
            yield from self._find_rewrite_faults()
        elif not self.inputs:
            yield "no segment is named"
        elif self.outputs:
            yield f"{len(self.outputs)} segments would come out, where whole ones are removed"

    def _find_rewrite_faults(self) -> Iterator[str]:
        if not self.inputs or not self.outputs:
            yield f"{len(self.inputs)} inputs and {len(self.outputs)} outputs: both are needed"
            return
        if self.outputs[0].base_offset < self.inputs[0].base_offset:
            yield f"the outputs begin at offset {self.outputs[0].base_offset}, below the inputs"
        if self.outputs[-1].next_offset > self.inputs[-1].next_offset:
            yield f"the outputs reach offset {self.outputs[-1].next_offset}, beyond the inputs"
        if not self.keys_before or self.keys_before != self.keys_after:
            yield (
                f"the keys that were to stay have digest {self.keys_before or 'none'}, those of "
                f"the outputs {self.keys_after or 'none'}"
            )


def _find_disorder(name: str, summaries: Sequence[SegmentSummary]) -> Iterator[str]:
    for summary in summaries:
        if min(summary.next_offset - summary.base_offset, summary.size, summary.records) < 0:
            yield f"{name}: impossible numbers {summary}"
    for before, after in pairwise(summaries):
        is_ordered = after.base_offset >= before.next_offset
        if not is_ordered or after.base_offset == before.base_offset:
            yield (
                f"{name}: segment {after.base_offset} does not follow segment "
                f"{before.base_offset}, which ends at {before.next_offset}"
            )


@dataclass(frozen=True, slots=True)
class MeasuredSegment:
    """The summary of a data file; `damage` says where and why reading stopped, empty if it did not.

    A damaged segment is counted as far as it can be read.
    """

    summary: SegmentSummary
    damage: str


def measure_segment(
    file: File,
    *,
    base_offset: int,
    size: int,
    verify_crc: bool,
    advance: Callable[[int], None] | None = None,
) -> MeasuredSegment:
    """Reads the batch headers or, to verify their CRCs, the whole data file."""
    builder = SegmentSummaryBuilder(base_offset)
    walk = BatchWalk(file, start=0, end=size, verify_crc=verify_crc)
    for table in walk:
        builder.add(table)
        if advance is not None:
            advance(table.end - table.start)
    if walk.position >= size:
        return MeasuredSegment(builder.summary(), "")
    return MeasuredSegment(
        replace(builder.summary(), size=size, log_crc=None),
        f"position {walk.position} of {size}: {status_text(walk.status)}",
    )


T = TypeVar("T")

_NUMBER_MAX: Final = 2**63 - 1
_CRC_MAX: Final = 2**32 - 1
_SUMMARY_FIELDS: Final = 5
_STORED_NAMES: Final = {
    reason: "moved" if reason is Reason.EVICTED else reason.name.lower() for reason in Reason
}
"""The name of a reason on disk; evictions were called moves when the format was fixed."""
_REASONS: Final = {name: reason for reason, name in _STORED_NAMES.items()}


def encode_removal(removal: Removal) -> dict[str, object]:
    """All fields but the id, in the order they are written."""
    return {
        "kind": str(removal.kind),
        "topic": removal.partition.topic,
        "partition": removal.partition.partition,
        "at_ms": removal.at_ms,
        "end_offset": removal.end_offset,
        "rule": removal.rule,
        "records": _encode_counts(removal.records),
        "bytes": _encode_counts(removal.bytes),
        "keys_before": removal.keys_before,
        "keys_after": removal.keys_after,
        "inputs": [list(astuple(summary)) for summary in removal.inputs],
        "outputs": [list(astuple(summary)) for summary in removal.outputs],
    }


def decode_removal(id: int, document: dict[str, Any]) -> Removal:
    """The removal of a line; raises Corrupt for a field that is missing or out of its range."""
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
        inputs=_decode_summaries(document, "inputs"),
        outputs=_decode_summaries(document, "outputs"),
    )


def check_number(value: object, name: str, *, at_most: int = _NUMBER_MAX) -> int:
    """A number of the format; true and false are not numbers."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= at_most:
        raise Corrupt(f"{name} is {str(value)[:40]}, not a number from 0 to {at_most}")
    return value


def _get(document: dict[str, Any], name: str, kind: type[T]) -> T:
    value = document.get(name)
    if not isinstance(value, kind):
        raise Corrupt(f"{name} is {str(value)[:40]!r}, not a {kind.__name__}")
    return value


def _encode_counts(counts: dict[Reason, int]) -> dict[str, int]:
    return {_STORED_NAMES[reason]: count for reason, count in counts.items()}


def _decode_counts(document: dict[str, Any], name: str) -> dict[Reason, int]:
    counts: dict[Reason, int] = {}
    listed: dict[str, object] = _get(document, name, dict)
    for reason, count in listed.items():
        if reason not in _REASONS:
            raise Corrupt(f"{name} names the reason {reason[:40]!r}, which is unknown")
        counts[_REASONS[reason]] = check_number(count, f"{name} of {reason}")
    return counts


def _decode_summaries(document: dict[str, Any], name: str) -> tuple[SegmentSummary, ...]:
    summaries = []
    numbers: list[object] = _get(document, name, list)
    for fields in numbers:
        if not isinstance(fields, list) or len(fields) != _SUMMARY_FIELDS:
            raise Corrupt(f"{name} lists {str(fields)[:40]}, {_SUMMARY_FIELDS} numbers are needed")
        base_offset, next_offset, size, records = (check_number(each, name) for each in fields[:4])
        log_crc = None if fields[4] is None else check_number(fields[4], name, at_most=_CRC_MAX)
        summaries.append(SegmentSummary(base_offset, next_offset, size, records, log_crc))
    return tuple(summaries)
