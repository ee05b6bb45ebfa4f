"""Arrays as PostgreSQL writes them: `{1,NULL,"a b"}`.

Elements are divided by commas, blanks around them do not count. One that is empty, spells NULL or
holds `, { } " \\` stands in double quotes; a backslash takes the meaning of what follows it away.
"""

import re
from collections.abc import Iterator
from typing import Final

from varve.foundation.errors import InvalidRequest

_BLANK: Final = r"[ \t\n\r\v\f]"
_PLAIN: Final = r"(?:[^\\\"{}, \t\n\r\v\f]|\\.)+"
_NO_ELEMENTS: Final = re.compile(rf"{_BLANK}*{{{_BLANK}*}}{_BLANK}*")
_START: Final = re.compile(rf"{_BLANK}*{{")
_ELEMENT: Final = re.compile(
    rf"{_BLANK}*(?:\"(?P<quoted>(?:[^\"\\]|\\.)*)\"|(?P<plain>{_PLAIN}(?:{_BLANK}+{_PLAIN})*))"
    rf"{_BLANK}*(?:,|(?P<end>}}{_BLANK}*\Z))",
    re.DOTALL,
)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


def split_array(text: str) -> Iterator[str | None]:
    """The elements of an array of one dimension; raises InvalidRequest where it is none."""
    if _NO_ELEMENTS.fullmatch(text):
        return
    found = _START.match(text)
    while found is not None:
        found = _ELEMENT.match(text, found.end())
        if found is None:
            break
        yield _element(found)
        if found["end"] is not None:
            return
    raise InvalidRequest(
        f"{text!r:.80} is no array of one dimension: write {{1,2}}, "
        'and texts with , { } " \\ or blanks at an end in double quotes: {"a,b","c"}'
    )


def _element(found: re.Match[str]) -> str | None:
    plain = found["plain"]
    if plain is not None and plain.upper() == "NULL":
        return None
    return _ESCAPED.sub(r"\1", found["quoted"] if plain is None else plain)
