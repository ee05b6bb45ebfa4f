"""Sizes as people write them: `16KiB`, `1 MiB`, `10000`.

Invariant  a number with a unit is bytes, a number without one is a count.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from varve.foundation.errors import InvalidRequest

_FACTORS = {"B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_PATTERN = re.compile(r"(\d[\d,_]*)\s*([A-Za-z]*)")
SIZE_MAX = 1 << 40


class SizeUnit(StrEnum):
    """What the size of a measure counts."""

    BYTES = "bytes"
    COUNT = "count"


@dataclass(frozen=True, slots=True)
class Size:
    """An amount with its unit; `str()` gives what `parse_size` reads."""

    amount: int
    unit: SizeUnit

    def __str__(self) -> str:
        return format_bytes(self.amount) if self.unit is SizeUnit.BYTES else str(self.amount)


def parse_size(text: str) -> Size:
    """Reads one size; `InvalidRequest` for anything but a positive number with a known unit."""
    match = _PATTERN.fullmatch(text.strip())
    if match is None:
        raise InvalidRequest(f"size {text!r} is not a number: write 16KiB, 1MiB or 10000")
    digits, unit = match.groups()
    if unit and unit.upper() not in _FACTORS:
        raise InvalidRequest(f"size {text!r} has unknown unit {unit!r}: use B, KiB, MiB or GiB")
    amount = int(re.sub("[,_]", "", digits)) * _FACTORS.get(unit.upper(), 1)
    if not 0 < amount <= SIZE_MAX:
        raise InvalidRequest(f"size {text!r} is outside 1..{SIZE_MAX}")
    return Size(amount, SizeUnit.BYTES if unit else SizeUnit.COUNT)


def format_bytes(amount: int) -> str:
    """The largest unit that divides the amount: 16384 is `16 KiB`."""
    for name, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if amount >= factor and amount % factor == 0:
            return f"{amount // factor} {name}"
    return f"{amount} B"


@dataclass(frozen=True, slots=True)
class SizeRequest:
    """Sizes asked for on the command line: for one measure, or for all that count in their unit."""

    measure: str | None
    sizes: tuple[Size, ...]


def parse_size_argument(text: str) -> SizeRequest:
    """Reads `16KiB`, `16KiB,1MiB` or `append=16KiB,1MiB`."""
    measure, equals, listed = text.rpartition("=")
    if equals and not measure:
        raise InvalidRequest(f"size {text!r} names no measure before '='")
    sizes = tuple(parse_size(part) for part in _split(listed))
    if not sizes:
        raise InvalidRequest(f"size {text!r} is empty: write 16KiB or MEASURE=16KiB,1MiB")
    return SizeRequest(measure or None, sizes)


def _split(listed: str) -> Sequence[str]:
    # A comma between a digit and exactly three digits groups thousands: `10,000` is one size.
    return [part for part in re.split(r"(?<!\d),|,(?!\d{3}(?!\d))", listed) if part.strip()]
