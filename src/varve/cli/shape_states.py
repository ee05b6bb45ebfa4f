"""Tables of shapes that begin with a snapshot of a Spark job, and go on from the log.

Invariant  a snapshot of another topic, or one whose end the log no longer reaches, is refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from varve.foundation.errors import InvalidRequest
from varve.shapes.feed.source import TopicSource
from varve.shapes.feed.state import StateRecord

if TYPE_CHECKING:
    from varve.jobs.snapshot.read import Snapshot


class SnapshotState:
    """The rows of a snapshot; partitions that came later begin at their first record."""

    def __init__(self, snapshot: "Snapshot", source: TopicSource) -> None:
        """Raises InvalidRequest for a snapshot that does not fit the topic."""
        self.how = f"snapshot {snapshot.url}"
        self._snapshot = snapshot
        self._resume_offsets = _resume_offsets(snapshot, source)

    @property
    def resume_offsets(self) -> Mapping[int, int]:
        return self._resume_offsets

    @property
    def record_count(self) -> int | None:
        return sum(one.rows for one in self._snapshot.files)

    def read(self) -> Iterator[Sequence[StateRecord]]:
        for batch in self._snapshot.batches(columns=["key", "value"]):
            keys, values = (batch.column(name).to_pylist() for name in ("key", "value"))
            yield list(zip(keys, values, strict=True))


def _resume_offsets(snapshot: "Snapshot", source: TopicSource) -> dict[int, int]:
    told = snapshot.document
    if told.topic != source.topic:
        raise InvalidRequest(
            f"the snapshot {snapshot.url} is of topic {told.topic}, not of {source.topic}"
        )
    topic_id = source.topic_id()
    if topic_id and told.topic_id and topic_id != told.topic_id:
        raise InvalidRequest(
            f"the snapshot {snapshot.url} is of topic id {told.topic_id}; topic {source.topic} was "
            f"made anew and has {topic_id}: make another snapshot"
        )
    resume = {}
    for number in range(source.partition_count()):
        start, end = source.bounds(number)
        resume[number] = snapshot.resume_offsets.get(number, start)
        if not start <= resume[number] <= end:
            raise InvalidRequest(
                f"the snapshot {snapshot.url} ends at offset {resume[number]} of partition "
                f"{number}, and the log holds {start} to {end}: make a newer snapshot"
            )
    return resume
