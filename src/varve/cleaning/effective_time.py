"""How old a segment counts: by what its records say, by when they were appended, or by both.

`retention.time` chooses. `event` is Kafka's rule: the largest record timestamp, however absurd.
`append` looks at our clock alone. `bounded`, the default, believes the records as long as they
are possible: a timestamp later than the append, and one that had outlived `retention.ms` before
it was appended, give way to the time of the append. docs/retention.md
"""

from dataclasses import asdict, dataclass
from enum import StrEnum

from varve.cleaning.log_facts import SegmentFacts, SegmentTimes, observe
from varve.commit_log import Log, LogSettings
from varve.commit_log.segment import ReadableSegment

BOUNDED = "bounded"
EVENT = "event"
APPEND = "append"


class TimestampSource(StrEnum):
    """Whose word on the time was taken."""

    EVENT = "event"
    APPEND = "append"


@dataclass(frozen=True, slots=True)
class RetentionTimestamp:
    """The time a segment's age counts from.

    `note` says why the records' own word was not taken; empty where it was, or was not asked for.
    """

    ms: int
    source: TimestampSource
    note: str = ""

    @property
    def is_rejected(self) -> bool:
        return bool(self.note)

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def effective_time(segment: ReadableSegment, log: Log) -> RetentionTimestamp:
    """From when the age of a segment counts under its topic's `retention.time`."""
    facts = observe(log)
    return retention_timestamp(facts.find_segment(segment.base_offset).read_times(), log.settings)


def retention_timestamp(times: SegmentTimes, settings: LogSettings) -> RetentionTimestamp:
    """From when `retention.ms` counts."""
    event_ms, append_ms = times.max_timestamp, times.last_append_ms
    policy = settings.retention_time
    if policy == APPEND:
        return RetentionTimestamp(append_ms, TimestampSource.APPEND)
    if event_ms < 0:
        return RetentionTimestamp(
            append_ms, TimestampSource.APPEND, "its records carry no timestamp"
        )
    if policy == EVENT:
        return RetentionTimestamp(event_ms, TimestampSource.EVENT)
    if event_ms > append_ms:
        return RetentionTimestamp(
            append_ms,
            TimestampSource.APPEND,
            f"largest timestamp {event_ms} lies {event_ms - append_ms} ms after the last append",
        )
    if 0 <= settings.retention_ms < append_ms - event_ms:
        return RetentionTimestamp(
            append_ms,
            TimestampSource.APPEND,
            f"largest timestamp {event_ms} was {append_ms - event_ms} ms old at the last append, "
            f"beyond retention.ms={settings.retention_ms}",
        )
    return RetentionTimestamp(event_ms, TimestampSource.EVENT)


def lag_timestamp(times: SegmentTimes, settings: LogSettings) -> int:
    """From when `min.compaction.lag.ms` counts: a future date does not keep compaction away."""
    event_ms, append_ms = times.max_timestamp, times.last_append_ms
    policy = settings.retention_time
    if policy == APPEND or event_ms < 0:
        return append_ms
    return event_ms if policy == EVENT else min(event_ms, append_ms)


def first_timestamp(segment: SegmentFacts, settings: LogSettings) -> int:
    """From when `max.compaction.lag.ms` counts; not above 0 when nothing tells.

    The promise holds by whichever clock began earlier; under `event` by the records' alone.
    """
    policy = settings.retention_time
    if policy == APPEND:
        return segment.read_times().first_append_ms
    event_ms = segment.read_first_timestamp()
    if policy == EVENT:
        return event_ms
    append_ms = segment.read_times().first_append_ms
    return min(event_ms, append_ms) if event_ms > 0 else append_ms
