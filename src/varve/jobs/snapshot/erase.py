"""Removes rows from all snapshots of a store, for good; tasks read and rewrite the files.

Invariant  files without the rows are written first, then every document that names an old file is
           replaced, then old files are deleted; a reader finds a document whose files are all
           there, or retries. Files that no document names are deleted too: they may hold the rows
           as well. A document that lost single records of keys says so, and the next run does not
           continue from it.
Crash      may be repeated at any point: what is done stays, and the rest is found again.
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
from varve.jobs.derived_outputs import DerivedOutput, ErasedFile, ErasedOutput, ErasedRows
from varve.jobs.object_versions import ErasedVersions, erase_versions
from varve.jobs.snapshot.document import DATA_FOLDER, WORK_FOLDER, SnapshotDocument, SnapshotFile
from varve.jobs.snapshot.store import SnapshotStore, find_store_address, is_work
from varve.jobs.snapshot.tasks import StoreOpener, describe, open_rows, write_rows
from varve.jobs.tasks import LocalRunner, TaskRunner, pack_by_size
from varve.jobs.tier.bucket import Bucket
from varve.object_store import ObjectStore
from varve.object_store.opening import BUCKETS, find_scheme
from varve.object_store.s3_versions import S3Versions, open_versions

F = TypeVar("F", "SnapshotFile", "StoredRows")
Find = Callable[[pa.Array, pa.Array, pa.Array], npt.NDArray[np.bool_]]

_COLUMNS: Final = ["partition", "offset", "key"]
_PASSES_MAX: Final = 8
"""Passes over a store: another follows when a run has added a snapshot meanwhile."""
_TASK_BYTES: Final = 256 << 20
"""About how much of the files of a store one task reads."""
_TASK_FILES: Final = 256


def erase_from_snapshot(
    output: DerivedOutput,
    settings: Mapping[str, GivenValue],
    wanted: ErasedRows,
    *,
    runner: TaskRunner | None = None,
) -> ErasedOutput:
    """Rewrites what holds rows that are to be erased, in every snapshot of the store."""
    address = _find_address(output, settings)
    versions = open_versions(address.url, dict(address.settings))
    return erase_from_store(address, output.id, wanted, versions, runner=runner)


def count_in_snapshot(
    output: DerivedOutput,
    settings: Mapping[str, GivenValue],
    wanted: ErasedRows,
    *,
    runner: TaskRunner | None = None,
) -> int:
    """How many rows are left that match, in all files of the store."""
    return count_in_store(_find_address(output, settings), wanted, runner=runner)


def _find_address(output: DerivedOutput, settings: Mapping[str, GivenValue]) -> Bucket:
    opening: dict[str, GivenValue] = {**dict(output.how), **settings}
    if find_scheme(output.place) not in BUCKETS:
        opening = {}  # a directory has none, and what is given is for the stores of others
    return find_store_address(output.place, opening)


def erase_from_store(
    opener: StoreOpener,
    output_id: str,
    wanted: ErasedRows,
    versions: S3Versions | None = None,
    *,
    runner: TaskRunner | None = None,
) -> ErasedOutput:
    """The same for any store; `versions` are those that its bucket keeps, if it can be asked."""
    erasure = _SnapshotErasure(opener, wanted, runner or LocalRunner())
    for _ in range(_PASSES_MAX):
        if erasure.run():
            return erasure.result(output_id, _erase_versions(versions, erasure.removed))
    raise Unavailable(
        f"{erasure.name}: snapshots were added all the while; erase again when no run is under way"
    )


def count_in_store(
    opener: StoreOpener, wanted: ErasedRows, *, runner: TaskRunner | None = None
) -> int:
    """Matching rows in all files, those that no document names among them."""
    store = SnapshotStore(opener.objects())
    files = [StoredRows(file.path, file.size, file) for file in _list_files(store.documents())]
    named = {file.key for file in files}
    orphans = [file for file in _find_orphans(store) if file.key not in named]
    return _count_rows(opener, [*files, *orphans], wanted, runner or LocalRunner())


def _list_files(documents: Sequence[SnapshotDocument]) -> list[SnapshotFile]:
    """Each file once, however many snapshots name it."""
    return list({file.path: file for document in documents for file in document.files}.values())


def _find_orphans(store: SnapshotStore) -> "list[StoredRows]":
    return [StoredRows(entry.key, entry.size) for entry in store.find_orphans()]


def _count_rows(
    opener: StoreOpener, files: "Sequence[StoredRows]", wanted: ErasedRows, runner: TaskRunner
) -> int:
    tasks = [CountTask(opener, part) for part in _pack(files)]
    return sum(runner.run("erase from snapshots: count rows", tasks, wanted))


def _pack(files: Iterable[F]) -> Iterator[tuple[F, ...]]:
    """Files in parts for a task each."""
    for part in pack_by_size(
        files, lambda file: file.size, target_bytes=_TASK_BYTES, max_items=_TASK_FILES
    ):
        yield tuple(part)


def _erase_versions(versions: S3Versions | None, removed: Sequence[str]) -> ErasedVersions:
    """Of the files that were removed now, and of all that runs ever handed to their tasks."""
    if versions is None:
        return ErasedVersions(is_listed=False)
    keys = set(removed)
    parts = [
        erase_versions(
            versions,
            f"{folder}/",
            is_removed=lambda key: key in keys or is_work(key),
            is_data=lambda key: True,
        )
        for folder in (DATA_FOLDER, WORK_FOLDER)
    ]
    return ErasedVersions(
        tuple(version for part in parts for version in part.removed),
        tuple(sentence for part in parts for sentence in part.out_of_reach),
    )


class _SnapshotErasure:
    """Passes over a store; `_rewritten` are files that held rows, and what replaces them."""

    def __init__(self, opener: StoreOpener, wanted: ErasedRows, runner: TaskRunner) -> None:
        self._opener = opener
        self._store = SnapshotStore(opener.objects())
        self._wanted = wanted
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
        """One pass; False when a snapshot was added meanwhile."""
        documents = self._store.documents()
        self._rewrite(documents)
        self._replace(documents)
        self._remove()
        known = {document.key for document in documents}
        return {document.key for document in self._store.documents()} <= known

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
        tasks = [RewriteTask(self._opener, part) for part in _pack(files)]
        for part in self._runner.run("erase from snapshots: rewrite files", tasks, self._wanted):
            for file in part:
                self._rows += file.rows
                self._rewritten[file.before.path] = file

    def _replace(self, documents: Sequence[SnapshotDocument]) -> None:
        """Documents without the old files; one that was removed meanwhile stays so."""
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
        """The document with new files, and which of its partitions lost single records."""
        replaced = [(file, self._rewritten.get(file.path)) for file in document.files]
        files = [file if new is None else new.after for file, new in replaced]
        incomplete = {
            file.partition for file, new in replaced if new is not None and new.has_single_rows
        }
        partitions = [
            replace(partition, is_thinned=True) if partition.partition in incomplete else partition
            for partition in document.partitions
        ]
        kept = tuple(file for file in files if file is not None)
        return replace(document, files=kept, partitions=tuple(partitions))

    def _remove(self) -> None:
        """Old files, which no document names any more, and all others that none names."""
        orphans = _find_orphans(self._store)
        others = [file for file in orphans if file.key not in self._rewritten]
        self._rows += _count_rows(self._opener, others, self._wanted, self._runner)
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
            "snapshots stay there until its lifecycle rule, or somebody, removes them",
        )

    def _describe_incomplete(self) -> tuple[str, ...]:
        if not self._incomplete:
            return ()
        numbers = ", ".join(str(number) for number in sorted(self._incomplete))
        return (
            f"{self.name}: snapshots {numbers:.200} lack keys of which the log has older records, "
            "the latest again now: take another snapshot, which is read in full",
        )


def _to_erased_file(file: SnapshotFile) -> ErasedFile:
    return ErasedFile(file.path, file.size, file.sha256, file.rows)


# Tasks


@dataclass(frozen=True, slots=True)
class RewrittenFile:
    """A file that held `rows` to be erased; `after` is None where nothing else was in it.

    With `has_single_rows` some of them match by their offset alone, and their keys stay.
    """

    before: SnapshotFile
    after: SnapshotFile | None
    rows: int
    has_single_rows: bool


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """Writes files without the rows of a shared ErasedRows; gives those that held some."""

    store: StoreOpener
    files: tuple[SnapshotFile, ...]

    def run(self, shared: ErasedRows) -> list[RewrittenFile]:
        objects = self.store.objects()
        rewritten = (_rewrite_file(objects, file, shared) for file in self.files)
        return [file for file in rewritten if file is not None]


def _rewrite_file(
    objects: ObjectStore, file: SnapshotFile, wanted: ErasedRows
) -> RewrittenFile | None:
    opened = open_rows(objects.get(file.path), file, objects.name)
    matches = find_rows(opened, wanted.find)
    if not matches.any():
        return None
    rows = opened.read().filter(pa.array(~matches))
    after = None
    if len(rows):
        data = write_rows(rows)
        after = describe(rows, data, partition=file.partition, bucket=file.bucket)
        objects.put(after.path, data)
    has_single_rows = bool(find_rows(opened, wanted.find_single).any())
    return RewrittenFile(file, after, int(matches.sum()), has_single_rows)


@dataclass(frozen=True, slots=True)
class StoredRows:
    """A file with rows, and what its document says of it; None where no document names it."""

    key: str
    size: int
    file: SnapshotFile | None = None

    def count(self, objects: ObjectStore, wanted: ErasedRows) -> int:
        """Rows that match; of work under way every stream is read."""
        if self.file is not None:
            opened = open_rows(objects.get(self.key), self.file, objects.name)
            return int(find_rows(opened, wanted.find).sum())
        try:
            data = objects.get(self.key)
        except ObjectNotFound:
            return 0
        if self.key.endswith(".parquet"):
            return int(find_rows(pq.ParquetFile(pa.BufferReader(data)), wanted.find).sum())
        total, source = 0, pa.BufferReader(data)
        while source.tell() < len(data):
            with pa.ipc.open_stream(source) as stream:
                rows = stream.read_all()
            total += int(wanted.find(*(rows.column(name) for name in _COLUMNS)).sum())
        return total


@dataclass(frozen=True, slots=True)
class CountTask:
    """Counts the rows of a shared ErasedRows in files."""

    store: StoreOpener
    files: tuple[StoredRows, ...]

    def run(self, shared: ErasedRows) -> int:
        objects = self.store.objects()
        return sum(file.count(objects, shared) for file in self.files)


def find_rows(opened: pq.ParquetFile, find: Find) -> npt.NDArray[np.bool_]:
    """Which rows of a file match."""
    table = opened.read(columns=_COLUMNS)
    return find(*(table.column(name) for name in _COLUMNS))
