"""What varve has to say of a segment and of a commit beyond Kafka's events: their CustomMetadata.

Layout     `v`, format 1, flags, the commit (event number, leader epoch, time, log start offset,
           cleaned-up-to offset), then what is said of the segment.
           docs/formats/remote-log-metadata.md
Invariant  with the event it stands in, and for an update the facts of its segment, it gives back
           the very ColdSegment it was made of.
"""

from dataclasses import dataclass
from typing import Final

from varve.foundation.errors import InvalidRequest, UnsupportedFormat
from varve.tiering.manifest.segment import ObjectPart, RemoteSegment, SegmentState
from varve.tiering.metadata.events import SegmentFacts
from varve.tiering.metadata.flexible_encoding import FieldReader, FieldWriter

MARK: Final = b"v"
FORMAT: Final = 1

_HAS_SEGMENT: Final = 1
_HAS_ABORTED: Final = 2
_KEY_COUNT: Final = 4
_STALE_BYTES: Final = 8
_DELETE_HORIZON: Final = 16
_REPLACED_UNTIL: Final = 32
_UNDECIDED_FROM: Final = 64

PART_NAMES: Final = ("log", "index", "timeindex", "txnindex", "snapshot", "epochs", "keys")
"""Parts that a bit stands for, the lowest first; others are named."""
_OTHER_PARTS: Final = 1 << len(PART_NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitNote:
    """What an event says of the manifest; `number` counts the events of its partition from 1."""

    number: int
    leader_epoch: int
    at_ms: int
    log_start_offset: int
    cleaned_up_to: int


def encode_custom(note: CommitNote, segment: RemoteSegment | None, *, event_ms: int) -> bytes:
    """The bytes for an event of this time; without a segment they are of the commit alone."""
    out = FieldWriter("commit" if segment is None else str(segment))
    out.raw(MARK)
    out.uvarint(FORMAT)
    out.uvarint(0 if segment is None else _flags(segment))
    out.uvarint(note.number)
    out.uvarint(note.leader_epoch + 1)
    out.zigzag(note.at_ms - event_ms)
    out.uvarint(note.log_start_offset)
    out.uvarint(note.cleaned_up_to)
    if segment is not None:
        _write_segment(out, segment, event_ms)
    return out.data


def _flags(segment: RemoteSegment) -> int:
    flags = _HAS_SEGMENT
    for flag, is_set in (
        (_HAS_ABORTED, segment.has_aborted),
        (_KEY_COUNT, segment.key_count is not None),
        (_STALE_BYTES, segment.stale_bytes is not None),
        (_DELETE_HORIZON, segment.delete_horizon_ms is not None),
        (_REPLACED_UNTIL, segment.replaced_until_ms is not None),
        (_UNDECIDED_FROM, segment.undecided_from is not None),
    ):
        flags |= flag if is_set else 0
    return flags


def _write_segment(out: FieldWriter, segment: RemoteSegment, event_ms: int) -> None:
    first_ms, last_ms = segment.append_ms
    out.uvarint(segment.record_count)
    out.zigzag(first_ms - event_ms)
    out.zigzag(last_ms - first_ms)
    if segment.key_count is not None:
        out.uvarint(segment.key_count)
    if segment.stale_bytes is not None:
        out.uvarint(segment.stale_bytes)
    if segment.delete_horizon_ms is not None:
        out.zigzag(segment.delete_horizon_ms - event_ms)
    if segment.replaced_until_ms is not None:
        out.zigzag(segment.replaced_until_ms - event_ms)
    if segment.undecided_from is not None:
        out.uvarint(segment.undecided_from)
    _write_parts(out, segment)


def _write_parts(out: FieldWriter, segment: RemoteSegment) -> None:
    """Parts in the usual order need no names; the first that is out of it begins the named ones."""
    bits, usual = 0, 0
    for part in segment.parts:
        bit = 1 << PART_NAMES.index(part.name) if part.name in PART_NAMES else 0
        if bit <= bits:
            break
        bits |= bit
        usual += 1
    others = segment.parts[usual:]
    out.uvarint(bits | (_OTHER_PARTS if others else 0))
    for part in segment.parts[:usual]:
        # The log's size is known from the event, so that it takes a byte instead of five.
        out.zigzag(part.size - (segment.size if part.name == "log" else 0))
        out.uint32(part.crc32c)
    if others:
        out.uvarint(len(others))
    for part in others:
        out.compact(part.name.encode())
        out.uvarint(part.size)
        out.uint32(part.crc32c)


class CustomMetadata:
    """The bytes of an event of this time, read as far as one asks."""

    def __init__(self, custom: bytes, *, event_ms: int, where: str) -> None:
        self._fields = FieldReader(custom, where)
        self._event_ms = event_ms
        self.note, self._flags = _read_note(self._fields, event_ms, where)

    @property
    def has_segment(self) -> bool:
        return bool(self._flags & _HAS_SEGMENT)

    def decode_segment(
        self, id: str, facts: SegmentFacts, *, state: SegmentState, at_ms: int
    ) -> RemoteSegment:
        """The segment, of which the event itself says what is given here; to be called once."""
        fields, flags, event_ms = self._fields, self._flags, self._event_ms
        record_count = fields.uvarint()
        first_ms = fields.zigzag() + event_ms
        last_ms = fields.zigzag() + first_ms
        segment = RemoteSegment(
            id=id,
            base_offset=facts.start_offset,
            end_offset=facts.end_offset,
            size=facts.size,
            record_count=record_count,
            max_timestamp=facts.max_timestamp,
            append_ms=(first_ms, last_ms),
            epochs=facts.epochs,
            has_aborted=bool(flags & _HAS_ABORTED),
            state=state,
            at_ms=at_ms,
            key_count=fields.uvarint() if flags & _KEY_COUNT else None,
            stale_bytes=fields.uvarint() if flags & _STALE_BYTES else None,
            delete_horizon_ms=fields.zigzag() + event_ms if flags & _DELETE_HORIZON else None,
            replaced_until_ms=fields.zigzag() + event_ms if flags & _REPLACED_UNTIL else None,
            undecided_from=fields.uvarint() if flags & _UNDECIDED_FROM else None,
            parts=_read_parts(fields, facts.size),
        )
        fields.end()
        return segment


def is_own(custom: bytes | None) -> bool:
    """Whether varve wrote it, rather than another plugin."""
    return custom is not None and custom.startswith(MARK)


def _read_note(fields: FieldReader, event_ms: int, where: str) -> tuple[CommitNote, int]:
    if fields.raw(len(MARK)) != MARK:
        raise InvalidRequest(f"{where}: the custom metadata is not varve's")
    found = fields.uvarint()
    if found != FORMAT:
        raise UnsupportedFormat(
            f"{where}: own metadata of format {found}; this varve reads {FORMAT}, use a later one"
        )
    flags = fields.uvarint()
    note = CommitNote(
        number=fields.uvarint(),
        leader_epoch=fields.uvarint() - 1,
        at_ms=fields.zigzag() + event_ms,
        log_start_offset=fields.uvarint(),
        cleaned_up_to=fields.uvarint(),
    )
    return note, flags


def _read_parts(fields: FieldReader, log_size: int) -> tuple[ObjectPart, ...]:
    bits = fields.uvarint()
    parts = []
    for place, name in enumerate(PART_NAMES):
        if bits & 1 << place:
            size = fields.zigzag() + (log_size if name == "log" else 0)
            parts.append(ObjectPart(name, size, fields.uint32()))
    if bits & _OTHER_PARTS:
        for _ in range(fields.uvarint()):
            parts.append(ObjectPart(fields.compact_text(), fields.uvarint(), fields.uint32()))
    return tuple(parts)
