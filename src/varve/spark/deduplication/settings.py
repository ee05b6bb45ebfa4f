"""The settings of a deduplication, the file that binds its checkpoint, and its results.

Layout     `varve-dedup.json` in the checkpoint directory, beside Spark's own files, written when
           the first run begins. docs/reference/formats/dedup-state.md
Invariant  a checkpoint is bound to one definition of a duplicate, one topic, one output and one
           number of state partitions. A run with others is refused before it changes anything.
Crash      the file is written under another name and renamed, before Spark writes its first file.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final, Protocol

from varve.dedup.rules import Counts, DedupRules, LatePolicy
from varve.foundation.errors import Corrupt, InvalidRequest

BATCH_BYTES: Final = 256 << 20
STATE_PARTITIONS_MAX: Final = 256
"""The number of a state partition is a byte in `deal_ids`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupSettings(DedupRules):
    """The rules of a stream; the policy for late records also applies to those from the future.

    `side_topic` gets late records under LatePolicy.SIDE. The checkpoint fixes `state_partitions`
    and all rules that decide which records are duplicates.
    """

    side_topic: str | None = None
    batch_bytes: int = BATCH_BYTES
    state_partitions: int | None = None
    read_options: tuple[tuple[str, str], ...] = field(default=())

    @classmethod
    def of_rules(cls, rules: DedupRules, **others: Any) -> "DedupSettings":
        """The rules, with the fields that only a stream has."""
        return cls(**{part.name: getattr(rules, part.name) for part in fields(rules)}, **others)

    def __post_init__(self) -> None:
        DedupRules.__post_init__(self)
        object.__setattr__(self, "future", self.late)
        if (self.late is LatePolicy.SIDE) != (self.side_topic is not None):
            raise InvalidRequest(
                "a side topic requires the policy side for late records, and vice versa: give both"
            )
        count = self.state_partitions
        if count is not None and not 1 <= count <= STATE_PARTITIONS_MAX:
            raise InvalidRequest(
                f"state_partitions is {count}, it must be 1 to {STATE_PARTITIONS_MAX}"
            )
        if self.batch_bytes < 1:
            raise InvalidRequest(f"batch_bytes is {self.batch_bytes}, it must be at least 1")


# What a checkpoint is bound to


FILE: Final = "varve-dedup.json"
SPARK_METADATA_FILE: Final = "metadata"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupSpec:
    """The properties of a deduplication that its checkpoint fixes."""

    topic: str
    topic_id: str
    output: str
    by: str
    before_ms: int
    after_ms: int
    is_refreshing: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpec:
    """The content of the file: the deduplication, and the secret and keys drawn for it."""

    spec: DedupSpec
    secret: tuple[int, int]
    bucket_keys: tuple[int, ...]

    @property
    def sink_id(self) -> str:
        """The same for all runs of a checkpoint."""
        return f"dedup-{self.secret[0] ^ self.secret[1]:016x}"


class CheckpointFiles(Protocol):
    """The files of a checkpoint directory, wherever Spark keeps it."""

    def find(self, name: str) -> bytes | None: ...
    def put(self, name: str, data: bytes) -> None: ...


class HadoopFiles:
    """The files through the Hadoop file system of the Spark session."""

    def __init__(self, spark: Any, location: str) -> None:
        self._hadoop = spark._jvm.org.apache.hadoop.fs
        self._location = location
        directory = self._hadoop.Path(location)
        self._fs = directory.getFileSystem(spark._jsc.hadoopConfiguration())
        self._io_utils = spark._jvm.org.apache.commons.io.IOUtils

    def find(self, name: str) -> bytes | None:
        path = self._hadoop.Path(self._location, name)
        if not self._fs.exists(path):
            return None
        stream = self._fs.open(path)
        try:
            return bytes(self._io_utils.toByteArray(stream))
        finally:
            stream.close()

    def put(self, name: str, data: bytes) -> None:
        temporary = self._hadoop.Path(self._location, f".{name}.tmp")
        stream = self._fs.create(temporary, True)
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()
        self._fs.rename(temporary, self._hadoop.Path(self._location, name))


