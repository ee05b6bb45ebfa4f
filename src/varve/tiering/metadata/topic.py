"""The topic __remote_log_metadata: its creation, its partitions, and the state read from them.

Layout     each record is one event; its key is null. A batch holds the events of one commit, and
           its first record a header with the writer's name.
           docs/reference/formats/remote-log-metadata.md
Invariant  the state of a partition is its events up to the high watermark, in order; a batch is
           applied as a whole. The events of a user partition are all in one partition of the topic.
Invariant  each event has a number; a missing one raises Corrupt, a repeated one is skipped. As in
           Kafka, an update of an unknown segment and a state that cannot follow change nothing.
Crash      a batch is in the log whole or not at all: so is a commit. It is synced before it is
           read back.
Threads    any; per partition of the topic one lock is held while its log is read, written and
           synced, and `commit_lock` around it for a whole commit.
"""

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol
from uuid import UUID

import numpy as np

from varve.commit_log import Log, LogManager, TopicPartition
from varve.foundation.errors import Corrupt, InvalidRequest, InvalidSetting, StoreError
from varve.foundation.settings import LONG_MAX, GivenValue
from varve.kernels.hashes import murmur2
from varve.records import Batch, Record, build_batch
from varve.tiering.manifest.commit import check_overlaps
from varve.tiering.manifest.manifest import NO_EPOCH, Manifest, in_order
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import (
    RemoteSegment,
    SegmentState,
    check_segment,
    check_transition,
)
from varve.tiering.metadata.events import (
    REMOTE_STATES,
    CommitNote,
    CustomMetadata,
    Event,
    RemoteState,
    SegmentEvent,
    TopicIdPartition,
    decode_event,
    encode_event,
    is_own,
)
from varve.tiering.settings import MetadataSettings
from varve.wire.messages.state_records import METADATA_TOPIC

logger = logging.getLogger(__name__)

WRITER_HEADER: Final = "varve.writer"
COMMIT_BYTES_MAX: Final = 16 << 20
"""The largest batch, and so the largest commit, of a topic that varve created."""

_READ_BYTES: Final = 1 << 20
_INT32_MASK: Final = (1 << 32) - 1

_UserPartition = tuple[UUID, int]

_STATES: Final = {remote: state for state, remote in REMOTE_STATES.items()}
_NO_COMMIT: Final = CommitNote(
    number=0, leader_epoch=NO_EPOCH, at_ms=0, log_start_offset=0, cleaned_up_to=0
)


class KnownTopic(Protocol):
    @property
    def partition_count(self) -> int: ...


class TopicMaker(Protocol):
    """Creates topics: an embedded store's `TopicAdmin`, under the store's lock."""

    def find(self, name: str) -> KnownTopic | None: ...

    def create(
        self,
        name: str,
        *,
        partition_count: int | None,
        settings: Mapping[str, GivenValue] | None,
        exist_ok: bool,
    ) -> None: ...


def ensure_metadata_topic(maker: TopicMaker, settings: MetadataSettings) -> None:
    """Creates the topic unless it exists.

    Raises InvalidSetting when its number of partitions differs from the settings: events would be
    read from the wrong partition.
    """
    partition_count = settings.remote_log_metadata_topic_num_partitions
    topic = maker.find(METADATA_TOPIC)
    if topic is None:
        maker.create(
            METADATA_TOPIC,
            partition_count=partition_count,
            settings={
                "cleanup.policy": "delete",
                "retention.ms": settings.remote_log_metadata_topic_retention_ms,
                "retention.bytes": -1,
                "remote.storage.enable": False,
                "max.message.bytes": COMMIT_BYTES_MAX,
                "message.timestamp.after.max.ms": LONG_MAX,
            },
            exist_ok=True,
        )
    elif topic.partition_count != partition_count:
        raise InvalidSetting(
            f"topic {METADATA_TOPIC} has {topic.partition_count} partitions, but "
            f"remote.log.metadata.topic.num.partitions is {partition_count}: set it to "
            f"{topic.partition_count}"
        )


def choose_partition(path: TopicIdPartition, partition_count: int) -> int:
    """The partition of the topic that holds the events of a user partition, as Kafka chooses it."""
    high, low = divmod(path.topic_id.int, 1 << 64)
    hashed = 31 * (31 * (31 + _fold(low)) + _fold(high)) + path.partition & _INT32_MASK
    key = np.frombuffer(hashed.to_bytes(4, "big"), np.uint8)
    return int(murmur2(key) & 0x7FFFFFFF) % partition_count


