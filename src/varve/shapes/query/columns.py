"""The columns that a request selects.

Invariant  names stand in the order of the request, each once; the selection is never empty.
"""

import re
from collections.abc import Sequence
from typing import Final

from varve.foundation.errors import InvalidRequest
from varve.shapes.query.parser import TEXT_BYTES_MAX, parse_identifier

COLUMNS_MAX: Final = 1000
_ENTRY: Final = re.compile(r"((?:\"[^\"]*\"|[^,\"])*)(,|$)")


class Columns:
    """A selection of columns; `sql` is its one spelling."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(dict.fromkeys(names))
        self.sql = ",".join(['"' + name.replace('"', '""') + '"' for name in self.names])

    @classmethod
    def parse(cls, text: str) -> "Columns":
        """A list with commas; raises InvalidRequest."""
        return cls([parse_identifier(entry) for entry in split_list(text, "columns")])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Columns) and self.names == other.names

    def __hash__(self) -> int:
        return hash(self.names)

    def __repr__(self) -> str:
        return f"Columns({self.sql!r})"


def split_list(text: str, what: str) -> list[str]:
    """The entries of a list with commas, of which quoted names may hold some."""
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
