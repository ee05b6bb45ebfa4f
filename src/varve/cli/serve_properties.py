"""Reads Java's properties files, as Kafka's server.properties is one."""

import re
from collections.abc import Iterator
from typing import Final

from varve.foundation.errors import InvalidSetting

_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPE: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_KEY: Final = re.compile(r"((?:\\.|[^\\:=\s])+)\s*[:=]?\s*(.*)", re.DOTALL)


def parse_properties(text: str, where: str) -> dict[str, str]:
    """Names and values; raises InvalidSetting for a name that is there twice."""
    found: dict[str, str] = {}
    for number, line in _logical_lines(text):
        match = _KEY.fullmatch(line)
        if match is None:
            raise InvalidSetting(f"{where}, line {number}: {line!r:.80} is no name=value")
        name, value = _unescape(match[1]), _unescape(match[2])
        if name in found:
            raise InvalidSetting(f"{where}, line {number}: {name} is there twice; leave one out")
        found[name] = value.rstrip()
    return found


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments; one that ends with an odd backslash goes on in the next."""
    begun, begun_at = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.lstrip()
        if not begun and (not line or line[0] in "#!"):
            continue
        begun_at = begun_at or number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            begun += line[:-1]
            continue
        yield begun_at, begun + line
        begun, begun_at = "", 0
    if begun:
        yield begun_at, begun


def _unescape(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        escaped = match[1]
        if len(escaped) == 5:
            return chr(int(escaped[1:], 16))
        return _ESCAPES.get(escaped, escaped)

    return _ESCAPE.sub(plain, text)
