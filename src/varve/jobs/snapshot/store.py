"""A store of snapshots: a directory or a prefix of a bucket, for one topic.

    snapshot = open_snapshot("s3://bucket/snapshots/orders")
    for batch in snapshot.batches():
        load(batch)
    consume_from(snapshot.resume_offsets)

Layout     `snapshot/<number>.json`, `data/*.parquet`, and `work/<run>/*` while a run is under way.
           docs/formats/snapshot.md
Invariant  a snapshot exists when its document does. Files that no document names belong to a run
           under way or to one that was killed; they are deleted when older than a grace time. Rows
           are read by partition, then bucket, then key; a file is checked against its digest first.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final
from urllib.parse import quote

import pyarrow as pa  # type: ignore[import-untyped]  # ships no types

from varve.foundation.errors import (
    Corrupt,
    InvalidRequest,
    NotFound,
    ObjectExists,
    ObjectNotFound,
    Unavailable,
)
from varve.foundation.settings import GivenValue
from varve.jobs.snapshot.document import (
    DATA_FOLDER,
    SNAPSHOT_FOLDER,
    WORK_FOLDER,
    SnapshotDocument,
    SnapshotFile,
    find_snapshot,
)
from varve.jobs.snapshot.tasks import make_columns, open_rows
from varve.jobs.tier.bucket import Bucket
from varve.object_store import ObjectInfo, ObjectStore, open_object_store
from varve.object_store.directory import WRITING
from varve.object_store.opening import BUCKETS, find_scheme, normal_url, split_directory

_OURS: Final = re.compile(
    rf"{DATA_FOLDER}/[0-9]{{5,}}-[0-9]{{5,}}-[0-9a-f]{{32}}\.parquet"
    rf"|{WORK_FOLDER}/[0-9a-f-]{{36}}/(?:plan-[0-9]+/)?[0-9]{{6,}}"
)
"""What runs write besides documents; other files of a directory are left alone."""


_SCHEMES: Final = BUCKETS | {"file", "memory"}
"""Those that need no '//' to make a URL of a text."""


def make_store_url(place: str) -> str:
    """The URL of a place that is given as one, or as a path of any characters."""
    is_url = "://" in place or find_scheme(place) in _SCHEMES
    return normal_url(place if is_url else f"file:{quote(place)}")


def check_apart(place: str, others: Collection[str]) -> None:
    """Raises InvalidRequest for a place that lies in another of these, or around it."""
    url = _resolve(place)
    for other in map(_resolve, others):
        if f"{url}/".startswith(f"{other}/") or f"{other}/".startswith(f"{url}/"):
            raise InvalidRequest(
                f"{url} and {other} lie one in the other: give snapshots a place apart from the "
                "log and its cold tier"
            )


def _resolve(place: str) -> str:
    """The URL of a place, of a directory by the path without symbolic links."""
    url = make_store_url(place)
    if find_scheme(url) != "file":
        return url
    return f"file:{quote(os.path.realpath(split_directory(url)))}"


def create_store(place: str, settings: Mapping[str, GivenValue] | None = None) -> Bucket:
    """The address of a place, whose directory is created if missing."""
    address = find_store_address(place, settings)
    open_object_store(address.url, dict(address.settings)).close()
    return address


def get_store_address(place: str, settings: Mapping[str, GivenValue] | None = None) -> Bucket:
    """The address of a place to be looked at; raises NotFound for a directory that is none."""
    address = find_store_address(place, settings)
    if find_scheme(address.url) == "file":
        path = split_directory(address.url)
        names = set(os.listdir(path)) if os.path.isdir(path) else set()
        if names and not names & {SNAPSHOT_FOLDER, WRITING}:
            raise NotFound(f"{address.url} does not hold a snapshot: it has no {SNAPSHOT_FOLDER}/")
    return address


def find_store_address(place: str, settings: Mapping[str, GivenValue] | None = None) -> Bucket:
    """The address of a place that is there."""
    return Bucket(make_store_url(place), tuple(sorted((settings or {}).items())))


@dataclass(frozen=True, slots=True)
class SnapshotStore:
    """The documents and files of a place."""

    objects: ObjectStore

    def documents(self) -> list[SnapshotDocument]:
        """All snapshots, the oldest first; one that leaves meanwhile is left out."""
        documents = []
        for entry in self.objects.list(f"{SNAPSHOT_FOLDER}/"):
            if find_snapshot(entry.key) is None:
                continue
            document = self._find_document(entry.key)
            if document is not None:
                documents.append(document)
        return documents

    def _find_document(self, key: str) -> SnapshotDocument | None:
        try:
            data = self.objects.get(key)
        except ObjectNotFound:
            return None
        where = f"{self.objects.name}: {key!r}"
        document = SnapshotDocument.decode(data, where)
        if document.key != key:
            raise Corrupt(f"{where}: it is snapshot {document.snapshot}: put it back from a copy")
        return document

    def get(self, snapshot: int | None = None) -> SnapshotDocument:
        """A snapshot by its number, or the newest; raises NotFound."""
        documents = self.documents()
        chosen = [document for document in documents if snapshot in (None, document.snapshot)]
        if not chosen:
            known = ", ".join(str(document.snapshot) for document in documents) or "none"
            what = "a snapshot" if snapshot is None else f"snapshot {snapshot}"
            raise NotFound(f"{self.objects.name} does not hold {what} (snapshots: {known:.400})")
        return chosen[-1]

    def files(self) -> Iterator[ObjectInfo]:
        """All files, those that no document names among them."""
        return self.objects.list(f"{DATA_FOLDER}/")

    def check_files(self, document: SnapshotDocument) -> None:
        """Raises Corrupt where files of a snapshot are missing or of another size."""
        lost = self._find_lost(document)
        if not lost:
            return
        if self._find_document(document.key) != document:
            raise Unavailable(
                f"{self.objects.name}: snapshot {document.snapshot} was removed or changed while "
                "the next one was to be made from it: take it again"
            )
        raise Corrupt(
            f"{self.objects.name}: {len(lost)} files of snapshot {document.snapshot}, {lost[0]!r} "
            "among them, are missing or of another size: put them back from a copy, or take a "
            "full snapshot (--full), from which later ones go on"
        )

    def _find_lost(self, document: SnapshotDocument) -> list[str]:
        sizes = {entry.key: entry.size for entry in self.files()}
        return [file.path for file in document.files if sizes.get(file.path) != file.size]

    def publish(self, document: SnapshotDocument, previous: SnapshotDocument | None) -> None:
        """Makes a snapshot exist; raises Unavailable where another run came first.

        What was taken over from the previous one must still be as it was, and every file there.
        """
        if previous is not None and self._find_document(previous.key) != previous:
            raise Unavailable(
                f"{self.objects.name}: snapshot {previous.snapshot} was removed or changed while "
                "the next one was made from it: take it again"
            )
        lost = self._find_lost(document)
        if lost:
            raise Unavailable(
                f"{self.objects.name}: {len(lost)} files of the new snapshot, {lost[0]!r} among "
                "them, were removed while it was made: take it again"
            )
        try:
            self.objects.create(document.key, document.encode())
        except ObjectExists as error:
            if self._find(document.key) == document.encode():
                return
            raise Unavailable(
                f"{self.objects.name}: another run has taken snapshot {document.snapshot} "
                "meanwhile, and this one changed nothing: run it again to go on from there"
            ) from error

    def _find(self, key: str) -> bytes | None:
        try:
            return bytes(self.objects.get(key))
        except ObjectNotFound:
            return None

    def remove_work(self, run: str) -> None:
        """Takes away what the tasks of a run handed to each other."""
        keys = [entry.key for entry in self.objects.list(f"{WORK_FOLDER}/{run}/")]
        if keys:
            self.objects.delete(keys)

    def keep(self, count: int) -> list[str]:
        """Removes all snapshots but the newest ones, and the files that only they name."""
        check_keep(count)
        documents = self.documents()
        going, staying = documents[:-count], documents[-count:]
        self.objects.delete([document.key for document in going])
        kept = named_files(staying)
        files = sorted(named_files(going) - kept)
        self.objects.delete(files)
        return [*(document.key for document in going), *files]

    def sweep(self, *, before_ms: int) -> list[str]:
        """Removes what killed runs have left: files that no document names, and their work."""
        orphans = [orphan.key for orphan in self.find_orphans() if orphan.modified_ms <= before_ms]
        if orphans:
            self.objects.delete(orphans)
        return orphans

    def find_orphans(self) -> list[ObjectInfo]:
        """Files that no document names, and what tasks have handed to each other."""
        entries = [*self.files(), *self.objects.list(f"{WORK_FOLDER}/")]
        entries = [entry for entry in entries if _OURS.fullmatch(entry.key)]
        # The documents last: a file that was there before them may have become one of theirs.
        named = named_files(self.documents())
        return [entry for entry in entries if entry.key not in named]

    def find_fault(self, file: SnapshotFile) -> str | None:
        """What is wrong with a file; None when it is as its document says."""
        try:
            data = self.objects.get(file.path)
        except ObjectNotFound:
            return f"{file.path} is missing"
        if len(data) != file.size:
            return f"{file.path} has {len(data)} bytes, its snapshot says {file.size}"
        digest = sha256(data).hexdigest()
        if digest != file.sha256:
            return f"{file.path} has SHA-256 {digest}, its snapshot says {file.sha256}"
        return None


def check_keep(count: int) -> None:
    """Raises InvalidRequest where no snapshot would stay."""
    if count < 1:
        raise InvalidRequest(f"{count} snapshots are to be kept: keep 1 at least")


def is_work(key: str) -> bool:
    """Whether it is what tasks of a run handed to each other."""
    return key.startswith(f"{WORK_FOLDER}/") and _OURS.fullmatch(key) is not None


def named_files(documents: Collection[SnapshotDocument]) -> set[str]:
    return {file.path for document in documents for file in document.files}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One snapshot of a topic."""

    url: str
    objects: ObjectStore
    document: SnapshotDocument

    @property
    def files(self) -> tuple[SnapshotFile, ...]:
        return self.document.files

    @property
    def resume_offsets(self) -> dict[int, int]:
        """Where to read on, by partition, once the rows are loaded."""
        return self.document.resume_offsets

    @property
    def paths(self) -> list[str]:
        """The files as URLs or, of a directory, as paths: `spark.read.parquet(*paths)`."""
        is_directory = find_scheme(self.url) == "file"
        root = split_directory(self.url) if is_directory else self.url
        return [f"{root}/{file.path}" for file in self.files]

    def batches(
        self, *, columns: Sequence[str] | None = None, partitions: Collection[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows, a file in memory at a time."""
        for file in self.files:
            if partitions is None or file.partition in partitions:
                opened = open_rows(self.objects.get(file.path), file, self.objects.name)
                yield from opened.iter_batches(columns=columns)

    def read(
        self, *, columns: Sequence[str] | None = None, partitions: Collection[int] | None = None
    ) -> pa.Table:
        """All rows at once."""
        schema = make_columns().schema
        if columns is not None:
            unknown = [name for name in columns if name not in schema.names]
            if unknown:
                raise InvalidRequest(
                    f"there is no column {unknown[0]!r:.80} (columns: {', '.join(schema.names)})"
                )
            schema = pa.schema([schema.field(name) for name in columns])
        batches = self.batches(columns=columns, partitions=partitions)
        return pa.Table.from_batches([batch.select(schema.names) for batch in batches], schema)


def open_snapshot(
    place: str, snapshot: int | None = None, *, settings: Mapping[str, GivenValue] | None = None
) -> Snapshot:
    """A snapshot of a place by its number, or the newest; raises NotFound."""
    address = get_store_address(place, settings)
    objects = address.objects()
    return Snapshot(address.url, objects, SnapshotStore(objects).get(snapshot))
