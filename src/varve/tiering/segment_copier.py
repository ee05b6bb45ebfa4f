"""Copies one closed segment to the object store: announce, upload, look, finish.

Invariant  an object is written only under an id that the manifest announces, with the sizes and
           checksums of all its parts; a segment becomes readable only when every part was seen in
           the store at its size and the local one had not changed meanwhile.
Crash      before the announcement nothing has happened. After it the copy is finished without a
           second upload if its parts are all there and the segment is still the same; else it is
           taken back (`delete_started`, objects removed, gone) and begun under a new id.
Threads    one per partition at a time; another process is fenced by its leader epoch, or met by the
           rules of states: what one takes back another cannot finish.
"""

import logging
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from varve.cleaning.key_index.key_index import NO_HORIZON, SegmentKeys
from varve.commit_log import Log, Segment
from varve.disk import FileSystem
from varve.foundation.errors import Corrupt, InvalidRequest, ObjectNotFound, Unavailable
from varve.object_store import Buffer, ObjectStore
from varve.tiering.cold_keys import ColdPartition
from varve.tiering.cold_segment import ColdSegment, SegmentState
from varve.tiering.lineage import restrict_epochs
from varve.tiering.manifest import Manifest
from varve.tiering.manifest_commit import Change
from varve.tiering.manifest_store import ManifestStore
from varve.tiering.page_store import new_id
from varve.tiering.segment_parts import (
    CHUNK_BYTES,
    Pace,
    PartContent,
    SegmentParts,
    gather_parts,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRequest:
    """A closed segment to copy; `next_offset` is where the next one begins.

    `keys` is its key index, where its topic is compacted. `announced` are copies of it that were
    begun before.
    """

    log: Log
    segment: Segment
    next_offset: int
    keys: SegmentKeys | None = None
    announced: Sequence[ColdSegment] = ()


@dataclass(frozen=True, slots=True)
class Copied:
    """A segment that can be read now; `is_resumed` if its objects were there already."""

    segment: ColdSegment
    is_resumed: bool


class SegmentCopier:
    """Copies the segments of one partition.

    `writer` names who commits, in words. `replaced_ms` is how long the objects of a segment stay
    after another has taken its place.
    """

    def __init__(
        self,
        objects: ObjectStore,
        manifests: ManifestStore,
        home: ColdPartition,
        *,
        fs: FileSystem,
        random: random.Random,
        writer: str,
        replaced_ms: int,
    ) -> None:
        self._objects = objects
        self._manifests = manifests
        self._home = home
        self._fs = fs
        self._random = random
        self._writer = writer
        self._replaced_ms = replaced_ms

    def copy(self, request: CopyRequest, *, now_ms: int, pace: Pace) -> Copied:
        """Copies a segment, or finishes a copy that was begun before.

        Raises Unavailable when the store fails or the segment leaves the log meanwhile, and
        Corrupt for a damaged one; the manifest then tells what is left to be taken back.
        """
        parts = gather_parts(
            self._fs,
            request.log,
            request.segment,
            next_offset=request.next_offset,
            keys=request.keys,
        )
        wanted = self._describe(request, parts, now_ms)
        found: ColdSegment | None = None
        for announced in request.announced:
            if found is None and self._can_finish(announced, wanted):
                found = announced
            else:
                self._remove(announced, request.log, now_ms=now_ms)
        started = found or wanted
        if found is None:
            self._check_held(request)
            self._commit(lambda manifest: manifest.announce(started), request.log, now_ms)
            for content in parts.contents:
                self._upload(started, content, pace)
            if not self._is_complete(started):
                raise Unavailable(
                    f"{self._objects.name}: {started} of {self._home} was uploaded, but not all of "
                    "its objects are there with their sizes; the copy is begun again"
                )
        self._check_held(request)
        finished = self._finish(started, request.log, now_ms)
        logger.info(
            "segment copied",
            extra={
                "partition": str(self._home),
                "base_offset": started.base_offset,
                "bytes": started.size,
                "is_resumed": found is not None,
            },
        )
        return Copied(finished, found is not None)

    def _describe(self, request: CopyRequest, parts: SegmentParts, now_ms: int) -> ColdSegment:
        log, segment = request.log, request.segment
        end_offset = request.next_offset - 1
        epochs = restrict_epochs(log.epochs, base_offset=segment.base_offset, end_offset=end_offset)
        if not epochs:
            raise Corrupt(
                f"{log.topic_partition}: no leader epoch is known for the offsets "
                f"{segment.base_offset} to {end_offset}, so they cannot be copied: "
                "restore leader-epoch-checkpoint of the partition"
            )
        header = None if request.keys is None else request.keys.header
        horizon = NO_HORIZON if header is None else header.earliest_horizon
        return ColdSegment(
            id=new_id(self._random),
            base_offset=segment.base_offset,
            end_offset=end_offset,
            size=segment.size,
            record_count=parts.record_count,
            max_timestamp=segment.max_timestamp,
            append_ms=log.appended_ms(segment),
            epochs=epochs,
            parts=parts.parts,
            has_aborted=parts.has_aborted,
            undecided_from=parts.undecided_from,
            state=SegmentState.COPY_STARTED,
            at_ms=now_ms,
            key_count=None if header is None else header.entry_count,
            stale_bytes=None if request.keys is None else _count_stale(request.keys),
            delete_horizon_ms=None if horizon == NO_HORIZON else horizon,
        )

    def _can_finish(self, announced: ColdSegment, wanted: ColdSegment) -> bool:
        same = replace(wanted, id=announced.id, at_ms=announced.at_ms)
        return announced == same and self._is_complete(announced)

    def _check_held(self, request: CopyRequest) -> None:
        if not request.log.holds(request.segment):
            raise Unavailable(
                f"{request.log.topic_partition}: segment {request.segment.base_offset} was "
                "replaced or left the log while it was copied; the next round copies what is there"
            )

    def _upload(self, segment: ColdSegment, content: PartContent, pace: Pace) -> None:
        key = self._home.part_key(segment, content.part.name)
        if content.part.size <= CHUNK_BYTES:
            self._objects.put(key, b"".join(content.chunks(pace)))
        else:
            self._objects.put_parts(key, _Chunks(content, pace), size=content.part.size)

    def _is_complete(self, segment: ColdSegment) -> bool:
        for part in segment.parts:
            try:
                found = self._objects.head(self._home.part_key(segment, part.name))
            except ObjectNotFound:
                return False
            if found.size != part.size:
                return False
        return True

    def _finish(self, started: ColdSegment, log: Log, now_ms: int) -> ColdSegment:
        """Makes the segment readable; those whose offsets it holds too go in the same commit."""
        finished = replace(started, state=SegmentState.COPY_FINISHED, at_ms=now_ms)
        start, end = started.base_offset, started.end_offset + 1

        def change(manifest: Manifest) -> Manifest:
            near = self._manifests.unfold(manifest, start_offset=start, end_offset=end)
            replaced = [
                one
                for one in near.segments
                if one.is_readable
                and one.id != started.id
                and one.base_offset < end
                and one.end_offset >= start
            ]
            for one in replaced:
                # What it holds before this one is not read any more once the log starts behind it.
                if one.base_offset < start and log.log_start_offset < start:
                    raise InvalidRequest(
                        f"{self._home}: {started} begins within {one}, which was copied before: "
                        "the borders of local segments have moved. Restore the partition with "
                        "`varve tier restore`, or copy it to another store"
                    )
            near = near.start_delete(
                [one.id for one in replaced],
                at_ms=now_ms,
                replaced_until_ms=now_ms + self._replaced_ms,
            )
            return near.finish(finished).raise_log_start(log.log_start_offset)

        self._commit(change, log, now_ms)
        return finished

    def _remove(self, segment: ColdSegment, log: Log, *, now_ms: int) -> None:
        """Takes back a copy that was begun before; raises Unavailable when it cannot any more."""
        removed = self._manifests.remove(
            [segment], leader_epoch=latest_epoch(log), writer=self._writer, now_ms=now_ms
        )
        if not removed:
            raise Unavailable(
                f"{self._home}: {segment} was finished or removed by another writer meanwhile; the "
                "next round goes on from there"
            )

    def _commit(self, change: Change, log: Log, now_ms: int) -> Manifest:
        return self._manifests.commit(
            change, leader_epoch=latest_epoch(log), writer=self._writer, now_ms=now_ms
        )


def latest_epoch(log: Log) -> int | None:
    """The leader epoch that a log's process commits in; None before the first record."""
    return log.epochs[-1].epoch if log.epochs else None


def _count_stale(keys: SegmentKeys) -> int:
    """Bytes of records that are superseded within their own segment: a lower bound."""
    with keys.open() as index:
        return max(index.header.record_bytes - index.listed_bytes(), 0)


class _Chunks(Iterable[Buffer]):
    """The content of a part, from its beginning each time it is walked."""

    def __init__(self, content: PartContent, pace: Pace) -> None:
        self._content = content
        self._pace = pace

    def __iter__(self) -> Iterator[Buffer]:
        return self._content.chunks(self._pace)
