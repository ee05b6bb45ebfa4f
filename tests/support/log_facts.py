"""Logs as facts only, for decisions that need no files."""

from dataclasses import dataclass
from typing import Any

from varve.cleaning.retention.segments import SegmentInfo, SegmentList, SegmentTimes
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
) -> SegmentList:
    """A log of these segments, the last one active; all of it replicated unless said otherwise."""
    segments = []
    base = first_base
    for number, piece in enumerate(pieces):
        segments.append(_segment(piece, base, is_active=number == len(pieces) - 1))
        base += piece.offsets
    high_watermark = base if high_watermark is None else high_watermark
    return SegmentList(
        partition=PARTITION,
        settings=LogSettings(**settings),
        log_start_offset=first_base if log_start is None else log_start,
        last_stable_offset=high_watermark if stable is None else stable,
        high_watermark=high_watermark,
        end_offset=base,
        segments=tuple(segments),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceInfo(SegmentInfo):
    """A segment that is known by its values alone."""

    piece: Piece

    def times(self) -> SegmentTimes:
        appended = self.piece.appended or (self.piece.newest, self.piece.newest)
        return SegmentTimes(self.piece.newest, *appended)

    def first_timestamp(self) -> int:
        return self.piece.newest if self.piece.first is None else self.piece.first


def _segment(piece: Piece, base: int, *, is_active: bool) -> SegmentInfo:
    return PieceInfo(
        base_offset=base,
        next_offset=base + piece.offsets,
        size=piece.size,
        is_active=is_active,
        piece=piece,
    )
