"""How an engine of shapes is run.

Invariant  an instance that exists is valid.
"""

from dataclasses import dataclass

from varve.foundation.settings import check_settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Limits and times of the engine. docs/shapes.md"""

    shapes_max: int = setting(
        20_000,
        "At this many shapes a new one makes the least recently read one go.",
        "shapes.max",
        at_least=1,
        is_own=True,
    )
    chunk_bytes: int = setting(
        10 << 20,
        "A chunk of a snapshot or a log ends at this many bytes of messages.",
        "shapes.chunk.bytes",
        at_least=1,
        is_own=True,
    )
    checkpoint_ms: int = setting(
        1000,
        "How long changes wait at most before they are made durable.",
        "shapes.checkpoint.ms",
        at_least=1,
        is_own=True,
    )
    pending_rows_max: int = setting(
        500_000,
        "A topic is read no further while this many changed rows wait for a checkpoint.",
        "shapes.pending.rows.max",
        at_least=1,
        is_own=True,
    )
    pending_bytes_max: int = setting(
        256 << 20,
        "Nor while the records behind them have this many bytes.",
        "shapes.pending.bytes.max",
        at_least=1,
        is_own=True,
        long=True,
    )
    turn_records: int = setting(
        5000,
        "A turn of a topic's feed takes at most this many records.",
        "shapes.turn.records",
        at_least=1,
        is_own=True,
    )
    wait_ms: int = setting(
        250,
        "How long a feed waits for records before it looks whether it is to end.",
        "shapes.wait.ms",
        at_least=1,
        is_own=True,
    )
    flush_threads: int = setting(
        4,
        "So many threads make the logs of shapes durable.",
        "shapes.flush.threads",
        at_least=1,
        at_most=64,
        is_own=True,
    )
    snapshot_threads: int = setting(
        2,
        "So many topics are scanned for new snapshots at a time.",
        "shapes.snapshot.threads",
        at_least=1,
        at_most=64,
        is_own=True,
    )
    upkeep_ms: int = setting(
        10_000,
        "How often what was dropped is removed and limits are looked at.",
        "shapes.upkeep.ms",
        at_least=1,
        is_own=True,
    )
    subset_rows_max: int = setting(
        1_000_000,
        "A subset request that would give more rows is refused, as is a greater offset.",
        "shapes.subset.rows.max",
        at_least=1,
        is_own=True,
    )
    subset_bytes_max: int = setting(
        256 << 20,
        "Nor may the rows of a subset, with those that its offset skips, have more bytes.",
        "shapes.subset.bytes.max",
        at_least=1,
        is_own=True,
        long=True,
    )
    compacts: bool = setting(
        True, "Whether logs of shapes are compacted.", "shapes.compaction", is_own=True
    )

    def __post_init__(self) -> None:
        check_settings(self)
