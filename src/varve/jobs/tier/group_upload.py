"""Brings a segment that was written aside into the store: announced, uploaded, looked up.

Invariant  an object is written only under an id that the manifest announces, with the sizes and
           checksums of all parts; every object was seen at its size before this returns.
Crash      what was announced and not finished is taken back by the next run.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from varve.cleaning.compaction.rewrite import WrittenSegment
from varve.commit_log.names import CLEANED, INDEX, KEYS, LOG, TIME_INDEX, TXN_INDEX, log_name
from varve.disk import FileSystem
from varve.foundation.errors import ObjectNotFound, Unavailable
from varve.jobs.compact.settings import WRITER
from varve.jobs.tier.cold_input import ColdInput
from varve.kernels.crc import extend_crc32c
from varve.object_store import Buffer, ObjectStore
from varve.tiering.copy.segment_upload import (
    CHUNK_BYTES,
    EPOCHS_PART,
    SNAPSHOT_PART,
    BytesContent,
    FileContent,
    PartContent,
)
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import ObjectPart, RemoteSegment
from varve.tiering.manifest.store import ManifestStore


def gather_group(
    fs: FileSystem,
    directory: str,
    written: WrittenSegment,
    last: ColdInput,
    *,
    has_keys: bool = True,
) -> list[PartContent]:
    """The objects of a new segment; producers and leader epochs are those of its last input.

    It goes without its key index (`has_keys`) while a transaction in it is not decided.
    """
    kinds = [LOG, INDEX, TIME_INDEX, *([TXN_INDEX] if written.has_txn_index else [])]

    def measure(kind: str) -> FileContent:
        path = f"{directory}/{log_name(written.base_offset, kind)}{CLEANED}"
        return _measure(fs, path, kind)

    carried = [_carry(last, name) for name in (SNAPSHOT_PART, EPOCHS_PART)]
    return [*map(measure, kinds), *carried, *([measure(KEYS)] if has_keys else [])]


def _measure(fs: FileSystem, path: str, kind: str) -> FileContent:
    crc = 0
    with fs.open(path) as file:
        size = file.size()
        for start in range(0, size, CHUNK_BYTES):
            data = np.frombuffer(file.read_at(start, min(CHUNK_BYTES, size - start)), np.uint8)
            crc = int(extend_crc32c(crc, data, 0, data.size))
    return FileContent(fs, path, ObjectPart(kind.removeprefix("."), size, crc))


def _carry(last: ColdInput, name: str) -> BytesContent:
    data = last.read_part(name)
    part = last.cold.find_part(name)
    assert part is not None, "it was read by it"
    return BytesContent(data, part)


def announce(
    manifests: ManifestStore, segment: RemoteSegment, *, now_ms: int, writer: str = WRITER
) -> None:
    manifests.commit(
        lambda manifest: manifest.announce(segment), leader_epoch=None, writer=writer, now_ms=now_ms
    )


def upload(
    objects: ObjectStore,
    home: RemotePath,
    segment: RemoteSegment,
    contents: Sequence[PartContent],
) -> None:
    """Writes all objects; raises Unavailable when one is not there afterwards."""
    for content in contents:
        key, size = home.part_key(segment, content.part.name), content.part.size
        if size <= CHUNK_BYTES:
            objects.put(key, b"".join(content.chunks(_no_pace)))
        else:
            objects.put_parts(key, _Chunks(content), size=size)
    for content in contents:
        key = home.part_key(segment, content.part.name)
        try:
            found = objects.head(key).size
        except ObjectNotFound:
            found = -1
        if found != content.part.size:
            raise Unavailable(
                f"{objects.name}: {key} was uploaded with {content.part.size} bytes, but is not "
                "there with them; run the job again"
            )


def _no_pace(size: int) -> None:
    """Uploads go as fast as they can."""


class _Chunks(Iterable[Buffer]):
    """The content of a part, from its beginning each time it is walked."""

    def __init__(self, content: PartContent) -> None:
        self._content = content

    def __iter__(self) -> Iterator[Buffer]:
        return self._content.chunks(_no_pace)