def _fold(number: int) -> int:
    """Java's `Long.hashCode`."""
    return (number ^ number >> 32) & _INT32_MASK


@dataclass(frozen=True, slots=True)
class StoredCommit:
    """The events of one partition in one batch, each with the name of its record.

    `id` is the position of the last event.
    """

    id: str
    writer: str
    events: Sequence[tuple[Event, str]]


class PartitionReplay:
    """The state of one user partition after the events that were applied; not thread-safe."""

    def __init__(self) -> None:
        self._segments: dict[UUID, RemoteSegment] = {}
        self._note = _NO_COMMIT
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
        """Applies a commit; `manifest` raises its error from then on."""
        if self._failure is not None:
            return
        before = self.version
        try:
            for event, where in commit.events:
                self._apply(event, where)
        except StoreError as failure:
            self._failure = failure
            return
        if self.version != before:
            self._previous_commit_id, self._commit_id = self._commit_id, commit.id
            self._writer = commit.writer
            self._manifest = None

    def _apply(self, event: Event, where: str) -> None:
        if event.custom is None or not is_own(event.custom):
            raise InvalidRequest(
                f"{where}: segment {event.segment.id} was stored by another plugin than varve, "
                "which cannot read its objects: set varve.tier.metadata=object, or give varve a "
                "topic __remote_log_metadata of its own"
            )
        custom = CustomMetadata(event.custom, event_ms=event.at_ms, where=where)
        if custom.note.number <= self.version:
            return
        if custom.note.number > self.version + 1:
            raise Corrupt(
                f"{where}: event {custom.note.number} of its partition follows event "
                f"{self.version}: those between are missing in the log; restore its directory, and "
                "keep remote.log.metadata.topic.retention.ms at -1"
            )
        self._note = custom.note
        if event.state == RemoteState.DELETE_FINISHED:
            self._put(event.segment.id, None, where)
        elif custom.has_segment:
            self._update(event, custom, where)

    def _update(self, event: Event, custom: CustomMetadata, where: str) -> None:
        id, state = event.segment.id, _STATES[RemoteState(event.state)]
        base = (
            announced(event, state) if isinstance(event, SegmentEvent) else self._segments.get(id)
        )
        if base is None:
            # As in Kafka: its offsets are unknown; the commit still counts.
            logger.warning("update of an unknown segment skipped", extra={"where": where})
            return
        segment = custom.decode_segment(replace(base, state=state, at_ms=event.at_ms))
        self._put(id, segment, where)

    def _put(self, id: UUID, segment: RemoteSegment | None, where: str) -> None:
        """Stores the new state of a segment, None for deleted, unless it cannot follow."""
        try:
            check_transition(self._segments.get(id), segment)
            if segment is not None:
                check_segment(segment)
        except InvalidRequest as error:
            logger.warning(
                "%(where)s: event skipped: %(error)s", {"where": where, "error": str(error)}
            )
            return
        if segment is None:
            self._segments.pop(id, None)
        else:
            self._segments[id] = segment

    def manifest(self, path: RemotePath) -> Manifest:
        """The manifest as of the last commit; raises the error of an invalid event."""
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


def announced(event: SegmentEvent, state: SegmentState) -> RemoteSegment:
    """The segment as far as Kafka's event describes it; its custom metadata has the rest."""
    return RemoteSegment(
        id=str(event.segment.id),
        state=state,
        at_ms=event.at_ms,
        base_offset=event.start_offset,
        end_offset=event.end_offset,
        size=event.size,
        record_count=0,
        max_timestamp=event.max_timestamp,
        append_ms=(0, 0),
        epochs=tuple((epoch.leader_epoch, epoch.offset) for epoch in event.epochs),
        parts=(),
        has_aborted=False,
    )


class MetadataTopic:
    """The metadata topic of this process, shared by all user partitions."""

    def __init__(
        self,
        logs: LogManager,
        *,
        partition_count: int,
        broker_id: int = 0,
        custom_bytes_max: int = 128,
    ) -> None:
        if partition_count < 1:
            raise InvalidRequest(f"{METADATA_TOPIC} with {partition_count} partitions")
        self.partition_count = partition_count
        self.broker_id = broker_id
        self.custom_bytes_max = custom_bytes_max
        self._partitions = [MetadataPartition(logs, number) for number in range(partition_count)]

    def partition_for(self, path: TopicIdPartition) -> "MetadataPartition":
        """The partition of the topic that holds the events of a user partition."""
        return self._partitions[choose_partition(path, self.partition_count)]


