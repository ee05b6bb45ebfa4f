"""What happens to the server and when; the same seed gives the same plan."""

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_GAP_SECONDS: Final = (4.0, 20.0)


class Deed(StrEnum):
    """What is done at a moment of the plan."""

    KILL = "kill"
    """kill -9, and a start."""
    RESTART = "restart"
    """A stop in order, and a start."""
    JOIN = "join"
    """One more member joins one of the groups, or leaves it again."""
    LOOK = "look"
    """What was acknowledged so far is read and compared."""


_DEEDS: Final = (Deed.KILL, Deed.KILL, Deed.KILL, Deed.RESTART, Deed.JOIN, Deed.LOOK)


@dataclass(frozen=True, slots=True)
class Action:
    """At so many seconds after the beginning; `down_seconds` is how long nobody serves."""

    at_seconds: float
    deed: Deed
    down_seconds: float = 0.0


def make_plan(seed: int, seconds: float) -> list[Action]:
    """Actions in the order of their time; each deed is there where there is room for it."""
    source = random.Random(seed)
    plan: list[Action] = []
    at = source.uniform(*_GAP_SECONDS)
    first = list(dict.fromkeys(_DEEDS))
    while at < seconds:
        deed = first.pop(0) if first else source.choice(_DEEDS)
        down = source.choice((0.0, 0.0, 0.5, 2.0)) if deed in (Deed.KILL, Deed.RESTART) else 0.0
        plan.append(Action(round(at, 1), deed, down))
        at += source.uniform(*_GAP_SECONDS)
    return plan
