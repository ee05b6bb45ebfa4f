"""A remote segment: which offsets it holds, which objects it consists of, its state and lineage.

Invariant  a state follows another only as Kafka allows (`check_transition`); offsets of a segment
           never change under its id. A history is (leader epoch, first offset) pairs in ascending
           order, as in `leader-epoch-checkpoint`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, NamedTuple

from pydantic import ConfigDict, Field

from varve.foundation.errors import InvalidRequest

LONG_MAX: Final = (1 << 63) - 1

# Types of manifest fields, validated when a manifest is read from JSON, by alias.
Count = Annotated[int, Field(ge=0, le=LONG_MAX)]
Long = Annotated[int, Field(ge=-LONG_MAX - 1, le=LONG_MAX)]
Epoch = Annotated[int, Field(ge=-1, le=(1 << 31) - 1)]
Crc = Annotated[int, Field(ge=0, lt=1 << 32)]
Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]

STRICT: Final = ConfigDict(extra="forbid", strict=True)

ANNOUNCEMENT_TIMEOUT_MS: Final = 86_400_000
"""An announced segment is abandoned when it, and the lease of the job, are older than this."""


class SegmentState(StrEnum):
    """The state of a segment; once its deletion is finished it is no longer listed."""

    COPY_STARTED = "copy_started"
    """Announced: some or all of its objects may exist. Not readable."""
    COPY_FINISHED = "copy_finished"
    """All its objects exist. The only readable state."""
    DELETE_STARTED = "delete_started"
    """Its objects are being deleted. Not readable."""


# KIP-405: none -> started, started -> finished or deleting, finished -> deleting, deleting -> none,
# and every state to itself, so that an event may be repeated.
_NEXT_STATES: Final[dict[SegmentState | None, frozenset[SegmentState | None]]] = {
    None: frozenset({None, SegmentState.COPY_STARTED}),
    SegmentState.COPY_STARTED: frozenset(SegmentState),
    SegmentState.COPY_FINISHED: frozenset(
        {SegmentState.COPY_FINISHED, SegmentState.DELETE_STARTED}
    ),
    SegmentState.DELETE_STARTED: frozenset({SegmentState.DELETE_STARTED, None}),
}


LOG_PART: Final = "log"
INDEX_PART: Final = "index"
TIME_INDEX_PART: Final = "timeindex"
TXN_INDEX_PART: Final = "txnindex"
SNAPSHOT_PART: Final = "snapshot"
EPOCHS_PART: Final = "epochs"
KEYS_PART: Final = "keys"

PART_NAMES: Final = (
    LOG_PART,
    INDEX_PART,
    TIME_INDEX_PART,
    TXN_INDEX_PART,
    SNAPSHOT_PART,
    EPOCHS_PART,
    KEYS_PART,
)
"""In upload order; custom metadata has a bit for each."""


class ObjectPart(NamedTuple):
    """One object of a segment, named by its content ("log", "index", ...)."""

    name: str
    size: Count
    crc32c: Crc


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSegment:
    """A segment as listed in a manifest.

    `end_offset` is inclusive, `size` counts the bytes of the log alone, `append_ms` is the first
    and the last append by the clock of the store, `epochs` are (leader epoch, first offset) pairs.
    `undecided_from` is the first offset of the oldest transaction that is open at the end of the
    segment: earlier transactions have their markers in this segment or an earlier one.
    `key_count` and `stale_bytes` are None if unknown, `delete_horizon_ms` if no tombstone has one.
    `at_ms` is when it entered its state. Readers of older manifests may use the objects of a
    segment whose deletion has started until `replaced_until_ms`.
    """

    __pydantic_config__ = STRICT

    id: Id
    state: SegmentState
    at_ms: Long
    base_offset: Count
    end_offset: Count
    size: Count
    record_count: Annotated[Count, Field(alias="records")]
    max_timestamp: Long
    append_ms: tuple[Long, Long]
    epochs: tuple[tuple[Epoch, Count], ...]
    parts: tuple[ObjectPart, ...]
    has_aborted: bool
    key_count: Annotated[Count | None, Field(alias="keys")] = None
    stale_bytes: Count | None = None
    delete_horizon_ms: Long | None = None
    replaced_until_ms: Long | None = None
    undecided_from: Count | None = None

    @property
    def is_readable(self) -> bool:
        return self.state is SegmentState.COPY_FINISHED

    def is_decided(self, offset: int) -> bool:
        """Whether no transaction that began before the offset is open at the end of the segment."""
        return self.undecided_from is None or self.undecided_from >= offset

    def is_abandoned(self, now_ms: int, *, renewed_ms: int = 0) -> bool:
        """Whether the writer of an announced segment has given up or crashed.

        `renewed_ms` is when a job last renewed the lease of the partition. A job may run for days,
        and it announces its output long before it commits, so the lease counts too.
        """
        return now_ms - max(self.at_ms, renewed_ms) >= ANNOUNCEMENT_TIMEOUT_MS

    def may_be_deleted(self, now_ms: int) -> bool:
        """Whether the objects of a segment whose deletion has started may be deleted now."""
        return self.state is SegmentState.DELETE_STARTED and (self.replaced_until_ms or 0) <= now_ms

    @property
    def stored_bytes(self) -> int:
        """The bytes of all its objects."""
        return sum(part.size for part in self.parts)

    @property
    def sort_key(self) -> tuple[int, int, str]:
        """Sort key within a manifest: by base offset first."""
        return (self.base_offset, self.end_offset, self.id)

    def find_part(self, name: str) -> ObjectPart | None:
        return next((part for part in self.parts if part.name == name), None)

    def __str__(self) -> str:
        return f"segment {self.id} (offsets {self.base_offset} to {self.end_offset}, {self.state})"


def check_segment(segment: RemoteSegment) -> None:
    """Raises InvalidRequest for a segment whose offsets, epochs or parts contradict each other."""
    if not 0 <= segment.base_offset <= segment.end_offset:
        raise InvalidRequest(
            f"{segment}: the base offset must be at least 0 and at most the end offset"
        )
    if segment.size < 0 or segment.record_count < 0:
        raise InvalidRequest(
            f"{segment}: size {segment.size} and record count {segment.record_count} "
            "must be at least 0"
        )
    numbers = [epoch for epoch, _ in segment.epochs]
    starts = [start for _, start in segment.epochs]
    if not numbers or numbers != sorted(set(numbers)) or starts != sorted(starts):
        raise InvalidRequest(
            f"{segment}: leader epochs {segment.epochs} must not be empty and ascend with offsets"
        )
    if starts[0] < segment.base_offset or starts[-1] > segment.end_offset + 1:
        raise InvalidRequest(
            f"{segment}: leader epochs {segment.epochs} must begin within the segment: "
            "raise the first one to the base offset, drop those after the end"
        )
    names = [part.name for part in segment.parts]
    if len(set(names)) != len(names):
        raise InvalidRequest(f"{segment}: parts {names} repeat a name")


def check_transition(old: RemoteSegment | None, new: RemoteSegment | None) -> None:
    """Raises InvalidRequest for a transition that Kafka does not allow; None is not listed."""
    if old is not None and new is not None:
        _check_same(old, new)
    old_state = None if old is None else old.state
    next_state = None if new is None else new.state
    if next_state not in _NEXT_STATES[old_state]:
        allowed = ", ".join(sorted(str(to or "gone") for to in _NEXT_STATES[old_state]))
        raise InvalidRequest(
            f"{old or new}: state {old_state or 'none'} cannot be followed by "
            f"{next_state or 'gone'}, only by {allowed}"
        )


def _check_same(old: RemoteSegment, new: RemoteSegment) -> None:
    before = (old.id, old.base_offset, old.end_offset)
    after = (new.id, new.base_offset, new.end_offset)
    if before != after:
        raise InvalidRequest(
            f"{old}: cannot become {new}: other offsets are another segment, under an id of its own"
        )


Epochs = Sequence[tuple[int, int]]


def restrict_epochs(
    history: Epochs, *, base_offset: int, end_offset: int
) -> tuple[tuple[int, int], ...]:
    """The part of a history that covers the offsets of a segment; `end_offset` is inclusive.

    The epoch that was current at the base offset begins there.
    """
    within = [(epoch, start) for epoch, start in history if start <= end_offset]
    before = [epoch for epoch, start in within if start <= base_offset]
    later = tuple((epoch, start) for epoch, start in within if start > base_offset)
    return ((before[-1], base_offset), *later) if before else later


def is_in_lineage(segment: RemoteSegment, history: Epochs, *, log_end_offset: int) -> bool:
    """Whether the log of this history had the segment's records, as Kafka decides it (KIP-405).

    Epochs below the history's first are ignored: the log has dropped that part of it.
    """
    own = dict(_with_data(segment.epochs))
    log = dict(_with_data(history))
    if not own or not log or segment.end_offset >= log_end_offset:
        return False
    log_epochs = list(log)
    last = list(own)[-1]
    shared = [epoch for epoch in own if epoch >= log_epochs[0]]
    if not log_epochs[0] <= last <= log_epochs[-1] or not all(epoch in log for epoch in shared):
        return False
    first = shared[0]
    # The log may begin within its first epoch, so that epoch's start says nothing.
    if first != log_epochs[0] and own[first] < log[first]:
        return False
    following = _find_next(log, last)
    if following is not None and segment.end_offset > following[1] - 1:
        return False
    return all(_find_next(own, epoch) == _find_next(log, epoch) for epoch in shared[:-1])


def _with_data(epochs: Epochs) -> list[tuple[int, int]]:
    """The epochs with records: an epoch without any ends where it begins."""
    return [
        (epoch, start)
        for index, (epoch, start) in enumerate(epochs)
        if index + 1 == len(epochs) or epochs[index + 1][1] != start
    ]


def _find_next(epochs: dict[int, int], epoch: int) -> tuple[int, int] | None:
    return next(((later, start) for later, start in epochs.items() if later > epoch), None)
