"""The topics of a deduplication: their names, their settings, and whether they fit each other."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from varve.foundation.errors import InvalidRequest
from varve.foundation.settings import LONG_MAX

_DAY_MS: Final = 24 * 3_600_000
_SEGMENT_MS_MIN: Final = 10 * 60_000
_SEGMENT_MS_MAX: Final = 7 * _DAY_MS
_PROGRESS_SEGMENT_BYTES: Final = 1 << 20
_SUFFIX: Final = "-dedup-"
RETENTION: Final = "retention.ms"
_ANY_TIME: Final = {
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": str(LONG_MAX),
    "message.timestamp.after.max.ms": str(LONG_MAX),
}
"""Records keep their times, whatever the broker's defaults are."""
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupTopics:
    """The topics of one deduplication; `side` is None where no record goes aside."""

    input: str
    output: str
    name: str
    side: str | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name in (".", ".."):
            raise InvalidRequest(
                f"a deduplication cannot be called {self.name!r:.260}: letters, digits, dots, "
                "underscores and dashes make a name, as they do for topics"
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
                    f"topic {topic} is where the deduplication {self.name} keeps its own records: "
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
        """All but the input, in the order in which they are made and written."""
        side = () if self.side is None else (self.side,)
        return (self.changelog, self.output, *side, self.progress)


def topic_settings(
    topics: DedupTopics, *, retention_ms: int, segment_ms: int
) -> Mapping[str, dict[str, str]]:
    """What the topics are made with, by name."""
    kept_ms = min(retention_ms + _DAY_MS, LONG_MAX)
    rolled_ms = min(max(segment_ms, _SEGMENT_MS_MIN), _SEGMENT_MS_MAX)
    own = {
        topics.changelog: {
            "cleanup.policy": "compact,delete",
            RETENTION: str(kept_ms),
            "segment.ms": str(rolled_ms),
            **_ANY_TIME,
        },
        topics.progress: {
            "cleanup.policy": "compact",
            "segment.bytes": str(_PROGRESS_SEGMENT_BYTES),
        },
    }
    return {topic: own.get(topic, _ANY_TIME) for topic in topics.written}


def longer_retention(had_ms: int, made_with: Mapping[str, str]) -> dict[str, str]:
    """What to alter of a changelog that forgets sooner than the rules of now allow; else nothing.

    It is never made to forget sooner.
    """
    wanted = made_with[RETENTION]
    return {RETENTION: wanted} if 0 <= had_ms < int(wanted) else {}


def check_partitions(topics: DedupTopics, topic: str, count: int, *, wanted: int) -> None:
    """Raises InvalidRequest for a topic that cannot take the records of each partition."""
    if count == wanted:
        return
    is_own = topic in (topics.changelog, topics.progress)
    remedy = (
        "the input has changed since it was made; start again with another name"
        if is_own
        else f"name a topic with {wanted}, or one that is not there yet: it is made"
    )
    raise InvalidRequest(
        f"topic {topic} has {count} partitions and the input {topics.input} has {wanted}, but "
        f"each record keeps the number of its partition: {remedy}"
    )


def check_own_topics(
    topics: DedupTopics, found: Collection[str], *, cluster: str, has_entries: bool
) -> None:
    """Raises InvalidRequest where one of changelog and progress was deleted without the other.

    A changelog that never had an entry may be alone: it is made first. It is not recreated by
    itself: without its ids duplicates of what was kept would pass.
    """
    changelog, progress = topics.changelog, topics.progress
    has_changelog, has_progress = changelog in found, progress in found
    if has_changelog == has_progress or (has_changelog and not has_entries):
        return
    lost, left = (progress, changelog) if has_changelog else (changelog, progress)
    raise InvalidRequest(
        f"{cluster}: the deduplication {topics.name} has topic {left}, but topic {lost} was "
        f"deleted: start again with another --name, or delete {left} as well to copy "
        f"{topics.input} to {topics.output} from its start again"
    )
