"""The events of Kafka's topic __remote_log_metadata, and varve's custom metadata in them.

Layout     unsigned varints for the frame version (1), the type and its version (0), then the
           message in Kafka's flexible encoding. The custom metadata has the fields of segments and
           commits beyond Kafka's: `v`, format 1, flags, the commit (event number, leader epoch,
           time, log start offset, cleaned-up-to offset), then the segment.
           docs/reference/formats/remote-log-metadata.md
Invariant  the bytes are those that Kafka's RemoteLogMetadataSerde writes for the same values.
           Decoding restores the encoded RemoteSegment, given the fields that its event carries.
"""

import struct
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, ClassVar, Final
from uuid import UUID

from varve.foundation.errors import Corrupt, InvalidRequest, MalformedMessage, UnsupportedFormat
from varve.tiering.manifest.segment import (
    LOG_PART,
    PART_NAMES,
    ObjectPart,
    RemoteSegment,
    SegmentState,
)
from varve.wire import decode_exactly, encode
from varve.wire.compiler import write_uvarint
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


MARK: Final = b"v"
FORMAT: Final = 1

_HAS_SEGMENT: Final = 1
_HAS_ABORTED: Final = 2
_OPTIONAL: Final = (
    (4, "key_count", False),
    (8, "stale_bytes", False),
    (16, "delete_horizon_ms", True),
    (32, "replaced_until_ms", True),
    (64, "undecided_from", False),
)
"""Flags and names of optional fields; times are relative to that of the event."""

# A bit stands for each of PART_NAMES, the lowest first; other parts are written with their names.
_OTHER_PARTS: Final = 1 << len(PART_NAMES)

_CRC: Final = struct.Struct(">I")
_VARINT_BYTES_MAX: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitNote:
    """The commit in an event; `number` counts the events of its partition from 1."""

    number: int
    leader_epoch: int
    at_ms: int
    log_start_offset: int
    cleaned_up_to: int


def encode_custom(note: CommitNote, segment: RemoteSegment | None, *, event_ms: int) -> bytes:
    """The bytes for an event of this time; without a segment they describe the commit alone."""
    out = bytearray(MARK)
    flags = 0 if segment is None else _HAS_SEGMENT | _HAS_ABORTED * segment.has_aborted
    for flag, name, _ in _OPTIONAL:
        flags |= flag * (getattr(segment, name, None) is not None)
    _write(out, FORMAT, flags, note.number, note.leader_epoch + 1, _zigzag(note.at_ms - event_ms))
    _write(out, note.log_start_offset, note.cleaned_up_to)
    if segment is not None:
        first_ms, last_ms = segment.append_ms
        _write(out, segment.record_count, _zigzag(first_ms - event_ms), _zigzag(last_ms - first_ms))
        for flag, name, is_time in _OPTIONAL:
            if flags & flag:
                value = getattr(segment, name)
                _write(out, _zigzag(value - event_ms) if is_time else value)
        _write_parts(out, segment)
    return bytes(out)


def _write_parts(out: bytearray, segment: RemoteSegment) -> None:
    """Parts in the order of PART_NAMES are bits; from the first that is not on, by name."""
    bits, ordered_count = 0, 0
    for part in segment.parts:
        bit = 1 << PART_NAMES.index(part.name) if part.name in PART_NAMES else 0
        if bit <= bits:
            break
        bits |= bit
        ordered_count += 1
    others = segment.parts[ordered_count:]
    _write(out, bits | (_OTHER_PARTS if others else 0))
    for part in segment.parts[:ordered_count]:
        # The event has the size of the log, so the difference takes one byte instead of five.
        _write(out, _zigzag(part.size - (segment.size if part.name == LOG_PART else 0)))
        out += _CRC.pack(part.crc32c)
    if others:
        _write(out, len(others))
    for part in others:
        name = part.name.encode()
        _write(out, len(name) + 1)
        out += name
        _write(out, part.size)
        out += _CRC.pack(part.crc32c)


def _write(out: bytearray, *numbers: int) -> None:
    for number in numbers:
        write_uvarint(out, number)


