"""The keys of a partition's objects in the remote tier, and the partitions that a bucket holds.

Layout     `<cluster>/<topic>.<topic id>/<partition>/` and below it `manifest/`, `page/`,
           `segment/`, `evidence/`, `work/` and `lease.json`. docs/reference/formats/manifest.md
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
            f"topic {topic[:40]}... cannot be tiered: its name has {len(topic)} characters, and "
            f"the keys of its objects have room for {TOPIC_SIZE_MAX}; leave out "
            "remote.storage.enable, or choose a shorter name"
        )


@dataclass(frozen=True, slots=True)
class RemotePath:
    """A partition's path in the remote tier; the topic id is written as Kafka writes it."""

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
        """The prefix of all its keys; ends with a slash."""
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
        """The key of the hint, which holds a recent version number; sorts after all versions."""
        return f"{self.manifest_folder}hint"

    def manifest_key(self, version: int) -> str:
        return f"{self.manifest_folder}{version:0{DIGITS}}.json"

    def page_key(self, *, first_offset: int, id: str) -> str:
        return f"{self.page_folder}{first_offset:0{DIGITS}}-{id}.json"

    def part_key(self, segment: RemoteSegment, part: str) -> str:
        """The key of one object of a segment: "log", "index", "keys" and so on."""
        return f"{self.segment_folder}{segment.base_offset:0{DIGITS}}-{segment.id}/{part}"

    @property
    def evidence_folder(self) -> str:
        return f"{self.prefix}evidence/"

    def evidence_key(self, job_id: str) -> str:
        return f"{self.prefix}evidence/{job_id}.json"

    @property
    def work_folder(self) -> str:
        """The prefix of temporary objects of jobs; ends with a slash."""
        return f"{self.prefix}work/"

    @property
    def lease_key(self) -> str:
        """The key of the lease of the job that rewrites the partition."""
        return f"{self.prefix}lease.json"

    @property
    def removal_probe_key(self) -> str:
        """Written and deleted before a partition is removed, to see whether the store allows it."""
        return f"{self.prefix}removal"

    def find_version(self, key: str) -> int | None:
        """The version in a key below `manifest/`; None for the hint and foreign keys."""
        match = _VERSION.fullmatch(key.removeprefix(self.manifest_folder))
        return None if match is None else int(match[1])

    def find_page_id(self, key: str) -> str | None:
        """The page id in a key below `page/`; None for foreign keys."""
        match = _PAGE.fullmatch(key.removeprefix(self.page_folder))
        return None if match is None else match[1]

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


_TOPIC: Final = re.compile(r"(.{1,249})\.([A-Za-z0-9_-]{22})")
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,9}")
_SEGMENT: Final = re.compile(rf"segment/([0-9]{{{DIGITS}}})-([A-Za-z0-9_-]{{1,64}})/([^/]+)")

_TOPIC_FOLDERS: Final = ("erasure", "output", "receipt")
"""Folders beside the partitions of a topic: erasures in progress, outputs of jobs, receipts."""


class PartKey(NamedTuple):
    """The parsed key of a segment's object."""

    base_offset: int
    id: str
    part: str


def find_remote_path(key: str) -> RemotePath | None:
    """The partition that a key belongs to; None for a foreign key."""
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
    """Whether a key belongs to a topic, but to none of its partitions."""
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


def choose_cluster(objects: ObjectStore, cluster: str | None) -> str:
    """The given cluster, or the only one in the store; raises NotFound with the existing ones."""
    directories = objects.list_directories("")
    if cluster is None and len(directories) == 1:
        return directories[0]
    if cluster in directories:
        assert cluster is not None
        return cluster
    if not directories:
        raise NotFound(
            f"{objects.name} is empty: nothing has been copied to it yet; `varve tier copy --roll` "
            "copies all segments of a directory"
        )
    existing = ", ".join(directories)
    if cluster is None:
        raise InvalidRequest(f"{objects.name} holds several clusters: name one of {existing}")
    raise NotFound(f"{objects.name} does not hold cluster {cluster!r}; clusters there: {existing}")


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

    Raises NotFound without one, and InvalidRequest when several topic ids have the name.
    """
    topic_paths = [
        path for path in paths if path.topic == topic and topic_id in (None, path.topic_id)
    ]
    ids = sorted({path.topic_id for path in topic_paths})
    if len(ids) > 1:
        raise InvalidRequest(
            f"topic {topic} was there under several ids, {', '.join(ids)}: choose one"
        )
    selected = [path for path in topic_paths if partition in (None, path.partition)]
    if not selected:
        existing = ", ".join(sorted({f"{path.topic}:{path.partition}" for path in paths})) or "none"
        what = topic if partition is None else f"{topic}:{partition}"
        raise NotFound(f"the remote tier does not hold {what}; partitions there: {existing:.400}")
    return selected
