"""The shapes of a manifest's JSON, and the way from there to values and back.

Layout     docs/formats/manifest.md
Invariant  a field that is not declared here is refused, as is a value out of its range.
"""

from collections.abc import Sequence
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from varve.tiering.cold_segment import ColdSegment, ObjectPart, SegmentState, check_segment
from varve.tiering.manifest_page import PageRef

_LONG_MAX: Final = (1 << 63) - 1

_Count = Annotated[int, Field(ge=0, le=_LONG_MAX)]
_Long = Annotated[int, Field(ge=-_LONG_MAX - 1, le=_LONG_MAX)]
_Epoch = Annotated[int, Field(ge=-1, le=(1 << 31) - 1)]
_Crc = Annotated[int, Field(ge=0, lt=1 << 32)]
_Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
_Key = Annotated[str, Field(pattern=r"^(page|segment)/[A-Za-z0-9._/-]{1,200}$")]


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class SegmentDocument(_Document):
    id: _Id
    state: SegmentState
    at_ms: _Long
    base_offset: _Count
    end_offset: _Count
    size: _Count
    records: _Count
    max_timestamp: _Long
    append_ms: tuple[_Long, _Long]
    epochs: tuple[tuple[_Epoch, _Count], ...]
    parts: tuple[tuple[str, _Count, _Crc], ...]
    has_aborted: bool
    keys: _Count | None = None
    stale_bytes: _Count | None = None
    delete_horizon_ms: _Long | None = None
    replaced_until_ms: _Long | None = None
    undecided_from: _Count | None = None


class PageRefDocument(_Document):
    id: _Id
    level: Annotated[int, Field(ge=0, le=16)]
    first_offset: _Count
    last_offset: _Count
    end_offset: _Count
    segments: _Count
    stored_bytes: _Count
    readable: _Count
    readable_first: _Long
    readable_end: _Long
    log_bytes: _Count
    records: _Count
    max_timestamp: _Long


class ManifestDocument(_Document):
    format: Literal[1]
    kind: Literal["manifest"]
    version: Annotated[int, Field(ge=1, le=_LONG_MAX)]
    commit: _Id
    previous: str
    writer: str
    leader_epoch: _Epoch
    at_ms: _Long
    cluster: str
    topic: str
    topic_id: str
    partition: _Count
    log_start_offset: _Count
    cleaned_up_to: _Count
    segments: tuple[SegmentDocument, ...]
    pages: tuple[PageRefDocument, ...]
    retired: tuple[tuple[_Key, _Long], ...]
    crc32c: str


class PageDocument(_Document):
    format: Literal[1]
    kind: Literal["page"]
    id: _Id
    level: Annotated[int, Field(ge=0, le=16)]
    topic_id: str
    partition: _Count
    segments: tuple[SegmentDocument, ...] = ()
    pages: tuple[PageRefDocument, ...] = ()
    crc32c: str


def write_segments(segments: Sequence[ColdSegment]) -> tuple[SegmentDocument, ...]:
    return tuple(
        SegmentDocument.model_construct(
            id=segment.id,
            state=segment.state,
            at_ms=segment.at_ms,
            base_offset=segment.base_offset,
            end_offset=segment.end_offset,
            size=segment.size,
            records=segment.record_count,
            max_timestamp=segment.max_timestamp,
            append_ms=segment.append_ms,
            epochs=segment.epochs,
            parts=tuple((part.name, part.size, part.crc32c) for part in segment.parts),
            has_aborted=segment.has_aborted,
            keys=segment.key_count,
            stale_bytes=segment.stale_bytes,
            delete_horizon_ms=segment.delete_horizon_ms,
            replaced_until_ms=segment.replaced_until_ms,
            undecided_from=segment.undecided_from,
        )
        for segment in segments
    )


def read_segments(documents: Sequence[SegmentDocument]) -> tuple[ColdSegment, ...]:
    """Raises InvalidRequest for one that contradicts itself."""
    segments = tuple(
        ColdSegment(
            id=document.id,
            state=document.state,
            at_ms=document.at_ms,
            base_offset=document.base_offset,
            end_offset=document.end_offset,
            size=document.size,
            record_count=document.records,
            max_timestamp=document.max_timestamp,
            append_ms=document.append_ms,
            epochs=document.epochs,
            parts=tuple(ObjectPart(*part) for part in document.parts),
            has_aborted=document.has_aborted,
            key_count=document.keys,
            stale_bytes=document.stale_bytes,
            delete_horizon_ms=document.delete_horizon_ms,
            replaced_until_ms=document.replaced_until_ms,
            undecided_from=document.undecided_from,
        )
        for document in documents
    )
    for segment in segments:
        check_segment(segment)
    return segments


def write_refs(refs: Sequence[PageRef]) -> tuple[PageRefDocument, ...]:
    return tuple(
        PageRefDocument.model_construct(
            id=ref.id,
            level=ref.level,
            first_offset=ref.first_offset,
            last_offset=ref.last_offset,
            end_offset=ref.end_offset,
            segments=ref.segment_count,
            stored_bytes=ref.stored_bytes,
            readable=ref.readable_count,
            readable_first=ref.readable_first,
            readable_end=ref.readable_end,
            log_bytes=ref.log_bytes,
            records=ref.record_count,
            max_timestamp=ref.max_timestamp,
        )
        for ref in refs
    )


def read_refs(documents: Sequence[PageRefDocument]) -> tuple[PageRef, ...]:
    return tuple(
        PageRef(
            id=document.id,
            level=document.level,
            first_offset=document.first_offset,
            last_offset=document.last_offset,
            end_offset=document.end_offset,
            segment_count=document.segments,
            stored_bytes=document.stored_bytes,
            readable_count=document.readable,
            readable_first=document.readable_first,
            readable_end=document.readable_end,
            log_bytes=document.log_bytes,
            record_count=document.records,
            max_timestamp=document.max_timestamp,
        )
        for document in documents
    )
