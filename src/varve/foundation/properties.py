"""Parser and escaping for Java properties, the format of server.properties and meta.properties.

Layout     `name=value` lines; `#` and `!` start comments, a backslash escapes or continues a line.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_BLANK: Final = " \t\f"
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED: Final = {character: f"\\{letter}" for letter, character in _ESCAPES.items()}
_HEX: Final = re.compile(r"[0-9A-Fa-f]{4}")


class Property(NamedTuple):
    """A name and its value as Java reads them; trailing blanks are part of the value."""

    line_number: int
    name: str
    value: str


def parse_properties(text: str) -> list[Property]:
    """All properties in order, repeated names included; raises ValueError naming the line."""
    properties = []
    for number, line in _logical_lines(text):
        name_end = _find_name_end(line)
        value = line[name_end:].lstrip(_BLANK)
        if value[:1] in ("=", ":"):
            value = value[1:].lstrip(_BLANK)
        try:
            properties.append(Property(number, _unescape(line[:name_end]), _unescape(value)))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return properties


def escape_property(text: str) -> str:
    """A name or a value as Java writes it."""
    return "".join(map(_escape_character, text))


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their continuations joined, without leading blanks, comments and empty lines."""
    start, pending = 0, None
    for number, raw in enumerate(_LINE_END.split(text), start=1):
        line = raw.lstrip(_BLANK)
        if pending is None:
            if not line or line[0] in "#!":
                continue
            start, pending = number, ""
        if (len(line) - len(line.rstrip("\\"))) % 2:
            pending += line[:-1]
            continue
        yield start, pending + line
        pending = None
    if pending is not None:
        yield start, pending


def _find_name_end(line: str) -> int:
    position = 0
    while position < len(line) and line[position] not in "=: \t\f":
        position += 2 if line[position] == "\\" else 1
    return min(position, len(line))


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    parts = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character == "\\":
            character = text[position : position + 1]
            position += 1
            if character == "u":
                digits = text[position : position + 4]
                if _HEX.fullmatch(digits) is None:
                    raise ValueError(f"\\u{digits} is not a character of four hex digits")
                character = chr(int(digits, 16))
                position += 4
            else:
                character = _ESCAPES.get(character, character)
        parts.append(character)
    # Java writes a character beyond 16 bits as two escapes.
    return "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _escape_character(character: str) -> str:
    if character in "\\=:#! ":
        return f"\\{character}"
    if " " < character < "\x7f":
        return character
    if character in _ESCAPED:
        return _ESCAPED[character]
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(
        f"\\u{high:02x}{low:02x}" for high, low in zip(units[::2], units[1::2], strict=True)
    )
