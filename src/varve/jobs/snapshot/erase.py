"""Erases rows from all snapshots of a store; tasks read and rewrite the files.

Invariant  files without the rows are written first, then every document that names an old file is
           replaced, then old files are deleted; a reader finds a document whose files all exist, or
           retries. Files that no document names are deleted too, since they may contain the rows.
           A document that lost single records of keys is marked as thinned, and the next run does
           not continue from it.
Crash      may be run again at any point: it continues with the remaining files.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types

from varve.foundation.errors import ObjectNotFound, Unavailable
from varve.foundation.settings import GivenValue
from varve.jobs.derived_outputs import ErasedFile, ErasedOutput, ErasedRows
from varve.jobs.object_versions import ErasedVersions, erase_versions
from varve.jobs.snapshot.document import DATA_FOLDER, WORK_FOLDER, SnapshotDocument, SnapshotFile
from varve.jobs.snapshot.store import SnapshotStore, find_store_address, is_work
from varve.jobs.snapshot.tasks import describe, open_rows, write_rows
from varve.jobs.tasks import LocalRunner, TaskRunner, pack_by_size
from varve.jobs.tier.bucket import Bucket, BucketAccess
from varve.object_store import ObjectStore
from varve.object_store.opening import BUCKETS, find_scheme
from varve.object_store.s3_versions import S3Versions, open_versions
from varve.topics.outputs import DerivedOutput

F = TypeVar("F", "SnapshotFile", "StoredRows")
RowFinder = Callable[[pa.Array, pa.Array, pa.Array], npt.NDArray[np.bool_]]

_COLUMNS: Final = ["partition", "offset", "key"]
_PASSES_MAX: Final = 8
"""Passes over a store; another follows if a snapshot was added during the pass."""
_TASK_BYTES: Final = 256 << 20
"""Approximate bytes of files that one task reads."""
_TASK_FILES: Final = 256
"""Files that one task reads: each costs a request, whatever its size."""


def erase_from_snapshot(
    output: DerivedOutput,
    settings: Mapping[str, GivenValue],
    erased: ErasedRows,
    *,
    runner: TaskRunner | None = None,
) -> ErasedOutput:
    """Erases rows from every snapshot of the store of an output."""
    address = _find_address(output, settings)
    versions = open_versions(address.url, dict(address.settings))
    return erase_from_store(address, output.id, erased, versions, runner=runner)


def count_in_snapshot(
    output: DerivedOutput,
    settings: Mapping[str, GivenValue],
    erased: ErasedRows,
    *,
    runner: TaskRunner | None = None,
) -> int:
    """Counts the matching rows in all files of the store of an output."""
    return count_in_store(_find_address(output, settings), erased, runner=runner)


def _find_address(output: DerivedOutput, settings: Mapping[str, GivenValue]) -> Bucket:
    store_settings: dict[str, GivenValue] = {**dict(output.how), **settings}
    if find_scheme(output.place) not in BUCKETS:
        store_settings = {}  # a directory takes no settings; these are for object stores
    return find_store_address(output.place, store_settings)


def erase_from_store(
    place: BucketAccess,
    output_id: str,
    erased: ErasedRows,
    versions: S3Versions | None = None,
    *,
    runner: TaskRunner | None = None,
) -> ErasedOutput:
    """Erases rows from a store; `versions` lists object versions, None if it cannot."""
    erasure = _SnapshotErasure(place, erased, runner or LocalRunner())
    for _ in range(_PASSES_MAX):
        if erasure.run():
            return erasure.result(output_id, _erase_versions(versions, erasure.removed))
    raise Unavailable(
        f"{erasure.name}: snapshots were added during each of {_PASSES_MAX} passes; erase again "
        "when no snapshot is being taken"
    )


def count_in_store(
    place: BucketAccess, erased: ErasedRows, *, runner: TaskRunner | None = None
) -> int:
    """Counts the matching rows in all files, unreferenced files included."""
    store = SnapshotStore(place.objects())
    files = [StoredRows(file.path, file.size, file) for file in _list_files(store.documents())]
    named = {file.key for file in files}
    orphans = [file for file in _find_orphans(store) if file.key not in named]
    return _count_rows(place, [*files, *orphans], erased, runner or LocalRunner())


def _list_files(documents: Sequence[SnapshotDocument]) -> list[SnapshotFile]:
    """Lists each file once, however many snapshots name it."""
    return list({file.path: file for document in documents for file in document.files}.values())


def _find_orphans(store: SnapshotStore) -> "list[StoredRows]":
    return [StoredRows(entry.key, entry.size) for entry in store.find_orphans()]


def _count_rows(
    place: BucketAccess, files: "Sequence[StoredRows]", erased: ErasedRows, runner: TaskRunner
) -> int:
    tasks = [CountTask(place, part) for part in _pack(files)]
    return sum(runner.run("erase from snapshots: count rows", tasks, erased))


def _pack(files: Iterable[F]) -> Iterator[tuple[F, ...]]:
    """Packs files into one tuple per task."""
    for part in pack_by_size(
        files, lambda file: file.size, target_bytes=_TASK_BYTES, max_items=_TASK_FILES
    ):
        yield tuple(part)


def _erase_versions(versions: S3Versions | None, removed: Sequence[str]) -> ErasedVersions:
    """Deletes the versions of removed files, and those of all work objects of runs."""
    if versions is None:
        return ErasedVersions(is_listed=False)
    keys = set(removed)
    return ErasedVersions.join(
        [
            erase_versions(
                versions,
                f"{folder}/",
                is_removed=lambda key: key in keys or is_work(key),
                is_data=lambda key: True,
            )
            for folder in (DATA_FOLDER, WORK_FOLDER)
        ]
    )


class _SnapshotErasure:
    """Erases rows from a store; `_rewritten` maps paths of files with matches to new files."""

    def __init__(self, place: BucketAccess, erased: ErasedRows, runner: TaskRunner) -> None:
        self._place = place
        self._store = SnapshotStore(place.objects())
        self._erased = erased
        self._runner = runner
        self._rows = 0
        self._rewritten: dict[str, RewrittenFile] = {}
        self._versioned: set[str] = set()
        self._incomplete: set[int] = set()
        self.removed: list[str] = []

    @property
    def name(self) -> str:
        return self._store.objects.name

    def run(self) -> bool:
        """Runs one pass; False if a snapshot was added during it."""
        documents = self._store.documents()
        self._rewrite(documents)
        self._replace(documents)
        self._remove()
        keys = {document.key for document in documents}
        return {document.key for document in self._store.documents()} <= keys

    def result(self, output_id: str, versions: ErasedVersions) -> ErasedOutput:
        files = self._rewritten.values()
        return ErasedOutput(
            output_id=output_id,
            rows=self._rows,
            files_before=tuple(_to_erased_file(file.before) for file in files),
            files_after=tuple(
                _to_erased_file(file.after) for file in files if file.after is not None
            ),
            removed=tuple(self.removed),
            versions=tuple(versions.to_json()),
            out_of_reach=(
                *versions.out_of_reach,
                *(() if versions.is_listed else self._describe_versions()),
                *self._describe_incomplete(),
            ),
        )

    def _rewrite(self, documents: Sequence[SnapshotDocument]) -> None:
        files = [file for file in _list_files(documents) if file.path not in self._rewritten]
        tasks = [RewriteTask(self._place, part) for part in _pack(files)]
        for part in self._runner.run("erase from snapshots: rewrite files", tasks, self._erased):
            for file in part:
                self._rows += file.rows
                self._rewritten[file.before.path] = file

    def _replace(self, documents: Sequence[SnapshotDocument]) -> None:
        """Replaces the documents that name old files, except documents removed during the pass."""
        current = {document.snapshot for document in self._store.documents()}
        for document in documents:
            touched = [
                self._rewritten[file.path]
                for file in document.files
                if file.path in self._rewritten
            ]
            if document.snapshot in current and touched:
                self._store.objects.put(document.key, self._without_rows(document).encode())
                if any(file.has_single_rows for file in touched):
                    self._incomplete.add(document.snapshot)

    def _without_rows(self, document: SnapshotDocument) -> SnapshotDocument:
        """Returns the document with the new files; marks partitions that lost single records."""
        replaced = [(file, self._rewritten.get(file.path)) for file in document.files]
        files = [file if new is None else new.after for file, new in replaced]
        incomplete = {
            file.partition for file, new in replaced if new is not None and new.has_single_rows
        }
        partitions = [
            replace(partition, is_thinned=True) if partition.partition in incomplete else partition
            for partition in document.partitions
        ]
        remaining = tuple(file for file in files if file is not None)
        return replace(document, files=remaining, partitions=tuple(partitions))

    def _remove(self) -> None:
        """Deletes all files that no document names: the old files, and leftovers of runs."""
        orphans = _find_orphans(self._store)
        others = [file for file in orphans if file.key not in self._rewritten]
        self._rows += _count_rows(self._place, others, self._erased, self._runner)
        keys = [file.key for file in orphans]
        self._versioned |= {key for key in keys if self._is_versioned(key)}
        self._store.objects.delete(keys)
        self.removed += keys

    def _is_versioned(self, key: str) -> bool:
        try:
            return self._store.objects.head(key).version is not None
        except ObjectNotFound:
            return False

    def _describe_versions(self) -> tuple[str, ...]:
        if not self._versioned:
            return ()
        return (
            f"{self.name} keeps older versions of objects: {len(self._versioned)} removed files of "
            "snapshots stay there until a lifecycle rule of the bucket or a user removes them",
        )

    def _describe_incomplete(self) -> tuple[str, ...]:
        if not self._incomplete:
            return ()
        numbers = ", ".join(str(number) for number in sorted(self._incomplete))
        return (
            f"{self.name}: snapshots {numbers:.200} lack keys whose older records are now the "
            "latest in the log: take another snapshot, which is read in full",
        )


def _to_erased_file(file: SnapshotFile) -> ErasedFile:
    return ErasedFile(file.path, file.size, file.sha256, file.rows)


# Tasks


@dataclass(frozen=True, slots=True)
class RewrittenFile:
    """A file with `rows` matching rows; `after` is None if all its rows matched.

    With `has_single_rows` some rows matched by offset alone, so that older records of their keys
    may be the latest now.
    """

    before: SnapshotFile
    after: SnapshotFile | None
    rows: int
    has_single_rows: bool


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """Writes files without the rows of the shared ErasedRows; returns those with matches."""

    store: BucketAccess
    files: tuple[SnapshotFile, ...]

    def run(self, shared: ErasedRows) -> list[RewrittenFile]:
        objects = self.store.objects()
        rewritten = (_rewrite_file(objects, file, shared) for file in self.files)
        return [file for file in rewritten if file is not None]


def _rewrite_file(
    objects: ObjectStore, file: SnapshotFile, erased: ErasedRows
) -> RewrittenFile | None:
    opened = open_rows(objects.get(file.path), file, objects.name)
    matches = find_rows(opened, erased.find)
    if not matches.any():
        return None
    rows = opened.read().filter(pa.array(~matches))
    after = None
    if len(rows):
        data = write_rows(rows)
        after = describe(rows, data, partition=file.partition, bucket=file.bucket)
        objects.put(after.path, data)
    has_single_rows = bool(find_rows(opened, erased.find_single).any())
    return RewrittenFile(file, after, int(matches.sum()), has_single_rows)


@dataclass(frozen=True, slots=True)
class StoredRows:
    """A stored file with rows; `file` is None if no document names it."""

    key: str
    size: int
    file: SnapshotFile | None = None

    def count(self, objects: ObjectStore, erased: ErasedRows) -> int:
        """Counts the matching rows of a Parquet file, or of all streams of a work object."""
        if self.file is not None:
            opened = open_rows(objects.get(self.key), self.file, objects.name)
            return int(find_rows(opened, erased.find).sum())
        try:
            data = objects.get(self.key)
        except ObjectNotFound:
            return 0
        if self.key.endswith(".parquet"):
            return int(find_rows(pq.ParquetFile(pa.BufferReader(data)), erased.find).sum())
        total, source = 0, pa.BufferReader(data)
        while source.tell() < len(data):
            with pa.ipc.open_stream(source) as stream:
                rows = stream.read_all()
            total += int(erased.find(*(rows.column(name) for name in _COLUMNS)).sum())
        return total


@dataclass(frozen=True, slots=True)
class CountTask:
    """Counts the rows of the shared ErasedRows in files."""

    store: BucketAccess
    files: tuple[StoredRows, ...]

    def run(self, shared: ErasedRows) -> int:
        objects = self.store.objects()
        return sum(file.count(objects, shared) for file in self.files)


def find_rows(opened: pq.ParquetFile, find: RowFinder) -> npt.NDArray[np.bool_]:
    """Marks the matching rows of a file."""
    table = opened.read(columns=_COLUMNS)
    return find(*(table.column(name) for name in _COLUMNS))