def _zigzag(value: int) -> int:
    """An unsigned number for a signed one: the nearer to 0, the smaller."""
    return value << 1 if value >= 0 else (-value << 1) - 1


def is_own(custom: bytes | None) -> bool:
    """Whether varve wrote it, rather than another plugin."""
    return custom is not None and custom.startswith(MARK)


class CustomMetadata:
    """The custom metadata of an event of this time; the segment is decoded on request.

    Raises Corrupt, naming `where`, for bytes that break the format.
    """

    def __init__(self, custom: bytes, *, event_ms: int, where: str) -> None:
        self._data = custom
        self._position = len(MARK)
        self._event_ms = event_ms
        self._where = where
        format = self._read_unsigned()
        if format != FORMAT:
            raise UnsupportedFormat(
                f"{where}: own metadata of format {format}; this varve reads {FORMAT}, use a later "
                "one"
            )
        self._flags = self._read_unsigned()
        self.has_segment = bool(self._flags & _HAS_SEGMENT)
        self.note = CommitNote(
            number=self._read_unsigned(),
            leader_epoch=self._read_unsigned() - 1,
            at_ms=self._read_signed() + event_ms,
            log_start_offset=self._read_unsigned(),
            cleaned_up_to=self._read_unsigned(),
        )

    def decode_segment(self, base: RemoteSegment) -> RemoteSegment:
        """The segment, which has the fields of its events from `base`; call it once."""
        record_count = self._read_unsigned()
        first_ms = self._read_signed() + self._event_ms
        last_ms = self._read_signed() + first_ms
        optional: dict[str, Any] = {
            name: self._read_optional(flag, is_time) for flag, name, is_time in _OPTIONAL
        }
        segment = replace(
            base,
            record_count=record_count,
            append_ms=(first_ms, last_ms),
            has_aborted=bool(self._flags & _HAS_ABORTED),
            parts=self._read_parts(base.size),
            **optional,
        )
        if self._position != len(self._data):
            raise self._corrupt(f"{len(self._data) - self._position} bytes after the end")
        return segment

    def _read_optional(self, flag: int, is_time: bool) -> int | None:
        if not self._flags & flag:
            return None
        return self._read_signed() + self._event_ms if is_time else self._read_unsigned()

    def _read_parts(self, log_size: int) -> tuple[ObjectPart, ...]:
        bits = self._read_unsigned()
        parts = []
        for bit, name in enumerate(PART_NAMES):
            if bits & 1 << bit:
                size = self._read_signed() + (log_size if name == LOG_PART else 0)
                parts.append(ObjectPart(name, size, self._read_crc()))
        for _ in range(self._read_unsigned() if bits & _OTHER_PARTS else 0):
            name = self._read_text(self._read_unsigned() - 1)
            parts.append(ObjectPart(name, self._read_unsigned(), self._read_crc()))
        return tuple(parts)

    def _read_unsigned(self) -> int:
        value = 0
        for index, byte in enumerate(self._data[self._position :][:_VARINT_BYTES_MAX]):
            value |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                self._position += index + 1
                return value
        raise self._corrupt(f"no unsigned varint of at most {_VARINT_BYTES_MAX} bytes")

    def _read_signed(self) -> int:
        value = self._read_unsigned()
        return value >> 1 if value & 1 == 0 else -(value >> 1) - 1

    def _read_crc(self) -> int:
        value: int = _CRC.unpack(self._read_bytes(_CRC.size))[0]
        return value

    def _read_text(self, size: int) -> str:
        try:
            return self._read_bytes(size).decode()
        except UnicodeDecodeError as error:
            raise self._corrupt(f"a name that is not UTF-8: {error}") from error

    def _read_bytes(self, size: int) -> bytes:
        start, end = self._position, self._position + size
        if size < 0 or end > len(self._data):
            raise self._corrupt(f"{size} bytes expected, {len(self._data) - start} are left")
        self._position = end
        return self._data[start:end]

    def _corrupt(self, problem: str) -> Corrupt:
        return Corrupt(f"{self._where}: custom metadata, position {self._position}: {problem}")
