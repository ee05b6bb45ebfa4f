"""Settings of the broker as a whole, by Kafka's names."""

from dataclasses import dataclass

from varve.foundation.settings import check_settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """What every part of the broker may ask for."""

    node_id: int = setting(
        1,
        "The id this broker has in the metadata that clients read.",
        "node.id",
        at_least=0,
    )
    num_partitions: int = setting(
        1,
        "Partitions of a topic that is made without saying how many.",
        "num.partitions",
        at_least=1,
    )
    auto_create_topics_enable: bool = setting(
        True,
        "Whether a topic that a client asks for by name is made if it is not there.",
        "auto.create.topics.enable",
    )
    rack: str = setting("", "The rack this broker stands in, told to clients.", "broker.rack")
    fetch_max_bytes: int = setting(
        16 << 20,
        "The most that one answer to a fetch holds; a first batch may exceed it.",
        "fetch.max.bytes",
        at_least=1024,
    )

    def __post_init__(self) -> None:
        check_settings(self)
