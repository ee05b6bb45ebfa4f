"""Where the records of a deduplication come from, and where all that it makes of them goes.

Invariant  a commit is all or nothing: output, side and changelog records, and the progress, are
           seen together by who reads committed records, or none of them.
Crash      `open_task` settles what a crash left, before it tells how far the partition has come.
Threads    each partition has one user at a time; different partitions may be used at once.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from varve.dedup.chunk import InputRead
from varve.dedup.progress import Progress
from varve.dedup.survivors import BatchLimit
from varve.foundation.errors import InvalidRequest
from varve.foundation.settings import LONG_MAX
from varve.records import RecordColumns

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
        "the input has changed since it was made; begin anew with another name"
        if is_own
        else f"name a topic with {wanted}, or one that is not there yet: it is made"
    )
    raise InvalidRequest(
        f"topic {topic} has {count} partitions and the input {topics.input} has {wanted}, but "
        f"each record keeps the number of its partition: {remedy}"
    )


def check_own_topics(
    topics: DedupTopics, found: Collection[str], *, place: str, has_entries: Callable[[], bool]
) -> None:
    """Raises InvalidRequest where one of changelog and progress was deleted without the other.

    A changelog that never had an entry may be alone: it is made first. It is not made anew by
    itself: without its ids duplicates of what was kept would pass.
    """
    changelog, progress = topics.changelog, topics.progress
    has_changelog, has_progress = changelog in found, progress in found
    if has_changelog == has_progress or (has_changelog and not has_entries()):
        return
    lost, left = (progress, changelog) if has_changelog else (changelog, progress)
    raise InvalidRequest(
        f"{place}: the deduplication {topics.name} has topic {left}, but topic {lost} was deleted: "
        f"begin anew with another --name, or delete {left} as well to copy {topics.input} to "
        f"{topics.output} from its start again"
    )


@dataclass(frozen=True, slots=True)
class TaskCommit:
    """What a chunk came to; batches have neither offsets nor producer."""

    output: Sequence[bytes | bytearray]
    side: Sequence[bytes | bytearray]
    changelog: Sequence[bytes | bytearray]
    progress: Progress


@dataclass(frozen=True, slots=True)
class TopicIds:
    """Ids of input and output as text, empty where nobody tells them."""

    input: str
    output: str


class Ends(Protocol):
    """Both ends of a deduplication. `prepare` comes first, and `open_task` for each partition."""

    topics: DedupTopics

    @property
    def place(self) -> str:
        """What messages call it: a directory, or a server's address."""

    def prepare(self) -> int:
        """Makes the topics that are lacking; gives how many partitions there are.

        Raises NotFound without the input, InvalidRequest for topics that do not fit it.
        """

    def partition_count(self, topic: str) -> int:
        """How many partitions a topic has; raises NotFound."""

    def topic_ids(self) -> TopicIds: ...

    def limits(self) -> Mapping[str, BatchLimit]:
        """The largest batches of the written topics, by name."""

    def find_progress(self, partition: int) -> Progress | None:
        """The last committed progress as it is now; fences nobody."""

    def open_task(self, partition: int) -> Progress | None:
        """Fences earlier users of the partition, settles what they left, and tells how far they
        came; None at the very beginning."""

    def close_task(self, partition: int) -> None:
        """Gives back what the partition holds; closing twice is harmless."""

    def input_bounds(self, partition: int) -> tuple[int, int]:
        """First offset of the input, and the one behind its last committed record."""

    def read(self, partition: int, start: int, *, max_bytes: int, wait_ms: int) -> InputRead:
        """Committed batches from an offset on: about so many bytes, at least one batch.

        Where there is none it waits so long at most, and then gives none.
        """

    def commit(self, partition: int, commit: TaskCommit) -> int:
        """All of it or nothing; gives the offset behind the changelog's last record.

        After an error the partition must be opened again.
        """

    def changelog_bounds(self, partition: int) -> tuple[int, int]:
        """First offset of the changelog, and the one behind its last committed record."""

    def read_changelog(self, partition: int, start: int) -> Iterator[tuple[RecordColumns, int]]:
        """Committed records of the changelog from an offset on, and where to go on behind each."""

    def close(self) -> None: ...
