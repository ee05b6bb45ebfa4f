"""The sync state of a table, and the commits that advance it.

Layout     `varve.offsets`, `varve.marks`, `varve.starts`, `varve.sink` and `varve.run` in the
           summary of each snapshot that varve commits, and as properties of the table in the same
           commit. docs/reference/formats/table.md
Invariant  the state is that of the newest ancestor of the current snapshot that has one: a table
           that was rolled back has its earlier state. The properties are read only if every such
           snapshot has expired. A commit asserts the snapshot it was planned on; pyiceberg must not
           retry it on top of another, which would duplicate rows.
Invariant  a run loads a table, then writes a marker, then its first file or manifest. A run that
           finds the marker of another commits first, which fences the other, and then deletes the
           marker, and the other's files that no snapshot names. A fenced run that goes on loads the
           table again and takes another id, since files of the former may still be deleted.
Crash      the next run finds the marker of a killed run.
"""

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.expressions import BooleanExpression
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from varve.foundation.clock import Clock
from varve.foundation.errors import Corrupt, Fenced, NotFound, Unavailable
from varve.jobs.table.catalog import describe_table, translate_catalog_errors
from varve.jobs.table.data_files import DATA, RUN_MARKERS, TableFiles
from varve.topics import HistoryMark

OFFSETS: Final = "varve.offsets"
BATCH_MARKS: Final = "varve.marks"
CLEANED: Final = "varve.cleaned"
STARTS: Final = "varve.starts"
SYNCED: Final = "varve.synced.ms"
TIER: Final = "varve.tier"
THINNED: Final = "varve.thinned"
RUN: Final = "varve.run"
SINK: Final = "varve.sink"
TOPIC: Final = "varve.topic"
TOPIC_ID: Final = "varve.topic.id"
MODE: Final = "varve.mode"
FORMAT: Final = "varve.format"
SCHEMA: Final = "varve.schema"
AVRO: Final = "varve.avro"
FRAMED: Final = "varve.avro.framed"
BUCKETS: Final = "varve.buckets"

_REMOTE: Final = "cold"
"""The value of `varve.tier` for a topic with remote segments."""
_YES: Final = "true"
_RETRIES: Final = "commit.retry.num-retries"

PROPERTIES: Final = {
    "format-version": "2",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.parquet.compression-codec": "zstd",
}
"""Properties of new tables; they bound the metadata that commits accumulate."""
_MARKER_SUFFIX: Final = ".json"
_FENCE_ATTEMPTS_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class SyncState:
    """The next offset to read of each partition, and the log start up to which rows are expired.

    At `synced_ms` the table was up to date with the topic, which `is_remote` if it had remote
    segments. With `needs_rebuild` an erasure has removed single records whose keys may have older
    records in the log. `marks` identify the batches before the offsets; `cleaned` is the offset up
    to which each partition was compacted. `sink` is the last batch of the stream that writes the
    table; commits of other jobs, such as an erasure, keep it.
    """

    offsets: Mapping[int, int]
    starts: Mapping[int, int]
    synced_ms: int = 0
    is_remote: bool = False
    needs_rebuild: bool = False
    marks: Mapping[int, HistoryMark] = field(default_factory=dict)
    cleaned: Mapping[int, int] = field(default_factory=dict)
    sink: "SinkBatch | None" = None

    def to_summary(self, run_id: str) -> dict[str, str]:
        return {
            OFFSETS: _encode_by_partition(self.offsets),
            BATCH_MARKS: _encode_by_partition(
                {partition: mark.to_json() for partition, mark in self.marks.items()}
            ),
            CLEANED: _encode_by_partition(self.cleaned),
            STARTS: _encode_by_partition(self.starts),
            SYNCED: str(self.synced_ms),
            TIER: _REMOTE if self.is_remote else "",
            THINNED: _YES if self.needs_rebuild else "",
            SINK: "" if self.sink is None else str(self.sink),
            RUN: run_id,
        }

    def is_behind(self, other: "SyncState") -> bool:
        """Whether the other state has an offset beyond that of this one."""
        return any(
            self.offsets.get(partition, 0) < offset for partition, offset in other.offsets.items()
        )


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """A batch of a stream; batches of a sink have ascending numbers and are committed in order."""

    sink_id: str
    number: int

    def __str__(self) -> str:
        return f"{self.sink_id}-{self.number}"

    @classmethod
    def parse(cls, text: str) -> "SinkBatch | None":
        """Returns None for an empty text; raises ValueError for an invalid one."""
        sink_id, _, number = text.rpartition("-")
        return cls(sink_id, int(number)) if text else None


