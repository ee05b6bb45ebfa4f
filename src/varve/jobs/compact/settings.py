"""What a compaction of the cold tier goes by: the bucket does not hold the settings of topics."""

from dataclasses import dataclass, field, replace
from typing import Final

from varve.commit_log import LogSettings
from varve.foundation.errors import InvalidRequest
from varve.jobs.key_plans import INLINE_BYTES
from varve.tiering.settings import TierSettings

_BUFFER_BYTES: Final = 128 << 20
_RANGE_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactSettings:
    """`log` are the settings of the topics.

    `is_forced` compacts what is not due, and whatever is stale, be it ever so little. `range_bytes`
    is how much of the key indexes one task plans with, `buffer_bytes` how much memory it takes.
    Objects of replaced segments stay for `replaced_ms`. `is_dry_run` plans and changes nothing.
    Plans with more than `inline_bytes` of bits are put aside in the bucket.
    `takes_over` works on a partition that another job has the lease of.
    """

    log: LogSettings
    is_forced: bool = False
    is_dry_run: bool = False
    takes_over: bool = False
    buffer_bytes: int = _BUFFER_BYTES
    range_bytes: int = _RANGE_BYTES
    inline_bytes: int = INLINE_BYTES
    replaced_ms: int = field(default_factory=lambda: TierSettings().replaced_ms)

    def __post_init__(self) -> None:
        if not self.log.is_compacted:
            raise InvalidRequest(
                f"cleanup.policy is {','.join(self.log.cleanup_policy)}: only a topic with compact "
                "in it is compacted"
            )
        if self.range_bytes <= 0 or self.replaced_ms < 0:
            raise InvalidRequest(
                f"range_bytes {self.range_bytes} must be above 0, replaced_ms {self.replaced_ms} "
                "at least 0"
            )

    @property
    def grouping(self) -> LogSettings:
        """The settings of what is written: local limits do not part cold segments."""
        return replace(self.log, local_retention_ms=-2, local_retention_bytes=-2)
