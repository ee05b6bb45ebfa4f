"""A cluster from what a user names: an open store, or the address of brokers."""

from varve.embedded import Store
from varve.kafka_client.address import ClusterAddress
from varve.topics.kafka_cluster import KafkaCluster, Wait
from varve.topics.store_cluster import StoreCluster


def open_cluster(
    place: Store | ClusterAddress, *, wait: Wait | None = None
) -> StoreCluster | KafkaCluster:
    """The caller closes it; a store stays open. `wait` pauses between requests to brokers."""
    if isinstance(place, Store):
        return StoreCluster(place)
    return KafkaCluster(place, wait=wait)
