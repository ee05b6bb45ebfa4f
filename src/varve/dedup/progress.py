"""How far a partition has come: the record that is committed with everything else of a chunk.

Layout     one key in the compacted topic `<name>-dedup-progress`, a JSON value.
           docs/formats/dedup-progress.md
Invariant  the last committed record is the truth: position, stream time and counts are those after
           the chunk it was committed with.
Crash      what was written and not committed is never read.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from varve.dedup.ids import Secret
from varve.dedup.rules import Counts, DedupRules, LatePolicy, NullPolicy, parse_id_source
from varve.foundation.errors import Corrupt, InvalidRequest
from varve.records import Producer, Record, build_batch
from varve.topics import HistoryMark, Position, TopicReader, read_last

PROGRESS_KEY: Final = b"progress"
NO_STREAM_TIME: Final = -1
SECRET_BYTES: Final = 16
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One partition's progress.

    `position` is the next offset of the input, `mark` the batch before it (None in progress of
    earlier versions). `rules` are those of the last chunk, `counts` those
    of a life. Before `whole_from_ms` ids may be gone: what has such a time is late. The ids of
    topics are empty if unknown. `generation`, `producer` and `sequences`, the next one
    by topic, are of the last who wrote to a directory; through a server its coordinator knows.
    """

    position: int
    secret: str
    rules: DedupRules
    input: str
    output: str
    stream_time_ms: int = NO_STREAM_TIME
    whole_from_ms: int = 0
    counts: Counts = field(default_factory=Counts)
    input_id: str = ""
    output_id: str = ""
    committed_ms: int = 0
    generation: int = 0
    producer: Producer | None = None
    sequences: Mapping[str, int] = field(default_factory=dict)
    mark: HistoryMark | None = None

    @property
    def input_position(self) -> Position:
        return Position(self.position, self.mark)

    @property
    def secret_words(self) -> Secret:
        data = bytes.fromhex(self.secret)
        return int.from_bytes(data[:8], "little"), int.from_bytes(data[8:], "little")

    def under(self, rules: DedupRules) -> "Progress":
        """The same by other rules, to be committed before ids go by them.

        With another lateness only what the old one still compared has its whole window.
        """
        whole_from_ms = self.whole_from_ms
        if rules.lateness_ms != self.rules.lateness_ms:
            whole_from_ms = max(whole_from_ms, self.stream_time_ms - self.rules.lateness_ms)
        return replace(self, rules=rules, whole_from_ms=whole_from_ms)

    def by(self, producer: Producer, generation: int, sequences: Mapping[str, int]) -> "Progress":
        """The same as noted by a producer."""
        return replace(self, producer=producer, generation=generation, sequences=dict(sequences))


def encode_progress(progress: Progress) -> bytes:
    fields = asdict(progress)
    fields["rules"]["by"] = str(progress.rules.by)
    if progress.producer is not None:
        fields["producer"] = progress.producer._asdict()
    return json.dumps({"format": _FORMAT, **fields}, separators=(",", ":")).encode()


def decode_progress(data: bytes | None, where: str) -> Progress:
    """Raises Corrupt for what no deduplication wrote."""
    try:
        given: dict[str, Any] = json.loads(data or b"")
        if given.pop("format") != _FORMAT:
            raise ValueError(f"another format, this varve knows {_FORMAT}")
        producer, counts = given.pop("producer"), Counts(**given.pop("counts"))
        known = None if producer is None else Producer(**producer)
        rules = _decode_rules(given.pop("rules"))
        mark = given.pop("mark", None)
        history = None if mark is None else HistoryMark.from_json(mark)
        progress = Progress(producer=known, counts=counts, rules=rules, mark=history, **given)
        if len(bytes.fromhex(progress.secret)) != SECRET_BYTES:
            raise ValueError(f"a secret has {SECRET_BYTES} bytes")
        return progress
    except (ValueError, KeyError, TypeError, AttributeError, InvalidRequest) as error:
        raise Corrupt(
            f"{where}: {data!r:.80} is not deduplication progress ({type(error).__name__}: "
            f"{error!s:.120}): another program writes to this topic; choose another name"
        ) from error


def _decode_rules(anies: dict[str, Any]) -> DedupRules:
    return DedupRules(
        by=parse_id_source(anies.pop("by")),
        late=LatePolicy(anies.pop("late")),
        future=LatePolicy(anies.pop("future")),
        missing=LatePolicy(anies.pop("missing")),
        null=NullPolicy(anies.pop("null")),
        **anies,
    )


def progress_batch(progress: Progress, now_ms: int) -> bytes:
    """The batch that notes a progress."""
    return build_batch([Record(PROGRESS_KEY, encode_progress(progress), timestamp=now_ms)])


def find_progress(reader: TopicReader, partition: int) -> Progress | None:
    """The last committed progress of a partition; None where there is none."""
    record = read_last(reader, partition, key=PROGRESS_KEY)
    if record is None:
        return None
    where = f"{reader.cluster_name}: {reader.topic}-{partition}, offset {record.offset}"
    return decode_progress(record.value, where)
