"""The document of a snapshot: its files, and the offsets from which a consumer continues.

Layout     JSON. docs/reference/formats/snapshot.md
Invariant  a document names every file of its snapshot, ordered by partition and bucket; the files
           exist as long as the document does.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Final

from pydantic import Field, TypeAdapter

from varve.disk import JsonDocument
from varve.foundation.errors import Corrupt, UnsupportedFormat
from varve.foundation.settings import LONG_MAX
from varve.topics import HistoryMark

_DOCUMENT: Final = JsonDocument(version=1, max_bytes=1 << 32)
SNAPSHOT_FOLDER: Final = "snapshot"
DATA_FOLDER: Final = "data"
WORK_FOLDER: Final = "work"
_SUFFIX: Final = ".json"
_DIGITS: Final = 20
"""Digits of a snapshot number in a key, so that keys sort like numbers."""

Count = Annotated[int, Field(ge=0, le=LONG_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFile:
    """One Parquet file: the rows of one bucket of keys of one partition."""

    path: str
    partition: Count
    bucket: Count
    rows: Count
    size: Count
    sha256: str
    min_offset: Count
    max_offset: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPartition:
    """The state of one partition: the latest record of each key in [start, resume).

    The records in [`read_from`, `resume_offset`) were read for this snapshot; earlier ones are
    those of the previous snapshot. `manifest_version` is None for a partition without remote
    segments. Tombstones below `cleaned_up_to` may have been compacted away. With `is_thinned` an
    erasure has removed single records whose keys may have older records in the log, so that the
    rows are no longer the state of the log. `mark` identifies the batch before `resume_offset`,
    None if there is none.
    """

    partition: Count
    start_offset: Count
    resume_offset: Count
    read_from: Count
    manifest_version: Count | None
    cleaned_up_to: Count
    is_thinned: bool = False
    mark: HistoryMark | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotDocument:
    """One snapshot; `previous` is the number of the snapshot that it continues from."""

    snapshot: Count
    previous: Count | None
    run: str
    topic: str
    topic_id: str
    taken_ms: Count
    buckets: Count
    columns: Mapping[str, str]
    partitions: tuple[SnapshotPartition, ...]
    files: tuple[SnapshotFile, ...]

    @property
    def key(self) -> str:
        return document_key(self.snapshot)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def resume_offsets(self) -> dict[int, int]:
        """The offset, by partition, from which a consumer continues after loading the rows."""
        return {partition.partition: partition.resume_offset for partition in self.partitions}

    def find_partition(self, partition: int) -> SnapshotPartition | None:
        return next((entry for entry in self.partitions if entry.partition == partition), None)

    def encode(self) -> bytes:
        return _DOCUMENT.encode({"rows": self.rows, "bytes": self.size, **asdict(self)})

    @classmethod
    def decode(cls, data: bytes, where: str) -> "SnapshotDocument":
        """Raises Corrupt for invalid data, UnsupportedFormat for a document of a later version."""
        try:
            _DOCUMENT.decode(data, where)
            document = _DECODER.validate_json(data, strict=True)
            _check(document)
        except UnsupportedFormat:
            raise
        except (Corrupt, ValueError, TypeError) as error:
            raise Corrupt(
                f"{where}: cannot be read as a snapshot ({type(error).__name__}: {error!s:.400}): "
                "restore it from a copy, or remove it and take another"
            ) from error
        return document


_DECODER: Final = TypeAdapter(SnapshotDocument)


def _check(document: SnapshotDocument) -> None:
    """Raises ValueError for inconsistent fields."""
    numbers = [partition.partition for partition in document.partitions]
    if not numbers or numbers != sorted(set(numbers)):
        raise ValueError(f"its partitions are {numbers!s:.200}")
    if document.buckets < 1:
        raise ValueError(f"it has {document.buckets} buckets")
    for partition in document.partitions:
        if partition.mark is not None:
            HistoryMark.from_json(partition.mark.to_json())
        if not partition.start_offset <= partition.read_from <= partition.resume_offset:
            raise ValueError(
                f"partition {partition.partition} starts at {partition.start_offset}, is read from "
                f"{partition.read_from} and resumes at {partition.resume_offset}"
            )
    for file in document.files:
        if file.partition not in numbers or file.bucket >= document.buckets:
            raise ValueError(
                f"{file.path!r:.200} is of partition {file.partition}, bucket {file.bucket}"
            )


def document_key(snapshot: int) -> str:
    return f"{SNAPSHOT_FOLDER}/{snapshot:0{_DIGITS}}{_SUFFIX}"


def find_snapshot(key: str) -> int | None:
    """Parses the snapshot number from the key of a document; None for other objects."""
    digits = key.removeprefix(f"{SNAPSHOT_FOLDER}/").removesuffix(_SUFFIX)
    is_document = len(digits) == _DIGITS and digits.isdigit()
    return int(digits) if is_document and key == document_key(int(digits)) else None
