"""What a feed gives to shapes: changes of rows, grouped into transactions.

Invariant  offsets ascend from change to change, over transactions too, and are the same whenever
           the topic is read again. Rows are shared: nobody changes one.
"""

from typing import NamedTuple

from varve.shapes.feed.row import Row
from varve.shapes.offset import Offset


class Change(NamedTuple):
    """One row before and after a record.

    A tuple, for many are made. `row` is None for a row that is gone, `previous` for one that was
    not there; both hold the key columns too. Where `is_uncertain`, the previous row is that of an
    earlier time: shapes may hold another one.
    """

    offset: Offset
    key: str
    key_columns: Row
    row: Row | None
    previous: Row | None
    is_uncertain: bool
    timestamp: int


class Transaction(NamedTuple):
    """Changes that are seen together, or not at all.

    With a `reset` it has no changes: for this reason the topic's shapes start anew.
    """

    changes: list[Change]
    reset: str | None = None
