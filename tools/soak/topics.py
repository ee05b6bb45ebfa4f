"""The topics of a soak, and what the server is told."""

from typing import Final

from tests.support.kafka_clients import AdminClient
from tools.soak.model import Partition

PARTITIONS: Final = 4
"""Of a topic with a sequence, and of each stage of the chain."""
PLAIN: Final = "plain"
SHORT: Final = "short"
TIERED: Final = "tiered"
TRANSACTIONS: Final = "transactions"
STAGES: Final = (PLAIN, "made", "made-again")
"""The chain: records of one are made from those of the one before."""
_SMALL_SEGMENTS: Final = {"segment.bytes": str(64 << 10), "file.delete.delay.ms": "1000"}
SEQUENCES: Final[dict[str, dict[str, str]]] = {
    PLAIN: {},
    TIERED: {
        **_SMALL_SEGMENTS,
        "remote.storage.enable": "true",
        "local.retention.bytes": str(128 << 10),
        "retention.ms": "-1",
    },
    SHORT: {**_SMALL_SEGMENTS, "retention.bytes": str(128 << 10)},
}
_COMPACTED: Final = {
    **_SMALL_SEGMENTS,
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "5000",
}
COMPACTED: Final = {
    "latest": _COMPACTED,
    "latest-tiered": {**_COMPACTED, "remote.storage.enable": "true"},
}
KEY_PARTITIONS: Final = 2
_TRANSACTION_PARTITIONS: Final = 3
SETTINGS: Final = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "500",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.heartbeat.interval.ms": "500",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.segment.bytes": str(1 << 20),
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.segment.bytes": str(1 << 20),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "log.retention.check.interval.ms": "3000",
    "log.cleaner.backoff.ms": "2000",
    "remote.log.manager.task.interval.ms": "2000",
}


def create_topics(admin: AdminClient) -> None:
    for topic, configs in SEQUENCES.items():
        admin.create(topic, PARTITIONS, configs)
    for topic, configs in COMPACTED.items():
        admin.create(topic, KEY_PARTITIONS, configs)
    admin.create(TRANSACTIONS, _TRANSACTION_PARTITIONS, _SMALL_SEGMENTS)
    for topic in STAGES[1:]:
        admin.create(topic, PARTITIONS, _SMALL_SEGMENTS)


def transaction_partitions() -> list[Partition]:
    return [(TRANSACTIONS, number) for number in range(_TRANSACTION_PARTITIONS)]
