"""Erases records from the outputs of a topic: snapshots and tables that jobs derived from it.

Invariant  every registered output is erased, or reported as out of reach.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import assert_never

from varve.foundation.errors import NotFound, Unavailable
from varve.foundation.settings import GivenValue
from varve.jobs.derived_outputs import (
    DerivedOutput,
    ErasedOutput,
    ErasedRows,
    OutputKind,
    OutputRegistry,
)
from varve.jobs.tasks import TaskRunner
from varve.object_store.opening import find_scheme, to_url


@dataclass(frozen=True, slots=True)
class TopicOutputs:
    """The outputs of one topic: snapshots and tables (`copies`), and reachable derived topics."""

    copies: tuple[DerivedOutput, ...]
    topics: tuple[DerivedOutput, ...]
    out_of_reach: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OutputSettings:
    """Settings for opening outputs, credentials included: the registry stores none.

    A snapshot whose URL has the scheme of `store_url` (the topic's bucket) is opened with `store`,
    overridden by `snapshots`; every other snapshot with `snapshots`.
    """

    snapshots: Mapping[str, GivenValue] = field(default_factory=dict)
    tables: Mapping[str, GivenValue] = field(default_factory=dict)
    store_url: str = ""
    store: Mapping[str, GivenValue] = field(default_factory=dict)

    def for_output(self, output: DerivedOutput) -> Mapping[str, GivenValue]:
        if output.kind is OutputKind.TABLE:
            return self.tables
        if self.store_url and _get_scheme(output.place) == _get_scheme(self.store_url):
            return {**self.store, **self.snapshots}
        return self.snapshots


def _get_scheme(location: str) -> str:
    return find_scheme(to_url(location))


def find_topic_outputs(
    registries: Iterable[OutputRegistry], topic: str, topic_id: str, *, reachable: Sequence[str]
) -> TopicOutputs:
    """Finds the registered outputs of a topic.

    `reachable` are the URL and directories whose topics the erasure can reach.
    """
    outputs: dict[str, DerivedOutput] = {}
    for registry in registries:
        for output in registry.find(topic, topic_id):
            other = outputs.get(output.id)
            outputs[output.id] = output if other is None else output.with_locations(other.locations)
    reachable_urls = set(map(to_url, reachable))
    copies, topics, out_of_reach = [], [], []
    for output in outputs.values():
        match output.kind:
            case OutputKind.SNAPSHOT | OutputKind.TABLE:
                copies.append(output)
            case OutputKind.TOPIC:
                if to_url(output.place) in reachable_urls:
                    topics.append(output)
                else:
                    out_of_reach.append(
                        f"topic {output.name} at {output.place} was made of {topic}: erase it there"
                    )
            case OutputKind.FILES:
                out_of_reach.append(
                    f"files at {output.place} ({output.name}) were made of {topic}: remove them by "
                    "hand"
                )
            case OutputKind.CHECKPOINT:
                out_of_reach.append(
                    f"the checkpoint at {output.place} of {output.name} holds ids of records of "
                    f"{topic} until they leave the window of the deduplication"
                )
            case _:
                assert_never(output.kind)
    return TopicOutputs(tuple(copies), tuple(topics), tuple(out_of_reach))


@dataclass(frozen=True, slots=True)
class OutputErasure:
    """Erases rows from one snapshot or table.

    `siblings` are all snapshots and tables of the topic: their files are not orphans of this one.
    """

    output: DerivedOutput
    settings: OutputSettings
    runner: TaskRunner
    siblings: Sequence[DerivedOutput] = ()

    def erase(self, wanted: ErasedRows) -> ErasedOutput:
        """Removes the rows permanently; raises Unavailable if the output cannot be reached."""
        settings = self.settings.for_output(self.output)
        with _name_remedy(self.output):
            if self.output.kind is OutputKind.SNAPSHOT:
                from varve.jobs.snapshot.erase import erase_from_snapshot

                return erase_from_snapshot(self.output, settings, wanted, runner=self.runner)
            from varve.jobs.table.erase import erase_from_table

            return erase_from_table(
                self.output, settings, wanted, siblings=self.siblings, runner=self.runner
            )

    def count(self, wanted: ErasedRows) -> int:
        """Counts the remaining rows in all retained files."""
        settings = self.settings.for_output(self.output)
        if self.output.kind is OutputKind.SNAPSHOT:
            from varve.jobs.snapshot.erase import count_in_snapshot

            return count_in_snapshot(self.output, settings, wanted, runner=self.runner)
        from varve.jobs.table.erase import count_in_table

        return count_in_table(
            self.output, settings, wanted, siblings=self.siblings, runner=self.runner
        )


@contextmanager
def _name_remedy(output: DerivedOutput) -> Iterator[None]:
    """Adds the remedy to errors: a missing output makes every erasure of its topic fail."""
    try:
        yield
    except (Unavailable, NotFound) as error:
        raise Unavailable(
            f"{output.kind} {output.name} of topic {output.topic} cannot be reached: {error}. If "
            f"it no longer exists: varve output forget {output.topic} {output.id}"
        ) from error
