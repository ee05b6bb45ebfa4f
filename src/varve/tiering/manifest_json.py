"""Manifests and their pages as JSON documents.

Layout     one object; `format` first, `crc32c` last: eight hex digits, the CRC-32C of all bytes
           before `,"crc32c":`. docs/formats/manifest.md
Invariant  what is encoded decodes to the same; nothing unknown is passed over.
"""

import re
from typing import Any, Final, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from varve.foundation.errors import Corrupt, InvalidRequest, UnsupportedFormat
from varve.kernels.crc import crc32c
from varve.tiering.cold_keys import ColdPartition
from varve.tiering.manifest import Manifest, RetiredObject
from varve.tiering.manifest_documents import (
    ManifestDocument,
    PageDocument,
    read_refs,
    read_segments,
    write_refs,
    write_segments,
)
from varve.tiering.manifest_page import Page, PageRef, refer_to_pages, refer_to_segments

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
            home=ColdPartition(
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


def encode_page(page: Page, home: ColdPartition) -> bytes:
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


def decode_page(data: bytes, ref: PageRef, home: ColdPartition, *, where: str) -> Page:
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
