"""The ManifestStore over Kafka's topic __remote_log_metadata.

A commit is turned into events, which are appended as one batch, synced and read back; the manifest
is the result of all events of the partition. A version is the number of events up to it, so it
grows by as many as a commit has. There are no pages and no older versions: a manifest lists every
segment, in memory.

Invariant  commits of a partition follow each other under its lock, so none is lost; one process
           has the log, and one `MetadataTopic` belongs to it.
Invariant  the events of a commit are in an order in which a reader may stop anywhere and miss no
           data: announcements, then segments that become readable, then those that become
           unreadable, then deleted ones. The log start offset is raised with the first event, the
           cleaned-up-to offset, which allows others to drop tombstones, only with the last.
Crash      a commit is one batch, so it is in the log completely or not at all.
Threads    any; a change is called under the partition's lock, so it must not commit itself.
"""

from dataclasses import replace
from typing import Final, NamedTuple
from uuid import NAMESPACE_OID, UUID, uuid5

from varve.commit_log.directory_files import decode_topic_id
from varve.foundation.errors import Corrupt, InvalidRequest, Unavailable
from varve.object_store import ObjectStore
from varve.tiering.manifest.commit import ManifestEdit, apply_edit
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import TXN_INDEX_PART, RemoteSegment, SegmentState
from varve.tiering.manifest.store import ManifestStore
from varve.tiering.metadata.events import (
    REMOTE_STATES,
    CommitNote,
    EpochStart,
    Event,
    RemoteState,
    SegmentEvent,
    SegmentId,
    SegmentUpdate,
    TopicIdPartition,
    encode_custom,
)
from varve.tiering.metadata.topic import MetadataTopic

_ATTEMPTS_MAX: Final = 8


class TopicManifestStore(ManifestStore):
    """The manifest of one user partition."""

    def __init__(self, topic: MetadataTopic, objects: ObjectStore, path: RemotePath) -> None:
        super().__init__(objects, path)
        self._topic = topic
        self._user = TopicIdPartition(path.topic, decode_topic_id(path.topic_id), path.partition)
        self._partition = topic.partition_for(self._user)
        self._cached: Manifest | None = None

    def load(self) -> Manifest:
        self._cached = self._partition.load(self._user, self.path)
        return self._cached

    def find_known(self) -> Manifest | None:
        return self._cached

    def commit(
        self, change: ManifestEdit, *, leader_epoch: int | None, writer: str, now_ms: int
    ) -> Manifest:
        """See ManifestStore. Raises Unavailable too when the log cannot be written or synced."""
        with self._partition.commit_lock:
            for _ in range(_ATTEMPTS_MAX):
                base = self.load()
                edited, is_new = apply_edit(
                    base, change, self._pages, leader_epoch=leader_epoch, writer=writer
                )
                if not is_new:
                    return base
                at_ms = max(now_ms, base.at_ms)
                events = plan_events(
                    self._user, base, edited, broker_id=self._topic.broker_id, at_ms=at_ms
                )
                self._check_sizes(events)
                if self._partition.append(
                    self._user, events, after=base.version, writer=writer, at_ms=at_ms
                ):
                    committed = self.load()
                    self._check_read_back(edited, committed, base.version + len(events))
                    return committed
        raise Unavailable(
            f"{self.path}: {_ATTEMPTS_MAX} times another writer appended events to partition "
            f"{self._partition.number} of __remote_log_metadata first: one process alone may write"
        )

    def _check_sizes(self, events: list[Event]) -> None:
        limit = self._topic.custom_bytes_max
        for event in events:
            if len(event.custom or b"") > limit:
                raise InvalidRequest(
                    f"{self.path}: {len(event.custom or b'')} bytes of custom metadata for segment "
                    f"{event.segment.id}, the limit is {limit}: raise "
                    "remote.log.metadata.custom.metadata.max.bytes"
                )

    def _check_read_back(self, edited: Manifest, committed: Manifest, version: int) -> None:
        if committed.version < version:
            raise Unavailable(
                f"{self.path}: the events of manifest version {version} are in partition "
                f"{self._partition.number} of __remote_log_metadata, but above its high watermark: "
                "its other replicas must fetch them; load before you repeat the change"
            )
        if (
            committed.segments != edited.segments
            or committed.log_start_offset != edited.log_start_offset
            or committed.cleaned_up_to != edited.cleaned_up_to
        ):
            raise Corrupt(
                f"{self.path}: manifest version {version} reads back from __remote_log_metadata "
                "differently than it was committed; stop copying, and report it with the log's "
                "files"
            )

    def retire_versions(self, *, now_ms: int, retention_ms: int) -> None:
        """Removes nothing: events of live segments are mixed with those of deleted ones."""


class _Step(NamedTuple):
    """One event of a commit: a segment enters a state, for the first time if `is_first`.

    Without `has_segment` the event is about the commit alone.
    """

    segment: RemoteSegment
    state: RemoteState
    is_first: bool = False
    has_segment: bool = True


