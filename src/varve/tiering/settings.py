"""Settings of the remote tier and of its metadata, with Kafka's names where they exist."""

from dataclasses import dataclass
from typing import Final

from varve.foundation.settings import LONG_MAX, check_settings, setting

__all__ = ["MetadataSettings", "TierSettings"]

DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSettings:
    """The settings of the remote tier of a store."""

    varve_tier_url: str = setting(
        "",
        "The object store of the remote tier: file:/path, s3://bucket/prefix, gs://... or "
        "az://...; "
        "empty means the one used before, by default a directory beside the first log directory, "
        "with .cold after its name.",
    )
    varve_tier_mirror_url: str = setting(
        "",
        "A second object store, independent of the first, that gets all that goes there and is "
        "read when that one is down; empty means the one used before, by default none.",
    )
    varve_tier_metadata: str = setting(
        "",
        "Where the metadata of remote segments is stored: in manifests beside them (object), "
        "in Kafka's topic __remote_log_metadata (topic), or where a backend registered under "
        "another name keeps it; empty means the one used before, by default object.",
    )
    remote_log_manager_task_interval_ms: int = setting(
        30_000,
        "Time between two checks for segments to copy to object storage or to delete there.",
        at_least=1,
        long=True,
    )
    remote_log_manager_copy_max_bytes_per_second: int = setting(
        LONG_MAX,
        "Most bytes of segments that are copied to object storage per second; the default is no "
        "limit.",
        at_least=1,
        long=True,
    )
    remote_log_manager_fetch_max_bytes_per_second: int = setting(
        LONG_MAX,
        "Most bytes that are read from object storage per second; the default is no limit.",
        at_least=1,
        long=True,
    )
    remote_log_reader_threads: int = setting(
        10,
        "Threads that read from object storage, so that no other reader waits for it.",
        at_least=1,
    )
    remote_log_reader_max_pending_tasks: int = setting(
        100,
        "Most reads from object storage that may wait for a thread; one more is refused, to be "
        "tried again.",
        at_least=1,
    )
    remote_log_index_file_cache_total_size_bytes: int = setting(
        1 << 30,
        "Most bytes of indexes that are kept on the local disk of segments in object storage.",
        at_least=1,
        long=True,
    )
    varve_tier_cache_bytes: int = setting(
        128 << 20,
        "Most bytes of memory for data that was read from object storage, or is read ahead.",
        at_least=1 << 20,
        long=True,
    )
    varve_tier_read_ahead_max_bytes: int = setting(
        16 << 20,
        "Most bytes that are read ahead for one sequential reader of object storage; read-ahead "
        "starts small and grows while the reader has to wait.",
        at_least=0,
        long=True,
    )
    varve_tier_manifest_retention_ms: int = setting(
        7 * DAY_MS,
        "How long a version of a manifest stays after the next one was committed.",
        at_least=0,
        long=True,
    )
    varve_tier_grace_ms: int = setting(
        DAY_MS,
        "How long the objects of a segment stay after it was replaced or has expired; they also "
        "stay for varve.tier.manifest.retention.ms.",
        at_least=0,
        long=True,
    )

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def replaced_retention_ms(self) -> int:
        """How long objects of replaced and expired segments stay: retained manifests name them."""
        return max(self.varve_tier_grace_ms, self.varve_tier_manifest_retention_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataSettings:
    """The settings of tier metadata in a topic (varve.tier.metadata=topic)."""

    remote_log_metadata_topic_num_partitions: int = setting(
        50,
        "Partitions of the topic __remote_log_metadata when it is created; it must not change "
        "afterwards, because it determines which of them has the events of a partition.",
        at_least=1,
    )
    remote_log_metadata_topic_retention_ms: int = setting(
        -1,
        "How long events stay in the topic __remote_log_metadata when it is created; -1 means "
        "without limit. Any other value must exceed the retention of all topics: a segment whose "
        "events were deleted is lost.",
        at_least=1,
        also=(-1,),
        long=True,
    )
    remote_log_metadata_custom_metadata_max_bytes: int = setting(
        128,
        "Most bytes of varve's own that an event may carry about a segment; one that needs more is "
        "refused.",
        at_least=0,
    )

    def __post_init__(self) -> None:
        check_settings(self)
