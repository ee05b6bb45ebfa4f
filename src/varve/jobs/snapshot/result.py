"""What a snapshot is made with, and what became of it."""

from dataclasses import asdict, dataclass
from typing import Final

from varve.jobs.results import JobResult
from varve.jobs.snapshot.document import SnapshotDocument

DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSettings:
    """How a snapshot is taken.

    `bucket_bytes` is about how large files become; it decides on the buckets of a place when the
    first snapshot is taken, unless `buckets` says how many. `keep` is how many snapshots stay, None
    for all. Leftovers go when they are older than `grace_ms`.
    """

    bucket_bytes: int = 64 << 20
    buckets: int | None = None
    split_bytes: int = 32 << 20
    range_bytes: int = 64 << 20
    is_full: bool = False
    keep: int | None = None
    grace_ms: int = DAY_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """One partition of a snapshot."""

    partition: int
    start_offset: int
    resume_offset: int
    read_from: int
    rows: int
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotResult(JobResult):
    """A snapshot; `is_new` is False where one of the same offsets was there already.

    `files_written` and `bytes_written` are those of this run, `rows_read` the records that it took
    from the log. `removed` are older snapshots and their files, `swept` what killed runs had left.
    """

    place: str
    document: SnapshotDocument
    is_new: bool
    partitions: tuple[PartitionState, ...]
    files_written: int = 0
    bytes_written: int = 0
    rows_read: int = 0
    removed: tuple[str, ...] = ()
    swept: tuple[str, ...] = ()
    elapsed_ms: int = 0

    @property
    def snapshot(self) -> int:
        return self.document.snapshot

    @property
    def rows(self) -> int:
        return self.document.rows

    @property
    def resume_offsets(self) -> dict[int, int]:
        return self.document.resume_offsets

    def to_json(self) -> dict[str, object]:
        return {
            "place": self.place,
            "snapshot": self.snapshot,
            "previous": self.document.previous,
            "is_new": self.is_new,
            "topic": self.document.topic,
            "topic_id": self.document.topic_id,
            "taken_ms": self.document.taken_ms,
            "rows": self.rows,
            "bytes": self.document.size,
            "files": len(self.document.files),
            "files_written": self.files_written,
            "bytes_written": self.bytes_written,
            "rows_read": self.rows_read,
            "partitions": [asdict(one) for one in self.partitions],
            "removed": list(self.removed),
            "swept": list(self.swept),
            "elapsed_ms": self.elapsed_ms,
        }
