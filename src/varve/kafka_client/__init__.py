"""A blocking client of Kafka's protocol: raw batches, offsets, transactional appends."""

from varve.kafka_client.address import ClusterAddress, parse_cluster_address
from varve.kafka_client.client import FetchedBatches, KafkaClient, TopicMetadata
from varve.kafka_client.transaction import CommittedOffset, TransactionalProducer

__all__ = [
    "ClusterAddress",
    "CommittedOffset",
    "FetchedBatches",
    "KafkaClient",
    "TopicMetadata",
    "TransactionalProducer",
    "parse_cluster_address",
]
