"""The custom metadata of varve's events: fields of segments and commits beyond Kafka's.

Layout     `v`, format 1, flags, the commit (event number, leader epoch, time, log start offset,
           cleaned-up-to offset), then the segment. docs/reference/formats/remote-log-metadata.md
Invariant  decoding restores the encoded RemoteSegment, given the event and, for an update, the
           first event of the segment.
"""

import struct
from dataclasses import dataclass
from typing import Final

from varve.foundation.errors import Corrupt, InvalidRequest, UnsupportedFormat
from varve.tiering.manifest.segment import (
    LOG_PART,
    PART_NAMES,
    ObjectPart,
    RemoteSegment,
    SegmentState,
)
from varve.tiering.metadata.events import SegmentEvent
from varve.wire.compiler import write_uvarint

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
    write_uvarint(out, FORMAT)
    write_uvarint(out, 0 if segment is None else _flags(segment))
    write_uvarint(out, note.number)
    write_uvarint(out, note.leader_epoch + 1)
    _write_signed(out, note.at_ms - event_ms)
    write_uvarint(out, note.log_start_offset)
    write_uvarint(out, note.cleaned_up_to)
    if segment is not None:
        _write_segment(out, segment, event_ms)
    return bytes(out)


def _flags(segment: RemoteSegment) -> int:
    flags = _HAS_SEGMENT | (_HAS_ABORTED if segment.has_aborted else 0)
    return flags | sum(flag for flag, name, _ in _OPTIONAL if getattr(segment, name) is not None)


def _write_segment(out: bytearray, segment: RemoteSegment, event_ms: int) -> None:
    first_ms, last_ms = segment.append_ms
    write_uvarint(out, segment.record_count)
    _write_signed(out, first_ms - event_ms)
    _write_signed(out, last_ms - first_ms)
    for _, name, is_time in _OPTIONAL:
        value = getattr(segment, name)
        if value is not None and is_time:
            _write_signed(out, value - event_ms)
        elif value is not None:
            write_uvarint(out, value)
    _write_parts(out, segment)


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
    write_uvarint(out, bits | (_OTHER_PARTS if others else 0))
    for part in segment.parts[:ordered_count]:
        # The event has the size of the log, so the difference takes one byte instead of five.
        _write_signed(out, part.size - (segment.size if part.name == LOG_PART else 0))
        out += _CRC.pack(part.crc32c)
    if others:
        write_uvarint(out, len(others))
    for part in others:
        name = part.name.encode()
        write_uvarint(out, len(name) + 1)
        out += name
        write_uvarint(out, part.size)
        out += _CRC.pack(part.crc32c)


def _write_signed(out: bytearray, value: int) -> None:
    """As a zigzag varint: the nearer to 0, the shorter."""
    write_uvarint(out, value << 1 if value >= 0 else (-value << 1) - 1)


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
        if not is_own(custom):
            raise InvalidRequest(f"{where}: the custom metadata is not varve's")
        format = self._read_unsigned()
        if format != FORMAT:
            raise UnsupportedFormat(
                f"{where}: own metadata of format {format}; this varve reads {FORMAT}, use a later "
                "one"
            )
        self._flags = self._read_unsigned()
        self.note = CommitNote(
            number=self._read_unsigned(),
            leader_epoch=self._read_unsigned() - 1,
            at_ms=self._read_signed() + event_ms,
            log_start_offset=self._read_unsigned(),
            cleaned_up_to=self._read_unsigned(),
        )

    @property
    def has_segment(self) -> bool:
        return bool(self._flags & _HAS_SEGMENT)

    def decode_segment(
        self, id: str, first: SegmentEvent | RemoteSegment, *, state: SegmentState, at_ms: int
    ) -> RemoteSegment:
        """The segment; call it once.

        `first` is the first event of the segment or its former state: some fields never change.
        """
        record_count = self._read_unsigned()
        first_ms = self._read_signed() + self._event_ms
        last_ms = self._read_signed() + first_ms
        optional = {
            name: self._read_signed() + self._event_ms if is_time else self._read_unsigned()
            for flag, name, is_time in _OPTIONAL
            if self._flags & flag
        }
        segment = RemoteSegment(
            id=id,
            base_offset=(
                first.start_offset if isinstance(first, SegmentEvent) else first.base_offset
            ),
            end_offset=first.end_offset,
            size=first.size,
            record_count=record_count,
            max_timestamp=first.max_timestamp,
            append_ms=(first_ms, last_ms),
            epochs=(
                tuple((epoch.leader_epoch, epoch.offset) for epoch in first.epochs)
                if isinstance(first, SegmentEvent)
                else first.epochs
            ),
            has_aborted=bool(self._flags & _HAS_ABORTED),
            state=state,
            at_ms=at_ms,
            parts=self._read_parts(first.size),
            **optional,
        )
        if self._position != len(self._data):
            raise self._corrupt(f"{len(self._data) - self._position} bytes after the end")
        return segment

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
