"""The topics of a deduplication: their names, settings and consistency checks."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from varve.foundation.errors import InvalidRequest
from varve.foundation.settings import LONG_MAX

_DAY_MS: Final = 24 * 3_600_000
_SEGMENT_MS_MIN: Final = 10 * 60_000
"""Bounds the number of files of the changelog of a short window."""
_SEGMENT_MS_MAX: Final = 7 * _DAY_MS
"""Kafka's default of segment.ms."""
_PROGRESS_SEGMENT_BYTES: Final = 1 << 20
"""Small, so that the progress topic, which has one key, is compacted often."""
_SUFFIX: Final = "-dedup-"
RETENTION: Final = "retention.ms"
_ANY_TIME: Final = {
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": str(LONG_MAX),
    "message.timestamp.after.max.ms": str(LONG_MAX),
}
"""Accepts any record timestamp, whatever the broker's defaults are."""
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupTopics:
    """The topics of one deduplication; `side` is None if no policy uses a side topic."""

    input: str
    output: str
    name: str
    side: str | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name in (".", ".."):
            raise InvalidRequest(
                f"a deduplication cannot be called {self.name!r:.260}: use letters, digits, dots, "
                "underscores and dashes, as in names of topics"
            )
        if self.input in self.written:
            raise InvalidRequest(
                f"topic {self.input} cannot be read and written by one deduplication: name another"
            )
        if self.side == self.output:
            raise InvalidRequest(f"topic {self.side} is the output: name another for late records")
        for topic in (self.output, self.side):
            if topic in (self.changelog, self.progress):
                raise InvalidRequest(
                    f"topic {topic} is an internal topic of the deduplication {self.name}: "
                    "name another"
                )

    @property
    def changelog(self) -> str:
        return f"{self.name}{_SUFFIX}changelog"

    @property
    def progress(self) -> str:
        return f"{self.name}{_SUFFIX}progress"

    @property
    def written(self) -> tuple[str, ...]:
        """All topics but the input, in the order in which they are created and written."""
        side = () if self.side is None else (self.side,)
        return (self.changelog, self.output, *side, self.progress)


def topic_settings(
    topics: DedupTopics, *, retention_ms: int, segment_ms: int
) -> Mapping[str, dict[str, str]]:
    """The settings of new topics, by name."""
    changelog_retention_ms = min(retention_ms + _DAY_MS, LONG_MAX)
    changelog_segment_ms = min(max(segment_ms, _SEGMENT_MS_MIN), _SEGMENT_MS_MAX)
    own = {
        topics.changelog: {
            "cleanup.policy": "compact,delete",
            RETENTION: str(changelog_retention_ms),
            "segment.ms": str(changelog_segment_ms),
            **_ANY_TIME,
        },
        topics.progress: {
            "cleanup.policy": "compact",
            "segment.bytes": str(_PROGRESS_SEGMENT_BYTES),
        },
    }
    return {topic: own.get(topic, _ANY_TIME) for topic in topics.written}


def find_longer_retention(current_ms: int, settings: Mapping[str, str]) -> dict[str, str]:
    """The retention to set for a changelog whose retention is too short for the current rules.

    Empty if it is long enough: the retention is never shortened.
    """
    required = settings[RETENTION]
    return {RETENTION: required} if 0 <= current_ms < int(required) else {}


def check_partitions(topics: DedupTopics, topic: str, count: int, *, expected: int) -> None:
    """Raises InvalidRequest for a topic with another number of partitions than the input."""
    if count == expected:
        return
    is_own = topic in (topics.changelog, topics.progress)
    remedy = (
        "the input has changed since it was created; start again with another name"
        if is_own
        else f"name a topic with {expected} partitions, or one that does not exist: it is created"
    )
    raise InvalidRequest(
        f"topic {topic} has {count} partitions and the input {topics.input} has {expected}, but "
        f"each record keeps its partition: {remedy}"
    )


def check_own_topics(
    topics: DedupTopics, existing: Collection[str], *, cluster: str, has_entries: bool
) -> None:
    """Raises InvalidRequest where one of changelog and progress was deleted without the other.

    A changelog that never had an entry may exist alone: it is created first. A deleted changelog is
    not recreated: without its ids, duplicates of kept records would pass.
    """
    changelog, progress = topics.changelog, topics.progress
    has_changelog, has_progress = changelog in existing, progress in existing
    if has_changelog == has_progress or (has_changelog and not has_entries):
        return
    lost, remaining = (progress, changelog) if has_changelog else (changelog, progress)
    raise InvalidRequest(
        f"{cluster}: the deduplication {topics.name} has topic {remaining}, but topic {lost} was "
        f"deleted: start again with another --name, or delete {remaining} as well to copy "
        f"{topics.input} to {topics.output} from its start again"
    )
