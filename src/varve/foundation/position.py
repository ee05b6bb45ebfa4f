"""A place in every partition of a topic, as people write it."""

import re
from enum import StrEnum
from typing import Final, NamedTuple

from varve.foundation.clock import Clock
from varve.foundation.errors import InvalidRequest
from varve.foundation.units import parse_duration, parse_time


class PositionKind(StrEnum):
    BEGINNING = "beginning"
    END = "end"
    OFFSET = "offset"
    TIME = "time"


class ReadPosition(NamedTuple):
    """`number` is the offset, or milliseconds since 1970."""

    kind: PositionKind
    number: int = 0

    def resolve(self, *, first: int, end: int, at_time: int | None) -> int:
        """The offset in a partition; `at_time` is that of a time, None or -1 if it is later."""
        match self.kind:
            case PositionKind.BEGINNING:
                return first
            case PositionKind.END:
                return end
            case PositionKind.OFFSET:
                return self.number
            case PositionKind.TIME:
                return end if at_time is None or at_time < 0 else at_time


BEGINNING: Final = ReadPosition(PositionKind.BEGINNING)
END: Final = ReadPosition(PositionKind.END)


def parse_position(text: str, clock: Clock) -> ReadPosition:
    """`beginning`, `end`, an offset, `@` with milliseconds, a time, or a duration ago: `-10m`.

    `earliest` and `latest` are Kafka's words for the first two.
    """
    if text in (PositionKind.BEGINNING, "earliest"):
        return BEGINNING
    if text in (PositionKind.END, "latest"):
        return END
    if re.fullmatch(r"[0-9]{1,19}", text):
        return ReadPosition(PositionKind.OFFSET, int(text))
    try:
        if re.fullmatch(r"-[0-9]+[a-z].*", text):
            ago_ms = parse_duration(text[1:], name="a position")
            return ReadPosition(PositionKind.TIME, clock.now_ms() - ago_ms)
        if not text.startswith("-"):
            return ReadPosition(PositionKind.TIME, parse_time(text, name="a position"))
    except InvalidRequest:
        pass
    raise InvalidRequest(
        f"{text!r:.80} is not a position: write beginning, end, an offset, @milliseconds, a time "
        "such as 2026-03-01T12:00:00 (UTC), or a duration ago such as -10m"
    )
