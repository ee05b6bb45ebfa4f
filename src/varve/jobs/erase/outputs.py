"""The copies that jobs made of a topic, erased and looked into again.

Invariant  every output that is noted is erased, or named among what is out of reach.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import assert_never

from varve.foundation.errors import NotFound, Unavailable
from varve.foundation.settings import GivenValue
from varve.jobs.outputs.erased_rows import ErasedOutput, ErasedRows
from varve.jobs.outputs.notes import Output, OutputKind, Outputs


@dataclass(frozen=True, slots=True)
class TopicOutputs:
    """All that was made of one topic: `copies` can be erased, `topics` are topics within reach."""

    copies: tuple[Output, ...]
    topics: tuple[Output, ...]
    out_of_reach: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OutputSettings:
    """What it takes to open outputs, credentials among it: a note of an output holds none.

    Snapshots at a place of the same kind as the bucket, `store_url`, take its settings too.
    """

    snapshots: Mapping[str, GivenValue] = field(default_factory=dict)
    tables: Mapping[str, GivenValue] = field(default_factory=dict)
    store_url: str = ""
    store: Mapping[str, GivenValue] = field(default_factory=dict)

    def of(self, output: Output) -> Mapping[str, GivenValue]:
        if output.kind is OutputKind.TABLE:
            return self.tables
        if self.store_url and _scheme(output.place) == _scheme(self.store_url):
            return {**self.store, **self.snapshots}
        return self.snapshots


def _scheme(place: str) -> str:
    return place.partition(":")[0] if ":" in place else "file"


def _same_place(place: str) -> str:
    """A place as it is compared: paths in full."""
    return place if _scheme(place) != "file" else os.path.abspath(place.removeprefix("file:"))


def find_outputs(
    books: Iterable[Outputs], topic: str, topic_id: str, *, places: Sequence[str]
) -> TopicOutputs:
    """What is noted of a topic; topics at these places can be erased like any other."""
    found: dict[str, Output] = {}
    for book in books:
        for one in book.find(topic, topic_id):
            known = found.get(one.id)
            found[one.id] = one if known is None else one.with_locations(known.locations)
    reached = {_same_place(one) for one in places}
    copies, topics, out_of_reach = [], [], []
    for one in found.values():
        match one.kind:
            case OutputKind.SNAPSHOT | OutputKind.TABLE:
                copies.append(one)
            case OutputKind.TOPIC:
                if _same_place(one.place) in reached:
                    topics.append(one)
                else:
                    out_of_reach.append(
                        f"topic {one.name} at {one.place} was made of {topic}: erase it there"
                    )
            case OutputKind.FILES:
                out_of_reach.append(
                    f"files at {one.place} ({one.name}) were made of {topic}: remove them by hand"
                )
            case OutputKind.CHECKPOINT:
                out_of_reach.append(
                    f"the checkpoint at {one.place} of {one.name} holds ids of records of "
                    f"{topic} until they leave the window of the deduplication"
                )
            case _:
                assert_never(one.kind)
    return TopicOutputs(tuple(copies), tuple(topics), tuple(out_of_reach))


def erase_output(
    output: Output, settings: OutputSettings, wanted: ErasedRows, *, others: Sequence[Output] = ()
) -> ErasedOutput:
    """Takes the rows out of a snapshot or table, for good; raises Unavailable where it is not.

    `others` are all copies of the topic: what one of them still uses is not taken for left over.
    """
    given = settings.of(output)
    with _told_way_out(output):
        if output.kind is OutputKind.SNAPSHOT:
            from varve.jobs.snapshot.erase import erase_from_snapshot

            return erase_from_snapshot(output, given, wanted)
        from varve.jobs.table.erase import erase_from_table

        return erase_from_table(output, given, wanted, others=others)


@contextmanager
def _told_way_out(output: Output) -> Iterator[None]:
    """An output that is gone for good would keep every erasure of its topic from its end."""
    try:
        yield
    except (Unavailable, NotFound) as error:
        raise Unavailable(
            f"{output.kind} {output.name} of topic {output.topic} cannot be reached: {error}. If "
            f"it is gone for good: varve job outputs {output.topic} --forget {output.id}"
        ) from error


def count_in_output(
    output: Output, settings: OutputSettings, wanted: ErasedRows, *, others: Sequence[Output] = ()
) -> int:
    """How many rows are left, over every retained file."""
    given = settings.of(output)
    if output.kind is OutputKind.SNAPSHOT:
        from varve.jobs.snapshot.erase import count_in_snapshot

        return count_in_snapshot(output, given, wanted)
    from varve.jobs.table.erase import count_in_table

    return count_in_table(output, given, wanted, others=others)