def plan_events(
    user: TopicIdPartition, base: Manifest, changed: Manifest, *, broker_id: int, at_ms: int
) -> list[Event]:
    """The events that lead from `base` to `changed`, at least one.

    Raises InvalidRequest for what events cannot express.
    """
    steps = _diff(base, changed) or _repeat(base, changed, at_ms)
    events = []
    for number, step in enumerate(steps, start=1):
        note = CommitNote(
            number=base.version + number,
            leader_epoch=changed.leader_epoch,
            at_ms=at_ms,
            log_start_offset=changed.log_start_offset,
            cleaned_up_to=changed.cleaned_up_to if number == len(steps) else base.cleaned_up_to,
        )
        events.append(_build_event(user, broker_id, step, note))
    return events


def _diff(base: Manifest, changed: Manifest) -> list[_Step]:
    remaining = {segment.id: segment for segment in base.segments}
    steps: list[_Step] = []
    for segment in changed.segments:
        old = remaining.pop(segment.id, None)
        if old is not segment and old != segment:
            steps += _transition(old, segment)
    steps += [
        _Step(segment, RemoteState.DELETE_FINISHED, has_segment=False)
        for segment in remaining.values()
    ]
    return sorted(steps, key=lambda step: step.state)


def _transition(old: RemoteSegment | None, new: RemoteSegment) -> list[_Step]:
    state = REMOTE_STATES[new.state]
    if new.state is SegmentState.COPY_STARTED:
        return [_Step(new, state, is_first=True)]
    if old is None or _fixed_fields(old) == _fixed_fields(new):
        return [_Step(new, state)]
    if old.state is not SegmentState.COPY_STARTED:
        raise InvalidRequest(
            f"{old}: its size, largest timestamp, leader epochs and transaction index are written "
            "once, with its announcement, and cannot be changed: announce it under another id"
        )
    announced = replace(new, state=old.state, at_ms=old.at_ms)
    return [_Step(announced, REMOTE_STATES[old.state], is_first=True), _Step(new, state)]


def _fixed_fields(segment: RemoteSegment) -> tuple[object, ...]:
    """The fields that only the first event of a segment carries."""
    return (
        segment.base_offset,
        segment.end_offset,
        segment.max_timestamp,
        segment.size,
        segment.epochs,
        segment.find_part(TXN_INDEX_PART) is None,
    )


def _repeat(base: Manifest, changed: Manifest, at_ms: int) -> list[_Step]:
    """Steps that change no segment, for a change of offsets or of the leader epoch.

    One segment is repeated; without any, an empty one with a new id is added and deleted.
    """
    if changed.segments:
        readable = [segment for segment in changed.segments if segment.is_readable]
        segment = readable[-1] if readable else changed.segments[-1]
        state = REMOTE_STATES[segment.state]
        return [_Step(segment, state, is_first=state is RemoteState.COPY_STARTED)]
    start = changed.log_start_offset
    empty = RemoteSegment(
        id=str(uuid5(NAMESPACE_OID, f"{base.topic_id}-{base.partition}-{base.version}")),
        base_offset=start,
        end_offset=start,
        size=0,
        record_count=0,
        max_timestamp=-1,
        append_ms=(at_ms, at_ms),
        epochs=((max(changed.leader_epoch, 0), start),),
        parts=(),
        has_aborted=False,
        state=SegmentState.COPY_STARTED,
        at_ms=at_ms,
    )
    states = (RemoteState.COPY_STARTED, RemoteState.DELETE_STARTED, RemoteState.DELETE_FINISHED)
    return [_Step(empty, state, state is RemoteState.COPY_STARTED, False) for state in states]


def _build_event(user: TopicIdPartition, broker_id: int, step: _Step, note: CommitNote) -> Event:
    segment = step.segment
    id = SegmentId(user, _parse_segment_id(segment.id))
    at_ms = note.at_ms if step.state is RemoteState.DELETE_FINISHED else segment.at_ms
    custom = encode_custom(note, segment if step.has_segment else None, event_ms=at_ms)
    if not step.is_first:
        return SegmentUpdate(id, broker_id, at_ms, custom, step.state)
    return SegmentEvent(
        segment=id,
        start_offset=segment.base_offset,
        end_offset=segment.end_offset,
        broker_id=broker_id,
        max_timestamp=segment.max_timestamp,
        at_ms=at_ms,
        epochs=[EpochStart(epoch, offset) for epoch, offset in segment.epochs],
        size=segment.size,
        custom=custom,
        state=step.state,
        is_txn_index_empty=segment.find_part(TXN_INDEX_PART) is None,
    )


def _parse_segment_id(text: str) -> UUID:
    try:
        id = UUID(text)
    except ValueError:
        id = None
    if id is None or str(id) != text:
        raise InvalidRequest(
            f"segment id {text!r:.80} cannot be written to __remote_log_metadata: use a UUID, as "
            "in 1a5d8c3f-e0b4-4297-9f68-c7b2a1d4e3f5"
        )
    return id
