"""One record, as people read and write it; engines work on columns."""

from dataclasses import dataclass

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Record:
    """Key, value and headers, with the timestamp (-1 is none) and, once read, the offset."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int = -1
    offset: int = -1
