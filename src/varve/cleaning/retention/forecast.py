"""When a policy removes the segments of a log, of both tiers, if nothing more is appended.

Invariant  at each moment from now on the rows due until then are what passes of retention would
           have removed by then, if copying keeps up. Nothing is changed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from varve.cleaning.removals.removal import Reason
from varve.cleaning.retention.rules import (
    BlockingRule,
    Due,
    RetentionLimits,
    RetentionScope,
    due,
)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastRow:
    """One local segment: when it is removed at the earliest, or None and what keeps it.

    `blocked_by` is what it waits for, None for one that is due.
    """

    when_ms: int | None
    base_offset: int
    next_offset: int
    size: int
    reason: Reason | None
    rule: str
    blocked_by: BlockingRule | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteForecastRow(ForecastRow):
    """One remote segment: when it expires at the earliest, and when its objects are deleted.

    A local one is still to be copied, which is taken to happen in time.
    """

    gone_ms: int | None
    stored_bytes: int
    place: SegmentLocation


@dataclass(frozen=True, slots=True)
class RemoteForecastPoint:
    """What object storage holds at a moment: readable segments, and objects that cost."""

    when_ms: int
    segments: int
    bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class ForecastPoint:
    """What will have been removed by a moment, and what is left."""

    when_ms: int
    segments: int
    freed_bytes: int
    left_bytes: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """The segments of a log in their order, with the time of each.

    Of a tiered topic `rows` are those of the local disk, with the time when they leave it, and
    `cold` those in object storage; without a tier that is None. `stale_bytes` is what compaction
    would free now, None where the policy does not compact or it is unknown; it counts bytes of
    segments that are listed too.
    """

    partition: TopicPartition
    now_ms: int
    settings: LogSettings
    rows: tuple[ForecastRow, ...]
    stale_bytes: int | None = None
    remote: tuple[RemoteForecastRow, ...] | None = None

    @property
    def size(self) -> int:
        return sum(row.size for row in self.rows)

    @property
    def due_now_bytes(self) -> int:
        return self.at(self.now_ms).freed_bytes

    @property
    def kept_bytes(self) -> int:
        """What stays for good under this policy, as far as is known."""
        return sum(row.size for row in self.rows if row.when_ms is None)

    def at(self, when_ms: int) -> ForecastPoint:
        removed = [row for row in self.rows if row.when_ms is not None and row.when_ms <= when_ms]
        freed = sum(row.size for row in removed)
        return ForecastPoint(when_ms, len(removed), freed, self.size - freed)

    def points(self, at_ms: Iterable[int] | None = None) -> list[ForecastPoint]:
        """The sums at the given moments, or at each at which a segment is removed."""
        if at_ms is None:
            at_ms = sorted({row.when_ms for row in self.rows if row.when_ms is not None})
        return [self.at(when_ms) for when_ms in at_ms]

    def remote_at(self, when_ms: int) -> RemoteForecastPoint:
        rows = self.remote or ()
        readable = [row for row in rows if row.when_ms is None or row.when_ms > when_ms]
        stored = [row for row in rows if row.gone_ms is None or row.gone_ms > when_ms]
        return RemoteForecastPoint(
            when_ms,
            len(readable),
            sum(row.size for row in readable),
            sum(row.stored_bytes for row in stored),
        )

    def remote_moments(self) -> list[int]:
        """When a remote segment expires, or its objects are deleted."""
        rows = self.remote or ()
        times = [moment for row in rows for moment in (row.when_ms, row.gone_ms)]
        return sorted({max(moment, self.now_ms) for moment in times if moment is not None})

    def to_json(self) -> dict[str, object]:
        remote = self.remote and {
            "rows": [asdict(row) for row in self.remote],
            "points": [asdict(self.remote_at(moment)) for moment in self.remote_moments()],
        }
        return {
            "cold": remote,
            "partition": str(self.partition),
            "now_ms": self.now_ms,
            "settings": to_kafka_names(self.settings, only_changed=True),
            "rows": [asdict(row) for row in self.rows],
            "points": [asdict(point) for point in self.points()],
            "size": self.size,
            "due_now_bytes": self.due_now_bytes,
            "kept_bytes": self.kept_bytes,
            "stale_bytes": self.stale_bytes,
        }


def forecast(
    log: Log,
    now_ms: int,
    *,
    overrides: Mapping[str, GivenValue] | None = None,
    stale_bytes: int | None = None,
    remote: RemoteSegments | None = None,
) -> Forecast:
    """What the topic's policy, or the same with some settings changed, removes and when.

    `overrides` go by Kafka's names; raises InvalidSetting for a name or value that is not valid.
    `remote` are the remote segments of a tiered log, or of one that is tried as tiered.
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
) -> tuple[tuple[ForecastRow, ...], tuple[RemoteForecastRow, ...] | None]:
    remote_rows = None if remote is None else forecast_remote(log, remote, now_ms)
    if remote is None or remote_rows is None or not log.settings.copies_to_tier:
        return forecast_log(log, now_ms), remote_rows
    copied = max(remote.end_offset, log.last_stable_offset)
    rows = forecast_evictions(log, copied, now_ms)
    evicted = tuple(_earlier(row, covering_row(remote_rows, row.next_offset)) for row in rows)
    return evicted, remote_rows


