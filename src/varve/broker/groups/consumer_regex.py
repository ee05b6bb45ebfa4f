"""Regular expressions over names of topics, in the syntax of RE2, matched in bounded time.

An expression becomes an automaton over the positions of its characters (Glushkov's). Where it may
stand is one bit per position; a character of a name takes one step, whatever the expression.
Python's own expressions may take exponential time, and nothing else runs meanwhile.

Invariant  what is accepted matches a whole name as RE2 would. Word boundaries, classes of Unicode
           and what RE2 refuses too (references back, looking around) are refused.
"""

import string
from dataclasses import dataclass
from typing import Final, NoReturn

from varve.foundation.errors import InvalidRequest

SIZE_MAX: Final = 4_096
POSITIONS_MAX: Final = 512
"""With counted repetitions written out."""
_DEPTH_MAX: Final = 50
_REPEAT_MAX: Final = 1_000
_ATOMS_MAX: Final = 10_000
"""Read in all: what has no positions may be repeated too."""
_REMEMBERED_MAX: Final = 4_096

# Characters are bits; two that occur in no name stand for its beginning and its end.
_BEGIN: Final = 1 << 2
_END: Final = 1 << 3
_ANY: Final = ((1 << 128) - 1) & ~(_BEGIN | _END | 1 << ord("\n"))


def _mask(characters: str) -> int:
    found = 0
    for one in characters:
        found |= 1 << ord(one) if ord(one) < 128 else 0
    return found & ~(_BEGIN | _END)


_DIGITS: Final = _mask(string.digits)
_WORD: Final = _mask(string.ascii_letters + string.digits + "_")
_SPACE: Final = _mask("\t\n\f\r ")
_NAMED: Final = {
    "alnum": _mask(string.ascii_letters + string.digits),
    "alpha": _mask(string.ascii_letters),
    "digit": _DIGITS,
    "lower": _mask(string.ascii_lowercase),
    "punct": _mask(string.punctuation),
    "space": _mask("\t\n\v\f\r "),
    "upper": _mask(string.ascii_uppercase),
    "word": _WORD,
    "xdigit": _mask(string.hexdigits),
}
_ESCAPED_CLASSES: Final = {
    "d": _DIGITS,
    "D": _ANY & ~_DIGITS,
    "w": _WORD,
    "W": _ANY & ~_WORD,
    "s": _SPACE,
    "S": _ANY & ~_SPACE,
}
_ESCAPED_CHARACTERS: Final = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


@dataclass(frozen=True, slots=True)
class _Part:
    """A piece of an expression: positions, as bits, where it may begin and end."""

    first: int = 0
    last: int = 0
    is_nullable: bool = True


_NOTHING: Final = _Part()


class TopicPattern:
    """An expression that was accepted."""

    def __init__(self, text: str) -> None:
        parser = _Parser(text)
        root = parser.parse()
        self.text = text
        self._start = root.first
        self._accepts_empty = root.is_nullable
        self._last = root.last
        self._follow = parser.follow
        self._by_character = parser.by_character()
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


