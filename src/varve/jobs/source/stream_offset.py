"""Position of a stream in a topic, as Spark keeps it in the checkpoint.

Layout     {"topic": "orders", "topic_id": "…", "offsets": {"0": 17}, "marks": {"0": {…}}}: by
           partition the next offset to read, and the header of the batch before it
           (`HistoryMark`). Checkpoints of older versions hold the offsets alone: {"0": 17}.
Invariant  the offset of a partition that did not move keeps its mark, so that a trigger without
           new records returns the offset it was given.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from varve.foundation.errors import Corrupt, InconsistentTopicId
from varve.foundation.settings import LONG_MAX
from varve.jobs.source.history_mark import HistoryMark


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The next offset of each partition; topic and id are None in checkpoints of older versions."""

    topic: str | None
    topic_id: str | None
    offsets: Mapping[int, int]
    marks: Mapping[int, HistoryMark] = field(default_factory=dict)

    def check_topic(self, topic: str, topic_id: str) -> None:
        """Raises InconsistentTopicId where the checkpoint was written for another topic."""
        if self.topic is None or (self.topic, self.topic_id) == (topic, topic_id):
            return
        raise InconsistentTopicId(
            f"the checkpoint belongs to topic {self.topic} with id {self.topic_id}, the stream "
            f"reads topic {topic} with id {topic_id}: use a new checkpoint location for another "
            "topic, and for one that was deleted and created again"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "topic_id": self.topic_id,
            "offsets": {str(number): self.offsets[number] for number in sorted(self.offsets)},
            "marks": {str(number): self.marks[number].to_json() for number in sorted(self.marks)},
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "StreamOffset":
        """Raises Corrupt for a document that is not an offset of a stream."""
        try:
            if "offsets" not in document:
                return cls(None, None, _decode_offsets(document))
            marks = {
                int(number): HistoryMark.of_json(mark) for number, mark in document["marks"].items()
            }
            offsets = _decode_offsets(document["offsets"])
            return cls(str(document["topic"]), str(document["topic_id"]), offsets, marks)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise Corrupt(
                f"the checkpoint holds {document!r:.200}, which is not an offset of a varve "
                f"stream: {error!s:.200}"
            ) from error


def _decode_offsets(document: Mapping[str, Any]) -> dict[int, int]:
    offsets = {}
    for number, offset in document.items():
        if type(offset) is not int or not 0 <= offset <= LONG_MAX:
            raise ValueError(f"offset {offset!r:.40} of partition {number!r:.40}")
        offsets[int(number)] = offset
    return offsets
