"""Settings of the engine of shapes, of its storage and of its compaction.

Invariant  an instance that exists is valid.
"""

from dataclasses import dataclass
from typing import ClassVar

from varve.foundation.settings import check_settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Limits and times of the engine. docs/how-to/serve-shapes.md"""

    setting_prefix: ClassVar = "shapes."
    is_own: ClassVar = True

    shapes_max: int = setting(
        20_000,
        "At this many shapes a new one evicts the least recently read one.",
        kafka_name="shapes.max",
        at_least=1,
    )
    bytes_max: int = setting(
        100 << 30,
        "When the files of all shapes have more bytes, the least recently read shapes are evicted; "
        "a snapshot of more than half of it is refused.",
        kafka_name="shapes.max.bytes",
        at_least=1 << 20,
        long=True,
    )
    chunk_bytes: int = setting(
        10 << 20, "A chunk of a snapshot or a log ends at this many bytes of messages.", at_least=1
    )
    checkpoint_ms: int = setting(
        1000, "The longest time before changes are made durable.", at_least=1
    )
    unflushed_rows_max: int = setting(
        500_000,
        "A topic is not read further while this many changed rows wait for a checkpoint.",
        kafka_name="shapes.max.unflushed.rows",
        at_least=1,
    )
    unflushed_bytes_max: int = setting(
        256 << 20,
        "Nor while the records of these rows have this many bytes.",
        kafka_name="shapes.max.unflushed.bytes",
        at_least=1,
        long=True,
    )
    max_poll_records: int = setting(
        5000, "The most records that are read from a topic at a time.", at_least=1
    )
    fetch_wait_ms: int = setting(
        250,
        "How long a fetch waits for records before it returns without any.",
        kafka_name="shapes.fetch.max.wait.ms",
        at_least=1,
    )
    flush_threads: int = setting(
        4, "Threads that make the logs of shapes durable.", at_least=1, at_most=64
    )
    snapshot_threads: int = setting(
        2, "Topics that are scanned for new snapshots at a time.", at_least=1, at_most=64
    )
    maintenance_interval_ms: int = setting(
        10_000,
        "How often files of dropped shapes are deleted and unused topics are ended.",
        at_least=1,
    )
    subset_rows_max: int = setting(
        1_000_000,
        "A subset request for more rows, or with a greater offset, is refused.",
        at_least=1,
    )
    subset_bytes_max: int = setting(
        256 << 20,
        "The most bytes of the rows of a subset, with those that its offset skips.",
        at_least=1,
        long=True,
    )
    compacts: bool = setting(
        True, "Whether logs of shapes are compacted.", kafka_name="shapes.compaction"
    )

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSettings:
    """Times, shares and sizes of the compaction of shapes.

    docs/reference/formats/shape-compaction.md
    """

    setting_prefix: ClassVar = "shapes.compaction."
    is_own: ClassVar = True

    period_ms: int = setting(
        600_000, "How often a shape is examined for compaction, on average.", at_least=1, long=True
    )
    jitter: float = setting(
        0.5, "The period varies at random by up to this fraction.", at_least=0, at_most=0.99
    )
    keep_chunks: int = setting(
        2,
        "Complete chunks at the end of a log that are not compacted, besides the open one.",
        at_least=0,
    )
    min_bytes: int = setting(
        256 << 10,
        "A log without a chunk that is old enough is compacted as a whole from this size on.",
        at_least=0,
        long=True,
    )
    min_cleanable_ratio: float = setting(
        0.5,
        "A log is compacted when at least this fraction of its entries would be removed.",
        at_least=0,
        at_most=1,
    )
    memory_bytes: int = setting(
        64 << 20,
        "Logs up to this size are compacted in memory, larger ones in parts of half of it.",
        at_least=1 << 10,
        long=True,
    )
    resnapshot_factor: int = setting(
        4,
        "A shape gets a new snapshot when snapshot and log have more entries than so many times "
        "its rows, and the excess below. Less than 4 may do so for a log of present rows only.",
        at_least=4,
    )
    resnapshot_entries: int = setting(
        100_000, "This many entries above that limit are allowed.", at_least=0, long=True
    )
    reports_max: int = setting(
        50, "How many reports of compactions are kept beside each log.", at_least=1, at_most=10_000
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
