"""The columns that a request selects.

Invariant  names stand in the order of the request, each once; the selection is never empty.
"""

import re
from typing import Final

from varve.foundation.errors import InvalidRequest
from varve.shapes.query.filter_sql import TEXT_BYTES_MAX
from varve.shapes.query.parser import parse_identifier

COLUMNS_MAX: Final = 1000
_ENTRY: Final = re.compile(r"((?:\"[^\"]*\"|[^,\"])*)(,|$)")


def parse_columns(text: str) -> tuple[str, ...]:
    """The names in a list with commas; raises InvalidRequest."""
    return tuple(dict.fromkeys([parse_identifier(entry) for entry in split_list(text, "columns")]))


def split_list(text: str, what: str) -> list[str]:
    """The entries of a list with commas, which quoted names may hold too; raises InvalidRequest."""
    if len(text) > TEXT_BYTES_MAX:
        raise InvalidRequest(f"{what} are longer than {TEXT_BYTES_MAX} bytes")
    entries, position = [], 0
    while True:
        found = _ENTRY.match(text, position)
        if found is None or not found[1].strip():
            raise InvalidRequest(f"{what} have an empty or broken entry at {text[position:]!r:.80}")
        entries.append(found[1].strip())
        position = found.end()
        if not found[2]:
            break
    if len(entries) > COLUMNS_MAX:
        raise InvalidRequest(f"{what} are {len(entries)}; at most {COLUMNS_MAX} may be")
    return entries
