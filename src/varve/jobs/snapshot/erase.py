"""Takes rows out of all snapshots of a place, for good.

Invariant  files without the rows are written first, then every document that names an old file is
           replaced, then old files go; a reader finds a document whose files are all there, or asks
           again. Files that no document names go too: they may hold the rows as well. A document
           that lost single records of keys says so, and the next run does not go on from it.
Crash      may be repeated at any point: what is done stays, and the rest is found again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types

from varve.foundation.errors import ObjectNotFound, Unavailable
from varve.foundation.settings import GivenValue
from varve.jobs.derived_outputs import DerivedOutput, ErasedFile, ErasedOutput, ErasedRows
from varve.jobs.object_versions import ErasedVersions, erase_versions
from varve.jobs.snapshot.document import (
    DATA_FOLDER,
    WORK_FOLDER,
    SnapshotDocument,
    SnapshotFile,
)
from varve.jobs.snapshot.store import SnapshotStore, find_store_address, is_work, named_files
from varve.jobs.snapshot.tasks import describe, open_rows, write_rows
from varve.jobs.tier.address import TierAddress
from varve.object_store.opening import BUCKETS, find_scheme
from varve.object_store.s3_versions import S3Versions, open_versions

Find = Callable[[pa.Array, pa.Array, pa.Array], npt.NDArray[np.bool_]]

_LOOKED_AT: Final = ["partition", "offset", "key"]
_PASSES_MAX: Final = 8
"""Passes over a place: another follows when a run has added a snapshot meanwhile."""


def erase_from_snapshot(
    output: DerivedOutput, settings: Mapping[str, GivenValue], wanted: ErasedRows
) -> ErasedOutput:
    """Rewrites what holds rows that are to be erased, in every snapshot of the place."""
    address = _address(output, settings)
    return erase_from_store(
        SnapshotStore(address.open()),
        output.id,
        wanted,
        open_versions(address.url, dict(address.settings)),
    )


def count_in_snapshot(
    output: DerivedOutput, settings: Mapping[str, GivenValue], wanted: ErasedRows
) -> int:
    """How many rows are left that match, in all files of the place."""
    return count_in_store(SnapshotStore(_address(output, settings).open()), wanted)


def _address(output: DerivedOutput, settings: Mapping[str, GivenValue]) -> TierAddress:
    given: dict[str, GivenValue] = {**dict(output.how), **settings}
    if find_scheme(output.place) not in BUCKETS:
        given = {}  # a directory has none, and what is given is for the stores of others
    return find_store_address(output.place, given)


def erase_from_store(
    place: SnapshotStore,
    output_id: str,
    wanted: ErasedRows,
    versions: S3Versions | None = None,
) -> ErasedOutput:
    """The same for a place that is open; `versions` are those that its bucket keeps, if asked."""
    erasure = _Erasure(place, wanted)
    for _ in range(_PASSES_MAX):
        if erasure.run():
            gone = _erase_versions(versions, erasure)
            return ErasedOutput(
                output_id=output_id,
                rows=erasure.rows,
                files_before=tuple(_erased_file(file) for file, _ in erasure.changed.values()),
                files_after=tuple(
                    _erased_file(file) for _, file in erasure.changed.values() if file is not None
                ),
                removed=tuple(erasure.removed),
                versions=tuple(gone.to_json()),
                out_of_reach=(
                    *gone.out_of_reach,
                    *(() if gone.is_asked else _tell_versions(place, erasure.versioned)),
                    *_describe_incomplete(place, erasure.incomplete_snapshots),
                ),
            )
    raise Unavailable(
        f"{place.objects.name}: snapshots were added all the while; erase again when no run is "
        "under way"
    )


def _erase_versions(versions: S3Versions | None, erasure: "_Erasure") -> ErasedVersions:
    """Of the files that were removed now, and of all that runs ever handed to their tasks."""
    if versions is None:
        return ErasedVersions(is_asked=False)
    removed = set(erasure.removed)
    parts = [
        erase_versions(
            versions,
            f"{folder}/",
            is_removed=lambda key: key in removed or is_work(key),
            is_data=lambda key: True,
        )
        for folder in (DATA_FOLDER, WORK_FOLDER)
    ]
    return ErasedVersions(
        tuple(one for part in parts for one in part.removed),
        tuple(told for part in parts for told in part.out_of_reach),
    )


class _Erasure:
    """Passes over a place; `changed` are files that held rows, and those in their place."""

    def __init__(self, place: SnapshotStore, wanted: ErasedRows) -> None:
        self._place = place
        self._wanted = wanted
        self.rows = 0
        self.changed: dict[str, tuple[SnapshotFile, SnapshotFile | None]] = {}
        self.removed: list[str] = []
        self.versioned: set[str] = set()
        self.incomplete_snapshots: set[int] = set()
        self._incomplete_files: set[str] = set()

    def run(self) -> bool:
        """One pass; False when a snapshot was added meanwhile."""
        documents = self._place.documents()
        for file in {file.path: file for one in documents for file in one.files}.values():
            if file.path not in self.changed:
                self._clean(file)
        self._replace(documents)
        self._remove()
        return {one.key for one in self._place.documents()} <= {one.key for one in documents}

    def _clean(self, file: SnapshotFile) -> None:
        place = self._place
        opened = open_rows(place.objects.get(file.path), file, place.objects.name)
        found = find_rows(opened, self._wanted.find)
        if not found.any():
            return
        rows = opened.read().filter(pa.array(~found))
        cleaned = None
        if len(rows):
            data = write_rows(rows)
            cleaned = describe(rows, data, partition=file.partition, bucket=file.bucket)
            place.objects.put(cleaned.path, data)
        self.rows += int(found.sum())
        self.changed[file.path] = (file, cleaned)
        if find_rows(opened, self._wanted.find_single).any():
            self._incomplete_files.add(file.path)

    def _replace(self, documents: Sequence[SnapshotDocument]) -> None:
        """Documents without the old files; one that was removed meanwhile stays so."""
        still = {one.snapshot for one in self._place.documents()}
        for one in documents:
            if one.snapshot not in still or not self.changed.keys() & named_files([one]):
                continue
            files = [
                self.changed[file.path][1] if file.path in self.changed else file
                for file in one.files
            ]
            kept = tuple(file for file in files if file is not None)
            without = self._mark(replace(one, files=kept), one.files)
            self._place.objects.put(one.key, without.encode())

    def _mark(self, document: SnapshotDocument, before: Sequence[SnapshotFile]) -> SnapshotDocument:
        """Tells which partitions are thinned."""
        numbers = {file.partition for file in before if file.path in self._incomplete_files}
        if numbers:
            self.incomplete_snapshots.add(document.snapshot)
        partitions = [
            replace(one, is_thinned=True) if one.partition in numbers else one
            for one in document.partitions
        ]
        return replace(document, partitions=tuple(partitions))

    def _remove(self) -> None:
        """Old files, which no document names any more, and all others that none names."""
        orphans = [one.key for one in self._place.find_orphans()]
        others = [key for key in orphans if key not in self.changed]
        self.rows += sum(_count_orphan(self._place, key, self._wanted) for key in others)
        self.versioned |= {key for key in orphans if _is_versioned(self._place, key)}
        self._place.objects.delete(orphans)
        self.removed += orphans


def _tell_versions(place: SnapshotStore, keys: set[str]) -> tuple[str, ...]:
    if not keys:
        return ()
    return (
        f"{place.objects.name} keeps older versions of objects: {len(keys)} removed files of "
        "snapshots stay there until its lifecycle rule, or somebody, removes them",
    )


def _describe_incomplete(place: SnapshotStore, snapshots: set[int]) -> tuple[str, ...]:
    if not snapshots:
        return ()
    numbers = ", ".join(str(one) for one in sorted(snapshots))
    return (
        f"{place.objects.name}: snapshots {numbers:.200} lack keys of which the log has older "
        "records, the latest again now: take another snapshot, which is read in full",
    )


def _is_versioned(place: SnapshotStore, key: str) -> bool:
    try:
        return place.objects.head(key).version is not None
    except ObjectNotFound:
        return False


def _erased_file(file: SnapshotFile) -> ErasedFile:
    return ErasedFile(file.path, file.size, file.sha256, file.rows)


def find_rows(opened: pq.ParquetFile, find: Find) -> npt.NDArray[np.bool_]:
    """Which rows of a file match."""
    table = opened.read(columns=_LOOKED_AT)
    return find(table.column("partition"), table.column("offset"), table.column("key"))


def count_in_store(place: SnapshotStore, wanted: ErasedRows) -> int:
    """Matching rows in all files, those that no document names among them."""
    documents = place.documents()
    files = {file.path: file for one in documents for file in one.files}
    total = 0
    for file in files.values():
        opened = open_rows(place.objects.get(file.path), file, place.objects.name)
        total += int(find_rows(opened, wanted.find).sum())
    orphans = [one.key for one in place.find_orphans() if one.key not in named_files(documents)]
    return total + sum(_count_orphan(place, key, wanted) for key in orphans)


def _count_orphan(place: SnapshotStore, key: str, wanted: ErasedRows) -> int:
    """Matching rows of a file that no document names; of work under way every stream is read."""
    try:
        data = place.objects.get(key)
    except ObjectNotFound:
        return 0
    if key.endswith(".parquet"):
        return int(find_rows(pq.ParquetFile(pa.BufferReader(data)), wanted.find).sum())
    total, source = 0, pa.BufferReader(data)
    while source.tell() < len(data):
        with pa.ipc.open_stream(source) as stream:
            rows = stream.read_all()
        found = wanted.find(rows.column("partition"), rows.column("offset"), rows.column("key"))
        total += int(found.sum())
    return total
