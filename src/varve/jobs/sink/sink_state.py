"""The state of sinks: which epochs are committed, and whether another epoch may follow.

Layout     `varve-sinks.json` in the log directory: by sink id its topic, query, producer, last done
           epoch and running epoch. docs/reference/formats/sinks.md
Invariant  a producer epoch is on disk here before the first batch that carries it; the phase
           `committing` is on disk only after all batches of its epoch. A committed epoch is
           recognised by its number and a summary of its rows; an epoch of another query, of
           another topic or with other rows is refused.
Crash      replaced atomically: written to a temporary file, synced and renamed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Final

from pydantic import TypeAdapter

from varve.disk import FileSystem, JsonDocument, to_store_error, write_atomically
from varve.foundation.errors import Corrupt, InvalidRequest, UnsupportedFormat
from varve.jobs.sink.batch_builder import SinkTarget
from varve.jobs.sink.staging import RowSummary, StagedPart, StagedTask
from varve.records import Producer

SINKS_FILE: Final = "varve-sinks.json"
_DOCUMENT: Final = JsonDocument(version=1, max_bytes=64 << 20)


class CommitPhase(StrEnum):
    """The phase of a running commit."""

    PREPARED = "prepared"
    """Batches are being appended; a crash aborts them."""
    COMMITTING = "committing"
    """All batches are on disk; they are committed even after a crash."""


@dataclass(frozen=True, slots=True)
class PendingEpoch:
    """A running commit; `ends` are the end offsets of `partitions` once it is committing."""

    epoch: int
    state: CommitPhase
    summary: RowSummary
    partitions: tuple[int, ...]
    ends: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkState:
    """One sink; `query` is the streaming query that counts its epochs, None for batch writes.

    The sink of a single write (`is_once`) is removed when its epoch is done.
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
    """The sink state file of a store; its writer holds the lock of the directory."""

    def __init__(self, fs: FileSystem, directories: Sequence[str]) -> None:
        self._fs = fs
        self.path = f"{_find_directory(fs, directories)}/{SINKS_FILE}"

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


def _find_directory(fs: FileSystem, directories: Sequence[str]) -> str:
    """The directory that has the file, else the first."""
    owners = [directory for directory in directories if fs.exists(f"{directory}/{SINKS_FILE}")]
    if len(owners) > 1:
        raise InvalidRequest(
            f"{SINKS_FILE} is in {' and '.join(owners)}, but a store has only one: move away the "
            "file that does not belong to this store"
        )
    return owners[0] if owners else directories[0]


_DECODER: Final = TypeAdapter(dict[str, SinkState])


def _encode(sinks: Mapping[str, SinkState]) -> bytes:
    return _DOCUMENT.encode({"sinks": {id: asdict(sink) for id, sink in sorted(sinks.items())}})


def _decode(data: bytes, where: str) -> dict[str, SinkState]:
    try:
        sinks = _DECODER.validate_python(_DOCUMENT.decode(data, where)["sinks"])
        renamed = {id: sink.id for id, sink in sinks.items() if sink.id != id}
        if renamed:
            raise ValueError(f"sinks have other ids than their keys: {renamed!r:.200}")
        return sinks
    except UnsupportedFormat:
        raise
    except (Corrupt, ValueError, KeyError, TypeError) as error:
        raise Corrupt(
            f"{where}: cannot be decoded as sink state ({type(error).__name__}: "
            f"{error!s:.120}): restore it from a copy; without it an epoch may be written twice"
        ) from error


# Epochs


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochWrite:
    """An epoch to commit: its sink, its number and the batches that its tasks staged.

    With `skips_repeated` an epoch that is done is skipped even if its rows differ.
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
        """The staged parts in the order of tasks."""
        return (part for task in self.tasks for part in task.parts)


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The result of a commit; `ends` are the offsets after its last records, by partition.

    A repeated epoch (`is_repeated`) was done before and appended nothing.
    """

    rows: int
    is_repeated: bool
    ends: Mapping[int, int]


def check_same_topic(target: SinkTarget, topic_id: str) -> None:
    if topic_id != target.topic_id:
        raise InvalidRequest(
            f"topic {target.topic} was deleted and recreated while rows were staged for it: "
            "write again"
        )


def check_partitions(target: SinkTarget, partitions: Sequence[int], count: int) -> None:
    if partitions and partitions[-1] >= count:
        raise InvalidRequest(
            f"rows are staged for partition {partitions[-1]} of {target.topic}, which has "
            f"{count}: write again"
        )


def check_owner(sink: SinkState, write: EpochWrite, target: SinkTarget) -> None:
    """Raises InvalidRequest if the sink belongs to another topic or query."""
    if sink.topic != target.topic:
        raise InvalidRequest(
            f"sink {sink.id} writes to topic {sink.topic}, not to {target.topic}: choose another "
            "sinkId, or for a stream another queryName"
        )
    if sink.topic_id != target.topic_id:
        raise InvalidRequest(
            f"topic {sink.topic} was deleted and recreated since sink {sink.id} committed epoch "
            f"{sink.epoch}: choose another sinkId, or for a stream another queryName"
        )
    if sink.query != write.query:
        raise InvalidRequest(
            f"sink {sink.id} belongs to {_describe_query(sink.query)}, which committed epoch "
            f"{sink.epoch}, and this is {_describe_query(write.query)}: its epochs start again "
            "and would count as done; continue with the checkpoint of the former query, or "
            "choose another sinkId or queryName to append all rows of the new one"
        )


def check_former_name(sinks: Iterable[SinkState], write: EpochWrite, target: SinkTarget) -> None:
    """Raises InvalidRequest if the query committed the epoch under another sink id."""
    if write.query is None:
        return
    for sink in sinks:
        is_same = (sink.query, sink.topic_id) == (write.query, target.topic_id)
        if is_same and sink.epoch is not None and sink.epoch >= write.epoch:
            raise InvalidRequest(
                f"{_describe_query(write.query)} committed epoch {sink.epoch} as sink {sink.id}, "
                f"and epoch {write.epoch} as {write.sink_id} would be written twice: use the "
                "former name, at least until this epoch is done"
            )


def _describe_query(query: str | None) -> str:
    return "batch writes" if query is None else f"the streaming query {query}"


def is_done(sink: SinkState, write: EpochWrite) -> bool:
    """Whether the epoch was committed before; raises InvalidRequest if it cannot follow."""
    if sink.epoch is None or write.epoch > sink.epoch:
        return False
    if write.epoch < sink.epoch:
        raise InvalidRequest(
            f"sink {sink.id} has committed epoch {sink.epoch}, and epoch {write.epoch} comes "
            "after it: an older checkpoint was restored, or a batch write has a lower epoch; "
            "restore the right checkpoint, or choose another sinkId to append these rows"
        )
    if sink.summary != write.summary and not write.skips_repeated:
        raise InvalidRequest(
            f"epoch {write.epoch} of sink {sink.id} was committed with "
            f"{_describe_rows(sink.summary)}, and comes again with "
            f"{_describe_rows(write.summary)}: these are other rows; give them another epoch or "
            "sinkId, for a stream restore the right checkpoint, or for a query whose rows differ "
            "between runs keep the first ones with skipRepeated=true"
        )
    return True


def _describe_rows(summary: RowSummary | None) -> str:
    if summary is None:
        return "no rows"
    return f"{summary.rows} rows of {summary.content_bytes} bytes"
