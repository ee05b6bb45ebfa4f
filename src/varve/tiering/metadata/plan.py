"""From a change of a manifest to the events that tell of it.

Invariant  the events come in an order in which a reader may stop anywhere and miss no data:
           announcements, then what becomes readable, then what is taken out of reading, then what
           is gone. The log start offset is raised with the first event, the cleaned-up-to offset,
           which allows others to drop tombstones, only with the last.
"""

from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from varve.foundation.errors import InvalidRequest
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.segment import RemoteSegment, SegmentState
from varve.tiering.metadata.custom_metadata import CommitNote, encode_custom
from varve.tiering.metadata.events import (
    RemoteState,
    SegmentEvent,
    SegmentFacts,
    SegmentKey,
    SegmentUpdate,
    TopicIdPartition,
)

_STATES: Final = {
    SegmentState.COPY_STARTED: RemoteState.COPY_STARTED,
    SegmentState.COPY_FINISHED: RemoteState.COPY_FINISHED,
    SegmentState.DELETE_STARTED: RemoteState.DELETE_STARTED,
}
_TXN_INDEX_PART: Final = "txnindex"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSource:
    """What is the same in all events of a partition."""

    home: TopicIdPartition
    broker_id: int
    custom_bytes_max: int


@dataclass(frozen=True, slots=True)
class _Step:
    """One event to be: a segment comes into a state; `whole` tells its facts too.

    Without `details` the event is about the commit alone.
    """

    segment: RemoteSegment
    state: RemoteState
    whole: bool
    details: bool = True


def plan_events(
    source: EventSource,
    base: Manifest,
    changed: Manifest,
    *,
    leader_epoch: int,
    at_ms: int,
    note_id: UUID,
) -> list[SegmentEvent | SegmentUpdate]:
    """The events that lead from `base` to `changed`, at least one.

    `note_id` is a fresh id, for a change of offsets or the leader epoch while there is no segment
    whose event could carry it. Raises InvalidRequest for what events cannot say.
    """
    steps = _diff(base, changed) or _repeat(changed, at_ms, note_id)
    notes = [
        CommitNote(
            number=base.version + place,
            leader_epoch=leader_epoch,
            at_ms=at_ms,
            log_start_offset=changed.log_start_offset,
            cleaned_up_to=changed.cleaned_up_to if place == len(steps) else base.cleaned_up_to,
        )
        for place in range(1, len(steps) + 1)
    ]
    return [_make(source, step, note) for step, note in zip(steps, notes, strict=True)]


def _diff(base: Manifest, changed: Manifest) -> list[_Step]:
    left = {segment.id: segment for segment in base.segments}
    steps: list[_Step] = []
    for segment in changed.segments:
        old = left.pop(segment.id, None)
        if old is not segment and old != segment:
            steps += _become(old, segment)
    steps += [_Step(one, RemoteState.DELETE_FINISHED, False, False) for one in left.values()]
    return sorted(steps, key=lambda step: step.state)


def _become(old: RemoteSegment | None, new: RemoteSegment) -> list[_Step]:
    state = _STATES[new.state]
    if new.state is SegmentState.COPY_STARTED:
        return [_Step(new, state, True)]
    if old is None or _facts(old) == _facts(new):
        return [_Step(new, state, False)]
    if old.state is not SegmentState.COPY_STARTED:
        raise InvalidRequest(
            f"{old}: its size, largest timestamp, leader epochs and transaction index are told "
            "once, with its announcement, and cannot be changed: announce it under another id"
        )
    announced = replace(new, state=old.state, at_ms=old.at_ms)
    return [_Step(announced, _STATES[old.state], True), _Step(new, state, False)]


def _repeat(changed: Manifest, at_ms: int, note_id: UUID) -> list[_Step]:
    """Steps that change no segment: one is said again, or one comes and goes at once."""
    if changed.segments:
        readable = [segment for segment in changed.segments if segment.is_readable]
        segment = readable[-1] if readable else changed.segments[-1]
        state = _STATES[segment.state]
        return [_Step(segment, state, state is RemoteState.COPY_STARTED)]
    nothing = RemoteSegment(
        id=str(note_id),
        base_offset=changed.log_start_offset,
        end_offset=changed.log_start_offset,
        size=0,
        record_count=0,
        max_timestamp=-1,
        append_ms=(at_ms, at_ms),
        epochs=((max(changed.leader_epoch, 0), changed.log_start_offset),),
        parts=(),
        has_aborted=False,
        state=SegmentState.COPY_STARTED,
        at_ms=at_ms,
    )
    return [
        _Step(nothing, RemoteState.COPY_STARTED, True, False),
        _Step(nothing, RemoteState.DELETE_STARTED, False, False),
        _Step(nothing, RemoteState.DELETE_FINISHED, False, False),
    ]


def _make(source: EventSource, step: _Step, note: CommitNote) -> SegmentEvent | SegmentUpdate:
    segment = step.segment
    key = SegmentKey(source.home, parse_segment_id(segment.id))
    event_ms = note.at_ms if step.state is RemoteState.DELETE_FINISHED else segment.at_ms
    custom = encode_custom(note, segment if step.details else None, event_ms=event_ms)
    if len(custom) > source.custom_bytes_max:
        raise InvalidRequest(
            f"{segment}: {len(custom)} bytes of custom metadata, the limit is "
            f"{source.custom_bytes_max}: raise remote.log.metadata.custom.metadata.max.bytes"
        )
    if step.whole:
        return SegmentEvent(
            key=key,
            facts=_facts(segment),
            broker_id=source.broker_id,
            at_ms=event_ms,
            state=step.state,
            custom=custom,
        )
    return SegmentUpdate(
        key=key, broker_id=source.broker_id, at_ms=event_ms, state=step.state, custom=custom
    )


def _facts(segment: RemoteSegment) -> SegmentFacts:
    return SegmentFacts(
        start_offset=segment.base_offset,
        end_offset=segment.end_offset,
        max_timestamp=segment.max_timestamp,
        size=segment.size,
        epochs=segment.epochs,
        is_txn_index_empty=segment.find_part(_TXN_INDEX_PART) is None,
    )


def parse_segment_id(id: str) -> UUID:
    """The UUID that Kafka knows a segment by; raises InvalidRequest for another kind of id."""
    try:
        found = UUID(id)
    except ValueError:
        found = None
    if found is None or str(found) != id:
        raise InvalidRequest(
            f"segment id {id!r:.80} cannot stand in __remote_log_metadata: use a UUID, as in "
            "1a5d8c3f-e0b4-4297-9f68-c7b2a1d4e3f5"
        )
    return found
