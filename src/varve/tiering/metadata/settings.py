"""Settings of the topic __remote_log_metadata: Kafka's names, defaults and ranges."""

from dataclasses import dataclass

from varve.foundation.settings import check_settings, setting

__all__ = ["MetadataSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataSettings:
    """The settings of tier metadata in a topic (varve.tier.metadata=topic)."""

    remote_log_metadata_topic_num_partitions: int = setting(
        50,
        "Partitions of the topic __remote_log_metadata when it is made; afterwards it must agree, "
        "for it decides in which of them the events of a partition stand.",
        "remote.log.metadata.topic.num.partitions",
        at_least=1,
    )
    remote_log_metadata_topic_retention_ms: int = setting(
        -1,
        "How long events stay in the topic __remote_log_metadata when it is made; -1 means for "
        "ever. Anything else must be longer than the segments of all topics live: a segment whose "
        "events are gone is lost.",
        "remote.log.metadata.topic.retention.ms",
        at_least=1,
        also=(-1,),
        long=True,
    )
    remote_log_metadata_custom_metadata_max_bytes: int = setting(
        128,
        "Most bytes of varve's own that an event may carry about a segment; one that needs more is "
        "refused.",
        "remote.log.metadata.custom.metadata.max.bytes",
        at_least=0,
    )

    def __post_init__(self) -> None:
        check_settings(self)
