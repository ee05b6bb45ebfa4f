"""Forecasts when retention removes each segment of a log, in both tiers, if nothing is appended.

Invariant  the rows due by a moment are the segments that retention will have removed by then, if
           copying keeps up. Read-only.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from varve.cleaning.retention.rules import BlockingRule, Due, RetentionScope, due
from varve.cleaning.retention.segments import (
    RemoteSegmentInfo,
    RemoteSegments,
    SegmentInfo,
    SegmentList,
    SegmentLocation,
    list_segments,
    read_consistently,
)
from varve.commit_log import Log, LogSettings, TopicPartition
from varve.foundation.settings import GivenValue, parse_settings, to_kafka_names

Row = Due[SegmentInfo]


@dataclass(frozen=True, slots=True)
class RemoteForecastPoint:
    """What object storage holds at a moment: readable segments, and bytes of all objects."""

    when_ms: int
    segments: int
    bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class ForecastPoint:
    """What retention will have removed by a moment, and what remains."""

    when_ms: int
    segments: int
    freed_bytes: int
    left_bytes: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """The segments of a log in offset order, each with the time of its removal.

    For a tiered topic `rows` are the segments on the local disk, with the time of their eviction,
    and `remote` those in object storage or still to be copied; None without a tier. `stale_bytes`
    is what compaction would free now, None when the policy does not compact or it is unknown; the
    bytes are part of segments that are listed too.
    """

    partition: TopicPartition
    now_ms: int
    settings: LogSettings
    rows: tuple[Row, ...]
    stale_bytes: int | None = None
    remote: tuple[Row, ...] | None = None

    @property
    def size(self) -> int:
        return sum(row.segment.size for row in self.rows)

    @property
    def due_now_bytes(self) -> int:
        return self.at(self.now_ms).freed_bytes

    @property
    def kept_bytes(self) -> int:
        """Bytes of the segments that this policy keeps, as far as is known."""
        return sum(row.segment.size for row in self.rows if row.when_ms is None)

    def at(self, when_ms: int) -> ForecastPoint:
        removed = [row.segment.size for row in self.rows if row.is_due(when_ms)]
        return ForecastPoint(when_ms, len(removed), sum(removed), self.size - sum(removed))

    def points(self) -> list[ForecastPoint]:
        """The sums at each moment at which a segment is removed."""
        moments = {row.when_ms for row in self.rows if row.when_ms is not None}
        return [self.at(when_ms) for when_ms in sorted(moments)]

    def remote_at(self, when_ms: int) -> RemoteForecastPoint:
        rows = self.remote or ()
        readable = [row.segment.size for row in rows if not row.is_due(when_ms)]
        stored = [
            row.segment.stored_size
            for row in rows
            if row.deleted_ms is None or row.deleted_ms > when_ms
        ]
        return RemoteForecastPoint(when_ms, len(readable), sum(readable), sum(stored))

    def remote_moments(self) -> list[int]:
        """When a remote segment expires, or its objects are deleted."""
        rows = self.remote or ()
        times = [moment for row in rows for moment in (row.when_ms, row.deleted_ms)]
        return sorted({max(moment, self.now_ms) for moment in times if moment is not None})

    def to_json(self) -> dict[str, object]:
        remote = self.remote and {
            "rows": [_remote_row_json(row) for row in self.remote],
            "points": [asdict(self.remote_at(moment)) for moment in self.remote_moments()],
        }
        return {
            "remote": remote,
            "partition": str(self.partition),
            "now_ms": self.now_ms,
            "settings": to_kafka_names(self.settings, only_changed=True),
            "rows": [_row_json(row) for row in self.rows],
            "points": [asdict(point) for point in self.points()],
            "size": self.size,
            "due_now_bytes": self.due_now_bytes,
            "kept_bytes": self.kept_bytes,
            "stale_bytes": self.stale_bytes,
        }


def _row_json(row: Row) -> dict[str, object]:
    return {
        "when_ms": row.when_ms,
        "base_offset": row.segment.base_offset,
        "next_offset": row.segment.next_offset,
        "size": row.segment.size,
        "reason": row.reason,
        "rule": row.rule,
        "blocked_by": row.blocked_by,
    }


def _remote_row_json(row: Row) -> dict[str, object]:
    return {
        **_row_json(row),
        "deleted_ms": row.deleted_ms,
        "stored_bytes": row.segment.stored_size,
        "location": row.segment.location,
    }


def forecast(
    log: Log,
    now_ms: int,
    *,
    overrides: Mapping[str, GivenValue] | None = None,
    stale_bytes: int | None = None,
    remote: RemoteSegments | None = None,
) -> Forecast:
    """Forecasts a log under its topic's settings, or with some of them overridden.

    `overrides` have Kafka's names; raises InvalidSetting for a name or value that is not valid.
    `remote` are the remote segments of a tiered log, or of one forecast as tiered.
    """
    where = f"the forecast of {log.topic_partition}"
    settings = parse_settings(LogSettings, overrides or {}, where, base=log.settings)
    rows, remote_rows = read_consistently(
        log, lambda: _forecast_tiers(list_segments(log, settings), remote, now_ms)
    )
    stale = stale_bytes if settings.is_compacted else None
    return Forecast(log.topic_partition, now_ms, settings, rows, stale, remote_rows)


def _forecast_tiers(
    log: SegmentList, remote: RemoteSegments | None, now_ms: int
) -> tuple[tuple[Row, ...], tuple[Row, ...] | None]:
    if remote is None:
        return forecast_log(log, now_ms), None
    remote_rows = forecast_remote(log, remote, now_ms)
    if not log.settings.copies_to_tier:
        return forecast_log(log, now_ms), remote_rows
    copied = max(remote.end_offset, log.last_stable_offset)
    rows = forecast_evictions(log, copied, now_ms)
    evicted = tuple(_earlier_removal(row, covering_row(remote_rows, row.segment)) for row in rows)
    return evicted, remote_rows


def forecast_log(log: SegmentList, now_ms: int) -> tuple[Row, ...]:
    """When each local segment is removed by `retention.*`, of a log that is not copied."""
    return tuple(due(log.segments, RetentionScope.of_log(log), now_ms))


def forecast_evictions(log: SegmentList, remote_end_offset: int, now_ms: int) -> tuple[Row, ...]:
    """When each local segment is evicted by `local.retention.*`, of a log that is copied."""
    return tuple(due(log.segments, RetentionScope.of_local_disk(log, remote_end_offset), now_ms))


def forecast_remote(log: SegmentList, remote: RemoteSegments, now_ms: int) -> tuple[Row, ...]:
    """When each remote segment expires, and each local one that is still to be copied."""
    readable = [segment for segment in remote.segments if segment.location.is_readable]
    unreadable = [segment for segment in remote.segments if not segment.location.is_readable]
    rows = [_unreadable_row(segment, now_ms) for segment in unreadable]
    if log.settings.remote_storage_enable:
        rows += [
            replace(row, deleted_ms=row.when_ms + remote.delete_delay_ms)
            if row.when_ms is not None
            else row
            for row in _expiries(log, readable, remote.end_offset, now_ms)
        ]
    else:
        rule = "a topic that leaves the tier has nothing in it"
        leaving = [replace(segment, location=SegmentLocation.LEAVING) for segment in readable]
        rows += [Due(segment, now_ms, None, rule, deleted_ms=now_ms) for segment in leaving]
    return tuple(sorted(rows, key=lambda row: (row.segment.base_offset, row.segment.next_offset)))


def _expiries(
    log: SegmentList, readable: Sequence[RemoteSegmentInfo], copied: int, now_ms: int
) -> Iterable[Row]:
    uncopied = [segment for segment in log.segments if segment.next_offset > copied]
    # Segments after the copied offset belong to a history that was truncated. They count towards no
    # limit, because they must not cause the removal of others.
    counted = [segment for segment in readable if segment.next_offset <= copied]
    counted_local = [segment for segment in uncopied if segment.base_offset >= copied]
    size = sum(segment.size for segment in (*counted, *counted_local))
    segments: list[SegmentInfo] = [*readable]
    if log.settings.copies_to_tier:
        segments += [segment for segment in uncopied if segment.size or not segment.is_active]
    return due(segments, RetentionScope.of_log(log, size), now_ms)


def _unreadable_row(segment: RemoteSegmentInfo, now_ms: int) -> Row:
    if segment.location is SegmentLocation.COPYING:
        rule = "its copy was started, and the next round finishes it or takes it back"
        return Due(segment, now_ms, None, rule, BlockingRule.COPY, deleted_ms=now_ms)
    rule = "it is expired or replaced; its objects stay for readers of older manifests"
    deleted_ms = segment.delete_after_ms or now_ms
    return Due(segment, now_ms, None, rule, BlockingRule.GRACE, deleted_ms=deleted_ms)


def covering_row(rows: Sequence[Row], segment: SegmentInfo) -> Row | None:
    """The row of the readable segment with which the last records of a local one expire."""
    for row in rows:
        start, end = row.segment.base_offset, row.segment.next_offset
        if start < segment.next_offset <= end and row.segment.location.is_readable:
            return row
    return None


def _earlier_removal(row: Row, cover: Row | None) -> Row:
    """A local segment is removed when it is evicted or when it expires, whichever is first."""
    if cover is None or cover.when_ms is None:
        return row
    if row.when_ms is not None and row.when_ms <= cover.when_ms:
        return row
    return replace(cover, segment=row.segment, deleted_ms=None)
