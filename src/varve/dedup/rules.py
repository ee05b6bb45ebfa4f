"""Which records are duplicates, and how records that cannot be compared are handled.

The processor, the broker and the Spark job share these rules.

Invariant  `fingerprint` has everything that decides which records are duplicates: state written
           under one cannot be used under another. Policies and the lateness may change.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import IntEnum, StrEnum
from operator import add, attrgetter
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from varve.dedup.kernels import time_spans
from varve.foundation.errors import InvalidRequest

FUTURE_MS_MAX: Final = 3_600_000
"""Default for how far a record's time may be ahead of the clock."""
SPAN_MS_MAX: Final = 400 * 24 * 3_600_000
"""More than a year, and far from an overflow of sums of spans."""

_SEGMENT_MS_MIN: Final = 60_000
_SEGMENTS_PER_RETENTION: Final = 4
"""A segment expires as a whole: a quarter more than the retention is on disk."""


class IdKind(StrEnum):
    """The part of a record that holds its id."""

    KEY = "key"
    HEADER = "header"
    FIELD = "field"


@dataclass(frozen=True, slots=True)
class IdSource:
    """The part of a record that two copies share."""

    kind: IdKind
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.name else str(self.kind)


class LatePolicy(StrEnum):
    """How a record that is not compared is handled: late, from the future, without a timestamp."""

    FORWARD = "forward"
    DROP = "drop"
    SIDE = "side"


class NullPolicy(StrEnum):
    """How a record without an id is handled."""

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
        """How long after its time an id can still be needed, in stream time, plus 1 ms."""
        return self.before_ms + self.lateness_ms + 1

    @property
    def cell_ms(self) -> int:
        """As wide as the window: two kept times of one cell have only duplicates between them."""
        return self.before_ms + self.after_ms + 1

    @property
    def cells_per_segment(self) -> int:
        """1, unless the window is so short that there would be too many segments."""
        segment_ms = max(_SEGMENT_MS_MIN, self.retention_ms // _SEGMENTS_PER_RETENTION)
        return -(-segment_ms // self.cell_ms)

    @property
    def segment_ms(self) -> int:
        """The time range of one segment of the store: whole cells."""
        return self.cell_ms * self.cells_per_segment

    def fingerprint(self) -> str:
        """The rules that existing state depends on, as text."""
        refresh = "refreshed by copies" if self.is_refreshing else "from the kept copy"
        return f"by {self.by}, {self.before_ms} ms before, {self.after_ms} ms after, {refresh}"


def check_span(name: str, value: int) -> None:
    """Raises InvalidRequest for a span that is negative or longer than SPAN_MS_MAX."""
    if not 0 <= value <= SPAN_MS_MAX:
        raise InvalidRequest(f"{name} is {value}, it must be from 0 to {SPAN_MS_MAX}")


def parse_id_source(text: str) -> IdSource:
    """`key`, `header:NAME` or `field:PATH`; raises InvalidRequest."""
    kind, _, name = text.partition(":")
    try:
        name.encode()
        source = IdSource(IdKind(kind), name)
    except ValueError as error:
        raise InvalidRequest(f"{text!r:.200} is not an id source: {_ID_FORMS}") from error
    if (source.kind is IdKind.KEY) != (not name) or (source.kind is IdKind.FIELD and "'" in name):
        raise InvalidRequest(f"{text!r:.200} is not an id source: {_ID_FORMS}")
    return source


def parse_late_policy(text: str) -> tuple[LatePolicy, str | None]:
    """`forward`, `drop` or `side:TOPIC`, as the policy and the topic; raises InvalidRequest."""
    word, colon, topic = text.partition(":")
    if (
        word not in list(LatePolicy)
        or (word == LatePolicy.SIDE) != bool(topic)
        or (colon and not topic)
    ):
        raise InvalidRequest(
            f"{text!r:.200} is not a policy for late records: write forward, drop or side:TOPIC"
        )
    return LatePolicy(word), topic or None


_ID_FORMS: Final = "write key, header:NAME or field:PATH, such as field:order.id"


Verdicts = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]


class RuleOptions(NamedTuple):
    """The rules, and the topic for records that go to the side."""

    rules: DedupRules
    side_topic: str | None


def build_rules(
    by: str,
    window: int | None = None,
    before: int | None = None,
    after: int | None = None,
    lateness: int | None = None,
    late: str = "forward",
    no_id: str = "forward",
    refresh: bool = False,
    max_future: int = FUTURE_MS_MAX,
) -> RuleOptions:
    """Rules from the options of a command or function; durations are in milliseconds.

    `before` and `after` together replace `window`.
    """
    before_ms = window if before is None else before
    after_ms = window if after is None else after
    if before_ms is None or after_ms is None:
        raise InvalidRequest("--window is missing: give it (window=), or both --before and --after")
    policy, side_topic = parse_late_policy(late)
    window_ms = max(before_ms, after_ms) if window is None else window
    rules = DedupRules(
        by=parse_id_source(by),
        before_ms=before_ms,
        after_ms=after_ms,
        lateness_ms=window_ms if lateness is None else lateness,
        late=policy,
        future=policy,
        missing=policy,
        null=NullPolicy(no_id),
        is_refreshing=refresh,
        max_future_ms=max_future,
    )
    return RuleOptions(rules, side_topic)


class Verdict(IntEnum):
    """The result of judging a record."""

    KEPT = time_spans.KEPT
    DUPLICATE = time_spans.DUPLICATE
    LATE = time_spans.LATE
    FUTURE = time_spans.FUTURE
    MISSING = time_spans.MISSING
    """The record has no timestamp."""
    NO_ID = time_spans.NO_ID_FOUND


_VERDICT_COUNT: Final = len(Verdict)


@dataclass(frozen=True, slots=True)
class Counts:
    """Record counts by verdict, in the order of Verdict."""

    kept: int = 0
    duplicates: int = 0
    late: int = 0
    future: int = 0
    missing: int = 0
    no_id: int = 0

    @classmethod
    def of(cls, verdicts: Verdicts) -> Self:
        return cls(*np.bincount(verdicts, minlength=_VERDICT_COUNT).tolist())

    @property
    def total(self) -> int:
        return sum(_fields_of(self))

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*map(add, _fields_of(self), _fields_of(other)))


# Counts are added up for every batch; `astuple` takes a hundred times as long.
_fields_of: Final[Callable[[Counts], tuple[int, ...]]] = attrgetter(
    *(field.name for field in fields(Counts))
)


class Route(IntEnum):
    """The destination of a record: none, the output topic, or the side topic."""

    DROP = 0
    OUTPUT = 1
    SIDE = 2


def route(verdicts: Verdicts, rules: DedupRules) -> Verdicts:
    """The Route of each record."""
    routes: Verdicts = make_routes(rules)[verdicts]
    return routes


def make_routes(rules: DedupRules) -> Verdicts:
    """A Route for each Verdict."""
    by_policy = {
        LatePolicy.FORWARD: Route.OUTPUT,
        LatePolicy.DROP: Route.DROP,
        LatePolicy.SIDE: Route.SIDE,
    }
    routes = np.zeros(len(Verdict), np.uint8)
    routes[Verdict.KEPT] = Route.OUTPUT
    routes[Verdict.DUPLICATE] = Route.DROP
    routes[Verdict.LATE] = by_policy[rules.late]
    routes[Verdict.FUTURE] = by_policy[rules.future]
    routes[Verdict.MISSING] = by_policy[rules.missing]
    routes[Verdict.NO_ID] = Route.OUTPUT if rules.null is NullPolicy.FORWARD else Route.DROP
    return routes
