"""Replays the events of one partition: its segments, and the manifest that lists them.

Invariant  events are applied in the order of the log, those of a batch together. Each has a number;
           a missing one raises Corrupt, a repeated one is skipped. As in Kafka, an update of an
           unknown segment and a state that cannot follow change nothing.
Threads    not thread-safe; `MetadataPartition` calls it under its lock. A manifest is a value.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from varve.foundation.errors import Corrupt, InvalidRequest, StoreError
from varve.tiering.manifest.commit import check_overlaps
from varve.tiering.manifest.manifest import NO_EPOCH, Manifest, in_order
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import RemoteSegment, check_segment, check_transition
from varve.tiering.metadata.custom_metadata import CommitNote, CustomMetadata, is_own
from varve.tiering.metadata.events import REMOTE_STATES, Event, RemoteState, SegmentEvent

logger = logging.getLogger(__name__)

_STATES: Final = {remote: state for state, remote in REMOTE_STATES.items()}
_NOTHING: Final = CommitNote(
    number=0, leader_epoch=NO_EPOCH, at_ms=0, log_start_offset=0, cleaned_up_to=0
)


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event read from the log; `where` names the record."""

    event: Event
    where: str


@dataclass(frozen=True, slots=True)
class StoredCommit:
    """The events of one partition in one batch; `id` is the position of the last."""

    id: str
    writer: str
    events: Sequence[StoredEvent]


class PartitionReplay:
    """The state of one partition after the events that were applied."""

    def __init__(self) -> None:
        self.commit_count = 0
        self._segments: dict[UUID, RemoteSegment] = {}
        self._note = _NOTHING
        self._writer = ""
        self._commit_id = ""
        self._previous_commit_id = ""
        self._failure: StoreError | None = None
        self._manifest: Manifest | None = None

    @property
    def version(self) -> int:
        """The number of events that were applied."""
        return self._note.number

    def apply(self, commit: StoredCommit) -> None:
        """Applies a commit; what is wrong with it is raised by `manifest` from then on."""
        if self._failure is not None:
            return
        before = self.version
        try:
            for stored in commit.events:
                self._apply(stored)
        except StoreError as failure:
            self._failure = failure
            return
        if self.version != before:
            self.commit_count += 1
            self._previous_commit_id, self._commit_id = self._commit_id, commit.id
            self._writer = commit.writer
            self._manifest = None

    def _apply(self, stored: StoredEvent) -> None:
        event, where = stored.event, stored.where
        if event.custom is None or not is_own(event.custom):
            raise InvalidRequest(
                f"{where}: segment {event.segment.id} was stored by another plugin than varve, "
                "which cannot read its objects: set varve.tier.metadata=object, or give varve a "
                "topic __remote_log_metadata of its own"
            )
        custom = CustomMetadata(event.custom, event_ms=event.at_ms, where=where)
        if self._is_repeated(custom.note, where):
            return
        self._note = custom.note
        if event.state == RemoteState.DELETE_FINISHED:
            self._put(event.segment.id, None, where)
        elif custom.has_segment:
            self._update(event, custom, where)

    def _update(self, event: Event, custom: CustomMetadata, where: str) -> None:
        id = event.segment.id
        first = event if isinstance(event, SegmentEvent) else self._segments.get(id)
        if first is None:
            # As in Kafka: its offsets are not known, and the commit counts all the same.
            logger.warning("update of an unknown segment skipped", extra={"where": where})
            return
        state = _STATES[RemoteState(event.state)]
        segment = custom.decode_segment(str(id), first, state=state, at_ms=event.at_ms)
        self._put(id, segment, where)

    def _is_repeated(self, note: CommitNote, where: str) -> bool:
        if note.number > self.version + 1:
            raise Corrupt(
                f"{where}: event {note.number} of its partition follows event {self.version}: "
                "those between are missing in the log; restore its directory, and keep "
                "remote.log.metadata.topic.retention.ms at -1"
            )
        return note.number <= self.version

    def _put(self, id: UUID, segment: RemoteSegment | None, where: str) -> None:
        """Stores the new state of a segment, None for deleted, unless it cannot follow."""
        try:
            check_transition(self._segments.get(id), segment)
            if segment is not None:
                check_segment(segment)
        except InvalidRequest as error:
            logger.warning("event skipped", extra={"where": where, "error": str(error)})
            return
        if segment is None:
            self._segments.pop(id, None)
        else:
            self._segments[id] = segment

    def manifest(self, path: RemotePath) -> Manifest:
        """The manifest as of the last commit; raises what was wrong with the events."""
        if self._failure is not None:
            raise self._failure
        if self._manifest is None or self._manifest.path != path:
            self._manifest = self._build(path)
        return self._manifest

    def _build(self, path: RemotePath) -> Manifest:
        note = self._note
        manifest = Manifest(
            path=path,
            version=note.number,
            commit_id=self._commit_id,
            previous_commit_id=self._previous_commit_id,
            writer=self._writer,
            leader_epoch=note.leader_epoch,
            at_ms=note.at_ms,
            log_start_offset=note.log_start_offset,
            cleaned_up_to=note.cleaned_up_to,
            segments=in_order(self._segments.values()),
        )
        try:
            check_overlaps(manifest)
        except InvalidRequest as error:
            raise Corrupt(f"{path}: the events of __remote_log_metadata: {error}") from error
        return manifest
