"""The copies that jobs made of a topic, erased and looked into again.

Invariant  every output that is noted is erased, or named among what is out of reach.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from varve.foundation.settings import GivenValue
from varve.jobs.erased_rows import ErasedOutput, ErasedRows
from varve.jobs.outputs import Output, OutputKind, Outputs


@dataclass(frozen=True, slots=True)
class TopicOutputs:
    """All that was made of one topic: `copies` can be erased, `topics` are topics within reach."""

    copies: tuple[Output, ...]
    topics: tuple[Output, ...]
    out_of_reach: tuple[str, ...]


def find_outputs(
    books: Iterable[Outputs], topic: str, topic_id: str, *, places: Sequence[str]
) -> TopicOutputs:
    """What is noted of a topic; topics at these places can be erased like any other."""
    found = {one.id: one for book in books for one in book.find(topic, topic_id)}
    copies, topics, out_of_reach = [], [], []
    for one in found.values():
        match one.kind:
            case OutputKind.SNAPSHOT | OutputKind.TABLE:
                copies.append(one)
            case OutputKind.TOPIC:
                if one.place in places:
                    topics.append(one)
                else:
                    out_of_reach.append(
                        f"topic {one.name} at {one.place} was made of {topic}: erase it there"
                    )
            case OutputKind.FILES:
                out_of_reach.append(
                    f"files at {one.place} ({one.name}) were made of {topic}: remove them by hand"
                )
            case _:
                assert_never(one.kind)
    return TopicOutputs(tuple(copies), tuple(topics), tuple(out_of_reach))


def erase_output(
    output: Output, settings: Mapping[str, GivenValue], wanted: ErasedRows
) -> ErasedOutput:
    """Takes the rows out of a snapshot or table, for good."""
    if output.kind is OutputKind.SNAPSHOT:
        from varve.jobs.snapshot_erase import erase_from_snapshot

        return erase_from_snapshot(output, settings, wanted)
    from varve.jobs.table_erase import erase_from_table

    return erase_from_table(output, settings, wanted)


def count_in_output(output: Output, settings: Mapping[str, GivenValue], wanted: ErasedRows) -> int:
    """How many rows are left, over every retained file."""
    if output.kind is OutputKind.SNAPSHOT:
        from varve.jobs.snapshot_erase import count_in_snapshot

        return count_in_snapshot(output, settings, wanted)
    from varve.jobs.table_erase import count_in_table

    return count_in_table(output, settings, wanted)
