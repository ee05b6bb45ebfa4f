"""Manifests and their pages as JSON documents.

Layout     one object; `format` first, `crc32c` last: eight hex digits, the CRC-32C of all bytes
           before `,"crc32c":`. docs/reference/formats/manifest.md
Invariant  decoding reverses encoding. An undeclared field and a value out of its range are refused.
"""

import re
from dataclasses import fields
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from varve.foundation.errors import Corrupt, InvalidRequest, UnsupportedFormat
from varve.kernels.crc import crc32c_of
from varve.tiering.manifest.manifest import (
    Level,
    Manifest,
    Page,
    PageRef,
    RetiredObject,
    refer_to_pages,
    refer_to_segments,
)
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import (
    LONG_MAX,
    Count,
    Epoch,
    Id,
    Long,
    RemoteSegment,
    check_segment,
)


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ManifestDocument(_Document):
    """A manifest; every field except format, kind and CRC is an attribute of `Manifest`."""

    format: Literal[1]
    kind: Literal["manifest"]
    version: Annotated[int, Field(ge=1, le=LONG_MAX)]
    commit_id: Annotated[Id, Field(alias="commit")]
    previous_commit_id: Annotated[str, Field(alias="previous")]
    writer: str
    leader_epoch: Epoch
    at_ms: Long
    cluster: str
    topic: str
    topic_id: str
    partition: Count
    log_start_offset: Count
    cleaned_up_to: Count
    segments: tuple[RemoteSegment, ...]
    pages: tuple[PageRef, ...]
    retired: tuple[RetiredObject, ...]
    crc32c: str


class PageDocument(_Document):
    format: Literal[1]
    kind: Literal["page"]
    id: Id
    level: Level
    topic_id: str
    partition: Count
    segments: tuple[RemoteSegment, ...] = ()
    pages: tuple[PageRef, ...] = ()
    crc32c: str


FORMAT: Final = 1
_ENVELOPE: Final = frozenset({"format", "kind", "crc32c"})

_SEAL: Final = re.compile(rb',"crc32c":"([0-9a-f]{8})"\}\n\Z')

_AnyDocument = TypeVar("_AnyDocument", ManifestDocument, PageDocument)


def encode_manifest(manifest: Manifest) -> bytes:
    values = {
        field.alias or name: getattr(manifest, name)
        for name, field in ManifestDocument.model_fields.items()
        if name not in _ENVELOPE
    }
    return _seal(ManifestDocument.model_construct(format=FORMAT, kind="manifest", **values))


def decode_manifest(data: bytes, *, where: str) -> Manifest:
    """The manifest in an object's bytes; `where` names the object in messages.

    Raises UnsupportedFormat for a later format, Corrupt for any other fault.
    """
    document = _open(ManifestDocument, data, where)
    try:
        path = RemotePath(document.cluster, document.topic, document.topic_id, document.partition)
        values = {
            field.name: getattr(document, field.name)
            for field in fields(Manifest)
            if field.name != "path"
        }
        return Manifest(path=path, **values)
    except InvalidRequest as error:
        raise Corrupt(f"{where}: {error}") from error


def encode_page(page: Page, path: RemotePath) -> bytes:
    return _seal(
        PageDocument.model_construct(
            format=FORMAT,
            kind="page",
            id=page.id,
            level=page.level,
            topic_id=path.topic_id,
            partition=path.partition,
            segments=page.segments,
            pages=page.pages,
        )
    )


def decode_page(data: bytes, ref: PageRef, path: RemotePath, *, where: str) -> Page:
    """The page in an object's bytes; raises Corrupt unless it matches its reference."""
    document = _open(PageDocument, data, where)
    page = Page(document.id, document.level, document.segments, document.pages)
    if (document.topic_id, document.partition) != (path.topic_id, path.partition):
        raise Corrupt(
            f"{where}: is a page of topic id {document.topic_id}, partition {document.partition}, "
            f"not of {path.topic_id}, {path.partition}"
        )
    page_ref = _refer(page)
    if page_ref != ref:
        raise Corrupt(
            f"{where}: the page is not what its manifest says: {page_ref} instead of {ref}"
        )
    return page


def _refer(page: Page) -> PageRef | None:
    if page.segments and not page.pages and page.level == 0:
        return refer_to_segments(page.id, page.segments)
    levels = {child.level for child in page.pages}
    if levels == {page.level - 1} and not page.segments:
        return refer_to_pages(page.id, page.pages)
    return None


def _seal(document: BaseModel) -> bytes:
    body = document.model_dump_json(by_alias=True, exclude_none=True).encode()[:-1]
    return b'%b,"crc32c":"%08x"}\n' % (body, crc32c_of(body))


def _open(model: type[_AnyDocument], data: bytes, where: str) -> _AnyDocument:
    seal = _SEAL.search(data)
    if seal is None or crc32c_of(data[: seal.start()]) != int(seal[1], 16):
        _refuse_later_format(data, where)
        raise Corrupt(
            f"{where}: {len(data)} bytes do not end with a CRC-32C that fits them: the object is "
            "damaged; restore it from another copy or version of it"
        )
    try:
        document = model.model_validate_json(data)
        for segment in document.segments:
            check_segment(segment)
    except InvalidRequest as error:
        raise Corrupt(f"{where}: {error}") from error
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
    return document


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
