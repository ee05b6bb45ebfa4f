"""Opens the topics of an open store, or of the brokers at an address, as a cluster."""

from varve.embedded import Store
from varve.kafka_client.address import ClusterAddress
from varve.topics.kafka_cluster import KafkaCluster, Wait
from varve.topics.store_cluster import StoreCluster


def open_cluster(
    source: Store | ClusterAddress, *, wait: Wait | None = None
) -> StoreCluster | KafkaCluster:
    """The caller closes it; a store stays open. `wait` pauses between requests to brokers."""
    if isinstance(source, Store):
        return StoreCluster(source)
    return KafkaCluster(source, wait=wait)
