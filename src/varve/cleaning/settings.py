"""Settings of the cleaner and of retention: Kafka's names, defaults and meanings."""

import sys
from dataclasses import dataclass

from varve.foundation.settings import check_settings, setting

__all__ = ["CleanerSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerSettings:
    """The settings of retention and compaction that hold for a whole store."""

    log_retention_check_interval_ms: int = setting(
        300_000,
        "Time between two checks for segments that retention removes.",
        at_least=1,
        long=True,
    )
    log_initial_task_delay_ms: int = setting(
        30_000, "Time from the start to the first such check.", at_least=0, long=True
    )
    log_cleaner_enable: bool = setting(
        True,
        "Run the cleaner. Without it compacted topics are neither compacted nor subject to "
        "retention, unless a cleaning is requested.",
    )
    log_cleaner_threads: int = setting(
        1, "Threads that compact, each one partition at a time.", at_least=0
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        128 << 20,
        "Memory for planning by key, of all threads together. Keys that do not fit at once are "
        "planned in several ranges of the key hash, in the same pass.",
        at_least=1 << 16,  # less would hold too few keys to plan with
        long=True,
    )
    log_cleaner_io_buffer_load_factor: float = setting(
        0.9,
        "Usable part of the planning memory.",
        at_least=0.01,  # Kafka refuses a buffer that holds no key only when a cleaner starts
        at_most=1,
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        sys.float_info.max,
        "Most bytes that all threads together read and write per second; the default is no limit.",
        at_least=1,  # Kafka states no bound; at 0 a cleaning would never end
    )
    log_cleaner_backoff_ms: int = setting(
        15_000, "Sleep of a thread that found nothing to compact.", at_least=0, long=True
    )
    varve_retention_clock_jump_max_ms: int = setting(
        3_600_000,
        "How far the clock of the machine may be set forward at once. After a larger jump "
        "background work removes records by the time before it, for a while.",
        at_least=1_000,
        long=True,
    )
    varve_retention_clock_hold_ms: int = setting(
        86_400_000,
        "How long the clock must keep its time after such a jump before it counts. 0 follows every "
        "jump at once.",
        at_least=0,
        long=True,
    )

    def __post_init__(self) -> None:
        check_settings(self)
