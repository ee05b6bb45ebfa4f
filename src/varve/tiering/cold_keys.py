"""Which partition a part of the cold tier belongs to, and the keys of its objects.

Layout     `<cluster>/<topic>.<topic id>/<partition>/` and below it `manifest/`, `page/`,
           `segment/`, `evidence/` and `lease.json`. docs/formats/manifest.md
Invariant  within a folder the order of keys is the order of versions or offsets.
"""

import re
from dataclasses import dataclass
from typing import Final

from varve.foundation.errors import InvalidRequest
from varve.tiering.cold_segment import ColdSegment

DIGITS: Final = 20
"""Digits of an offset or version in a key: as many as the largest of 64 bits has."""

TOPIC_SIZE_MAX: Final = 177
"""Characters of a topic's name: with '.' and the 22 of its id they are one name of a key."""

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_VERSION: Final = re.compile(rf"([0-9]{{{DIGITS}}})\.json")
_PAGE: Final = re.compile(rf"[0-9]{{{DIGITS}}}-([A-Za-z0-9_-]{{1,64}})\.json")


def check_topic_fits(topic: str) -> None:
    """Raises InvalidRequest for a topic whose name is too long for the keys of its objects."""
    if len(topic) > TOPIC_SIZE_MAX:
        raise InvalidRequest(
            f"topic {topic[:40]}... cannot be in the cold tier: its name has {len(topic)} "
            f"characters, and the keys of its objects have room for {TOPIC_SIZE_MAX}; leave out "
            "remote.storage.enable, or take a shorter name"
        )


@dataclass(frozen=True, slots=True)
class ColdPartition:
    """A partition's home in the cold tier; the topic id is written as Kafka writes it."""

    cluster: str
    topic: str
    topic_id: str
    partition: int

    def __post_init__(self) -> None:
        for what, name in (
            ("cluster", self.cluster),
            ("topic", self.topic),
            ("topic id", self.topic_id),
        ):
            if _NAME.fullmatch(name) is None or name in (".", ".."):
                raise InvalidRequest(
                    f"{what} {name!r} cannot be part of an object's key: "
                    "use 1 to 249 letters, digits, '.', '_' and '-'"
                )
        if self.partition < 0:
            raise InvalidRequest(f"partition {self.partition} of {self.topic} must be at least 0")

    @property
    def prefix(self) -> str:
        """What all its keys begin with; ends with a slash."""
        return f"{self.cluster}/{self.topic}.{self.topic_id}/{self.partition}/"

    @property
    def manifest_folder(self) -> str:
        return f"{self.prefix}manifest/"

    @property
    def page_folder(self) -> str:
        return f"{self.prefix}page/"

    @property
    def segment_folder(self) -> str:
        return f"{self.prefix}segment/"

    @property
    def hint_key(self) -> str:
        """Holds a recent version's number; sorts behind all versions."""
        return f"{self.manifest_folder}hint"

    def manifest_key(self, version: int) -> str:
        return f"{self.manifest_folder}{version:0{DIGITS}}.json"

    def page_key(self, *, first_offset: int, id: str) -> str:
        return f"{self.page_folder}{first_offset:0{DIGITS}}-{id}.json"

    def part_key(self, segment: ColdSegment, part: str) -> str:
        """The key of one object of a segment: "log", "index", "keys" and so on."""
        return f"{self.segment_folder}{segment.base_offset:0{DIGITS}}-{segment.id}/{part}"

    def evidence_key(self, job_id: str) -> str:
        return f"{self.prefix}evidence/{job_id}.json"

    @property
    def lease_key(self) -> str:
        """Says which job is at work on the partition."""
        return f"{self.prefix}lease.json"

    def find_version(self, key: str) -> int | None:
        """The version a key below `manifest/` stands for; None for the hint and foreign ones."""
        match = _VERSION.fullmatch(key.removeprefix(self.manifest_folder))
        return None if match is None else int(match[1])

    def find_page_id(self, key: str) -> str | None:
        """The id of the page under a key below `page/`; None for foreign ones."""
        match = _PAGE.fullmatch(key.removeprefix(self.page_folder))
        return None if match is None else match[1]

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
