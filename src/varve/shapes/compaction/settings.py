"""When a shape's log is compacted, and with how much memory.

Invariant  an instance that exists is valid.
"""

from dataclasses import dataclass

from varve.foundation.settings import check_settings, setting


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
        "A shape is to be made anew when snapshot and log have more entries than so many times its "
        "rows, and the excess below. Less than 4 may find fault with a log of living rows only.",
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
