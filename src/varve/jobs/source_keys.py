"""Looks keys up by their hashes: in the key index of a cold segment, and in blocks of records.

Invariant  a segment whose index has none of the hashes holds no committed record of those keys.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NoReturn, Self

import numpy as np
import numpy.typing as npt

from varve.cleaning.key_index import KeyEntry, KeyIndex
from varve.commit_log.partition_metadata import decode_topic_id
from varve.disk import Buffer
from varve.disk.closing import Closing
from varve.foundation.errors import Corrupt, InvalidRequest
from varve.jobs.record_blocks import RecordBlock
from varve.kernels.key_hash import hash_bytes, hash_keys
from varve.object_store import ObjectStore
from varve.tiering.cold_keys import ColdPartition
from varve.tiering.cold_segment import ColdSegment
from varve.tiering.segment_parts import KEYS_PART

Hashes = npt.NDArray[np.uint64]

_BLOCK_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class TopicHash:
    """The hash of a topic's keys, by the two halves of its id."""

    first: np.uint64
    second: np.uint64

    @classmethod
    def of(cls, topic_id: str) -> Self:
        secret = decode_topic_id(topic_id).bytes
        return cls(
            np.uint64(int.from_bytes(secret[:8], "little")),
            np.uint64(int.from_bytes(secret[8:], "little")),
        )

    def hash(self, key: bytes) -> tuple[int, int]:
        data = np.frombuffer(key, np.uint8)
        high, low = hash_bytes(data, 0, len(key), self.first, self.second)
        return int(high), int(low)

    def hash_block(self, block: RecordBlock) -> Hashes:
        """The hashes of all records; zeros where there is no key."""
        out = np.empty((len(block.records), 2), np.uint64)
        hash_keys(block.payload, block.records, self.first, self.second, out)
        return out


@dataclass(frozen=True, slots=True)
class WantedKeys:
    """Keys by their hashes."""

    hashes: frozenset[tuple[int, int]]

    @classmethod
    def of(cls, keys: Iterable[bytes], topic: TopicHash) -> Self:
        return cls(frozenset(topic.hash(key) for key in keys))

    def choose(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Which records may have one of the keys, by the first half of the hash."""
        wanted = np.fromiter((high for high, _ in self.hashes), np.uint64, len(self.hashes))
        return np.isin(hashes[:, 0], wanted)


def find_keys(
    objects: ObjectStore, home: ColdPartition, segment: ColdSegment, keys: WantedKeys
) -> dict[tuple[int, int], KeyEntry] | None:
    """The latest record in a segment of each key; None where the segment has no key index."""
    part = segment.find_part(KEYS_PART)
    if part is None:
        return None
    if segment.key_count == 0:
        return {}
    key = home.part_key(segment, KEYS_PART)
    with KeyIndex(_ObjectFile(objects, key, part.size)) as index:
        header = index.header
        if (header.base_offset, header.log_size) != (segment.base_offset, segment.size):
            raise Corrupt(f"{objects.name}: {key!r} is of another segment; `varve tier fsck`")
        found = ((wanted, index.find(*wanted)) for wanted in sorted(keys.hashes))
        return {wanted: entry for wanted, entry in found if entry is not None}


class _ObjectFile(Closing):
    """An object as a file to read from, in blocks that are kept."""

    def __init__(self, objects: ObjectStore, key: str, size: int) -> None:
        self.path = key
        self._objects = objects
        self._size = size
        self._blocks: dict[int, memoryview] = {}

    def size(self) -> int:
        return self._size

    def read_at(self, position: int, size: int) -> bytes:
        end = min(position + size, self._size)
        pieces = []
        while position < end:
            number, start = divmod(position, _BLOCK_BYTES)
            block = self._block(number)
            piece = block[start : start + end - position]
            if not len(piece):
                raise Corrupt(f"{self._objects.name}: {self.path!r} ends at {position}")
            pieces.append(piece)
            position += len(piece)
        return b"".join(pieces)

    def read_into(self, position: int, buffer: memoryview) -> int:
        data = self.read_at(position, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _block(self, number: int) -> memoryview:
        if number not in self._blocks:
            start = number * _BLOCK_BYTES
            end = min(start + _BLOCK_BYTES, self._size)
            self._blocks[number] = self._objects.get_range(self.path, start, end)
        return self._blocks[number]

    def write_at(self, position: int, *buffers: Buffer) -> NoReturn:
        raise InvalidRequest(f"{self.path!r} is an object and cannot be written")

    def truncate(self, size: int) -> NoReturn:
        raise InvalidRequest(f"{self.path!r} is an object and cannot be truncated")

    def sync(self) -> None:
        """An object is durable from the first."""

    def close(self) -> None:
        """Holds nothing open."""
