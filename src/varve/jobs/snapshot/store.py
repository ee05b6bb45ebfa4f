"""A store of snapshots: a directory or a prefix of a bucket, for one topic.

    snapshot = open_snapshot("s3://bucket/snapshots/orders")
    for batch in snapshot.batches():
        load(batch)
    consume_from(snapshot.resume_offsets)

Layout     `snapshot/<number>.json`, `data/*.parquet`, and `work/<run>/*` while a run is under way.
           docs/reference/formats/snapshot.md
Invariant  a snapshot exists if its document does. Files that no document names belong to a running
           or a killed run; they are deleted when older than a grace time. Rows are ordered by
           partition, bucket and key; a file is checked against its digest before it is read.
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
from varve.object_store.opening import find_scheme, split_directory, to_url

_RUN_FILES: Final = re.compile(
    rf"{DATA_FOLDER}/[0-9]{{5,}}-[0-9]{{5,}}-[0-9a-f]{{32}}\.parquet"
    rf"|{WORK_FOLDER}/[0-9a-f-]{{36}}/(?:plan-[0-9]+/)?[0-9]{{6,}}"
)
"""Keys that runs write besides documents; other files of a place are never deleted."""


def check_apart(place: str, others: Collection[str]) -> None:
    """Raises InvalidRequest if the place is inside one of the others, or contains it."""
    url = _resolve(place)
    for other in map(_resolve, others):
        if f"{url}/".startswith(f"{other}/") or f"{other}/".startswith(f"{url}/"):
            raise InvalidRequest(
                f"{url} and {other} overlap: choose a place for snapshots outside of log "
                "directories and object stores of topics"
            )


def _resolve(place: str) -> str:
    """Returns the URL of a place; symbolic links in the path of a directory are resolved."""
    url = to_url(place)
    if find_scheme(url) != "file":
        return url
    return f"file:{quote(os.path.realpath(split_directory(url)))}"


def create_store(place: str, settings: Mapping[str, GivenValue] | None = None) -> Bucket:
    """Returns the address of a place; creates its directory if missing."""
    address = find_store_address(place, settings)
    open_object_store(address.url, dict(address.settings)).close()
    return address


def get_store_address(place: str, settings: Mapping[str, GivenValue] | None = None) -> Bucket:
    """Returns the address of a place to read; raises NotFound for a directory of other files."""
    address = find_store_address(place, settings)
    if find_scheme(address.url) == "file":
        path = split_directory(address.url)
        names = set(os.listdir(path)) if os.path.isdir(path) else set()
        if names and not names & {SNAPSHOT_FOLDER, WRITING}:
            raise NotFound(
                f"{address.url} does not hold a snapshot: name the place that was the --to of "
                "`varve job snapshot`"
            )
    return address


def find_store_address(place: str, settings: Mapping[str, GivenValue] | None = None) -> Bucket:
    """Returns the address of a place without checking that it exists."""
    return Bucket(to_url(place), tuple(sorted((settings or {}).items())))


def choose_place_settings(
    place: str, settings: Mapping[str, GivenValue], bucket: Bucket | None
) -> dict[str, GivenValue]:
    """The settings of a place; without any, those of a bucket of the same kind."""
    is_alike = bucket is not None and find_scheme(to_url(place)) == find_scheme(bucket.url)
    if settings or bucket is None or not is_alike:
        return dict(settings)
    return dict(bucket.settings)


def open_place(place: str, settings: Mapping[str, GivenValue]) -> "SnapshotStore":
    """A place that holds a snapshot; raises NotFound."""
    store = SnapshotStore(get_store_address(place, settings).objects())
    store.get()
    return store


@dataclass(frozen=True, slots=True)
class SnapshotStore:
    """The documents and files of one place."""

    objects: ObjectStore

    def documents(self) -> list[SnapshotDocument]:
        """Reads all snapshots, oldest first; skips those removed while it reads."""
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
            raise Corrupt(f"{where}: it is snapshot {document.snapshot}: restore it from a copy")
        return document

    def get(self, snapshot: int | None = None) -> SnapshotDocument:
        """Returns a snapshot by its number, or the newest; raises NotFound."""
        documents = self.documents()
        chosen = [document for document in documents if snapshot in (None, document.snapshot)]
        if not chosen:
            numbers = ", ".join(str(document.snapshot) for document in documents) or "none"
            what = "a snapshot" if snapshot is None else f"snapshot {snapshot}"
            raise NotFound(f"{self.objects.name} does not hold {what} (snapshots: {numbers:.400})")
        return chosen[-1]

    def files(self) -> Iterator[ObjectInfo]:
        """Lists all data files, unreferenced files included."""
        return self.objects.list(f"{DATA_FOLDER}/")

    def check_files(self, document: SnapshotDocument) -> None:
        """Raises Corrupt if files of a snapshot are missing or have another size."""
        damaged = self._find_damaged(document)
        if not damaged:
            return
        if self._find_document(document.key) != document:
            raise Unavailable(
                f"{self.objects.name}: snapshot {document.snapshot} was removed or changed while "
                "the next one was to continue from it: take it again"
            )
        raise Corrupt(
            f"{self.objects.name}: {len(damaged)} files of snapshot {document.snapshot}, such as "
            f"{damaged[0]!r}, are missing or have another size: restore them from a copy, or take "
            "a full snapshot (--full), from which later ones continue"
        )

    def _find_damaged(self, document: SnapshotDocument) -> list[str]:
        sizes = {entry.key: entry.size for entry in self.files()}
        return [file.path for file in document.files if sizes.get(file.path) != file.size]

    def publish(self, document: SnapshotDocument, previous: SnapshotDocument | None) -> None:
        """Publishes a snapshot; raises Unavailable if another run published its number first.

        The previous snapshot must be unchanged, and every file of the new one must exist.
        """
        if previous is not None and self._find_document(previous.key) != previous:
            raise Unavailable(
                f"{self.objects.name}: snapshot {previous.snapshot} was removed or changed while "
                "the next one continued from it: take it again"
            )
        damaged = self._find_damaged(document)
        if damaged:
            raise Unavailable(
                f"{self.objects.name}: {len(damaged)} files of the new snapshot, such as "
                f"{damaged[0]!r}, were removed while it was taken: take it again"
            )
        try:
            self.objects.create(document.key, document.encode())
        except ObjectExists as error:
            if self._find_object(document.key) == document.encode():
                return
            raise Unavailable(
                f"{self.objects.name}: another run has taken snapshot {document.snapshot} at the "
                "same time, and this run changed nothing: run it again to continue from there"
            ) from error

    def _find_object(self, key: str) -> bytes | None:
        try:
            return bytes(self.objects.get(key))
        except ObjectNotFound:
            return None

    def remove_work(self, run: str) -> None:
        """Deletes the work objects of a run."""
        self.objects.delete([entry.key for entry in self.objects.list(f"{WORK_FOLDER}/{run}/")])

    def keep(self, count: int) -> list[str]:
        """Removes all but the newest `count` snapshots, and the files that only they name."""
        check_keep(count)
        documents = self.documents()
        removed, retained = documents[:-count], documents[-count:]
        self.objects.delete([document.key for document in removed])
        files = sorted(named_files(removed) - named_files(retained))
        self.objects.delete(files)
        return [*(document.key for document in removed), *files]

    def sweep(self, *, before_ms: int) -> list[str]:
        """Deletes leftovers of killed runs: unreferenced files and work objects."""
        orphans = [orphan.key for orphan in self.find_orphans() if orphan.modified_ms <= before_ms]
        self.objects.delete(orphans)
        return orphans

    def find_orphans(self) -> list[ObjectInfo]:
        """Lists data files that no document names, and work objects of runs."""
        entries = [*self.files(), *self.objects.list(f"{WORK_FOLDER}/")]
        entries = [entry for entry in entries if _RUN_FILES.fullmatch(entry.key)]
        # Documents are read after the files: a listed file may be named by a newer document.
        named = named_files(self.documents())
        return [entry for entry in entries if entry.key not in named]

    def find_faults(self) -> list[str]:
        """Describes every file of all snapshots that is missing or damaged."""
        files = {file.path: file for document in self.documents() for file in document.files}
        faults = [self.find_fault(file) for _, file in sorted(files.items())]
        return [fault for fault in faults if fault is not None]

    def find_fault(self, file: SnapshotFile) -> str | None:
        """Describes how a file differs from its document; None if it does not."""
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
    """Raises InvalidRequest for a count below 1."""
    if count < 1:
        raise InvalidRequest(f"{count} snapshots cannot be kept: the minimum is 1")


def is_work(key: str) -> bool:
    """Whether a key is that of a work object of a run."""
    return key.startswith(f"{WORK_FOLDER}/") and _RUN_FILES.fullmatch(key) is not None


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
        """The offset, by partition, from which a consumer continues after loading the rows."""
        return self.document.resume_offsets

    @property
    def paths(self) -> list[str]:
        """URLs of the files, or paths for a directory: `spark.read.parquet(*paths)`."""
        is_directory = find_scheme(self.url) == "file"
        root = split_directory(self.url) if is_directory else self.url
        return [f"{root}/{file.path}" for file in self.files]

    def batches(
        self, *, columns: Sequence[str] | None = None, partitions: Collection[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Reads the rows, with one file in memory at a time."""
        for file in self.files:
            if partitions is None or file.partition in partitions:
                opened = open_rows(self.objects.get(file.path), file, self.objects.name)
                yield from opened.iter_batches(columns=columns)

    def read(
        self, *, columns: Sequence[str] | None = None, partitions: Collection[int] | None = None
    ) -> pa.Table:
        """Reads all rows into one table."""
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
    """Opens a snapshot by its number, or the newest; raises NotFound."""
    address = get_store_address(place, settings)
    objects = address.objects()
    return Snapshot(address.url, objects, SnapshotStore(objects).get(snapshot))
