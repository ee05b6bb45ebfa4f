"""Reads snapshots, for a consumer that begins with the state and goes on from the log.

    snapshot = open_snapshot("s3://bucket/snapshots/orders")
    for batch in snapshot.batches():
        load(batch)
    consume_from(snapshot.resume_offsets)

Invariant  rows come by partition, then by bucket, then by key. A file is checked against its digest
           before a row of it is given.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa  # type: ignore[import-untyped]  # ships no types

from varve.foundation.errors import InvalidRequest
from varve.foundation.settings import GivenValue
from varve.jobs.snapshot.document import SnapshotDocument, SnapshotFile
from varve.jobs.snapshot.place import SnapshotPlace, get_place
from varve.jobs.snapshot.rows import make_columns, open_rows
from varve.object_store import ObjectStore
from varve.object_store.opening import find_scheme, split_directory


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
        self,
        *,
        columns: Sequence[str] | None = None,
        partitions: Collection[int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The rows, a file in memory at a time."""
        for file in self.files:
            if partitions is None or file.partition in partitions:
                opened = open_rows(self.objects.get(file.path), file, self.objects.name)
                yield from opened.iter_batches(columns=columns)

    def read(
        self,
        *,
        columns: Sequence[str] | None = None,
        partitions: Collection[int] | None = None,
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
        found = self.batches(columns=columns, partitions=partitions)
        return pa.Table.from_batches([batch.select(schema.names) for batch in found], schema)


def open_snapshot(
    place: str,
    snapshot: int | None = None,
    *,
    settings: Mapping[str, GivenValue] | None = None,
) -> Snapshot:
    """A snapshot of a place by its number, or the newest; raises NotFound."""
    address = get_place(place, settings)
    objects = address.open()
    return Snapshot(address.url, objects, SnapshotPlace(objects).get(snapshot))