class _Parser:
    """Reads an expression and lays out its positions on the way."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._atoms = 0
        self._folds = False
        self._masks: list[int] = []
        self.follow: list[int] = []
        if len(text) > SIZE_MAX:
            self._refuse(f"it has {len(text)} characters, and {SIZE_MAX} are allowed")
        self._text = _unquote(text)

    def _refuse(self, why: str) -> NoReturn:
        shown = self._text if len(self._text) <= 100 else f"{self._text[:100]}..."
        raise InvalidRequest(f"the regular expression {shown!r} is not valid here: {why}")

    def parse(self) -> _Part:
        begin = self._optional(self._position(_BEGIN))
        given = self._alternatives()
        if self._at < len(self._text):
            self._refuse(f"a parenthesis closes at {self._at} that was not opened")
        self._check_anchors()
        end = self._optional(self._position(_END))
        return self._then(self._then(begin, given), end)

    def _check_anchors(self) -> None:
        """A name begins and ends once: two anchors in a row would have to share its end."""
        for anchor in (_BEGIN, _END):
            given = [one for one, mask in enumerate(self._masks) if mask == anchor and one]
            among = sum(1 << one for one in given)
            if any(self.follow[one] & among for one in given):
                self._refuse("an anchor follows an anchor")

    def by_character(self) -> dict[str, int]:
        return {
            chr(code): sum(1 << one for one, mask in enumerate(self._masks) if mask >> code & 1)
            for code in range(128)
        }

    # Pieces

    def _position(self, mask: int) -> _Part:
        if len(self._masks) >= POSITIONS_MAX:
            self._refuse(f"it has more than {POSITIONS_MAX} positions, repetitions written out")
        self._masks.append(mask)
        self.follow.append(0)
        bit = 1 << (len(self._masks) - 1)
        return _Part(bit, bit, is_nullable=False)

    def _link(self, last: int, first: int) -> None:
        while last:
            lowest = last & -last
            self.follow[lowest.bit_length() - 1] |= first
            last ^= lowest

    def _then(self, one: _Part, other: _Part) -> _Part:
        self._link(one.last, other.first)
        return _Part(
            one.first | other.first if one.is_nullable else one.first,
            one.last | other.last if other.is_nullable else other.last,
            one.is_nullable and other.is_nullable,
        )

    def _optional(self, one: _Part) -> _Part:
        return _Part(one.first, one.last, is_nullable=True)

    def _repeated(self, one: _Part) -> _Part:
        self._link(one.last, one.first)
        return one

    # The syntax

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, wanted: str) -> bool:
        if self._text.startswith(wanted, self._at):
            self._at += len(wanted)
            return True
        return False

    def _next(self) -> str:
        if self._at >= len(self._text):
            self._refuse("it ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _alternatives(self) -> _Part:
        found = self._sequence()
        while self._take("|"):
            other = self._sequence()
            is_nullable = found.is_nullable or other.is_nullable
            found = _Part(found.first | other.first, found.last | other.last, is_nullable)
        return found

    def _sequence(self) -> _Part:
        found = _NOTHING
        while self._at < len(self._text) and self._peek() not in "|)":
            found = self._then(found, self._quantified())
        return found

    def _quantified(self) -> _Part:
        start, folds = self._at, self._folds
        one = self._atom()
        end = self._at
        counts = self._quantifier()
        if counts is None:
            return one
        self._take("?")  # Which match is found first makes no difference to whether there is one.
        if self._quantifier() is not None:
            self._refuse(f"a repetition is repeated at {self._at}; group it")
        after = self._at
        at_least, at_most = counts
        found = self._counted(one, at_least, at_most, (start, end), folds)
        self._at = after
        return found

    def _counted(
        self,
        one: _Part,
        at_least: int,
        at_most: int | None,
        span: tuple[int, int],
        folds: bool,
    ) -> _Part:
        """Writes a repetition out; each copy has positions of its own and is read anew."""
        if at_most == 0:
            return _NOTHING
        if at_most is None and at_least <= 1:
            repeated = self._repeated(one)
            return repeated if at_least else self._optional(repeated)
        found = one if at_least else self._optional(one)
        for number in range(2, (at_most or at_least) + 1):
            self._at, self._folds = span[0], folds
            copy = self._atom()
            if at_most is None and number == at_least:
                copy = self._repeated(copy)
            found = self._then(found, copy if number <= at_least else self._optional(copy))
        return found

    def _quantifier(self) -> tuple[int, int | None] | None:
        for sign, counts in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return counts
        if self._peek() != "{":
            return None
        end = self._text.find("}", self._at)
        low, comma, high = self._text[self._at + 1 : max(end, 0)].partition(",")
        if end < 0 or not _is_number(low) or not (high == "" or _is_number(high)):
            return None  # A brace that counts nothing stands for itself.
        self._at = end + 1
        at_least = int(low)
        at_most = at_least if not comma else int(high) if high else None
        if max(at_least, at_most or 0) > _REPEAT_MAX or (at_most or at_least) < at_least:
            is_none = at_most == 0 and at_least == 0
            if not is_none:
                self._refuse(f"counts are from 0 to {_REPEAT_MAX}, the smaller one first")
        return at_least, at_most

    def _atom(self) -> _Part:
        self._atoms += 1
        if self._atoms > _ATOMS_MAX:
            self._refuse(f"it is longer than {_ATOMS_MAX} steps, repetitions written out")
        character = self._next()
        match character:
            case "(":
                return self._group()
            case "[":
                return self._position(self._class())
            case ".":
                return self._position(_ANY)
            case "^":
                return self._position(_BEGIN)
            case "$":
                return self._position(_END)
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                self._refuse(f"nothing is there to repeat at {self._at - 1}")
        return self._literal(character)

    def _literal(self, character: str) -> _Part:
        both = character.lower() + character.upper() if self._folds else character
        return self._position(_mask(both))

    def _group(self) -> _Part:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            self._refuse(f"it is nested more than {_DEPTH_MAX} deep")
        folds = self._folds
        if self._take("?") and not self._group_head():
            self._depth -= 1
            return _NOTHING  # Flags for what follows.
        found = self._alternatives()
        if not self._take(")"):
            self._refuse("a parenthesis is not closed")
        self._folds = folds
        self._depth -= 1
        return found

    def _group_head(self) -> bool:
        """Reads what stands after `(?`; False where that is all of it."""
        if self._take("P<") or (self._take("<") and self._peek() not in ("=", "!")):
            name = self._text[self._at : max(self._text.find(">", self._at), self._at)]
            if not name.isidentifier():
                self._refuse("a group has a name that is none")
            self._at += len(name) + 1
            return True
        sets = True
        while (flag := self._next()) not in ":)":
            if flag not in "imsU-":
                self._refuse(f"(?{flag} is not known")
            if flag == "-":
                sets = False
            elif flag == "i":
                self._folds = sets
        return flag == ":"

    def _escape(self) -> _Part:
        character = self._next()
        if character in _ESCAPED_CLASSES:
            return self._position(_ESCAPED_CLASSES[character])
        if character == "A":
            return self._position(_BEGIN)
        if character == "z":
            return self._position(_END)
        return self._literal(self._escaped(character))

    def _escaped(self, character: str) -> str:
        if character in _ESCAPED_CHARACTERS:
            return _ESCAPED_CHARACTERS[character]
        if character == "x":
            return self._hexadecimal()
        if character.isalnum() or ord(character) >= 128:
            self._refuse(f"\\{character} is not known")
        return character

    def _hexadecimal(self) -> str:
        if self._take("{"):
            digits = self._text[self._at : max(self._text.find("}", self._at), self._at)]
            self._at += len(digits) + 1
        else:
            digits = self._text[self._at : self._at + 2]
            self._at += 2
        if not digits or len(digits) > 6 or not set(digits) <= set(string.hexdigits):
            self._refuse("\\x is followed by two hexadecimal digits, or some in braces")
        code = int(digits, 16)
        return chr(code) if code < 128 else "\x80"

    def _class(self) -> int:
        """What stands in brackets."""
        is_negated = self._take("^")
        found, is_first = 0, True
        while is_first or self._peek() != "]":
            is_first = False
            found |= self._class_item()
        self._at += 1
        return (_ANY | 1 << ord("\n")) & ~found if is_negated else found

    def _class_item(self) -> int:
        if self._take("[:"):
            end = self._text.find(":]", self._at)
            name = self._text[self._at : max(end, self._at)]
            if name.removeprefix("^") not in _NAMED:
                self._refuse(f"[:{name}:] is not known")
            self._at = end + 2
            mask = _NAMED[name.removeprefix("^")]
            return _ANY & ~mask if name.startswith("^") else mask
        low = self._class_character()
        if isinstance(low, int):
            return low
        if self._peek() != "-" or self._text[self._at + 1 : self._at + 2] in ("]", ""):
            return self._folded(low)
        self._at += 1
        high = self._class_character()
        if isinstance(high, int) or high < low:
            self._refuse("a range of characters ends before it begins")
        return self._folded("".join(map(chr, range(ord(low), min(ord(high), 127) + 1))))

    def _folded(self, characters: str) -> int:
        both = characters.lower() + characters.upper() if self._folds else characters
        return _mask(both)

    def _class_character(self) -> str | int:
        """A character, or the mask of a class."""
        character = self._next()
        if character != "\\":
            return character
        escaped = self._next()
        if escaped in _ESCAPED_CLASSES:
            return _ESCAPED_CLASSES[escaped]
        return self._escaped(escaped)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 6


def _unquote(text: str) -> str:
    r"""Writes what stands between `\Q` and `\E` with a backslash before each sign."""
    found, at = [], 0
    while at < len(text):
        if not text.startswith("\\Q", at):
            step = 2 if text[at] == "\\" else 1
            found.append(text[at : at + step])
            at += step
            continue
        end = text.find("\\E", at + 2)
        quoted = text[at + 2 :] if end < 0 else text[at + 2 : end]
        found.extend(f"\\{one}" if one in string.punctuation else one for one in quoted)
        at = len(text) if end < 0 else end + 2
    return "".join(found)
