"""A record as a client sends or receives it."""

from collections.abc import Sequence
from typing import NamedTuple

RecordHeaders = Sequence[tuple[str, bytes | None]]


class TopicRecord(NamedTuple):
    """A record of a topic; -1 means unknown: chosen by the partitioner, the broker or the clock."""

    topic: str
    partition: int = -1
    offset: int = -1
    timestamp: int = -1
    key: bytes | None = None
    value: bytes | None = None
    headers: RecordHeaders = ()
