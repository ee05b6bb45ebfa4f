"""Which clusters, topics and partitions an object store holds, read off its keys alone.

Invariant  reads only, and trusts no key: what is not of varve's shape is told apart.
"""

import re
from typing import Final, NamedTuple

from varve.foundation.errors import InvalidRequest, NotFound
from varve.object_store import ObjectStore
from varve.tiering.cold_keys import DIGITS, ColdPartition

_TOPIC: Final = re.compile(r"(.{1,249})\.([A-Za-z0-9_-]{22})")
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,9}")
_SEGMENT: Final = re.compile(rf"segment/([0-9]{{{DIGITS}}})-([A-Za-z0-9_-]{{1,64}})/([^/]+)")

_TOPIC_FOLDERS: Final = ("erasure", "output", "receipt")
"""Beside the partitions of a topic: erasures under way, what jobs made of it, receipts."""

PARTS: Final = ("log", "index", "timeindex", "txnindex", "snapshot", "epochs", "keys")
"""The objects that a segment may have."""


class PartKey(NamedTuple):
    """What the key of a segment's object tells."""

    base_offset: int
    id: str
    part: str


def find_home(key: str) -> ColdPartition | None:
    """The partition a key lies below; None for a key that is none of ours."""
    cluster, _, rest = key.partition("/")
    topic, _, rest = rest.partition("/")
    number, slash, _ = rest.partition("/")
    match = _TOPIC.fullmatch(topic)
    if not slash or match is None or _NUMBER.fullmatch(number) is None:
        return None
    try:
        return ColdPartition(cluster, match[1], match[2], int(number))
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


def find_part(home: ColdPartition, key: str) -> PartKey | None:
    """What the key of a segment's object tells; None for other keys, and for unknown parts."""
    match = _SEGMENT.fullmatch(key.removeprefix(home.prefix))
    if match is None or match[3] not in PARTS:
        return None
    return PartKey(int(match[1]), match[2], match[3])


def choose_cluster(objects: ObjectStore, wanted: str | None) -> str:
    """The wanted cluster, or the only one there is; raises NotFound naming those there are."""
    found = objects.list_directories("")
    if wanted is None and len(found) == 1:
        return found[0]
    if wanted in found:
        assert wanted is not None
        return wanted
    known = ", ".join(found) or "none"
    if wanted is None and found:
        raise InvalidRequest(f"{objects.name} holds several clusters: name one of {known}")
    what = "any cluster" if wanted is None else f"cluster {wanted!r}"
    raise NotFound(f"{objects.name} does not hold {what}; clusters there: {known}")


def list_partitions(objects: ObjectStore, cluster: str) -> list[ColdPartition]:
    """All partitions of a cluster that have an object, by topic, id and number."""
    homes: list[ColdPartition] = []
    for topic in objects.list_directories(f"{cluster}/"):
        for directory in objects.list_directories(f"{topic}/"):
            home = find_home(f"{directory}/")
            if home is not None:
                homes.append(home)
    return sorted(homes, key=lambda home: (home.topic, home.topic_id, home.partition))


def choose_partitions(
    homes: list[ColdPartition], *, topic: str, topic_id: str | None, partition: int | None
) -> list[ColdPartition]:
    """The partitions of one topic, or one of them.

    Raises NotFound when there is none, and InvalidRequest when several topics had the name.
    """
    of_topic = [home for home in homes if home.topic == topic and topic_id in (None, home.topic_id)]
    ids = sorted({home.topic_id for home in of_topic})
    if len(ids) > 1:
        raise InvalidRequest(
            f"topic {topic} was there under several ids, {', '.join(ids)}: choose one"
        )
    chosen = [home for home in of_topic if partition in (None, home.partition)]
    if not chosen:
        known = ", ".join(sorted({f"{home.topic}:{home.partition}" for home in homes})) or "none"
        what = topic if partition is None else f"{topic}:{partition}"
        raise NotFound(f"the cold tier does not hold {what}; partitions there: {known:.400}")
    return chosen
