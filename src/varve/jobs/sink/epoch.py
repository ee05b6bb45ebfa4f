"""An epoch of a sink: what its tasks staged, and whether it may follow those that are committed.

Invariant  an epoch that was committed is recognised by its number and a summary of its rows; one of
           another query, another topic or with other rows is refused.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from varve.foundation.errors import InvalidRequest
from varve.jobs.sink.batch_builder import SinkTarget
from varve.jobs.sink.sink_state import SinkState
from varve.jobs.sink.staging import RowSummary, StagedPart, StagedTask


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochWrite:
    """What is to be committed: whose, which epoch, and what its tasks staged.

    With `skips_repeated` an epoch that is done counts as the same, whatever rows it comes with.
    """

    sink_id: str
    query: str | None
    is_once: bool
    epoch: int
    tasks: Sequence[StagedTask]
    skips_repeated: bool = False

    @property
    def summary(self) -> RowSummary:
        return sum((task.summary for task in self.tasks), RowSummary())

    @property
    def partitions(self) -> tuple[int, ...]:
        return tuple(sorted({run.partition for part in self.parts() for run in part.runs}))

    def parts(self) -> Iterator[StagedPart]:
        """All that was staged, in the order of tasks."""
        return (part for task in self.tasks for part in task.parts)


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What a commit did; `ends` are, by partition, the offsets behind its last records.

    One that was done before (`is_repeated`) appended nothing.
    """

    rows: int
    is_repeated: bool
    ends: Mapping[int, int]


def check_same_topic(target: SinkTarget, topic_id: str) -> None:
    if topic_id != target.topic_id:
        raise InvalidRequest(
            f"topic {target.topic} was deleted and made again while rows were staged for it: "
            "write again"
        )


def check_partitions(target: SinkTarget, partitions: Sequence[int], count: int) -> None:
    if partitions and partitions[-1] >= count:
        raise InvalidRequest(
            f"rows are staged for partition {partitions[-1]} of {target.topic}, which has "
            f"{count}: write again"
        )


def check_owner(known: SinkState, write: EpochWrite, target: SinkTarget) -> None:
    """Raises InvalidRequest where the sink's epochs are not those of this write."""
    if known.topic != target.topic:
        raise InvalidRequest(
            f"sink {known.id} writes to topic {known.topic}, not to {target.topic}: choose another "
            "sinkId, or for a stream another queryName"
        )
    if known.topic_id != target.topic_id:
        raise InvalidRequest(
            f"topic {known.topic} was deleted and made again since sink {known.id} committed epoch "
            f"{known.epoch}: choose another sinkId, or for a stream another queryName"
        )
    if known.query != write.query:
        raise InvalidRequest(
            f"sink {known.id} belongs to {_describe_query(known.query)}, which committed epoch "
            f"{known.epoch}, and this is {_describe_query(write.query)}: its epochs start again "
            "and would be taken for done; go on with the checkpoint of that query, or choose "
            "another sinkId or queryName, and what the new query reads is appended"
        )


def check_former_name(sinks: Iterable[SinkState], write: EpochWrite, target: SinkTarget) -> None:
    """Raises InvalidRequest where the query committed the epoch under another name."""
    if write.query is None:
        return
    for sink in sinks:
        is_same = (sink.query, sink.topic_id) == (write.query, target.topic_id)
        if is_same and sink.epoch is not None and sink.epoch >= write.epoch:
            raise InvalidRequest(
                f"{_describe_query(write.query)} committed epoch {sink.epoch} as sink {sink.id}, "
                f"and epoch {write.epoch} as {write.sink_id} would be written twice: give it its "
                "former name, at least until this epoch is done"
            )


def _describe_query(query: str | None) -> str:
    return "batch writes" if query is None else f"the streaming query {query}"


def is_done(known: SinkState, write: EpochWrite) -> bool:
    """Whether the epoch was committed before; raises InvalidRequest for one that cannot follow."""
    if known.epoch is None or write.epoch > known.epoch:
        return False
    if write.epoch < known.epoch:
        raise InvalidRequest(
            f"sink {known.id} has committed epoch {known.epoch}, and epoch {write.epoch} comes "
            "after it: an older checkpoint was put in place, or a batch write counts backwards; "
            "put the right checkpoint back, or choose another sinkId to append these rows"
        )
    if known.summary != write.summary and not write.skips_repeated:
        raise InvalidRequest(
            f"epoch {write.epoch} of sink {known.id} was committed with "
            f"{_describe_rows(known.summary)}, and comes again with "
            f"{_describe_rows(write.summary)}: these are other rows, so they are not taken for the "
            "same; give them another epoch or sinkId, for a stream put the right "
            "checkpoint back, or where a query gives other rows each time it is run, let the first "
            "ones count with skipRepeated=true"
        )
    return True


def _describe_rows(summary: RowSummary | None) -> str:
    if summary is None:
        return "no rows"
    return f"{summary.rows} rows of {summary.content_bytes} bytes"
