"""How far a table is: the offset reached in each partition, stored with the rows themselves.

Layout     `varve.offsets`, `varve.marks`, `varve.starts`, `varve.sink` and `varve.run` in the
           summary of each snapshot that varve commits, and as properties of the table in the same
           commit.
           docs/formats/table.md
Invariant  the newest ancestor of the current snapshot that tells is right: a table that was rolled
           back tells how far it was then. The properties are asked only when every such snapshot
           has expired.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from varve.foundation.errors import Corrupt
from varve.jobs.source.history_mark import HistoryMark

OFFSETS: Final = "varve.offsets"
MARKS: Final = "varve.marks"
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

_COLD: Final = "cold"
_YES: Final = "true"


@dataclass(frozen=True, slots=True)
class Progress:
    """By partition: the next offset to read, and the log start up to which rows were removed.

    At `synced_ms` the table had the whole topic, which was in the cold tier or not. Where it
    `is_thinned` an erasure took single records of keys, of which older ones may be the latest now.
    `marks` are of the batches in front of the offsets, as far as there are such; `cleaned` tells
    how far each partition was compacted. `sink` is the last batch of the stream that writes the
    table, and stays in the commits of others, an erasure's among them.
    """

    offsets: Mapping[int, int]
    starts: Mapping[int, int]
    synced_ms: int = 0
    is_cold: bool = False
    is_thinned: bool = False
    marks: Mapping[int, HistoryMark] = field(default_factory=dict)
    cleaned: Mapping[int, int] = field(default_factory=dict)
    sink: "SinkBatch | None" = None

    def to_summary(self, run_id: str) -> dict[str, str]:
        return {
            OFFSETS: _encode(self.offsets),
            MARKS: _encode({one: mark.to_json() for one, mark in self.marks.items()}),
            CLEANED: _encode(self.cleaned),
            STARTS: _encode(self.starts),
            SYNCED: str(self.synced_ms),
            TIER: _COLD if self.is_cold else "",
            THINNED: _YES if self.is_thinned else "",
            SINK: "" if self.sink is None else str(self.sink),
            RUN: run_id,
        }

    def is_behind(self, other: "Progress") -> bool:
        """Whether the other has read what this one has not."""
        return any(self.offsets.get(one, 0) < offset for one, offset in other.offsets.items())


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """A batch of a stream: batches of a sink are numbered upwards, and committed in order."""

    sink_id: str
    number: int

    def __str__(self) -> str:
        return f"{self.sink_id}-{self.number}"

    @classmethod
    def parse(cls, text: str) -> "SinkBatch | None":
        """None where nothing stands there; raises ValueError for what is not a batch."""
        sink_id, _, number = text.rpartition("-")
        return cls(sink_id, int(number)) if text else None


def read_progress(table: Table) -> Progress:
    """How far the current snapshot is."""
    for snapshot in ancestors_of(table.current_snapshot(), table.metadata):
        told = summary_of(snapshot)
        if OFFSETS in told:
            return _decode(told, table)
    return _decode(table.properties, table)


def summary_of(snapshot: Snapshot) -> Mapping[str, str]:
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def runs_since(table: Table, base_id: int | None) -> set[str]:
    """The runs of varve that committed behind a snapshot; all of them where it has gone."""
    found: set[str] = set()
    for snapshot in ancestors_of(table.current_snapshot(), table.metadata):
        if snapshot.snapshot_id == base_id:
            break
        run = summary_of(snapshot).get(RUN)
        if run is not None:
            found.add(run)
    return found


def _encode(values: Mapping[int, int] | Mapping[int, dict[str, int]]) -> str:
    return json.dumps({str(one): values[one] for one in sorted(values)})


def _decode(told: Mapping[str, str], table: Table) -> Progress:
    try:
        offsets, starts, cleaned = (
            {int(name): int(number) for name, number in json.loads(told.get(key, "{}")).items()}
            for key in (OFFSETS, STARTS, CLEANED)
        )
        synced_ms = int(told.get(SYNCED, 0))
        marks = {
            int(name): HistoryMark.of_json(mark)
            for name, mark in json.loads(told.get(MARKS, "{}")).items()
        }
        sink = SinkBatch.parse(told.get(SINK, ""))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(
            f"table {'.'.join(table.name())}: {OFFSETS}, {MARKS}, {CLEANED}, {STARTS} or {SINK} "
            f"cannot be read ({type(error).__name__}: {error}): varve cannot tell which records "
            "are in it. Drop the table and make it anew"
        ) from error
    return Progress(
        offsets,
        starts,
        synced_ms,
        told.get(TIER) == _COLD,
        told.get(THINNED) == _YES,
        # A varve that knew no marks left those of an earlier commit among the properties.
        {one: mark for one, mark in marks.items() if mark.is_of(offsets.get(one, 0))},
        cleaned,
        sink,
    )
