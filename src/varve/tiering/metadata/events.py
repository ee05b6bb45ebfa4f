"""The events of Kafka's topic __remote_log_metadata, and their bytes.

Layout     unsigned varints for the frame version (1), the type and its version (0), then the
           message in Kafka's flexible encoding. docs/reference/formats/remote-log-metadata.md
Invariant  the bytes are those that Kafka's RemoteLogMetadataSerde writes for the same values.
"""

import struct
from enum import IntEnum
from typing import ClassVar, Final
from uuid import UUID

from varve.foundation.errors import Corrupt, InvalidRequest, MalformedMessage, UnsupportedFormat
from varve.tiering.manifest.segment import SegmentState
from varve.wire import decode_exactly, encode
from varve.wire.schema import Int8, Int32, Int64, Message, Struct, field

FRAME_VERSION: Final = 1
MESSAGE_VERSION: Final = 0
_HEADER_BYTES: Final = 3
_OTHER_TYPES: Final = (2, 3)
"""The deletion of a partition, which Kafka never writes, and a snapshot, which is not in the topic:
events of these types are skipped."""


class RemoteState(IntEnum):
    """The state of a segment, as Kafka numbers it."""

    COPY_STARTED = 0
    COPY_FINISHED = 1
    DELETE_STARTED = 2
    DELETE_FINISHED = 3


REMOTE_STATES: Final = {state: RemoteState[state.name] for state in SegmentState}
"""The states of listed segments as Kafka has them; a deleted one is listed no more."""


class TopicIdPartition(Struct):
    """A partition, identified by the id of its topic; the name is for readers."""

    topic: str = field()
    topic_id: UUID = field()
    partition: Int32 = field()


class SegmentId(Struct):
    path: TopicIdPartition = field()
    id: UUID = field()


class EpochStart(Struct):
    leader_epoch: Int32 = field()
    offset: Int64 = field()


class SegmentEvent(Message, versions="0", flexible="0+"):
    """A new segment (RemoteLogSegmentMetadataRecord); `end_offset` is inclusive."""

    TYPE: ClassVar[int] = 0

    segment: SegmentId = field()
    start_offset: Int64 = field()
    end_offset: Int64 = field()
    broker_id: Int32 = field()
    max_timestamp: Int64 = field()
    at_ms: Int64 = field()
    epochs: list[EpochStart] = field()
    size: Int32 = field()
    custom: bytes | None = field("0+", None)
    state: Int8 = field()
    is_txn_index_empty: bool = field(tag=0)


class SegmentUpdate(Message, versions="0", flexible="0+"):
    """A known segment enters a state (RemoteLogSegmentMetadataUpdateRecord).

    `custom` replaces the custom metadata of the segment.
    """

    TYPE: ClassVar[int] = 1

    segment: SegmentId = field()
    broker_id: Int32 = field()
    at_ms: Int64 = field()
    custom: bytes | None = field("0+", None)
    state: Int8 = field()


Event = SegmentEvent | SegmentUpdate
_EVENT_TYPES: Final[dict[int, type[SegmentEvent] | type[SegmentUpdate]]] = {
    kind.TYPE: kind for kind in (SegmentEvent, SegmentUpdate)
}


def encode_event(event: Event) -> bytes:
    """The value of the record; raises InvalidRequest for a number that its field cannot hold."""
    out = bytearray((FRAME_VERSION, event.TYPE, MESSAGE_VERSION))
    try:
        return bytes(encode(event, MESSAGE_VERSION, out))
    except struct.error as error:
        raise InvalidRequest(f"{event}: a number does not fit its field: {error}") from error


def decode_event(value: bytes, where: str) -> Event | None:
    """The event in a record's value, None for types that varve skips; `where` names the record.

    Raises Corrupt for one that breaks the format, UnsupportedFormat for an unknown version.
    """
    if len(value) < _HEADER_BYTES:
        raise Corrupt(f"{where}: an event of {len(value)} bytes, its header takes {_HEADER_BYTES}")
    frame, type, version = value[:_HEADER_BYTES]
    is_known = type in _EVENT_TYPES or type in _OTHER_TYPES
    if frame != FRAME_VERSION or version != MESSAGE_VERSION or not is_known:
        raise UnsupportedFormat(
            f"{where}: frame version {frame}, type {type}, version {version}; this varve reads "
            f"frame version {FRAME_VERSION}, types 0 to {max(_OTHER_TYPES)}, version "
            f"{MESSAGE_VERSION}: use a later one"
        )
    if type in _OTHER_TYPES:
        return None
    try:
        event = decode_exactly(_EVENT_TYPES[type], version, value, _HEADER_BYTES)
    except MalformedMessage as error:
        raise Corrupt(f"{where}: {error}") from error
    if not 0 <= event.state <= max(RemoteState):
        raise Corrupt(f"{where}: {event.state} is not a state of a segment, they are 0 to 3")
    return event
