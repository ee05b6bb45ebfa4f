"""The latest state of a topic, for a table that is filled for the first time.

Invariant  once all records were read, in the order given, each key holds what the records below
           `resume_offsets` say of it; a later record of a key comes behind an earlier one.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from varve.shapes.feed.decoder import Record


class StateReader(Protocol):
    """Reads the state once."""

    @property
    def how(self) -> str:
        """By what the state is found, for messages."""
        ...

    @property
    def resume_offsets(self) -> Mapping[int, int]:
        """Where to read on, by partition; known before the first record."""
        ...

    @property
    def taken_ms(self) -> int | None:
        """When the state was taken, if that was earlier; None for one that is read from the log."""
        ...

    @property
    def record_count(self) -> int | None:
        """About how many records come; None where nobody knows."""
        ...

    def read(self) -> Iterator[Sequence[Record]]:
        """The records, some thousands at a time; a null value says that the key is gone."""
        ...
