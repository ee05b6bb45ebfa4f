"""Removals as JSON objects, and back.

Layout     docs/formats/evidence.md
Invariant  an encoded removal decodes to an equal one; anything else raises Corrupt, whatever the
           object holds.
"""

from typing import Any, Final, TypeVar

from varve.cleaning.removals.removal import Reason, Removal, RemovalKind, SegmentSummary
from varve.commit_log import TopicPartition
from varve.foundation.errors import Corrupt

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
