"""What a deduplication is to do: whose copies, how far apart, and what becomes of the rest."""

from dataclasses import dataclass, field
from typing import Final

from varve.dedup.rules import (
    FUTURE_MS_MAX,
    IdSource,
    LatePolicy,
    NullPolicy,
    check_span,
)
from varve.foundation.errors import InvalidRequest
from varve.spark.dedup.judge import Forwarding

BATCH_BYTES: Final = 256 << 20
STATE_PARTITIONS_MAX: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupSettings:
    """The rules. Times are milliseconds.

    `side_topic` is for late records under LatePolicy.SIDE. `state_partitions` and all that tells
    which records are duplicates are frozen by the checkpoint.
    """

    by: IdSource
    before_ms: int
    after_ms: int
    lateness_ms: int
    late: LatePolicy = LatePolicy.FORWARD
    side_topic: str | None = None
    null: NullPolicy = NullPolicy.FORWARD
    is_refreshing: bool = False
    max_future_ms: int = FUTURE_MS_MAX
    batch_bytes: int = BATCH_BYTES
    state_partitions: int | None = None
    read_options: tuple[tuple[str, str], ...] = field(default=())

    def __post_init__(self) -> None:
        for name in ("before_ms", "after_ms", "lateness_ms", "max_future_ms"):
            check_span(name, getattr(self, name))
        if (self.late is LatePolicy.SIDE) != (self.side_topic is not None):
            raise InvalidRequest(
                "a side topic goes with the policy side for late records, and back"
            )
        count = self.state_partitions
        if count is not None and not 1 <= count <= STATE_PARTITIONS_MAX:
            raise InvalidRequest(
                f"{count} partitions of the state: there are 1 to {STATE_PARTITIONS_MAX}"
            )
        if self.batch_bytes < 1:
            raise InvalidRequest(f"batch_bytes is {self.batch_bytes}, it must be at least 1")

    @property
    def forwarding(self) -> Forwarding:
        return Forwarding(
            late=self.late is LatePolicy.FORWARD,
            no_id=self.null is NullPolicy.FORWARD,
            late_aside=self.late is LatePolicy.SIDE,
        )
