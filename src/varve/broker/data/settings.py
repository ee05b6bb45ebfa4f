"""Settings of what goes in and out, by Kafka's names."""

from dataclasses import dataclass

from varve.foundation.settings import check_settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """How much is kept for clients between their requests."""

    fetch_session_count_max: int = setting(
        1_000,
        "The most fetch sessions that are kept; a client without one asks for all each time.",
        "max.incremental.fetch.session.cache.slots",
        at_least=0,
    )
    fetch_session_partition_count_max: int = setting(
        200_000,
        "The most partitions that all fetch sessions together remember.",
        "varve.fetch.session.partitions.max",
        at_least=0,
    )
    slow_read_bytes: int = setting(
        64 << 20,
        "The most that reads from closed segments and object storage hold for fetches to come.",
        "varve.fetch.slow.read.bytes",
        at_least=1 << 20,
    )

    def __post_init__(self) -> None:
        check_settings(self)
