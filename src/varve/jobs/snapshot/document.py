"""The document of one snapshot: which files make up the state, and where to read on.

Layout     JSON. docs/formats/snapshot.md
Invariant  a document names every file of its snapshot, in order of partitions and buckets; what it
           names is there as long as the document is.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from varve.foundation.errors import Corrupt, UnsupportedFormat
from varve.foundation.settings import LONG_MAX
from varve.jobs.source.history_mark import HistoryMark

FORMAT: Final = 1
SNAPSHOT_FOLDER: Final = "snapshot"
DATA_FOLDER: Final = "data"
WORK_FOLDER: Final = "work"
_SUFFIX: Final = ".json"
_DIGITS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFile:
    """One Parquet file: the rows of a partition whose keys fall into a bucket."""

    path: str
    partition: int
    bucket: int
    rows: int
    size: int
    sha256: str
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPartition:
    """One partition: the state of the records [start, resume), of which [read from, resume) were
    read for this snapshot and the rest was taken over.

    `manifest_version` is that of the cold tier, None where there was none. Tombstones below
    `cleaned_up_to` may have left the log. Where it `is_thinned` an erasure took single records of
    keys, of which older ones may be the latest now: it is no more the state of the log. `mark` is
    that of the batch in front of `resume_offset`, None where there was none.
    """

    partition: int
    start_offset: int
    resume_offset: int
    read_from: int
    manifest_version: int | None
    cleaned_up_to: int
    is_thinned: bool = False
    mark: HistoryMark | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotDocument:
    """One snapshot; `previous` is the number of the one that it was made from."""

    snapshot: int
    previous: int | None
    run: str
    topic: str
    topic_id: str
    taken_ms: int
    buckets: int
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
        """Where a consumer that has loaded the rows reads on, by partition."""
        return {one.partition: one.resume_offset for one in self.partitions}

    def find_partition(self, partition: int) -> SnapshotPartition | None:
        return next((one for one in self.partitions if one.partition == partition), None)

    def encode(self) -> bytes:
        document = {
            "format": FORMAT,
            "snapshot": self.snapshot,
            "previous": self.previous,
            "run": self.run,
            "topic": self.topic,
            "topic_id": self.topic_id,
            "taken_ms": self.taken_ms,
            "rows": self.rows,
            "bytes": self.size,
            "buckets": self.buckets,
            "columns": dict(self.columns),
            "partitions": [asdict(one) for one in self.partitions],
            "files": [asdict(one) for one in self.files],
        }
        return json.dumps(document, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes, where: str) -> "SnapshotDocument":
        """Raises Corrupt for what is none, UnsupportedFormat for one of a later varve."""
        try:
            document: dict[str, Any] = json.loads(data)
            if document["format"] != FORMAT:
                raise UnsupportedFormat(
                    f"{where}: format {document['format']}, this varve knows {FORMAT}: read it "
                    "with a later one"
                )
            return _read(document)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Corrupt(
                f"{where}: cannot be read as a snapshot ({type(error).__name__}: {error}): put it "
                "back from a copy, or remove it and take another"
            ) from error


def _read(document: Mapping[str, Any]) -> SnapshotDocument:
    read = SnapshotDocument(
        snapshot=_number(document, "snapshot"),
        previous=_find_number(document, "previous"),
        run=_text(document, "run"),
        topic=_text(document, "topic"),
        topic_id=_text(document, "topic_id"),
        taken_ms=_number(document, "taken_ms"),
        buckets=_number(document, "buckets"),
        columns={str(name): str(type) for name, type in document["columns"].items()},
        partitions=tuple(_read_partition(one) for one in document["partitions"]),
        files=tuple(_read_file(one) for one in document["files"]),
    )
    _check(read)
    return read


def _read_partition(entry: Mapping[str, Any]) -> SnapshotPartition:
    return SnapshotPartition(
        partition=_number(entry, "partition"),
        start_offset=_number(entry, "start_offset"),
        resume_offset=_number(entry, "resume_offset"),
        read_from=_number(entry, "read_from"),
        manifest_version=_find_number(entry, "manifest_version"),
        cleaned_up_to=_number(entry, "cleaned_up_to"),
        is_thinned=_flag(entry, "is_thinned"),
        mark=None if entry.get("mark") is None else HistoryMark.of_json(entry["mark"]),
    )


def _read_file(entry: Mapping[str, Any]) -> SnapshotFile:
    return SnapshotFile(
        path=_text(entry, "path"),
        partition=_number(entry, "partition"),
        bucket=_number(entry, "bucket"),
        rows=_number(entry, "rows"),
        size=_number(entry, "size"),
        sha256=_text(entry, "sha256"),
        min_offset=_number(entry, "min_offset"),
        max_offset=_number(entry, "max_offset"),
    )


def _check(read: SnapshotDocument) -> None:
    """Raises ValueError for what contradicts itself."""
    numbers = [one.partition for one in read.partitions]
    if not numbers or numbers != sorted(set(numbers)):
        raise ValueError(f"its partitions are {numbers!s:.200}")
    if read.buckets < 1:
        raise ValueError(f"it has {read.buckets} buckets")
    for one in read.partitions:
        if not one.start_offset <= one.read_from <= one.resume_offset:
            raise ValueError(
                f"partition {one.partition} starts at {one.start_offset}, is read from "
                f"{one.read_from} and resumes at {one.resume_offset}"
            )
    for file in read.files:
        if file.partition not in numbers or file.bucket >= read.buckets:
            raise ValueError(
                f"{file.path!r:.200} is of partition {file.partition}, bucket {file.bucket}"
            )


def _number(entry: Mapping[str, Any], name: str) -> int:
    value = entry[name]
    if type(value) is not int or not 0 <= value <= LONG_MAX:
        raise ValueError(f"{name} is {value!r:.80}, not a number from 0 to {LONG_MAX}")
    return value


def _find_number(entry: Mapping[str, Any], name: str) -> int | None:
    return None if entry[name] is None else _number(entry, name)


def _flag(entry: Mapping[str, Any], name: str) -> bool:
    """False where it is not told."""
    value = entry.get(name, False)
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {value!r:.80}, neither true nor false")
    return value


def _text(entry: Mapping[str, Any], name: str) -> str:
    value = entry[name]
    if not isinstance(value, str):
        raise ValueError(f"{name} is {value!r:.80}, not a text")
    return value


def document_key(snapshot: int) -> str:
    return f"{SNAPSHOT_FOLDER}/{snapshot:0{_DIGITS}}{_SUFFIX}"


def find_snapshot(key: str) -> int | None:
    """The number that the key of a document tells; None for other objects."""
    digits = key.removeprefix(f"{SNAPSHOT_FOLDER}/").removesuffix(_SUFFIX)
    is_document = len(digits) == _DIGITS and digits.isdigit()
    return int(digits) if is_document and key == document_key(int(digits)) else None