def read_sync_state(table: Table) -> SyncState:
    """Reads the state of the current snapshot."""
    for snapshot in ancestors_of(table.current_snapshot(), table.metadata):
        summary = summary_of(snapshot)
        if OFFSETS in summary:
            return _decode_state(summary, table)
    return _decode_state(table.properties, table)


def summary_of(snapshot: Snapshot) -> Mapping[str, str]:
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def runs_since(table: Table, base_id: int | None) -> set[str]:
    """Returns the runs that committed after a snapshot; all runs if it has expired."""
    runs: set[str] = set()
    for snapshot in ancestors_of(table.current_snapshot(), table.metadata):
        if snapshot.snapshot_id == base_id:
            break
        run = summary_of(snapshot).get(RUN)
        if run is not None:
            runs.add(run)
    return runs


def _encode_by_partition(values: Mapping[int, int] | Mapping[int, dict[str, int]]) -> str:
    return json.dumps({str(partition): values[partition] for partition in sorted(values)})


def _decode_state(properties: Mapping[str, str], table: Table) -> SyncState:
    try:
        offsets, starts, cleaned = (
            {
                int(name): int(number)
                for name, number in json.loads(properties.get(key, "{}")).items()
            }
            for key in (OFFSETS, STARTS, CLEANED)
        )
        synced_ms = int(properties.get(SYNCED, 0))
        marks = {
            int(name): HistoryMark.from_json(mark)
            for name, mark in json.loads(properties.get(BATCH_MARKS, "{}")).items()
        }
        sink = SinkBatch.parse(properties.get(SINK, ""))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(
            f"{describe_table(table)}: {OFFSETS}, {BATCH_MARKS}, {CLEANED}, {STARTS} or "
            f"{SINK} cannot be read ({type(error).__name__}: {error}): it is not known which "
            "records are in it. Drop the table and create it again"
        ) from error
    return SyncState(
        offsets,
        starts,
        synced_ms,
        properties.get(TIER) == _REMOTE,
        properties.get(THINNED) == _YES,
        marks,
        cleaned,
        sink,
    )


# Commits


class CommitConflict(Unavailable):
    """Another program has committed to the table: reload it and retry."""


@contextmanager
def translate_commit_errors(table: Table, *conflicts: type[Exception]) -> Iterator[None]:
    """Raises CommitConflict if the table has changed since it was loaded, or for `conflicts`."""
    conflict_types: tuple[type[Exception], ...] = (
        CommitFailedException,
        ValidationException,
        *conflicts,
    )
    try:
        with translate_catalog_errors(table):
            yield
    except conflict_types as error:
        raise CommitConflict(
            f"{describe_table(table)} was changed by another program during the run: run again"
        ) from error


def commit(
    table: Table,
    *,
    progress: SyncState,
    run_id: str,
    added: Iterable[DataFile] = (),
    removed: Sequence[DataFile] = (),
) -> None:
    """Commits one snapshot; raises CommitConflict if the table has changed since it was loaded.

    A commit without files is a fence: runs that loaded the table before can no longer commit.
    """
    summary = progress.to_summary(run_id)
    table.metadata.properties[_RETRIES] = "0"  # of this object, not of the table
    # NotFound: the base snapshot has expired, and its files are deleted.
    with translate_commit_errors(table, NotFound):
        transaction = table.transaction()
        transaction.set_properties(summary)
        update = transaction.update_snapshot(snapshot_properties=summary)
        with update.overwrite() if removed else update.merge_append() as files:
            for file in removed:
                files.delete_data_file(file)
            for file in added:
                files.append_data_file(file)
        transaction.commit_transaction()


def check_not_fenced(table: Table, base_id: int | None, run_id: str) -> None:
    """Raises Fenced if another run caused a conflict; it has deleted the files of this run."""
    others = runs_since(table, base_id) - {run_id}
    if others:
        raise Fenced(
            f"{describe_table(table)} was taken over by another run ({sorted(others)[0]}, "
            f"property {RUN}): this run changed nothing since, and need not be repeated"
        )


