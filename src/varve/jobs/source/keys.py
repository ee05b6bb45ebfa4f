"""Looks keys up by their hashes: in the key index of a cold segment, and in blocks of records.

Invariant  a segment whose index has none of the hashes holds no committed record of those keys.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from varve.cleaning.key_index.key_index import KeyEntry, KeyIndex
from varve.commit_log.directory_files import decode_topic_id
from varve.foundation.errors import Corrupt
from varve.jobs.source.record_blocks import RecordBlock
from varve.jobs.tier.remote_files import TierFiles
from varve.kernels.hashes import hash_bytes, hash_keys
from varve.object_store import ObjectStore
from varve.tiering.copy.segment_upload import KEYS_PART
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import RemoteSegment

Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class TopicHash:
    """The hash of a topic's keys, by the two halves of its id."""

    first: np.uint64
    second: np.uint64

    @classmethod
    def of(cls, topic_id: str) -> Self:
        secret = cls.secret(topic_id)
        return cls(
            np.uint64(int.from_bytes(secret[:8], "little")),
            np.uint64(int.from_bytes(secret[8:], "little")),
        )

    @staticmethod
    def secret(topic_id: str) -> bytes:
        """A topic id as key indexes name it."""
        return decode_topic_id(topic_id).bytes

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
    objects: ObjectStore, home: RemotePath, segment: RemoteSegment, keys: WantedKeys
) -> dict[tuple[int, int], KeyEntry] | None:
    """The latest record in a segment of each key; None where the segment has no key index."""
    part = segment.find_part(KEYS_PART)
    if part is None:
        return None
    if segment.key_count == 0:
        return {}
    key = home.part_key(segment, KEYS_PART)
    files = TierFiles(lambda: objects, {key: part.size})
    with files, KeyIndex(files.open(key)) as index:
        header = index.header
        if (header.base_offset, header.log_size) != (segment.base_offset, segment.size):
            raise Corrupt(
                f"{objects.name}: {key!r} is of another segment; `varve tier fsck --deep` tells "
                "which objects are not what the manifest says"
            )
        found = ((wanted, index.find(*wanted)) for wanted in sorted(keys.hashes))
        return {wanted: entry for wanted, entry in found if entry is not None}
