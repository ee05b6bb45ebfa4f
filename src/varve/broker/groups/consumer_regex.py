"""Regular expressions over names of topics, in the syntax of RE2, matched in bounded time.

An expression becomes an automaton over the positions of its characters. Where it may stand is one
bit per position; a character of a name takes one step, whatever the expression. Python's own
expressions may take exponential time, and nothing else runs meanwhile.

Invariant  what is accepted matches a whole name as RE2 would.
"""

from typing import Final

from varve.broker.groups.regex_parser import RegexParser

_REMEMBERED_MAX: Final = 4_096


class TopicPattern:
    """An expression that was accepted."""

    def __init__(self, text: str) -> None:
        parser = RegexParser(text)
        root = parser.parse()
        self.text = text
        self._start = root.first
        self._last = root.last
        self._follow = parser.positions.follow
        self._by_character = parser.positions.by_character()
        self._steps: dict[int, int] = {}

    def matches(self, name: str) -> bool:
        """Whether it matches the whole name."""
        allowed = self._start
        standing = 0
        for character in f"\x02{name}\x03":
            standing = allowed & self._by_character.get(character, 0)
            if not standing:
                return False
            allowed = self._steps.get(standing) or self._step(standing)
        return bool(standing & self._last)

    def _step(self, standing: int) -> int:
        found, left = 0, standing
        while left:
            lowest = left & -left
            found |= self._follow[lowest.bit_length() - 1]
            left ^= lowest
        if len(self._steps) < _REMEMBERED_MAX:
            self._steps[standing] = found
        return found
