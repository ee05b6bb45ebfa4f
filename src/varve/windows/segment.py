"""One interval of time and the database of its entries.

Layout     a directory `<store name>.<start>`, where start is the first millisecond of the interval.
           docs/formats/window-store.md
Invariant  segment `id` owns the times from `id * segment_ms` to the next one's, half-open.
"""

from dataclasses import dataclass, field
from typing import Final

from varve.windows.database import Database

DELETING_SUFFIX: Final = ".deleting"


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """An open segment; two are equal, and ordered, by their id alone."""

    id: int
    start_ms: int = field(compare=False)
    database: Database = field(compare=False)


def encode_directory_name(store_name: str, start_ms: int) -> str:
    return f"{store_name}.{start_ms}"


def decode_directory_name(store_name: str, name: str) -> int | None:
    """The start in a segment's directory name; None when it is no such name."""
    prefix, _, digits = name.rpartition(".")
    if prefix != store_name or not (digits.isascii() and digits.isdecimal()):
        return None
    start_ms = int(digits)
    return start_ms if str(start_ms) == digits else None
