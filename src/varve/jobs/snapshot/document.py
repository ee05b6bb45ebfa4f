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
    `cleaned_up_to` may have left the log.
    """

    partition: int
    start_offset: int
    resume_offset: int
    read_from: int
    manifest_version: int | None
    cleaned_up_to: int


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
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Corrupt(
                f"{where}: cannot be read as a snapshot ({type(error).__name__}: {error}): put it "
                "back from a copy, or remove it and take another"
            ) from error


def _read(document: Mapping[str, Any]) -> SnapshotDocument:
    return SnapshotDocument(
        snapshot=int(document["snapshot"]),
        previous=None if document["previous"] is None else int(document["previous"]),
        run=str(document["run"]),
        topic=str(document["topic"]),
        topic_id=str(document["topic_id"]),
        taken_ms=int(document["taken_ms"]),
        buckets=int(document["buckets"]),
        columns={str(name): str(type) for name, type in document["columns"].items()},
        partitions=tuple(SnapshotPartition(**one) for one in document["partitions"]),
        files=tuple(SnapshotFile(**one) for one in document["files"]),
    )


def document_key(snapshot: int) -> str:
    return f"{SNAPSHOT_FOLDER}/{snapshot:0{_DIGITS}}{_SUFFIX}"


def find_snapshot(key: str) -> int | None:
    """The number that the key of a document tells; None for other objects."""
    digits = key.removeprefix(f"{SNAPSHOT_FOLDER}/").removesuffix(_SUFFIX)
    is_document = len(digits) == _DIGITS and digits.isdigit()
    return int(digits) if is_document and key == document_key(int(digits)) else None
