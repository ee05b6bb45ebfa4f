"""A cold segment as the input of cleaning: its objects stand for its files.

Invariant  what it is asked for is named by the manifest that listed the segment.
Threads    one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from varve.cleaning.key_index.key_index import KeyIndexHeader, SegmentKeys
from varve.foundation.errors import Corrupt
from varve.jobs.tier.files import Opener, TierFile, TierFiles
from varve.kernels.crc import crc32c
from varve.tiering.copy.segment_upload import KEYS_PART, LOG_PART
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import RemoteSegment

_DOT: Final = "."


@dataclass(frozen=True, slots=True)
class ColdInput:
    """An InputSegment over objects."""

    home: RemotePath
    cold: RemoteSegment
    files: TierFiles

    @property
    def base_offset(self) -> int:
        return self.cold.base_offset

    @property
    def size(self) -> int:
        return self.cold.size

    @property
    def next_offset(self) -> int:
        return self.cold.end_offset + 1

    def path(self, kind: str) -> str:
        """The object's key; kinds are those of files, parts are called the same without a dot."""
        return self.home.part_key(self.cold, kind.removeprefix(_DOT))

    def file(self) -> TierFile:
        return self.files.open(self.path(LOG_PART))

    def keys(self, header: KeyIndexHeader) -> SegmentKeys:
        """Its key index, whose header is known."""
        return SegmentKeys(self.files, self.path(KEYS_PART), header)

    def read_part(self, name: str) -> bytes:
        """A small object as a whole, checked against the manifest; raises Corrupt."""
        part = self.cold.find_part(name)
        if part is None:
            raise Corrupt(f"{self.home}: {self.cold} has no {name}: run `varve tier fsck`")
        with self.files.open(self.path(name)) as file:
            data = file.read_at(0, part.size)
        found = checksum(data)
        if found != part.crc32c:
            raise Corrupt(
                f"{self.path(name)}: CRC-32C {found:08x}, the manifest says {part.crc32c:08x}: put "
                "it back from a mirror or a copy"
            )
        return data


def checksum(data: bytes) -> int:
    """The CRC-32C of a whole object; 0 of an empty one."""
    return int(crc32c(np.frombuffer(data, np.uint8), 0, len(data))) if data else 0


def open_files(opener: Opener, home: RemotePath, segments: Iterable[RemoteSegment]) -> TierFiles:
    """All objects of these segments."""
    sizes = {
        home.part_key(segment, part.name): part.size
        for segment in segments
        for part in segment.parts
    }
    return TierFiles(opener, sizes)
