"""The events of Kafka's topic __remote_log_metadata, and their bytes.

Layout     varints for the frame (1), the type and its version (0), then the message in Kafka's
           flexible encoding. docs/formats/remote-log-metadata.md
Invariant  the bytes are those that Kafka's RemoteLogMetadataSerde writes for the same values.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Final
from uuid import UUID

from varve.foundation.errors import Corrupt, UnsupportedFormat
from varve.tiering.metadata.flexible_encoding import FieldReader, FieldWriter

FRAME_VERSION: Final = 1
MESSAGE_VERSION: Final = 0
_TXN_INDEX_EMPTY_TAG: Final = 0


class RemoteState(IntEnum):
    """Where a segment stands, as Kafka numbers it."""

    COPY_STARTED = 0
    COPY_FINISHED = 1
    DELETE_STARTED = 2
    DELETE_FINISHED = 3


_STATES: Final = tuple(RemoteState)


class PartitionDeleteState(IntEnum):
    """Where the deletion of a whole partition stands."""

    MARKED = 0
    STARTED = 1
    FINISHED = 2


class EventType(IntEnum):
    SEGMENT = 0
    SEGMENT_UPDATE = 1
    PARTITION_DELETE = 2
    SEGMENT_SNAPSHOT = 3


@dataclass(frozen=True, slots=True)
class TopicIdPartition:
    """A partition, by the id of its topic; its name goes along for readers."""

    topic: str
    topic_id: UUID
    partition: int


@dataclass(frozen=True, slots=True)
class SegmentKey:
    """Which segment of which partition an event is about."""

    home: TopicIdPartition
    id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFacts:
    """What stays the same in the life of a segment; `end_offset` is inclusive."""

    start_offset: int
    end_offset: int
    max_timestamp: int
    size: int
    epochs: tuple[tuple[int, int], ...]
    is_txn_index_empty: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEvent:
    """A segment appears. `custom` is for whoever stores the segment; Kafka only carries it."""

    key: SegmentKey
    facts: SegmentFacts
    broker_id: int
    at_ms: int
    state: RemoteState
    custom: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentUpdate:
    """A known segment comes into a state; `custom` replaces what was there."""

    key: SegmentKey
    broker_id: int
    at_ms: int
    state: RemoteState
    custom: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDelete:
    """A partition is deleted as a whole; Kafka knows the event and does not send it."""

    home: TopicIdPartition
    broker_id: int
    at_ms: int
    state: PartitionDeleteState


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSnapshot:
    """A segment in a file that holds those of one partition; not found in the topic."""

    id: UUID
    facts: SegmentFacts
    broker_id: int
    at_ms: int
    state: RemoteState
    custom: bytes | None


Event = SegmentEvent | SegmentUpdate | PartitionDelete | SegmentSnapshot


def encode_event(event: Event) -> bytes:
    """The value of the record; raises InvalidRequest for a number that its field cannot hold."""
    out = FieldWriter("event of __remote_log_metadata")
    match event:
        case SegmentEvent():
            _begin(out, EventType.SEGMENT)
            _write_key(out, event.key)
            _write_segment(out, event)
        case SegmentUpdate():
            _begin(out, EventType.SEGMENT_UPDATE)
            _write_key(out, event.key)
            out.int32(event.broker_id)
            out.int64(event.at_ms)
            out.compact(event.custom)
            out.int8(event.state)
            out.uvarint(0)
        case PartitionDelete():
            _begin(out, EventType.PARTITION_DELETE)
            _write_home(out, event.home)
            out.int32(event.broker_id)
            out.int64(event.at_ms)
            out.int8(event.state)
            out.uvarint(0)
        case SegmentSnapshot():
            _begin(out, EventType.SEGMENT_SNAPSHOT)
            out.uuid(event.id)
            _write_segment(out, event)
    return out.data


def _begin(out: FieldWriter, type: EventType) -> None:
    out.uvarint(FRAME_VERSION)
    out.uvarint(type)
    out.uvarint(MESSAGE_VERSION)


def _write_home(out: FieldWriter, home: TopicIdPartition) -> None:
    out.compact(home.topic.encode())
    out.uuid(home.topic_id)
    out.int32(home.partition)
    out.uvarint(0)


def _write_key(out: FieldWriter, key: SegmentKey) -> None:
    _write_home(out, key.home)
    out.uuid(key.id)
    out.uvarint(0)


def _write_segment(out: FieldWriter, event: SegmentEvent | SegmentSnapshot) -> None:
    facts = event.facts
    out.int64(facts.start_offset)
    out.int64(facts.end_offset)
    out.int32(event.broker_id)
    out.int64(facts.max_timestamp)
    out.int64(event.at_ms)
    out.uvarint(len(facts.epochs) + 1)
    for epoch, offset in facts.epochs:
        out.int32(epoch)
        out.int64(offset)
        out.uvarint(0)
    out.int32(facts.size)
    out.compact(event.custom)
    out.int8(event.state)
    # A tagged field says that the segment has no index of transactions; false is left out.
    out.uvarint(1 if facts.is_txn_index_empty else 0)
    if facts.is_txn_index_empty:
        out.uvarint(_TXN_INDEX_EMPTY_TAG)
        out.uvarint(1)
        out.int8(1)


def decode_event(value: bytes, where: str) -> Event:
    """The event in a record's value; `where` names the record in errors.

    Raises Corrupt for one that breaks the format, UnsupportedFormat for a version not known.
    """
    fields = FieldReader(value, where)
    frame, type, version = fields.uvarint(), fields.uvarint(), fields.uvarint()
    if frame != FRAME_VERSION or version != MESSAGE_VERSION or type not in _READERS:
        raise UnsupportedFormat(
            f"{where}: frame version {frame}, type {type}, version {version}; this varve reads "
            f"frame version {FRAME_VERSION}, types 0 to {max(EventType)}, version "
            f"{MESSAGE_VERSION}: use a later one"
        )
    event = _READERS[type](fields, where)
    fields.end()
    return event


def _read_state(fields: FieldReader, where: str) -> RemoteState:
    number = fields.int8()
    if not 0 <= number < len(_STATES):
        raise Corrupt(f"{where}: {number} is no state of a segment, they are 0 to 3")
    return _STATES[number]


def _read_home(fields: FieldReader) -> TopicIdPartition:
    home = _make_home(fields.compact_text(), fields.raw(16), fields.int32())
    fields.tags()
    return home


@lru_cache(maxsize=4096)
def _make_home(topic: str, topic_id: bytes, partition: int) -> TopicIdPartition:
    """A log has many events of few partitions, and a UUID takes long to make."""
    return TopicIdPartition(topic, UUID(bytes=topic_id), partition)


def _read_key(fields: FieldReader) -> SegmentKey:
    key = SegmentKey(_read_home(fields), fields.uuid())
    fields.tags()
    return key


def _read_segment(fields: FieldReader, where: str) -> SegmentEvent:
    key = _read_key(fields)
    facts, broker_id, at_ms, state, custom = _read_facts(fields, where)
    return SegmentEvent(
        key=key, facts=facts, broker_id=broker_id, at_ms=at_ms, state=state, custom=custom
    )


def _read_snapshot(fields: FieldReader, where: str) -> SegmentSnapshot:
    id = fields.uuid()
    facts, broker_id, at_ms, state, custom = _read_facts(fields, where)
    return SegmentSnapshot(
        id=id, facts=facts, broker_id=broker_id, at_ms=at_ms, state=state, custom=custom
    )


def _read_facts(
    fields: FieldReader, where: str
) -> tuple[SegmentFacts, int, int, RemoteState, bytes | None]:
    start_offset, end_offset = fields.int64(), fields.int64()
    broker_id = fields.int32()
    max_timestamp, at_ms = fields.int64(), fields.int64()
    epochs = tuple(_read_epoch(fields) for _ in range(fields.compact_count()))
    size = fields.int32()
    custom = fields.compact()
    state = _read_state(fields, where)
    flag = fields.tags().get(_TXN_INDEX_EMPTY_TAG, b"\0")
    facts = SegmentFacts(
        start_offset=start_offset,
        end_offset=end_offset,
        max_timestamp=max_timestamp,
        size=size,
        epochs=epochs,
        is_txn_index_empty=flag != b"\0",
    )
    return facts, broker_id, at_ms, state, custom


def _read_epoch(fields: FieldReader) -> tuple[int, int]:
    entry = (fields.int32(), fields.int64())
    fields.tags()
    return entry


def _read_update(fields: FieldReader, where: str) -> SegmentUpdate:
    key = _read_key(fields)
    broker_id, at_ms = fields.int32(), fields.int64()
    custom = fields.compact()
    state = _read_state(fields, where)
    fields.tags()
    return SegmentUpdate(key=key, broker_id=broker_id, at_ms=at_ms, state=state, custom=custom)


def _read_partition_delete(fields: FieldReader, where: str) -> PartitionDelete:
    home = _read_home(fields)
    broker_id, at_ms, number = fields.int32(), fields.int64(), fields.int8()
    if number not in list(PartitionDeleteState):
        raise Corrupt(f"{where}: {number} is no state of a partition's deletion, they are 0 to 2")
    fields.tags()
    return PartitionDelete(
        home=home, broker_id=broker_id, at_ms=at_ms, state=PartitionDeleteState(number)
    )


_READERS: Final[dict[int, Callable[[FieldReader, str], Event]]] = {
    EventType.SEGMENT: _read_segment,
    EventType.SEGMENT_UPDATE: _read_update,
    EventType.PARTITION_DELETE: _read_partition_delete,
    EventType.SEGMENT_SNAPSHOT: _read_snapshot,
}
