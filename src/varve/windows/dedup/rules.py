"""What is a duplicate, and what becomes of records that cannot be compared: one meaning for all.

Both the processor of this room and the Spark job read ids and policies from here.

Invariant  `fingerprint` names all that tells which records are duplicates: a state that was made
           under one cannot go on under another. Policies and the lateness may change.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from varve.foundation.errors import InvalidRequest

FUTURE_MS_MAX: Final = 3_600_000
SPAN_MS_MAX: Final = 400 * 24 * 3_600_000

_SEGMENT_MS_MIN: Final = 60_000
_SEGMENTS_PER_RETENTION: Final = 4


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
    """What becomes of a record that is not compared: late, from the future, without a time."""

    FORWARD = "forward"
    DROP = "drop"
    SIDE = "side"


class NullPolicy(StrEnum):
    """What becomes of a record without an id."""

    FORWARD = "forward"
    DROP = "drop"


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupRules:
    """The rules of a processor. Times are milliseconds."""

    by: IdSource
    before_ms: int
    after_ms: int
    lateness_ms: int
    late: LatePolicy = LatePolicy.FORWARD
    future: LatePolicy = LatePolicy.FORWARD
    missing: LatePolicy = LatePolicy.FORWARD
    null: NullPolicy = NullPolicy.FORWARD
    is_refreshing: bool = False
    max_future_ms: int = FUTURE_MS_MAX

    def __post_init__(self) -> None:
        for name in ("before_ms", "after_ms", "lateness_ms", "max_future_ms"):
            check_span(name, getattr(self, name))

    @property
    def retention_ms(self) -> int:
        """How far behind the stream time an id may be looked for, and a millisecond."""
        return self.before_ms + self.lateness_ms + 1

    @property
    def cell_ms(self) -> int:
        """As wide as the window: two kept times of one cell have only duplicates between them."""
        return self.before_ms + self.after_ms + 1

    @property
    def cells_per_segment(self) -> int:
        """One, unless the window is so short that segments would be too many."""
        segment_ms = max(_SEGMENT_MS_MIN, self.retention_ms // _SEGMENTS_PER_RETENTION)
        return -(-segment_ms // self.cell_ms)

    @property
    def segment_ms(self) -> int:
        """What one segment of the store covers: whole cells."""
        return self.cell_ms * self.cells_per_segment

    def fingerprint(self) -> str:
        """What may not change for a state, in words."""
        refresh = "refreshed by copies" if self.is_refreshing else "from the kept copy"
        return f"by {self.by}, {self.before_ms} ms before, {self.after_ms} ms after, {refresh}"


def check_span(name: str, value: int) -> None:
    """Raises InvalidRequest for a span that is negative or beyond all reason."""
    if not 0 <= value <= SPAN_MS_MAX:
        raise InvalidRequest(f"{name} is {value}, it must be from 0 to {SPAN_MS_MAX}")


def parse_id_source(text: str) -> IdSource:
    """`key`, `header:NAME` or `field:PATH`; raises InvalidRequest."""
    kind, _, name = text.partition(":")
    try:
        name.encode()
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
