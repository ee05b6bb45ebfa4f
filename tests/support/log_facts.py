"""Logs as facts only, for decisions that need no files."""

from dataclasses import dataclass
from typing import Any

from varve.cleaning.log_facts import LogFacts, SegmentFacts, SegmentTimes
from varve.commit_log import LogSettings, TopicPartition

PARTITION = TopicPartition("topic", 0)


@dataclass(frozen=True)
class Piece:
    """One segment of a made-up log; times that are left out follow the largest timestamp."""

    offsets: int = 10
    size: int = 100
    newest: int = 0
    first: int | None = None
    appended: tuple[int, int] | None = None


def make_facts(
    *pieces: Piece,
    log_start: int | None = None,
    stable: int | None = None,
    high_watermark: int | None = None,
    first_base: int = 0,
    **settings: Any,
) -> LogFacts:
    """A log of these segments, the last one active; all of it replicated unless said otherwise."""
    segments = []
    base = first_base
    for number, piece in enumerate(pieces):
        segments.append(_segment(piece, base, is_active=number == len(pieces) - 1))
        base += piece.offsets
    high_watermark = base if high_watermark is None else high_watermark
    return LogFacts(
        partition=PARTITION,
        settings=LogSettings(**settings),
        log_start_offset=first_base if log_start is None else log_start,
        last_stable_offset=high_watermark if stable is None else stable,
        high_watermark=high_watermark,
        end_offset=base,
        segments=tuple(segments),
    )


def _segment(piece: Piece, base: int, *, is_active: bool) -> SegmentFacts:
    appended = piece.appended or (piece.newest, piece.newest)
    first = piece.newest if piece.first is None else piece.first
    return SegmentFacts(
        base_offset=base,
        next_offset=base + piece.offsets,
        size=piece.size,
        is_active=is_active,
        read_times=lambda: SegmentTimes(piece.newest, *appended),
        read_first_timestamp=lambda: first,
    )
