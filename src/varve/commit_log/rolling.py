"""When the active segment must give way to a new one."""

from varve.commit_log.segment import ActiveSegment, BatchSet
from varve.commit_log.settings import LogSettings
from varve.commit_log.sparse_index import RELATIVE_OFFSET_MAX


def max_segment_ms(settings: LogSettings) -> int:
    if settings.is_compacted:
        return min(settings.segment_ms, settings.max_compaction_lag_ms)
    return settings.segment_ms


class RollRule:
    """The five reasons to roll before an append, and the one without, with the settings at hand."""

    __slots__ = ("_segment_bytes", "_segment_ms")

    def __init__(self, settings: LogSettings) -> None:
        self._segment_bytes = settings.segment_bytes
        self._segment_ms = max_segment_ms(settings)

    def should_roll(
        self,
        active: ActiveSegment,
        batches: BatchSet,
        now_ms: int,
    ) -> bool:
        size = active.extent[1]
        return (
            size > self._segment_bytes - batches.size
            or batches.last_offset - active.base_offset > RELATIVE_OFFSET_MAX
            or active.has_full_index
            or (
                size > 0
                and self._waited_ms(active, batches.max_timestamp, now_ms)
                > self._segment_ms - active.jitter_ms
            )
        )

    def should_roll_idle(self, active: ActiveSegment, now_ms: int) -> bool:
        """Whether records have waited in the active segment for long enough by our clock.

        Without it, retention and compaction would never reach those of a topic gone quiet.
        """
        span = active.appended
        if span is None or not active.size:
            return False
        return now_ms - span.first_ms > self._segment_ms - active.jitter_ms

    @staticmethod
    def _waited_ms(active: ActiveSegment, max_timestamp: int, now_ms: int) -> int:
        """Age by record time, or by the clock when the first batch carries no timestamp."""
        if active.first_timestamp >= 0:
            return max_timestamp - active.first_timestamp
        return now_ms - active.created_ms
