"""What a deduplication is to do, what its checkpoint is bound to, and what it did.

Layout     `varve-dedup.json` in the checkpoint directory, beside Spark's own files, written when
           the first run begins. docs/formats/dedup-state.md
Invariant  a checkpoint serves one meaning of "duplicate", one topic, one output and one number of
           state partitions. Asked for another, a run is refused before it changes anything.
Crash      the file is written aside and renamed before Spark writes its first.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final, Protocol

from varve.dedup.rules import Counts, DedupRules, LatePolicy
from varve.foundation.errors import Corrupt, InvalidRequest

BATCH_BYTES: Final = 256 << 20
STATE_PARTITIONS_MAX: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupSettings(DedupRules):
    """The rules of a stream, whose policy for late records is also that for those of the future.

    `side_topic` is for late records under LatePolicy.SIDE. `state_partitions` and all that decides
    which records are duplicates are frozen by the checkpoint.
    """

    side_topic: str | None = None
    batch_bytes: int = BATCH_BYTES
    state_partitions: int | None = None
    read_options: tuple[tuple[str, str], ...] = field(default=())

    def __post_init__(self) -> None:
        DedupRules.__post_init__(self)
        object.__setattr__(self, "future", self.late)
        if (self.late is LatePolicy.SIDE) != (self.side_topic is not None):
            raise InvalidRequest(
                "a side topic goes with the policy side for late records, and back"
            )
        count = self.state_partitions
        if count is not None and not 1 <= count <= STATE_PARTITIONS_MAX:
            raise InvalidRequest(
                f"{count} partitions of the state: there are 1 to {STATE_PARTITIONS_MAX}"
            )
        if self.batch_bytes < 1:
            raise InvalidRequest(f"batch_bytes is {self.batch_bytes}, it must be at least 1")


# What a checkpoint is bound to


FILE: Final = "varve-dedup.json"
SPARKS_FILE: Final = "metadata"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupSpec:
    """What must not change under a checkpoint."""

    topic: str
    topic_id: str
    output: str
    by: str
    before_ms: int
    after_ms: int
    is_refreshing: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpec:
    """A checkpoint's meaning, and what was drawn for it by lot."""

    meaning: DedupSpec
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
    """The directory as Spark itself reaches it."""

    def __init__(self, spark: Any, location: str) -> None:
        self._hadoop = spark._jvm.org.apache.hadoop.fs
        self._location = location
        home = self._hadoop.Path(location)
        self._fs = home.getFileSystem(spark._jsc.hadoopConfiguration())
        self._text = spark._jvm.org.apache.commons.io.IOUtils

    def find(self, name: str) -> bytes | None:
        path = self._hadoop.Path(self._location, name)
        if not self._fs.exists(path):
            return None
        stream = self._fs.open(path)
        try:
            return bytes(self._text.toByteArray(stream))
        finally:
            stream.close()

    def put(self, name: str, data: bytes) -> None:
        aside = self._hadoop.Path(self._location, f".{name}.tmp")
        stream = self._fs.create(aside, True)
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()
        self._fs.rename(aside, self._hadoop.Path(self._location, name))


def freeze(
    files: CheckpointFiles,
    meaning: DedupSpec,
    *,
    where: str,
    partitions: int | None,
    draw_secret: Callable[[], tuple[int, int]],
    draw_keys: Callable[[], Sequence[int]],
) -> CheckpointSpec:
    """What the checkpoint says, or is made to say; raises InvalidRequest where it does not fit."""
    data = files.find(FILE)
    if data is None:
        if files.find(SPARKS_FILE) is not None:
            raise InvalidRequest(
                f"{where} is the checkpoint of another query ({FILE} is not there): name another "
                "directory"
            )
        frozen = CheckpointSpec(
            meaning=meaning, secret=draw_secret(), bucket_keys=tuple(draw_keys())
        )
        files.put(FILE, encode_spec(frozen))
        return frozen
    frozen = decode_spec(data, f"{where}/{FILE}")
    for one in fields(DedupSpec):
        before, asked = getattr(frozen.meaning, one.name), getattr(meaning, one.name)
        if before != asked:
            raise InvalidRequest(
                f"the checkpoint {where} was made with {one.name}={before!r:.200}, and cannot go "
                f"on with {asked!r:.200}: ask for the same, or name a new checkpoint"
            )
    if partitions is not None and partitions != len(frozen.bucket_keys):
        raise InvalidRequest(
            f"the checkpoint {where} has {len(frozen.bucket_keys)} partitions of state, and cannot "
            f"go on with {partitions}: leave the number out, or name a new checkpoint"
        )
    return frozen


def encode_spec(frozen: CheckpointSpec) -> bytes:
    document = {
        "format": _FORMAT,
        **asdict(frozen.meaning),
        "secret": [f"{word:016x}" for word in frozen.secret],
        "bucket_keys": list(frozen.bucket_keys),
    }
    return json.dumps(document, indent=1).encode()


def decode_spec(data: bytes, where: str) -> CheckpointSpec:
    """Raises Corrupt for any other file."""
    try:
        document: dict[str, Any] = json.loads(data)
        if document["format"] != _FORMAT:
            raise ValueError(f"format {document['format']}, this varve knows {_FORMAT}")
        first, second = (int(word, 16) for word in document["secret"])
        return CheckpointSpec(
            meaning=DedupSpec(**{one.name: document[one.name] for one in fields(DedupSpec)}),
            secret=(first, second),
            bucket_keys=tuple(int(key) for key in document["bucket_keys"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(
            f"{where} cannot be read ({error}): put it back from a copy, or begin with a new "
            "checkpoint"
        ) from error


# Results


BATCHES_SHOWN: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupBatch:
    """One batch; `watermark_ms` is the one by which records of it were late."""

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
    """As JSON has them; a stream counts records without a timestamp as late."""
    by_name = asdict(counts)
    del by_name["missing"]
    return {"records": counts.total, **by_name}


def read_counts(observed: Mapping[str, int | None]) -> Counts:
    """The counts as Spark observed them: null where a batch had no records."""
    return Counts(**{name: count or 0 for name, count in observed.items()})
