"""Reads committed records and writes exactly once, in an open store or through Kafka's protocol."""

from varve.topics.cluster import (
    Cluster,
    HistoryMark,
    LogTruncated,
    OffsetRange,
    Position,
    TopicInfo,
    TopicReader,
    TransactionalWriter,
    find_break,
    read_last,
    read_range,
)
from varve.topics.kafka_cluster import KafkaCluster, KafkaTransactionalWriter, open_cluster
from varve.topics.store_cluster import StoreCluster, StoreCoordinator, StoreTransactionalWriter

__all__ = [
    "Cluster",
    "HistoryMark",
    "KafkaCluster",
    "KafkaTransactionalWriter",
    "LogTruncated",
    "OffsetRange",
    "Position",
    "StoreCluster",
    "StoreCoordinator",
    "StoreTransactionalWriter",
    "TopicInfo",
    "TopicReader",
    "TransactionalWriter",
    "find_break",
    "open_cluster",
    "read_last",
    "read_range",
]
