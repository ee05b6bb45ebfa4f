"""Patterns of LIKE, matched in time proportional to text and pattern.

Invariant  no pattern makes a match slow: pieces between `%` are found from left to right, each at
           its first place, which is enough since `%` takes whatever lies between.
"""

import re
from collections.abc import Callable

Matcher = Callable[[str], bool]


def compile_like(pattern: str, escape: str, *, is_case_blind: bool) -> Matcher | None:
    """Whether a text matches; None when the pattern ends with its escape character."""
    pieces = _pieces(pattern, escape)
    if pieces is None:
        return None
    flags = re.DOTALL | re.IGNORECASE if is_case_blind else re.DOTALL
    if len(pieces) == 1:
        whole = re.compile(pieces[0], flags)
        return lambda text: whole.fullmatch(text) is not None
    first = re.compile(pieces[0], flags)
    middle = [re.compile(piece, flags) for piece in pieces[1:-1] if piece]
    last, last_size = re.compile(pieces[-1], flags), _size(pieces[-1])

    def matches(text: str) -> bool:
        found = first.match(text)
        if found is None:
            return False
        position = found.end()
        for piece in middle:
            found = piece.search(text, position)
            if found is None:
                return False
            position = found.end()
        start = len(text) - last_size
        return start >= position and last.fullmatch(text, start) is not None

    return matches


def _pieces(pattern: str, escape: str) -> list[str] | None:
    """Regular expressions of what stands between the `%`; each character takes one of the text."""
    pieces, characters = [""], iter(pattern)
    for character in characters:
        if escape and character == escape:
            literal = next(characters, None)
            if literal is None:
                return None
            pieces[-1] += re.escape(literal)
        elif character == "%":
            pieces.append("")
        else:
            pieces[-1] += "." if character == "_" else re.escape(character)
    return pieces


def _size(piece: str) -> int:
    """How many characters a piece takes."""
    return len(re.sub(r"\\.", ".", piece, flags=re.DOTALL))
