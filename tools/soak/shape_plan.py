"""What happens to the servers and shapes of a soak, and when; the same seed gives the same plan."""

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_GAP_SECONDS: Final = (1.0, 8.0)


class Deed(StrEnum):
    """What is done at a moment of the plan."""

    KILL_SHAPES = "kill shapes"
    """kill -9 of the server of shapes, and a start."""
    STOP_SHAPES = "restart shapes"
    KILL_BROKER = "kill broker"
    STOP_BROKER = "restart broker"
    KILL_BOTH = "kill both"
    COMPACT = "compact"
    """The log of a shape, beside what the server does by itself."""
    ROTATE = "rotate"
    """A shape is deleted; its clients begin anew."""
    JOIN = "join"
    """More clients come."""
    LOOK = "look"
    """The writers rest until every client has exactly its rows."""


_DEEDS: Final = (*Deed, Deed.KILL_SHAPES, Deed.KILL_SHAPES, Deed.COMPACT, Deed.LOOK)


@dataclass(frozen=True, slots=True)
class Action:
    """At so many seconds after the beginning; `down_seconds` is how long nobody serves."""

    at_seconds: float
    deed: Deed
    down_seconds: float


def make_plan(seed: int, seconds: float) -> list[Action]:
    """Actions in the order of their time; each deed is there where there is room for it."""
    source = random.Random(seed)
    plan: list[Action] = []
    first = list(Deed)
    source.shuffle(first)
    at = source.uniform(*_GAP_SECONDS)
    while at < seconds:
        deed = first.pop() if first else source.choice(_DEEDS)
        plan.append(Action(round(at, 1), deed, source.choice((0.0, 0.0, 0.5, 2.0))))
        at += source.uniform(*_GAP_SECONDS)
    return plan
