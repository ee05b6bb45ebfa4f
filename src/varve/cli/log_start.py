"""Where a read begins, as it is written on the command line."""

import re
from enum import StrEnum
from typing import NamedTuple

import typer

from varve.foundation.errors import InvalidRequest
from varve.foundation.units import parse_time


class StartKind(StrEnum):
    BEGINNING = "beginning"
    END = "end"
    OFFSET = "offset"
    TIME = "time"


class Start(NamedTuple):
    """`number` is the offset, or the milliseconds since 1970."""

    kind: StartKind
    number: int = 0


def parse_start(text: str) -> Start:
    """`beginning`, `end`, an offset, `@` with milliseconds, or a date and time."""
    if text in (StartKind.BEGINNING, StartKind.END):
        return Start(StartKind(text))
    if re.fullmatch(r"[0-9]{1,19}", text):
        return Start(StartKind.OFFSET, int(text))
    try:
        if text.startswith("-"):
            raise InvalidRequest("neither offsets nor times are negative")
        return Start(StartKind.TIME, parse_time(text, name="a start"))
    except InvalidRequest:
        raise typer.BadParameter(
            f"{text!r} is neither beginning, end, an offset, @milliseconds nor a time such as "
            "2026-03-01T12:00:00, which is UTC"
        ) from None
