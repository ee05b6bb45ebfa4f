"""Where the cold tier of a partition ends, as far as local cleaning must know.

A reader may go through the cold part first and then through the local one. So the cold part is an
exact prefix of the history, and what undoes something in it stays in the local part.

Invariant  both offsets only grow, but for a log that was truncated: an older border is a safe one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from varve.commit_log import TopicPartition


@dataclass(frozen=True, slots=True)
class Border:
    """What a partition's cold tier holds.

    Offsets before `copied_offset` are in it: only segments that end there or before are cleaned
    locally. It was itself cleaned before `cleaned_up_to`: tombstones and transaction markers at
    that offset or behind it stay, for what they undo may live on in the cold tier.
    """

    copied_offset: int
    cleaned_up_to: int


WAITS_FOR_COPY: Final = "waits for the copy to object storage"
KEPT_FOR_COLD: Final = "kept for older records in the cold tier"

FindBorder = Callable[[TopicPartition], Border | None]
"""None for a topic that is not in the cold tier. Raises StoreError when nobody can tell now."""


def no_border(partition: TopicPartition) -> Border | None:
    """For a store without a cold tier."""
    return None
