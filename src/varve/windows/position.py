"""How far the inputs have come whose effects a store holds.

Invariant  an offset never goes back.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from varve.foundation.errors import Corrupt


class Source(NamedTuple):
    """The record whose effect is written: where it was read."""

    topic: str
    partition: int
    offset: int


class Position:
    """By topic and partition, the highest offset whose effect is in the store."""

    def __init__(self, sources: Mapping[tuple[str, int], int] | None = None) -> None:
        self._offsets = dict(sources or {})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Position) and self._offsets == other._offsets

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __iter__(self) -> Iterator[Source]:
        for (topic, partition), offset in sorted(self._offsets.items()):
            yield Source(topic, partition, offset)

    def __repr__(self) -> str:
        return f"<Position {list(self)}>"

    def copy(self) -> "Position":
        return Position(self._offsets)

    def find(self, topic: str, partition: int) -> int | None:
        return self._offsets.get((topic, partition))

    def update(self, source: Source) -> None:
        where = (source.topic, source.partition)
        self._offsets[where] = max(source.offset, self._offsets.get(where, source.offset))

    def merge(self, other: "Position") -> None:
        for source in other:
            self.update(source)

    def has_reached(self, bound: "Position", partition: int) -> bool:
        """Whether the store holds all that a query asks for of this partition.

        Topics that the bound does not name for the partition are not looked at.
        """
        return all(
            self._offsets.get((topic, partition), -1) >= offset
            for (topic, number), offset in bound._offsets.items()
            if number == partition
        )


def encode_position(position: Position) -> dict[str, dict[str, int]]:
    """As JSON holds it: topic, partition as text, offset."""
    encoded: dict[str, dict[str, int]] = {}
    for topic, partition, offset in position:
        encoded.setdefault(topic, {})[str(partition)] = offset
    return encoded


def decode_position(encoded: object) -> Position:
    """Raises `Corrupt` for what `encode_position` does not make."""
    if not isinstance(encoded, dict):
        raise Corrupt(f"position {encoded!r:.80} is no object")
    position = Position()
    for topic, partitions in encoded.items():
        if not isinstance(partitions, dict):
            raise Corrupt(f"position of topic {topic!r:.80} is no object")
        for partition, offset in partitions.items():
            is_number = isinstance(partition, str) and partition.isdecimal()
            if not is_number or type(offset) is not int or offset < 0:
                raise Corrupt(f"position of topic {topic}: {partition!r:.20} at {offset!r:.20}")
            position.update(Source(str(topic), int(partition), offset))
    return position
