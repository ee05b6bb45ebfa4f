"""What a deduplication has frozen: a file beside Spark's own in the checkpoint directory.

Layout     `varve-dedup.json`, written when the first run begins. docs/formats/dedup-state.md
Invariant  a checkpoint serves one meaning of "duplicate", one topic, one output and one number of
           state partitions. Asked for another, a run is refused before it changes anything.
Crash      the file is written aside and renamed before Spark writes its first.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Protocol

from varve.foundation.errors import Corrupt, InvalidRequest

FILE: Final = "varve-dedup.json"
SPARKS_FILE: Final = "metadata"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What must not change under a checkpoint."""

    topic: str
    topic_id: str
    output: str
    by: str
    before_ms: int
    after_ms: int
    is_refreshing: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """A checkpoint's meaning, and what was drawn for it by lot."""

    meaning: Meaning
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
    meaning: Meaning,
    *,
    where: str,
    partitions: int | None,
    draw_secret: Callable[[], tuple[int, int]],
    draw_keys: Callable[[], Sequence[int]],
) -> Frozen:
    """What the checkpoint says, or is made to say; raises InvalidRequest where it does not fit."""
    data = files.find(FILE)
    if data is None:
        if files.find(SPARKS_FILE) is not None:
            raise InvalidRequest(
                f"{where} is the checkpoint of another query ({FILE} is not there): name another "
                "directory"
            )
        frozen = Frozen(meaning=meaning, secret=draw_secret(), bucket_keys=tuple(draw_keys()))
        files.put(FILE, encode_frozen(frozen))
        return frozen
    frozen = decode_frozen(data, f"{where}/{FILE}")
    for one in fields(Meaning):
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


def encode_frozen(frozen: Frozen) -> bytes:
    document = {
        "format": _FORMAT,
        **asdict(frozen.meaning),
        "secret": [f"{word:016x}" for word in frozen.secret],
        "bucket_keys": list(frozen.bucket_keys),
    }
    return json.dumps(document, indent=1).encode()


def decode_frozen(data: bytes, where: str) -> Frozen:
    """Raises Corrupt for what is no such file."""
    try:
        document: dict[str, Any] = json.loads(data)
        if document["format"] != _FORMAT:
            raise ValueError(f"format {document['format']}, this varve knows {_FORMAT}")
        first, second = (int(word, 16) for word in document["secret"])
        return Frozen(
            meaning=Meaning(**{one.name: document[one.name] for one in fields(Meaning)}),
            secret=(first, second),
            bucket_keys=tuple(int(key) for key in document["bucket_keys"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(
            f"{where} cannot be read ({error}): put it back from a copy, or begin with a new "
            "checkpoint"
        ) from error
