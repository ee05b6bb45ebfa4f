"""Manifests and their pages as JSON documents.

Layout     one object; `format` first, `crc32c` last: eight hex digits, the CRC-32C of all bytes
           before `,"crc32c":`. docs/formats/manifest.md
Invariant  what is encoded decodes to the same. A field that is not declared here is refused, as is
           a value out of its range.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from varve.foundation.errors import Corrupt, InvalidRequest, UnsupportedFormat
from varve.kernels.crc import crc32c
from varve.tiering.manifest.manifest import (
    Manifest,
    Page,
    PageRef,
    RetiredObject,
    refer_to_pages,
    refer_to_segments,
)
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import ObjectPart, RemoteSegment, SegmentState, check_segment

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


def write_segments(segments: Sequence[RemoteSegment]) -> tuple[SegmentDocument, ...]:
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


def read_segments(documents: Sequence[SegmentDocument]) -> tuple[RemoteSegment, ...]:
    """Raises InvalidRequest for one that contradicts itself."""
    segments = tuple(
        RemoteSegment(
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


FORMAT: Final = 1

_SEAL: Final = re.compile(rb',"crc32c":"([0-9a-f]{8})"\}\n\Z')

_AnyDocument = TypeVar("_AnyDocument", ManifestDocument, PageDocument)


def encode_manifest(manifest: Manifest) -> bytes:
    return _seal(
        ManifestDocument.model_construct(
            format=FORMAT,
            kind="manifest",
            version=manifest.version,
            commit=manifest.commit_id,
            previous=manifest.previous_commit_id,
            writer=manifest.writer,
            leader_epoch=manifest.leader_epoch,
            at_ms=manifest.at_ms,
            cluster=manifest.cluster,
            topic=manifest.topic,
            topic_id=manifest.topic_id,
            partition=manifest.partition,
            log_start_offset=manifest.log_start_offset,
            cleaned_up_to=manifest.cleaned_up_to,
            segments=write_segments(manifest.segments),
            pages=write_refs(manifest.pages),
            retired=tuple((retired.key, retired.removable_ms) for retired in manifest.retired),
        )
    )


def decode_manifest(data: bytes, *, where: str) -> Manifest:
    """The manifest in an object's bytes; `where` names the object in messages.

    Raises UnsupportedFormat for one of a later varve, Corrupt for anything else that is wrong.
    """
    document = _open(ManifestDocument, data, where)
    try:
        return Manifest(
            home=RemotePath(
                document.cluster, document.topic, document.topic_id, document.partition
            ),
            version=document.version,
            commit_id=document.commit,
            previous_commit_id=document.previous,
            writer=document.writer,
            leader_epoch=document.leader_epoch,
            at_ms=document.at_ms,
            log_start_offset=document.log_start_offset,
            cleaned_up_to=document.cleaned_up_to,
            segments=read_segments(document.segments),
            pages=read_refs(document.pages),
            retired=tuple(RetiredObject(key, at_ms) for key, at_ms in document.retired),
        )
    except InvalidRequest as error:
        raise Corrupt(f"{where}: {error}") from error


def encode_page(page: Page, home: RemotePath) -> bytes:
    return _seal(
        PageDocument.model_construct(
            format=FORMAT,
            kind="page",
            id=page.id,
            level=page.level,
            topic_id=home.topic_id,
            partition=home.partition,
            segments=write_segments(page.segments),
            pages=write_refs(page.pages),
        )
    )


def decode_page(data: bytes, ref: PageRef, home: RemotePath, *, where: str) -> Page:
    """The page in an object's bytes, held against what was said of it one level up."""
    document = _open(PageDocument, data, where)
    try:
        segments = read_segments(document.segments)
    except InvalidRequest as error:
        raise Corrupt(f"{where}: {error}") from error
    page = Page(document.id, document.level, segments, read_refs(document.pages))
    if (document.topic_id, document.partition) != (home.topic_id, home.partition):
        raise Corrupt(
            f"{where}: is a page of topic id {document.topic_id}, partition {document.partition}, "
            f"not of {home.topic_id}, {home.partition}"
        )
    found = _refer(page)
    if found != ref:
        raise Corrupt(f"{where}: the page is not what its manifest says: {found} instead of {ref}")
    return page


def _refer(page: Page) -> PageRef | None:
    if page.segments and not page.pages and page.level == 0:
        return refer_to_segments(page.id, page.segments)
    levels = {below.level for below in page.pages}
    if levels == {page.level - 1} and not page.segments:
        return refer_to_pages(page.id, page.pages)
    return None


def _seal(document: BaseModel) -> bytes:
    body = document.model_dump_json(exclude_none=True).encode()[:-1]
    return b'%b,"crc32c":"%08x"}\n' % (body, _crc(body))


def _open(model: type[_AnyDocument], data: bytes, where: str) -> _AnyDocument:
    seal = _SEAL.search(data)
    if seal is None or _crc(data[: seal.start()]) != int(seal[1], 16):
        _refuse_later_format(data, where)
        raise Corrupt(
            f"{where}: {len(data)} bytes do not end with a CRC-32C that fits them: the object is "
            "damaged; restore it from another copy or version of it"
        )
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        _refuse_later_format(data, where)
        problem = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            raise UnsupportedFormat(
                f"{where}: format {FORMAT} has no field {field}: it was written by a later varve; "
                "read it with that one"
            ) from error
        raise Corrupt(f"{where}: {field or 'document'}: {problem['msg']}") from error


def _refuse_later_format(data: bytes, where: str) -> None:
    try:
        document: Any = from_json(data)
    except ValueError:
        return
    format = document.get("format") if isinstance(document, dict) else None
    if isinstance(format, int) and format > FORMAT:
        raise UnsupportedFormat(
            f"{where}: format {format} is newer than {FORMAT}, the newest this varve reads: "
            "read it with a later one"
        )


def _crc(data: bytes) -> int:
    return int(crc32c(np.frombuffer(data, np.uint8), 0, len(data)))
