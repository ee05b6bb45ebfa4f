"""What a deduplication is to do: whose copies, how far apart, and what becomes of the rest."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from varve.foundation.errors import InvalidRequest
from varve.jobs.dedup.judge import Forwarding

FUTURE_MS_MAX: Final = 3_600_000
BATCH_BYTES: Final = 256 << 20
SPAN_MS_MAX: Final = 400 * 24 * 3_600_000
STATE_PARTITIONS_MAX: Final = 256


class IdKind(StrEnum):
    """Where a record has its id."""

    KEY = "key"
    HEADER = "header"
    FIELD = "field"


@dataclass(frozen=True, slots=True)
class IdSource:
    """What two copies of a record have in common."""

    kind: IdKind
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.name else str(self.kind)


class LatePolicy(StrEnum):
    """What becomes of a record that is older than the watermark, or too far in the future."""

    FORWARD = "forward"
    DROP = "drop"
    SIDE = "side"


class NullPolicy(StrEnum):
    """What becomes of a record without an id."""

    FORWARD = "forward"
    DROP = "drop"


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
            value = getattr(self, name)
            if not 0 <= value <= SPAN_MS_MAX:
                raise InvalidRequest(f"{name} is {value}, it must be from 0 to {SPAN_MS_MAX}")
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


def parse_id_source(text: str) -> IdSource:
    """`key`, `header:NAME` or `field:PATH`; raises InvalidRequest."""
    kind, _, name = text.partition(":")
    try:
        found = IdSource(IdKind(kind), name)
    except ValueError as error:
        raise InvalidRequest(f"{text!r:.200} names no id: {_ID_FORMS}") from error
    if (found.kind is IdKind.KEY) != (not name) or (found.kind is IdKind.FIELD and "'" in name):
        raise InvalidRequest(f"{text!r:.200} names no id: {_ID_FORMS}")
    return found


def parse_late_policy(text: str) -> tuple[LatePolicy, str | None]:
    """`forward`, `drop` or `side:TOPIC`, as the policy and the topic; raises InvalidRequest."""
    word, found, topic = text.partition(":")
    if (
        word not in list(LatePolicy)
        or (word == LatePolicy.SIDE) != bool(topic)
        or (found and not topic)
    ):
        raise InvalidRequest(
            f"{text!r:.200} is no policy for late records: write forward, drop or side:TOPIC"
        )
    return LatePolicy(word), topic or None


_ID_FORMS: Final = "write key, header:NAME or field:PATH, as field:order.id"
