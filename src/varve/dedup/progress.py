"""The progress of one partition: a record that is committed in the transaction of each chunk.

Layout     one key in the compacted topic `<name>-dedup-progress`, a JSON value.
           docs/reference/formats/dedup-progress.md
Invariant  the last committed record counts: its position, stream time and counts include the chunk
           that it was committed with.
Crash      uncommitted records are never read.
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

    `position` is the next offset of the input, `mark` the batch before it, if there is one. `rules`
    are those of the last chunk; `counts` cover all chunks since the first. Ids before
    `whole_from_ms` may be incomplete, so records with such times are late. Topic ids are empty if
    unknown. `generation`, `producer` and `sequences` (the next sequence by topic) identify the last
    writer to a store; in a Kafka cluster the transaction coordinator has them.
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

    def with_rules(self, rules: DedupRules) -> "Progress":
        """The progress with other rules, to be committed before ids expire by them.

        If the lateness changes, ids are complete only for times that were not late before.
        """
        whole_from_ms = self.whole_from_ms
        if rules.lateness_ms != self.rules.lateness_ms:
            whole_from_ms = max(whole_from_ms, self.stream_time_ms - self.rules.lateness_ms)
        return replace(self, rules=rules, whole_from_ms=whole_from_ms)

    def with_producer(
        self, producer: Producer, generation: int, sequences: Mapping[str, int]
    ) -> "Progress":
        """The progress with the identity of its writer."""
        return replace(self, producer=producer, generation=generation, sequences=dict(sequences))


def encode_progress(progress: Progress) -> bytes:
    fields = asdict(progress)
    fields["rules"]["by"] = str(progress.rules.by)
    if progress.producer is not None:
        fields["producer"] = progress.producer._asdict()
    return json.dumps({"format": _FORMAT, **fields}, separators=(",", ":")).encode()


def decode_progress(data: bytes | None, where: str) -> Progress:
    """Raises Corrupt for data that no deduplication wrote."""
    try:
        fields: dict[str, Any] = json.loads(data or b"")
        if fields.pop("format") != _FORMAT:
            raise ValueError(f"format is not {_FORMAT}, the one that this version reads")
        producer, counts = fields.pop("producer"), Counts(**fields.pop("counts"))
        writer = None if producer is None else Producer(**producer)
        rules = _decode_rules(fields.pop("rules"))
        mark = fields.pop("mark")
        history_mark = None if mark is None else HistoryMark.from_json(mark)
        progress = Progress(
            producer=writer, counts=counts, rules=rules, mark=history_mark, **fields
        )
        if len(bytes.fromhex(progress.secret)) != SECRET_BYTES:
            raise ValueError(f"a secret has {SECRET_BYTES} bytes")
        return progress
    except (ValueError, KeyError, TypeError, AttributeError, InvalidRequest) as error:
        raise Corrupt(
            f"{where}: {data!r:.80} is not deduplication progress ({type(error).__name__}: "
            f"{error!s:.120}): another program writes to this topic; choose another name"
        ) from error


def _decode_rules(fields: dict[str, Any]) -> DedupRules:
    return DedupRules(
        by=parse_id_source(fields.pop("by")),
        late=LatePolicy(fields.pop("late")),
        future=LatePolicy(fields.pop("future")),
        missing=LatePolicy(fields.pop("missing")),
        null=NullPolicy(fields.pop("null")),
        **fields,
    )


def progress_batch(progress: Progress, now_ms: int) -> bytes:
    """A batch with the progress as its only record."""
    return build_batch([Record(PROGRESS_KEY, encode_progress(progress), timestamp=now_ms)])


def find_progress(reader: TopicReader, partition: int) -> Progress | None:
    """The last committed progress of a partition; None before the first commit."""
    record = read_last(reader, partition, key=PROGRESS_KEY)
    if record is None:
        return None
    where = f"{reader.cluster_name}: {reader.topic}-{partition}, offset {record.offset}"
    return decode_progress(record.value, where)