class MetadataPartition:
    """One partition of the topic, and the states of the user partitions in it.

    `commit_lock` is held from the load of a commit until it is read back.
    """

    def __init__(self, logs: LogManager, number: int) -> None:
        self.number = number
        self.commit_lock = threading.Lock()
        self._logs = logs
        self._lock = threading.Lock()
        self._log: Log | None = None  # guarded by _lock
        self._next_offset = 0  # guarded by _lock
        self._replays: dict[_UserPartition, PartitionReplay] = {}  # guarded by _lock

    def load(self, user: TopicIdPartition, path: RemotePath) -> Manifest:
        """The manifest of a user partition, with all events up to the high watermark."""
        with self._lock:
            self._catch_up_locked()
            return self._find_locked(user).manifest(path)

    def append(
        self,
        user: TopicIdPartition,
        events: Sequence[Event],
        *,
        after: int,
        writer: str,
        at_ms: int,
    ) -> bool:
        """Appends the events that follow version `after` to the log as one batch, and syncs it.

        False, and nothing is written, when the user partition is at another version now.
        """
        headers = ((WRITER_HEADER, writer.encode()),)
        records = [
            Record(None, encode_event(event), headers if index == 0 else (), timestamp=at_ms)
            for index, event in enumerate(events)
        ]
        batch = build_batch(records)
        with self._lock:
            self._catch_up_locked()
            if self._find_locked(user).version != after:
                return False
            log = self._open_locked()
            limit = log.settings.max_message_bytes
            if len(batch) > limit:
                raise InvalidRequest(
                    f"{log.topic_partition}: a commit of {len(events)} events takes {len(batch)} "
                    f"bytes, and max.message.bytes of the topic is {limit}: raise it, or change "
                    "fewer segments at a time"
                )
            log.append(batch)
            log.flush()
            return True

    def _find_locked(self, user: TopicIdPartition) -> PartitionReplay:
        return self._replays.get((user.topic_id, user.partition)) or PartitionReplay()

    def _open_locked(self) -> Log:
        log = self._logs.get(TopicPartition(METADATA_TOPIC, self.number))
        if log is not self._log:
            self._log, self._next_offset = log, log.log_start_offset
            self._replays = {}
        return log

    def _catch_up_locked(self) -> None:
        log = self._open_locked()
        end = log.high_watermark
        if end <= self._next_offset:
            return
        for user, commit in _read_commits(log, self._next_offset, end):
            self._replays.setdefault(user, PartitionReplay()).apply(commit)
        self._next_offset = end


def _read_commits(log: Log, start: int, end: int) -> Iterator[tuple[_UserPartition, StoredCommit]]:
    """The commits in [start, end): the events of each batch, by user partition."""
    offset = start
    while offset < end:
        fetched = log.read(start_offset=offset, max_bytes=_READ_BYTES)
        if fetched.next_offset == offset:
            return
        position = 0
        while position < len(fetched.data):
            batch = Batch(fetched.data, str(log.topic_partition), position=position)
            position += batch.header.size
            if start <= batch.header.base_offset < end:
                yield from _split_batch(batch, log)
        offset = fetched.next_offset


def _split_batch(batch: Batch, log: Log) -> Iterator[tuple[_UserPartition, StoredCommit]]:
    where = f"{log.topic_partition} at offset {batch.header.base_offset}"
    if not batch.is_valid_crc():
        raise Corrupt(f"{where}: the checksum of the batch is wrong; restore the log's directory")
    if batch.header.is_control:
        return
    events: dict[_UserPartition, list[tuple[Event, str]]] = {}
    records: dict[_UserPartition, list[Record]] = {}
    for record in batch.records():
        record_where = f"{log.topic_partition} at offset {record.offset}"
        event = decode_event(record.value or b"", record_where)
        if event is not None:
            user = event.segment.path.topic_id, event.segment.path.partition
            events.setdefault(user, []).append((event, record_where))
            records.setdefault(user, []).append(record)
    for user, own in records.items():
        writer = dict(own[0].headers).get(WRITER_HEADER) or b""
        id = f"{log.topic_partition.partition}-{own[-1].offset}"
        yield user, StoredCommit(id, writer.decode(errors="replace"), events[user])
