"""The keys of a partition's objects in the remote tier, and what a bucket holds by its keys alone.

Layout     `<cluster>/<topic>.<topic id>/<partition>/` and below it `manifest/`, `page/`,
           `segment/`, `evidence/`, `work/` and `lease.json`. docs/formats/manifest.md
Invariant  within a folder the order of keys is the order of versions or offsets. Listing reads only
           and trusts no key: keys that are not of this layout are recognised as foreign.
"""

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from varve.foundation.errors import InvalidRequest, NotFound
from varve.object_store import ObjectStore
from varve.tiering.manifest.segment import PART_NAMES, RemoteSegment

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
class RemotePath:
    """A partition's path in the cold tier; the topic id is written as Kafka writes it."""

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
        """Holds a recent version's number; sorts after all versions."""
        return f"{self.manifest_folder}hint"

    def manifest_key(self, version: int) -> str:
        return f"{self.manifest_folder}{version:0{DIGITS}}.json"

    def page_key(self, *, first_offset: int, id: str) -> str:
        return f"{self.page_folder}{first_offset:0{DIGITS}}-{id}.json"

    def part_key(self, segment: RemoteSegment, part: str) -> str:
        """The key of one object of a segment: "log", "index", "keys" and so on."""
        return f"{self.segment_folder}{segment.base_offset:0{DIGITS}}-{segment.id}/{part}"

    def evidence_key(self, job_id: str) -> str:
        return f"{self.prefix}evidence/{job_id}.json"

    @property
    def work_folder(self) -> str:
        """What jobs put aside for their own tasks; ends with a slash."""
        return f"{self.prefix}work/"

    @property
    def lease_key(self) -> str:
        """Says which job is at work on the partition."""
        return f"{self.prefix}lease.json"

    @property
    def removal_probe_key(self) -> str:
        """Written and deleted before a partition is removed, to see whether the store allows it."""
        return f"{self.prefix}removal"

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


_TOPIC: Final = re.compile(r"(.{1,249})\.([A-Za-z0-9_-]{22})")
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,9}")
_SEGMENT: Final = re.compile(rf"segment/([0-9]{{{DIGITS}}})-([A-Za-z0-9_-]{{1,64}})/([^/]+)")

_TOPIC_FOLDERS: Final = ("erasure", "output", "receipt")
"""Beside the partitions of a topic: erasures under way, what jobs made of it, receipts."""

"""The objects that a segment may have."""


class PartKey(NamedTuple):
    """The parsed key of a segment's object."""

    base_offset: int
    id: str
    part: str


def find_remote_path(key: str) -> RemotePath | None:
    """The partition a key lies below; None for a key that is none of ours."""
    cluster, _, rest = key.partition("/")
    topic, _, rest = rest.partition("/")
    number, slash, _ = rest.partition("/")
    match = _TOPIC.fullmatch(topic)
    if not slash or match is None or _NUMBER.fullmatch(number) is None:
        return None
    try:
        return RemotePath(cluster, match[1], match[2], int(number))
    except InvalidRequest:
        return None


def is_of_topic(key: str) -> bool:
    """Whether a key is of an object that a topic has besides its partitions."""
    cluster, _, rest = key.partition("/")
    topic, _, rest = rest.partition("/")
    folder, _, name = rest.partition("/")
    return (
        bool(cluster and name) and _TOPIC.fullmatch(topic) is not None and folder in _TOPIC_FOLDERS
    )


def find_part(path: RemotePath, key: str) -> PartKey | None:
    """Parses the key of a segment's object; None for other keys and unknown parts."""
    match = _SEGMENT.fullmatch(key.removeprefix(path.prefix))
    if match is None or match[3] not in PART_NAMES:
        return None
    return PartKey(int(match[1]), match[2], match[3])


def choose_cluster(objects: ObjectStore, wanted: str | None) -> str:
    """The wanted cluster, or the only one there is; raises NotFound naming those there are."""
    directories = objects.list_directories("")
    if wanted is None and len(directories) == 1:
        return directories[0]
    if wanted in directories:
        assert wanted is not None
        return wanted
    known = ", ".join(directories) or "none"
    if wanted is None and directories:
        raise InvalidRequest(f"{objects.name} holds several clusters: name one of {known}")
    what = "any cluster" if wanted is None else f"cluster {wanted!r}"
    raise NotFound(f"{objects.name} does not hold {what}; clusters there: {known}")


def list_partitions(objects: ObjectStore, cluster: str) -> list[RemotePath]:
    """All partitions of a cluster that have an object, by topic, id and number."""
    paths: list[RemotePath] = []
    for topic in objects.list_directories(f"{cluster}/"):
        for directory in objects.list_directories(f"{topic}/"):
            path = find_remote_path(f"{directory}/")
            if path is not None:
                paths.append(path)
    return sorted(paths, key=lambda path: (path.topic, path.topic_id, path.partition))


def choose_partitions(
    paths: list[RemotePath], *, topic: str, topic_id: str | None, partition: int | None
) -> list[RemotePath]:
    """The partitions of one topic, or one of them.

    Raises NotFound when there is none, and InvalidRequest when several topics had the name.
    """
    of_topic = [path for path in paths if path.topic == topic and topic_id in (None, path.topic_id)]
    ids = sorted({path.topic_id for path in of_topic})
    if len(ids) > 1:
        raise InvalidRequest(
            f"topic {topic} was there under several ids, {', '.join(ids)}: choose one"
        )
    chosen = [path for path in of_topic if partition in (None, path.partition)]
    if not chosen:
        known = ", ".join(sorted({f"{path.topic}:{path.partition}" for path in paths})) or "none"
        what = topic if partition is None else f"{topic}:{partition}"
        raise NotFound(f"the cold tier does not hold {what}; partitions there: {known:.400}")
    return chosen
