"""The ManifestStore over Kafka's topic __remote_log_metadata.

A commit is turned into events, which are appended as one batch, synced and read back; the manifest
is what all events of the partition add up to. A version is the number of events up to it, so it
grows by as many as a commit has. There are no pages: a manifest lists every segment, in memory.

Invariant  commits of a partition follow each other under its lock, so none is lost; one process
           has the log, and one `MetadataTopic` belongs to it.
Crash      before its batch is in the log nothing has changed, after it all has.
Threads    any; a change is called under the partition's lock, so it must not commit itself.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from typing import Final
from uuid import NAMESPACE_OID, uuid5

from varve.commit_log.partition_metadata import decode_topic_id
from varve.foundation.errors import Corrupt, Fenced, InvalidRequest, NotFound, Unavailable
from varve.object_store import ObjectStore
from varve.tiering.manifest.commit import ManifestEdit, check_overlaps, check_whole_change
from varve.tiering.manifest.manifest import Manifest, in_order
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import RemoteSegment
from varve.tiering.manifest.store import ManifestStore
from varve.tiering.manifest.versions import ExpiredVersions
from varve.tiering.metadata.custom_metadata import CustomMetadata
from varve.tiering.metadata.events import SegmentEvent, SegmentUpdate, TopicIdPartition
from varve.tiering.metadata.plan import EventSource, plan_events
from varve.tiering.metadata.replay import PartitionReplay, StoredCommit
from varve.tiering.metadata.topic import MetadataTopic

_ATTEMPTS: Final = 8


class TopicManifestStore(ManifestStore):
    """The manifest of one user partition."""

    def __init__(self, topic: MetadataTopic, objects: ObjectStore, home: RemotePath) -> None:
        super().__init__(objects, home)
        self._topic = topic
        self._named = TopicIdPartition(home.topic, decode_topic_id(home.topic_id), home.partition)
        self._partition = topic.partition_for(self._named)
        self._known: Manifest | None = None

    def load(self) -> Manifest:
        self._known = self._partition.read(self._named, lambda replay: replay.manifest(self.home))
        return self._known

    def find_known(self) -> Manifest | None:
        return self._known

    def commit(
        self, change: ManifestEdit, *, leader_epoch: int | None, writer: str, now_ms: int
    ) -> Manifest:
        """See ManifestStore. Raises Unavailable too when the log cannot be written or synced."""
        with self._topic.commit_lock(self._named):
            for _ in range(_ATTEMPTS):
                base = self.load()
                epoch = self._check_epoch(base, leader_epoch, writer)
                changed = self._apply(base, change, epoch)
                if changed is None:
                    return base
                at_ms = max(now_ms, base.at_ms)
                events = self._plan(base, changed, at_ms)
                if self._partition.append(
                    self._named, events, after=base.version, writer=writer, at_ms=at_ms
                ):
                    committed = self.load()
                    self._check_read_back(changed, committed, base.version + len(events))
                    return committed
        raise Unavailable(
            f"{self.home}: {_ATTEMPTS} times another was first to append events to partition "
            f"{self._partition.number} of __remote_log_metadata, which one process alone may write"
        )

    def _apply(self, base: Manifest, change: ManifestEdit, leader_epoch: int) -> Manifest | None:
        """The manifest to be, None when it says nothing new."""
        changed = change(base)
        changed = replace(changed, segments=in_order(changed.segments), leader_epoch=leader_epoch)
        is_new = check_whole_change(base, changed)
        check_overlaps(changed)
        return changed if is_new or leader_epoch != base.leader_epoch else None

    def _check_epoch(self, base: Manifest, leader_epoch: int | None, writer: str) -> int:
        if leader_epoch is None:
            return base.leader_epoch
        if leader_epoch < base.leader_epoch:
            raise Fenced(
                f"{self.home}: {writer} commits in leader epoch {leader_epoch}, but {base.writer} "
                f"wrote manifest version {base.version} in {base.leader_epoch}: another leader has "
                "taken over"
            )
        return leader_epoch

    def _plan(
        self, base: Manifest, changed: Manifest, at_ms: int
    ) -> list[SegmentEvent | SegmentUpdate]:
        source = EventSource(
            home=self._named,
            broker_id=self._topic.broker_id,
            custom_bytes_max=self._topic.custom_bytes_max,
        )
        name = f"{self.home.topic_id}-{self.home.partition}-{base.version}"
        return plan_events(
            source,
            base,
            changed,
            leader_epoch=changed.leader_epoch,
            at_ms=at_ms,
            note_id=uuid5(NAMESPACE_OID, name),
        )

    def _check_read_back(self, changed: Manifest, committed: Manifest, version: int) -> None:
        if committed.version < version:
            raise Unavailable(
                f"{self.home}: the events of manifest version {version} are in partition "
                f"{self._partition.number} of __remote_log_metadata, but not shown yet: it is "
                "replicated, and others must take them up; load before you repeat the change"
            )
        if (
            committed.segments != changed.segments
            or committed.log_start_offset != changed.log_start_offset
            or committed.cleaned_up_to != changed.cleaned_up_to
        ):
            raise Corrupt(
                f"{self.home}: manifest version {version} reads back from __remote_log_metadata "
                "as another than was committed; copy no more, and report it with the log's files"
            )

    def at(self, *, version: int | None = None, time_ms: int | None = None) -> Manifest:
        """Reads the events from the beginning up to there."""
        if (version is None) == (time_ms is None):
            raise InvalidRequest(f"{self.home}: give either a manifest version or a time")
        replay = PartitionReplay()
        for commit in self._partition.history(self._named):
            is_later = time_ms is not None and _committed_ms(commit) > time_ms
            if is_later or (version is not None and replay.version >= version):
                break
            replay.apply(commit)
        if version is not None and replay.version != version:
            raise NotFound(
                f"{self.home}: there is no manifest version {version}: a version is the number of "
                f"events up to the end of a commit, and the nearest is {replay.version}"
            )
        return replay.manifest(self.home)

    def segments(self, manifest: Manifest, *, from_offset: int = 0) -> Iterator[RemoteSegment]:
        return (one for one in manifest.segments if one.end_offset >= from_offset)

    def pending(self, manifest: Manifest) -> Iterator[RemoteSegment]:
        return (one for one in manifest.segments if not one.is_readable)

    def find(self, manifest: Manifest, offset: int) -> RemoteSegment | None:
        place = bisect_right(manifest.segments, offset, key=lambda one: one.base_offset)
        # Readable segments do not overlap, so only the last that begins up to there can hold it.
        for index in range(place - 1, -1, -1):
            segment = manifest.segments[index]
            if segment.is_readable:
                return segment if offset <= segment.end_offset else None
        return None

    def find_by_time(self, manifest: Manifest, timestamp: int) -> RemoteSegment | None:
        start = manifest.log_start_offset
        for segment in manifest.segments:
            is_late = segment.max_timestamp >= timestamp and segment.end_offset >= start
            if is_late and segment.is_readable:
                return segment
        return None

    def unfold(self, manifest: Manifest, *, start_offset: int, end_offset: int) -> Manifest:
        """The manifest itself: all its segments are within reach."""
        return manifest

    def retire_versions(self, *, now_ms: int, retention_ms: int) -> ExpiredVersions:
        """Removes nothing: the events of live segments stand between those of gone ones."""
        count = self._partition.read(self._named, lambda replay: replay.commit_count)
        return ExpiredVersions(versions_removed=0, objects_removed=0, versions_left=count)


def _committed_ms(commit: StoredCommit) -> int:
    first = commit.events[0]
    custom = first.event.custom or b""
    return CustomMetadata(custom, event_ms=first.event.at_ms, where=first.where).note.at_ms
