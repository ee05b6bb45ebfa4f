"""Reads a regular expression over names of topics, in the syntax of RE2.

Invariant  what is read takes bounded time and room. Word boundaries, classes of Unicode and what
           RE2 refuses too (references back, looking around) are refused.
"""

import string
from typing import Final, NoReturn

from varve.broker.groups.regex_characters import (
    ANY,
    BEGIN,
    END,
    ESCAPED_CLASSES,
    NAMED_CLASSES,
    mask_of,
)
from varve.broker.groups.regex_positions import NOTHING, Part, Positions, either, optional
from varve.foundation.errors import InvalidRequest

SIZE_MAX: Final = 4_096
POSITIONS_MAX: Final = 512
"""With counted repetitions written out."""
_DEPTH_MAX: Final = 50
_REPEAT_MAX: Final = 1_000
_ATOMS_MAX: Final = 10_000
"""Read in all: what has no positions may be repeated too."""
_ESCAPED_CHARACTERS: Final = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class RegexParser:
    """Reads an expression and lays out its positions on the way."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._atoms = 0
        self._folds = False
        self.positions = Positions()
        if len(text) > SIZE_MAX:
            self._refuse(f"it has {len(text)} characters, and {SIZE_MAX} are allowed")
        self._text = _unquote(text)

    def _refuse(self, why: str) -> NoReturn:
        shown = self._text if len(self._text) <= 100 else f"{self._text[:100]}..."
        raise InvalidRequest(f"the regular expression {shown!r} is not valid here: {why}")

    def parse(self) -> Part:
        """The whole of it, to be called once; raises InvalidRequest."""
        begin = optional(self._position(BEGIN))
        given = self._alternatives()
        if self._at < len(self._text):
            self._refuse(f"a parenthesis closes at {self._at} that was not opened")
        if self.positions.has_doubled_anchor():
            self._refuse("an anchor follows an anchor")
        end = optional(self._position(END))
        return self.positions.then(self.positions.then(begin, given), end)

    def _position(self, mask: int) -> Part:
        if len(self.positions) >= POSITIONS_MAX:
            self._refuse(f"it has more than {POSITIONS_MAX} positions, repetitions written out")
        return self.positions.add(mask)

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

    def _alternatives(self) -> Part:
        found = self._sequence()
        while self._take("|"):
            found = either(found, self._sequence())
        return found

    def _sequence(self) -> Part:
        found = NOTHING
        while self._at < len(self._text) and self._peek() not in "|)":
            found = self.positions.then(found, self._quantified())
        return found

    def _quantified(self) -> Part:
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
        one: Part,
        at_least: int,
        at_most: int | None,
        span: tuple[int, int],
        folds: bool,
    ) -> Part:
        """Writes a repetition out; each copy has positions of its own and is read anew."""
        if at_most == 0:
            return NOTHING
        if at_most is None and at_least <= 1:
            repeated = self.positions.repeated(one)
            return repeated if at_least else optional(repeated)
        found = one if at_least else optional(one)
        for number in range(2, (at_most or at_least) + 1):
            self._at, self._folds = span[0], folds
            copy = self._atom()
            if at_most is None and number == at_least:
                copy = self.positions.repeated(copy)
            found = self.positions.then(found, copy if number <= at_least else optional(copy))
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

    def _atom(self) -> Part:
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
                return self._position(ANY)
            case "^":
                return self._position(BEGIN)
            case "$":
                return self._position(END)
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                self._refuse(f"nothing is there to repeat at {self._at - 1}")
        return self._literal(character)

    def _literal(self, character: str) -> Part:
        both = character.lower() + character.upper() if self._folds else character
        return self._position(mask_of(both))

    def _group(self) -> Part:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            self._refuse(f"it is nested more than {_DEPTH_MAX} deep")
        folds = self._folds
        if self._take("?") and not self._group_head():
            self._depth -= 1
            return NOTHING  # Flags for what follows.
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

    def _escape(self) -> Part:
        character = self._next()
        if character in ESCAPED_CLASSES:
            return self._position(ESCAPED_CLASSES[character])
        if character == "A":
            return self._position(BEGIN)
        if character == "z":
            return self._position(END)
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
        return (ANY | 1 << ord("\n")) & ~found if is_negated else found

    def _class_item(self) -> int:
        if self._take("[:"):
            end = self._text.find(":]", self._at)
            name = self._text[self._at : max(end, self._at)]
            if name.removeprefix("^") not in NAMED_CLASSES:
                self._refuse(f"[:{name}:] is not known")
            self._at = end + 2
            mask = NAMED_CLASSES[name.removeprefix("^")]
            return ANY & ~mask if name.startswith("^") else mask
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
        return mask_of(both)

    def _class_character(self) -> str | int:
        """A character, or the mask of a class."""
        character = self._next()
        if character != "\\":
            return character
        escaped = self._next()
        if escaped in ESCAPED_CLASSES:
            return ESCAPED_CLASSES[escaped]
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
