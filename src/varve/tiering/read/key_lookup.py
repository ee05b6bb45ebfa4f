"""Finds the latest record of a key in object storage: newest segment first, by their key indexes.

A key index is searched in object storage, with a few requests for blocks of it. A segment without
one, or with a damaged one, is read completely.

Invariant  every segment between the two offsets is searched, or it raises: a manifest that does not
           reach to the local start is loaded again. Only committed records count.
Threads    any.
"""

import logging
from dataclasses import dataclass
from typing import Final

from varve.cleaning.key_index.builder import KeyIndexBuilder
from varve.cleaning.key_index.key_index import KeyEntry, KeyIndex
from varve.cleaning.remote_tier import KeySearch
from varve.commit_log import Log
from varve.commit_log.segment_reader import BatchTable, BatchWalk
from varve.commit_log.transaction_index import AbortedTransaction
from varve.disk import MemoryFileSystem
from varve.foundation.clock import Clock
from varve.foundation.errors import Corrupt, ObjectNotFound, Unavailable
from varve.kernels.batch_layout import BatchColumn
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import KEYS_PART, LOG_PART, ObjectPart, RemoteSegment
from varve.tiering.manifest.store import ManifestStore, RecentManifest
from varve.tiering.read.extent_cache import ExtentSource
from varve.tiering.read.index_cache import IndexCache
from varve.tiering.read.object_file import BlockObjectFile

logger = logging.getLogger(__name__)

_KEYS_BLOCK_BYTES: Final = 64 << 10
_LOG_BLOCK_BYTES: Final = 4 << 20
_SCAN_BUFFER_BYTES: Final = 8 << 20
_SCANNED: Final = "scanned.keys"
_FSCK: Final = "`varve tier fsck` lists what is missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteKeyLookup:
    """Looks keys up in the remote part of one log, through the extents of `source`."""

    path: RemotePath
    manifests: ManifestStore
    recent: RecentManifest
    source: ExtentSource
    indexes: IndexCache
    clock: Clock
    local: Log | None

    def find(self, search: KeySearch) -> KeyEntry | None:
        """See `RemoteLog.find_key`."""
        manifest = self.recent.get()
        if manifest.highest_offset + 1 < search.end_offset:
            manifest = self.recent.refresh()
        try:
            try:
                entry = self._find(search, manifest)
            except ObjectNotFound:
                entry = self._find(search, self.recent.refresh())
        except ObjectNotFound as error:
            raise Corrupt(
                f"{self.path}: the newest manifest names an object that is not there: {error}; "
                f"{_FSCK}"
            ) from error
        if entry is None or not search.start_offset <= entry.offset < search.end_offset:
            return None
        return entry

    def _find(self, search: KeySearch, manifest: Manifest) -> KeyEntry | None:
        offset = search.end_offset - 1
        while offset >= search.start_offset:
            segment = self.manifests.find(manifest, offset)
            if segment is None:
                raise Unavailable(
                    f"{self.path}: offset {offset} is in no segment of the remote tier by "
                    f"manifest version {manifest.version}, so the key cannot be looked up; {_FSCK}"
                )
            entry = self._find_in(segment, search, manifest)
            if entry is not None:
                return entry
            offset = segment.base_offset - 1
        return None

    def _find_in(
        self, segment: RemoteSegment, search: KeySearch, manifest: Manifest
    ) -> KeyEntry | None:
        part = segment.find_part(KEYS_PART)
        if part is not None:
            try:
                return self._search_index(segment, part, search)
            except Corrupt as error:
                logger.warning(
                    "%(partition)s: key index in object storage cannot be used, the whole segment "
                    "is read: %(error)s",
                    {"partition": str(self.path), "error": str(error)},
                )
        return self._scan(segment, search, manifest)

    def _search_index(
        self, segment: RemoteSegment, part: ObjectPart, search: KeySearch
    ) -> KeyEntry | None:
        if segment.key_count == 0:
            return None
        file = self._open(segment, part, _KEYS_BLOCK_BYTES)
        with KeyIndex(file) as index:
            header = index.header
            indexed = (header.topic_id, header.base_offset, header.log_size)
            if indexed != (search.topic_id, segment.base_offset, segment.size):
                raise Corrupt(f"{self.source.name}: {file.path!r} is of another segment")
            return index.find(*search.hash)

    def _open(self, segment: RemoteSegment, part: ObjectPart, block_bytes: int) -> BlockObjectFile:
        key = self.path.part_key(segment, part.name)
        return BlockObjectFile(key, part.size, self.source, fetch_bytes=block_bytes)

    def _scan(
        self, segment: RemoteSegment, search: KeySearch, manifest: Manifest
    ) -> KeyEntry | None:
        """Reads the segment, with its CRCs, and indexes it a chunk at a time."""
        part = segment.find_part(LOG_PART)
        if part is None:
            raise Corrupt(f"{self.path}: {segment} has no log object; {_FSCK}")
        file = self._open(segment, part, _LOG_BLOCK_BYTES)
        aborted = self._collect_aborted(segment, manifest)
        walk = BatchWalk(file, start=0, end=segment.size, verify_crc=True)
        entry: KeyEntry | None = None
        for table in walk:
            entry = self._search_table(table, search, aborted) or entry
        where = f"{self.source.name}: {file.path!r}"
        walk.check_ended(where, remedy=_FSCK)
        if walk.position != segment.size:
            raise Corrupt(
                f"{where}: {segment.size} bytes, but whole batches only up to {walk.position}; "
                f"{_FSCK}"
            )
        return entry

    def _search_table(
        self, table: BatchTable, search: KeySearch, aborted: list[AbortedTransaction]
    ) -> KeyEntry | None:
        fs = MemoryFileSystem(self.clock)
        builder = KeyIndexBuilder(
            fs,
            _SCANNED,
            base_offset=int(table.rows[0, BatchColumn.BASE_OFFSET]),
            topic_id=search.topic_id,
            buffer_bytes=_SCAN_BUFFER_BYTES,
            aborted=aborted,
        )
        first = int(table.rows[0, BatchColumn.POSITION])
        rows = table.rows.copy()
        rows[:, BatchColumn.POSITION] -= first
        builder.add(BatchTable(rows, table.buffer, table.start - first, table.end - first))
        builder.finish(builder.log_size)
        with KeyIndex(fs.open(_SCANNED)) as index:
            return index.find(*search.hash)

    def _collect_aborted(
        self, segment: RemoteSegment, manifest: Manifest
    ) -> list[AbortedTransaction]:
        """The aborted transactions of a segment; their markers lie in it or after it."""
        start, end = segment.base_offset, segment.end_offset + 1
        aborted, is_complete = self.indexes.collect_aborted(
            self.path,
            self.manifests.readable(manifest, from_offset=start),
            start_offset=start,
            end_offset=end,
        )
        if is_complete or self.local is None:
            return list(aborted)
        local = self.local.collect_aborted(start, end)
        return [*aborted, *(transaction for transaction in local if transaction not in aborted)]
