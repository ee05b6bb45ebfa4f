"""LIKE and ILIKE: patterns of texts.

Invariant  matching reads a text once for all pieces without `_`, and once more for every 64
           characters of the others, whatever text and pattern hold. The pieces between `%` are
           searched from left to right, each at its first position, which suffices because `%`
           matches any text between them.
"""

import re
from typing import Final

import numpy as np

_SPECIAL_COST: Final = 16
"""Reading a character of a pattern takes as long as reading so many of a text."""
_WORD_BITS: Final = 64
_DISTINCT_COST: Final = 8
"""Finding all positions of so many characters takes as long as reading the text once."""
_ATTEMPTS_MAX: Final = 64
"""Positions of a piece with `_` that are tried one by one, before all are computed at once."""


def split_cost(pattern: str) -> int:
    """What reading a pattern costs, in characters."""
    return _SPECIAL_COST * len(pattern)


class LikePattern:
    """A pattern that has been read."""

    def __init__(self, pattern: str, escape: str, *, is_case_blind: bool) -> None:
        pieces = _split(pattern, escape, is_case_blind=is_case_blind)
        self.is_valid = pieces is not None
        """Whether the pattern does not end with its escape character."""
        self._is_case_blind = is_case_blind
        self._first, *others = pieces or [_Piece([])]
        self._last = others.pop() if others else None
        self._middle = [piece for piece in others if piece.size]
        masked = [
            character
            for piece in self._middle
            if not piece.is_literal
            for _, character in piece.characters
        ]
        self._readings = 1 + len(masked) // _WORD_BITS + len(set(masked)) // _DISTINCT_COST

    def cost(self, text: str) -> int:
        """What matching a text costs, in characters."""
        return len(text) * self._readings

    def matches(self, text: str) -> bool:
        if self._is_case_blind:
            text = fold_case(text)
        if self._last is None:
            return len(text) == self._first.size and self._first.is_at(text, 0)
        position, end = self._first.size, len(text) - self._last.size
        if position > end or not (self._first.is_at(text, 0) and self._last.is_at(text, end)):
            return False
        positions = _Positions(text)
        for piece in self._middle:
            start = piece.find(positions, position)
            if start < 0:
                return False
            position = start + piece.size
        return position <= end


class _Piece:
    """What stands between two `%`: runs of characters, and `_` between them."""

    def __init__(self, parts: list[str | None]) -> None:
        """Of parts None is a `_`."""
        self.runs: list[tuple[int, str]] = []
        offset = 0
        for part in parts:
            if part is not None:
                self.runs.append((offset, part))
            offset += 1 if part is None else len(part)
        self.size = offset
        self.is_literal = len(self.runs) == 1 and len(self.runs[0][1]) == offset
        self.characters = [
            (offset + place, character)
            for offset, run in self.runs
            for place, character in enumerate(run)
        ]

    def is_at(self, text: str, position: int) -> bool:
        return all(text.startswith(run, position + offset) for offset, run in self.runs)

    def find(self, positions: "_Positions", start: int) -> int:
        """The first position from `start` on, or -1."""
        text = positions.text
        if not self.runs:
            return start if start + self.size <= len(text) else -1
        offset, run = self.runs[0]
        for _ in range(_ATTEMPTS_MAX):
            start = text.find(run, start + offset) - offset
            if start < 0 or start + self.size > len(text):
                return -1
            if self.is_literal or self.is_at(text, start):
                return start
            start += 1
        return positions.find(self, start)


class _Positions:
    """Where the characters of a text stand, as bits."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._bits: dict[str, int] = {}
        self._codes: np.ndarray[tuple[int], np.dtype[np.uint32]] | None = None

    def find(self, piece: _Piece, start: int) -> int:
        found = (1 << max(0, len(self.text) - piece.size + 1)) - 1 >> start
        for offset, character in piece.characters:
            found &= self._of(character) >> (start + offset)
            if not found:
                return -1
        return start + (found & -found).bit_length() - 1

    def _of(self, character: str) -> int:
        bits = self._bits.get(character)
        if bits is None:
            if self._codes is None:
                self._codes = np.frombuffer(self.text.encode("utf-32-le", "surrogatepass"), "<u4")
            packed = np.packbits(self._codes == ord(character), bitorder="little")
            bits = self._bits[character] = int.from_bytes(packed.tobytes(), "little")
        return bits


def _split(pattern: str, escape: str, *, is_case_blind: bool) -> list[_Piece] | None:
    """The pieces between `%`; None when the pattern ends with its escape character."""
    special = f"{re.escape(escape)}(?P<literal>.)?|[%_]" if escape else "[%_]"
    pieces: list[list[str | None]] = [[]]
    texts: list[str] = []

    def end_run() -> None:
        if run := "".join(texts):
            pieces[-1].append(fold_case(run) if is_case_blind else run)
        texts.clear()

    end = 0
    for match in re.finditer(special, pattern, re.DOTALL):
        texts.append(pattern[end : match.start()])
        end = match.end()
        if escape and match[0][0] == escape:
            if match["literal"] is None:
                return None
            texts.append(match["literal"])
            continue
        end_run()
        pieces.append([]) if match[0] == "%" else pieces[-1].append(None)
    texts.append(pattern[end:])
    end_run()
    return [_Piece(parts) for parts in pieces]


def fold_case(text: str) -> str:
    """The text with one case only, and as many characters."""
    return text.lower() if text.isascii() else text.translate(_FOLDS)


class _Folds(dict[int, int]):
    """The folded form of each character; those that fold to several get the first one's case."""

    def __missing__(self, code: int) -> int:
        character = chr(code)
        folded = character.casefold()
        value = self[code] = ord(folded if len(folded) == 1 else character.lower()[0])
        return value


_FOLDS: Final = _Folds()
