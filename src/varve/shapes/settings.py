"""Settings of the engine of shapes, of its storage and of its compaction.

Invariant  an instance that exists is valid.
"""

from dataclasses import dataclass

from varve.foundation.errors import InvalidSetting
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSettings:
    """Times, shares and sizes of the compaction of shapes. docs/formats/shape-compaction.md"""

    period_ms: int = setting(
        600_000,
        "How often a shape is looked at for compaction, on average.",
        "shapes.compaction.period.ms",
        at_least=1,
        is_own=True,
        long=True,
    )
    jitter: float = setting(
        0.5,
        "By this part of itself the period of each look is longer or shorter, by chance.",
        "shapes.compaction.jitter",
        at_least=0,
        at_most=0.99,
        is_own=True,
    )
    keep_chunks: int = setting(
        2,
        "So many complete chunks at the end of a log are left as they are, and the open one.",
        "shapes.compaction.keep.chunks",
        at_least=0,
        is_own=True,
    )
    whole_bytes: int = setting(
        256 << 10,
        "A log without a chunk that is old enough is compacted as a whole when it is this large.",
        "shapes.compaction.whole.bytes",
        at_least=0,
        is_own=True,
        long=True,
    )
    stale_share: float = setting(
        0.5,
        "A log is compacted when at least this part of its entries would go.",
        "shapes.compaction.stale.share",
        at_least=0,
        at_most=1,
        is_own=True,
    )
    memory_bytes: int = setting(
        64 << 20,
        "Logs up to this size are compacted in memory, larger ones in parts of half of it.",
        "shapes.compaction.memory.bytes",
        at_least=1 << 10,
        is_own=True,
        long=True,
    )
    excess_factor: int = setting(
        4,
        "A shape gets a new snapshot when snapshot and log have more entries than so many times "
        "its rows, and the excess below. Less than 4 may do so for a log of present rows only.",
        "shapes.compaction.excess.factor",
        at_least=4,
        is_own=True,
    )
    excess_entries: int = setting(
        100_000,
        "So many entries more than that are no reason yet.",
        "shapes.compaction.excess.entries",
        at_least=0,
        is_own=True,
        long=True,
    )
    reports_max: int = setting(
        50,
        "The reports of so many compactions are kept beside each log.",
        "shapes.compaction.reports.max",
        at_least=1,
        at_most=10_000,
        is_own=True,
    )

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """Sizes of one shape directory.

    `chunk_bytes` counts JSON only: a chunk closes with the entry that reaches it. `buffer_bytes`
    counts whole entries: the writer hands them to the file with the entry that reaches it.
    """

    chunk_bytes: int = 10 << 20
    buffer_bytes: int = 64 << 10
    read_bytes: int = 256 << 10

    def __post_init__(self) -> None:
        for name in ("chunk_bytes", "buffer_bytes", "read_bytes"):
            value = getattr(self, name)
            if not 1 <= value <= 1 << 40:
                raise InvalidSetting(
                    f"{name} {value} of a shape's storage must lie between 1 and {1 << 40}"
                )