def snapshot_id(table: Table) -> int | None:
    snapshot = table.current_snapshot()
    return None if snapshot is None else snapshot.snapshot_id


def find_data_files(table: Table, row_filter: BooleanExpression) -> list[DataFile]:
    """Returns the files of the current snapshot whose bounds may match the filter."""
    with translate_catalog_errors(table):
        return [task.file for task in table.scan(row_filter).plan_files()]


def stream_data_files(table: Table) -> Iterator[DataFile]:
    """Yields the files of the current snapshot, manifest by manifest.

    A file's statistics take kilobytes: keep only the files that a task needs.
    """
    snapshot = table.current_snapshot()
    if snapshot is None:
        return
    with translate_catalog_errors(table):
        for manifest in snapshot.manifests(table.io):
            if manifest.content is ManifestContent.DATA:
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                    yield entry.data_file


def list_manifests(table: Table, snapshots: Iterable[Snapshot]) -> Iterator[tuple[str, list[str]]]:
    """Yields each manifest of the snapshots once, with its data files."""
    seen: set[str] = set()
    for snapshot in snapshots:
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                yield manifest.manifest_path, [entry.data_file.file_path for entry in entries]


def referenced_paths(table: Table) -> set[str]:
    """Returns every data file that a retained snapshot names."""
    with translate_catalog_errors(table):
        manifests = list_manifests(table, table.metadata.snapshots)
        return {path for _, paths in manifests for path in paths}


# Runs


def new_run_id() -> str:
    return uuid.uuid4().hex


def begin_run(tables: Sequence[Table], run_id: str, clock: Clock) -> None:
    """Writes the marker of a run to each of the tables."""
    text = json.dumps({"run": run_id, "began_ms": clock.now_ms()}).encode()
    for files in map(TableFiles.of, tables):
        with translate_catalog_errors(files.location):
            files.write_run_marker(run_id, text)


def fence_other_runs(tables: Sequence[Table], run_id: str, clock: Clock) -> list[str]:
    """Fences the runs with markers at a table or its side table; returns the deleted files.

    All tables are fenced before a file is deleted: a run commits to one, then to the other.
    """
    markers = {marker for table in tables for marker in find_run_markers(table)}
    others = sorted(markers - {run_id})
    for table in tables if others else ():
        _fence_table(table, run_id, clock)
    return [path for other in others for table in tables for path in sweep(table, other)]


def _fence_table(table: Table, run_id: str, clock: Clock) -> None:
    for attempts_left in reversed(range(_FENCE_ATTEMPTS_MAX)):
        attempt_id = new_run_id()
        begin_run([table], attempt_id, clock)
        try:
            commit(table, progress=read_sync_state(table), run_id=run_id)
            return
        except CommitConflict:
            if not attempts_left:
                raise
            with translate_catalog_errors(table):
                table.refresh()
        finally:
            _delete_run_marker(table, attempt_id)


def find_run_markers(table: Table) -> list[str]:
    """Returns the ids of runs that have started and not ended."""
    with translate_catalog_errors(table):
        markers = TableFiles.of(table).list_files(RUN_MARKERS)
    return [
        file.path.rpartition("/")[2].removesuffix(_MARKER_SUFFIX)
        for file in markers
        if file.path.endswith(_MARKER_SUFFIX)
    ]


def sweep(table: Table, run_id: str, committed: set[str] | None = None) -> list[str]:
    """Deletes the files of a run that no snapshot names, then its marker.

    A run passes its `committed` files, so that the snapshots need not be read.
    """
    files = TableFiles.of(table)
    with translate_catalog_errors(table):
        listed = files.list_files(f"{DATA}/{run_id}")
        kept = committed or set()
        if listed and committed is None:
            kept = referenced_paths(table)
        deleted = files.delete(file.path for file in listed if file.path not in kept)
    _delete_run_marker(table, run_id)
    return deleted


def _delete_run_marker(table: Table, run_id: str) -> None:
    files = TableFiles.of(table)
    with translate_catalog_errors(table):
        files.delete([f"{files.location}/{RUN_MARKERS}/{run_id}{_MARKER_SUFFIX}"])
