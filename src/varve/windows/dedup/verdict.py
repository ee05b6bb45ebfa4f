"""What records are found to be, how many of each, and where they go.

Invariant  every record is exactly one of these, so that counts add up to what was read.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import IntEnum
from operator import add, attrgetter
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from varve.kernels import window_spans
from varve.windows.dedup.rules import DedupRules, LatePolicy, NullPolicy

Verdicts = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]


class Verdict(IntEnum):
    """What a record is."""

    KEPT = window_spans.KEPT
    DUPLICATE = window_spans.DUPLICATE
    LATE = window_spans.LATE
    FUTURE = window_spans.FUTURE
    MISSING = window_spans.MISSING
    """It has no timestamp."""
    NO_ID = window_spans.NO_ID_FOUND


_VERDICT_COUNT: Final = len(Verdict)


@dataclass(frozen=True, slots=True)
class Counts:
    """How many records were what, in the order of Verdict."""

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
    """Where a record goes."""

    NOWHERE = 0
    ON = 1
    ASIDE = 2


def route(verdicts: Verdicts, rules: DedupRules) -> Verdicts:
    """The Route of each record."""
    found: Verdicts = _routes(rules)[verdicts]
    return found


def _routes(rules: DedupRules) -> Verdicts:
    """A Route for each Verdict."""
    by_policy = {
        LatePolicy.FORWARD: Route.ON,
        LatePolicy.DROP: Route.NOWHERE,
        LatePolicy.SIDE: Route.ASIDE,
    }
    made = np.zeros(len(Verdict), np.uint8)
    made[Verdict.KEPT] = Route.ON
    made[Verdict.DUPLICATE] = Route.NOWHERE
    made[Verdict.LATE] = by_policy[rules.late]
    made[Verdict.FUTURE] = by_policy[rules.future]
    made[Verdict.MISSING] = by_policy[rules.missing]
    made[Verdict.NO_ID] = Route.ON if rules.null is NullPolicy.FORWARD else Route.NOWHERE
    return made