def forecast_log(log: SegmentList, now_ms: int) -> tuple[ForecastRow, ...]:
    """When each local segment is removed by `retention.*`, of a log that is not copied."""
    return tuple(map(_row, due(log.segments, RetentionScope.of_log(log), now_ms)))


def forecast_evictions(
    log: SegmentList, remote_end_offset: int, now_ms: int
) -> tuple[ForecastRow, ...]:
    """When each local segment is evicted by `local.retention.*`, of a log that is copied."""
    scope = RetentionScope.of_local_disk(log, remote_end_offset)
    return tuple(map(_row, due(log.segments, scope, now_ms)))


def forecast_remote(
    log: SegmentList, remote: RemoteSegments, now_ms: int
) -> tuple[RemoteForecastRow, ...]:
    """When each remote segment expires, and each local one that is still to be copied."""
    readable = [segment for segment in remote.segments if segment.location.is_readable]
    rows = [
        _unreadable_row(segment, now_ms)
        for segment in remote.segments
        if not segment.location.is_readable
    ]
    if not log.settings.remote_storage_enable:
        rule = "a topic that leaves the tier has nothing in it"
        rows += [_leaving_row(segment, now_ms, rule) for segment in readable]
        return _in_offset_order(rows)
    copied = remote.end_offset
    uncopied_bytes = sum(segment.size for segment in log.segments if segment.base_offset >= copied)
    # Segments behind the copied offset belong to a history that was truncated: they count for no
    # limit, because nothing else must be removed for their sake.
    copied_bytes = sum(segment.size for segment in readable if segment.next_offset <= copied)
    scope = RetentionScope(
        RetentionLimits.total(log.settings),
        copied_bytes + uncopied_bytes,
        log.log_start_offset,
        log.high_watermark,
    )
    segments: list[SegmentInfo] = [*readable]
    if log.settings.copies_to_tier:
        segments += [
            segment
            for segment in log.segments
            if segment.next_offset > copied and (segment.size or not segment.is_active)
        ]
    decisions = due(segments, scope, now_ms)
    rows += [_remote_row(decision, remote.delete_delay_ms) for decision in decisions]
    return _in_offset_order(rows)


def covering_row(rows: Sequence[RemoteForecastRow], next_offset: int) -> RemoteForecastRow | None:
    """The row of the segment with which the records before an offset expire."""
    return next(
        (
            row
            for row in rows
            if row.base_offset < next_offset <= row.next_offset and row.place.is_readable
        ),
        None,
    )


def _earlier(row: ForecastRow, cover: RemoteForecastRow | None) -> ForecastRow:
    """A local segment goes when it is evicted or when it expires, whichever is first."""
    if cover is None or cover.when_ms is None:
        return row
    if row.when_ms is not None and row.when_ms <= cover.when_ms:
        return row
    return replace(
        row,
        when_ms=cover.when_ms,
        reason=cover.reason,
        rule=cover.rule,
        blocked_by=cover.blocked_by,
    )


def _in_offset_order(rows: Iterable[RemoteForecastRow]) -> tuple[RemoteForecastRow, ...]:
    return tuple(sorted(rows, key=lambda row: (row.base_offset, row.next_offset)))


def _row(decision: Due[SegmentInfo]) -> ForecastRow:
    segment = decision.segment
    return ForecastRow(
        when_ms=decision.when_ms,
        base_offset=segment.base_offset,
        next_offset=segment.next_offset,
        size=segment.size,
        reason=decision.reason,
        rule=decision.rule,
        blocked_by=decision.blocked_by,
    )


def _remote_row(decision: Due[SegmentInfo], delete_delay_ms: int) -> RemoteForecastRow:
    segment, when_ms = decision.segment, decision.when_ms
    stored, place = segment.size, SegmentLocation.LOCAL
    if isinstance(segment, RemoteSegmentInfo):
        stored, place = segment.stored_bytes, segment.location
    return RemoteForecastRow(
        **asdict(_row(decision)),
        gone_ms=None if when_ms is None else when_ms + delete_delay_ms,
        stored_bytes=stored,
        place=place,
    )


def _unreadable_row(segment_info: RemoteSegmentInfo, now_ms: int) -> RemoteForecastRow:
    if segment_info.location is SegmentLocation.COPYING:
        rule = "its copy was started, and the next round finishes it or takes it back"
        row = _leaving_row(segment_info, now_ms, rule)
        return replace(row, place=SegmentLocation.COPYING, blocked_by=BlockingRule.COPY)
    rule = "it is expired or replaced; its objects stay for readers of older manifests"
    row = _leaving_row(segment_info, now_ms, rule)
    return replace(
        row, gone_ms=segment_info.delete_after_ms or now_ms, blocked_by=BlockingRule.GRACE
    )


def _leaving_row(segment_info: RemoteSegmentInfo, now_ms: int, rule: str) -> RemoteForecastRow:
    return RemoteForecastRow(
        when_ms=now_ms,
        gone_ms=now_ms,
        base_offset=segment_info.base_offset,
        next_offset=segment_info.next_offset,
        size=segment_info.size,
        stored_bytes=segment_info.stored_bytes,
        place=SegmentLocation.LEAVING,
        reason=None,
        rule=rule,
    )
