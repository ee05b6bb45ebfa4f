"""Which epochs of which sinks are in the log, and whether another one may follow them.

Layout     `varve-sinks.json` in the log directory: by sink id its topic, query, producer, the last
           epoch that is done, and the one that is running. docs/formats/sinks.md
Invariant  a producer epoch is on disk here before the first batch that carries it; the word
           `committing` is on disk only after all batches of its epoch are. An epoch that was
           committed is recognised by its number and a summary of its rows; one of another query,
           another topic or with other rows is refused.
Crash      written aside and renamed.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final

from pydantic import TypeAdapter

from varve.disk import FileSystem, to_store_error, write_atomically
from varve.foundation.errors import Corrupt, InvalidRequest
from varve.jobs.sink.batch_builder import SinkTarget
from varve.jobs.sink.staging import RowSummary, StagedPart, StagedTask
from varve.records import Producer

SINKS_FILE: Final = "varve-sinks.json"
_FORMAT: Final = 1


class CommitPhase(StrEnum):
    """How far a commit has come; one that is done is no longer running."""

    PREPARED = "prepared"
    """Batches are being appended: after a crash they are aborted."""
    COMMITTING = "committing"
    """All are in the log: after a crash they are committed."""


@dataclass(frozen=True, slots=True)
class PendingEpoch:
    """A commit that was begun; `ends` are, by partition, the offsets behind its last records."""

    epoch: int
    state: CommitPhase
    summary: RowSummary
    partitions: tuple[int, ...]
    ends: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkState:
    """One sink. `query` is the streaming query whose epochs these are, None for batch writes.

    A sink of one write alone (`is_once`) is forgotten when it is done.
    """

    id: str
    topic: str
    topic_id: str
    query: str | None
    is_once: bool
    producer_id: int
    producer_epoch: int
    epoch: int | None = None
    summary: RowSummary | None = None
    committed_ms: int | None = None
    running: PendingEpoch | None = None

    @property
    def producer(self) -> Producer:
        return Producer(self.producer_id, self.producer_epoch)

    def with_phase(self, state: CommitPhase, ends: Sequence[int]) -> "SinkState":
        assert self.running is not None
        return replace(self, running=replace(self.running, state=state, ends=tuple(ends)))

    def done(self, now_ms: int) -> "SinkState":
        """The sink once its running epoch is committed."""
        assert self.running is not None
        return replace(
            self,
            epoch=self.running.epoch,
            summary=self.running.summary,
            committed_ms=now_ms,
            running=None,
        )


class SinkStateFile:
    """The file of the sinks of a store; who writes it holds the lock of the directory."""

    def __init__(self, fs: FileSystem, directories: Sequence[str]) -> None:
        self._fs = fs
        self.path = f"{_find_home(fs, directories)}/{SINKS_FILE}"

    def read(self) -> dict[str, SinkState]:
        """All sinks by their id."""
        try:
            data = self._fs.read(self.path)
        except FileNotFoundError:
            return {}
        return _decode(data, self.path)

    def put(self, sink: SinkState) -> None:
        self._write({**self.read(), sink.id: sink})

    def forget(self, sink_id: str) -> None:
        self._write({id: sink for id, sink in self.read().items() if id != sink_id})

    def _write(self, sinks: Mapping[str, SinkState]) -> None:
        try:
            write_atomically(self._fs, self.path, _encode(sinks))
        except OSError as error:
            raise to_store_error(error, f"write of {self.path}") from error


def _find_home(fs: FileSystem, directories: Sequence[str]) -> str:
    """The directory that has the file, else the first."""
    found = [directory for directory in directories if fs.exists(f"{directory}/{SINKS_FILE}")]
    if len(found) > 1:
        raise InvalidRequest(
            f"{SINKS_FILE} lies in {' and '.join(found)}, and only one can record which epochs are "
            "done: move away the one that does not belong to this store"
        )
    return found[0] if found else directories[0]


_DECODER: Final = TypeAdapter(dict[str, SinkState])


def _encode(sinks: Mapping[str, SinkState]) -> bytes:
    documents = {id: asdict(sink) for id, sink in sorted(sinks.items())}
    return (json.dumps({"format": _FORMAT, "sinks": documents}, indent=1) + "\n").encode()


def _decode(data: bytes, where: str) -> dict[str, SinkState]:
    try:
        document: dict[str, Any] = json.loads(data)
        if document["format"] != _FORMAT:
            raise ValueError(f"format {document['format']!r:.40}, this varve knows {_FORMAT}")
        sinks = _DECODER.validate_python(document["sinks"])
        strangers = {id: sink.id for id, sink in sinks.items() if sink.id != id}
        if strangers:
            raise ValueError(f"sinks call themselves otherwise: {strangers!r:.200}")
        return sinks
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(
            f"{where}: cannot be read as the ledger of sinks ({type(error).__name__}: "
            f"{error!s:.120}): put it back from a copy; without it an epoch may be written twice"
        ) from error


# Epochs


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
