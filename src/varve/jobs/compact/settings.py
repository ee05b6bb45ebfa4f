"""Settings of a compaction of remote segments, with those of its topics, which no bucket stores."""

from dataclasses import dataclass, field, replace
from typing import Final

from varve.commit_log import LogSettings
from varve.foundation.errors import InvalidRequest
from varve.jobs.key_plans import INLINE_BYTES
from varve.tiering.settings import TierSettings

_BUFFER_BYTES: Final = 128 << 20
"""Memory of a task for keys: Kafka's default of `log.cleaner.dedupe.buffer.size`."""
_RANGE_BYTES: Final = 64 << 20
"""Key index entries of a task: half of its memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactSettings:
    """Settings of one job; `log` are the settings of the topics.

    `is_forced` compacts partitions that are not due, and segments with few stale bytes.
    `is_dry_run` plans and changes nothing. `takes_over` takes the lease of a partition from another
    job. A planning task reads about `range_bytes` of key indexes and uses `buffer_bytes` of memory.
    Plans with more than `inline_bytes` of bits are stored in the bucket. The objects of replaced
    segments are retained for `replaced_retention_ms`.
    """

    log: LogSettings
    is_forced: bool = False
    is_dry_run: bool = False
    takes_over: bool = False
    buffer_bytes: int = _BUFFER_BYTES
    range_bytes: int = _RANGE_BYTES
    inline_bytes: int = INLINE_BYTES
    replaced_retention_ms: int = field(default_factory=lambda: TierSettings().replaced_retention_ms)

    def __post_init__(self) -> None:
        if not self.log.is_compacted:
            raise InvalidRequest(
                f"cleanup.policy is {','.join(self.log.cleanup_policy)}: only topics whose policy "
                "includes compact can be compacted"
            )
        if self.range_bytes <= 0 or self.replaced_retention_ms < 0:
            raise InvalidRequest(
                f"range_bytes {self.range_bytes} must be above 0, "
                f"replaced_retention_ms {self.replaced_retention_ms} at least 0"
            )

    @property
    def grouping(self) -> LogSettings:
        """The settings for grouping segments: local retention does not split remote segments."""
        return replace(self.log, local_retention_ms=-2, local_retention_bytes=-2)
