"""What a feed gives to shapes: changes of rows, grouped into transactions.

Invariant  offsets ascend from change to change, over transactions too, and are the same whenever
           the topic is read again.
"""

from typing import NamedTuple

from varve.shapes.feed.reset import Reset
from varve.shapes.feed.row import Row, get_row
from varve.shapes.feed.row_key import RowKey
from varve.shapes.offset import Offset


class Change(NamedTuple):
    """One row before and after a record, as texts that begin with the key's columns.

    A tuple, for many are made; kernels know the order. `text` is None for a row that is gone,
    `previous_text` for one that was not there. Where `is_uncertain`, the previous row is that of an
    earlier time: shapes may hold another one.
    """

    offset: Offset
    row_key: RowKey
    text: bytes | None
    previous_text: bytes | None
    is_uncertain: bool = False

    @property
    def key(self) -> str:
        return self.row_key.text

    @property
    def key_columns(self) -> Row:
        return get_row(self.row_key.columns)

    @property
    def row(self) -> Row | None:
        return None if self.text is None else get_row(self.text)

    @property
    def previous(self) -> Row | None:
        return None if self.previous_text is None else get_row(self.previous_text)


class Transaction(NamedTuple):
    """Changes that are seen together, or not at all.

    With a `reset` it has no changes: for this reason the topic's shapes start anew.
    """

    changes: list[Change]
    reset: Reset | None = None