def bind_checkpoint(
    files: CheckpointFiles,
    spec: DedupSpec,
    *,
    where: str,
    partitions: int | None,
    draw_secret: Callable[[], tuple[int, int]],
    draw_keys: Callable[[], Sequence[int]],
) -> CheckpointSpec:
    """Reads the file, or writes it to a new checkpoint; raises InvalidRequest if it differs."""
    data = files.find(FILE)
    if data is None:
        if files.find(SPARK_METADATA_FILE) is not None:
            raise InvalidRequest(
                f"{where} is the checkpoint of another query ({FILE} is missing): name another "
                "directory"
            )
        bound = CheckpointSpec(spec=spec, secret=draw_secret(), bucket_keys=tuple(draw_keys()))
        files.put(FILE, encode_spec(bound))
        return bound
    bound = decode_spec(data, f"{where}/{FILE}")
    for declared in fields(DedupSpec):
        stored, requested = getattr(bound.spec, declared.name), getattr(spec, declared.name)
        if stored != requested:
            raise InvalidRequest(
                f"the checkpoint {where} was created with {declared.name}={stored!r:.200}, and "
                f"cannot continue with {requested!r:.200}: use the same value, or a new checkpoint"
            )
    if partitions is not None and partitions != len(bound.bucket_keys):
        raise InvalidRequest(
            f"the checkpoint {where} has {len(bound.bucket_keys)} partitions of state, and cannot "
            f"continue with {partitions}: leave the number out, or use a new checkpoint"
        )
    return bound


def encode_spec(bound: CheckpointSpec) -> bytes:
    document = {
        "format": _FORMAT,
        **asdict(bound.spec),
        "secret": [f"{word:016x}" for word in bound.secret],
        "bucket_keys": list(bound.bucket_keys),
    }
    return json.dumps(document, indent=1).encode()


def decode_spec(data: bytes, where: str) -> CheckpointSpec:
    """Raises Corrupt for a file that is not of this format."""
    try:
        document: dict[str, Any] = json.loads(data)
        if document["format"] != _FORMAT:
            raise ValueError(f"format {document['format']}, this varve reads {_FORMAT}")
        first, second = (int(word, 16) for word in document["secret"])
        return CheckpointSpec(
            spec=DedupSpec(
                **{declared.name: document[declared.name] for declared in fields(DedupSpec)}
            ),
            secret=(first, second),
            bucket_keys=tuple(int(key) for key in document["bucket_keys"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(
            f"{where} cannot be read ({error}): restore it from a copy, or start with a new "
            "checkpoint"
        ) from error


# Results


BATCHES_SHOWN: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupBatch:
    """One batch; its late records are those below `watermark_ms`."""

    batch_id: int
    counts: Counts
    watermark_ms: int
    duration_ms: int

    def to_json(self) -> dict[str, Any]:
        return {
            "batch_id": self.batch_id,
            **encode_counts(self.counts),
            "watermark_ms": self.watermark_ms,
            "duration_ms": self.duration_ms,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupResult:
    """One run. `batches` holds the last ones, `batch_count` counts all."""

    topic: str
    output: str
    counts: Counts = field(default_factory=Counts)
    batch_count: int = 0
    batches: tuple[DedupBatch, ...] = ()
    state_partitions: int = 0
    duration_ms: int = 0

    def add(self, batch: DedupBatch) -> "DedupResult":
        return replace(
            self,
            counts=self.counts + batch.counts,
            batch_count=self.batch_count + 1,
            batches=(*self.batches, batch)[-BATCHES_SHOWN:],
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "output": self.output,
            **encode_counts(self.counts),
            "batch_count": self.batch_count,
            "batches": [batch.to_json() for batch in self.batches],
            "state_partitions": self.state_partitions,
            "duration_ms": self.duration_ms,
        }


def encode_counts(counts: Counts) -> dict[str, int]:
    """The counts for JSON; a stream counts records without a timestamp as late."""
    by_name = asdict(counts)
    del by_name["missing"]
    return {"records": counts.total, **by_name}


def read_counts(observed: Mapping[str, int | None]) -> Counts:
    """The counts that Spark observed: null where a batch had no records."""
    return Counts(**{name: count or 0 for name, count in observed.items()})
