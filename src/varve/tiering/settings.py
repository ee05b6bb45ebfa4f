"""What copying to object storage may be told: Kafka's names where it has them."""

from dataclasses import dataclass
from typing import Final

from varve.foundation.settings import LONG_MAX, check_settings, setting

__all__ = ["TierSettings"]

DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSettings:
    """The settings of the cold tier that hold for a whole store."""

    remote_log_manager_copy_max_bytes_per_second: int = setting(
        LONG_MAX,
        "Most bytes of segments that are copied to object storage per second; the default is no "
        "limit.",
        "remote.log.manager.copy.max.bytes.per.second",
        at_least=1,
        long=True,
    )
    varve_tier_manifest_retention_ms: int = setting(
        7 * DAY_MS,
        "How long a version of a manifest stays after the next one was made.",
        "varve.tier.manifest.retention.ms",
        at_least=0,
        long=True,
        is_own=True,
    )
    varve_tier_grace_ms: int = setting(
        DAY_MS,
        "How long the objects of a segment stay after another one has taken its place; they also "
        "stay for varve.tier.manifest.retention.ms.",
        "varve.tier.grace.ms",
        at_least=0,
        long=True,
        is_own=True,
    )

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def replaced_ms(self) -> int:
        """How long the objects of a replaced segment stay: retained manifests name them."""
        return max(self.varve_tier_grace_ms, self.varve_tier_manifest_retention_ms)
