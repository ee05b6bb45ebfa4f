"""The automaton of an expression: its characters are positions, and some may follow others.

This is Glushkov's: where one may stand in an expression is one bit for each position.

Invariant  `follow` has the positions that may come after each one, as far as parts were joined.
"""

from dataclasses import dataclass
from typing import Final

from varve.broker.groups.regex_characters import BEGIN, END


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of an expression: positions, as bits, where it may begin and end."""

    first: int = 0
    last: int = 0
    is_nullable: bool = True


NOTHING: Final = Part()


class Positions:
    """Grows while an expression is read, piece by piece."""

    def __init__(self) -> None:
        self._masks: list[int] = []
        self.follow: list[int] = []

    def __len__(self) -> int:
        return len(self._masks)

    def add(self, mask: int) -> Part:
        """A new position, for any one character of a set."""
        self._masks.append(mask)
        self.follow.append(0)
        bit = 1 << (len(self._masks) - 1)
        return Part(bit, bit, is_nullable=False)

    def _link(self, last: int, first: int) -> None:
        while last:
            lowest = last & -last
            self.follow[lowest.bit_length() - 1] |= first
            last ^= lowest

    def then(self, one: Part, other: Part) -> Part:
        """One after the other."""
        self._link(one.last, other.first)
        return Part(
            one.first | other.first if one.is_nullable else one.first,
            one.last | other.last if other.is_nullable else other.last,
            one.is_nullable and other.is_nullable,
        )

    def repeated(self, one: Part) -> Part:
        """As often as one likes, once at least."""
        self._link(one.last, one.first)
        return one

    def has_doubled_anchor(self) -> bool:
        """A name begins and ends once: two anchors in a row would have to share its end."""
        for anchor in (BEGIN, END):
            given = [one for one, mask in enumerate(self._masks) if mask == anchor and one]
            among = sum(1 << one for one in given)
            if any(self.follow[one] & among for one in given):
                return True
        return False

    def by_character(self) -> dict[str, int]:
        """The positions at which each character may stand."""
        return {
            chr(code): sum(1 << one for one, mask in enumerate(self._masks) if mask >> code & 1)
            for code in range(128)
        }


def either(one: Part, other: Part) -> Part:
    """One or the other."""
    is_nullable = one.is_nullable or other.is_nullable
    return Part(one.first | other.first, one.last | other.last, is_nullable)


def optional(one: Part) -> Part:
    """One or nothing."""
    return Part(one.first, one.last, is_nullable=True)
