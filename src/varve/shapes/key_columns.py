"""Which columns of a row of the table are its key.

Invariant  decoders put the key columns first; so many of them are the key as spell its text. No
           other number does, as a value's own slashes are doubled in it.
"""

from varve.foundation.errors import Corrupt
from varve.shapes.feed.row import Row
from varve.shapes.feed.row_key import row_key, row_key_prefix


class KeyColumns:
    """Finds the key columns of one topic's rows."""

    def __init__(self, topic: str) -> None:
        self._prefix = row_key_prefix(topic)

    def get(self, key: str, row: Row) -> Row:
        """The key columns of a row; raises Corrupt for a row that does not have its key."""
        found: Row = {}
        for name, text in row.items():
            found[name] = text
            if row_key(self._prefix, found) == key:
                return found
        raise Corrupt(f"a row under {key:.100} does not begin with the columns of that key")
