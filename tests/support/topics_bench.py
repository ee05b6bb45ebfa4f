"""Clusters for the contract of `varve.topics`: a store in memory, a varve server, Apache Kafka."""

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Protocol

from varve.commit_log import Log, TopicPartition
from varve.foundation.errors import NotFound
from varve.kafka_client.address import ClusterAddress, parse_cluster_address
from varve.kafka_client.client import KafkaClient
from varve.records import Producer, Record, build_batch
from varve.testing import KafkaKit, VirtualStore
from varve.topics import (
    Cluster,
    KafkaCluster,
    StoreCluster,
    StoreTransactionalWriter,
    TransactionalWriter,
)
from varve.topics.store_cluster import FIRST_PRODUCER_ID, open_transactions_of, write_marker
from varve.wire.errors import raise_for_code
from varve.wire.messages.data import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from varve.wire.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState

_ALL_REPLICAS: Final = -1


class TopicsBench(Protocol):
    """A cluster, and what tests do to it behind its back."""

    @property
    def cluster(self) -> Cluster: ...

    def writer(self, id: str) -> TransactionalWriter: ...

    def append(self, topic: str, partition: int, *records: Record) -> None:
        """One batch, as a plain producer appends it."""

    def delete(self, topic: str) -> None: ...

    def close(self) -> None: ...


class MemoryCoordinator:
    """Decisions in memory, which outlive the writers of a test; one producer id per writer id."""

    def __init__(self, store: VirtualStore, id: str, decided: dict[str, Producer]) -> None:
        self._store = store
        self._id = id
        self._decided = decided
        self._epochs: dict[str, int] = {}

    def init_producer(self) -> Producer:
        id = FIRST_PRODUCER_ID + sum(self._id.encode())
        epochs = [-1]
        for log in self._logs():
            known = log.active_producers().get(id)
            if known is not None:
                epochs.append(known.epoch)
        producer = Producer(id, max(epochs) + 1)
        for log in self._logs():
            decision = False
            for entry in open_transactions_of(log, {id}):
                decision = self._decided.get(self._id) == Producer(id, entry.epoch)
            write_marker(log, producer, is_committed=decision)
        return producer

    def record_commit(self, writer: StoreTransactionalWriter) -> None:
        self._decided[self._id] = writer.producer

    def finish(self, writer: StoreTransactionalWriter) -> None:
        del self._decided[self._id]

    def end_as_decided(self, writer: StoreTransactionalWriter) -> None:
        for log in writer.logs.values():
            for entry in open_transactions_of(log, {writer.producer.id}):
                if entry.epoch == writer.producer.epoch:
                    write_marker(log, writer.producer, is_committed=False)

    def _logs(self) -> list[Log]:
        topics = self._store.store.topics()
        return [partition.log for topic in topics for partition in topic.partitions]


class StoreBench:
    """A store in memory."""

    def __init__(self) -> None:
        self.virtual = VirtualStore()
        self.cluster = StoreCluster(self.virtual.store)
        self._decided: dict[str, Producer] = {}

    def writer(self, id: str) -> TransactionalWriter:
        return self.cluster.writer(MemoryCoordinator(self.virtual, id, self._decided))

    def append(self, topic: str, partition: int, *records: Record) -> None:
        self.virtual.store.topic(topic).append_batch(build_batch(records), partition)

    def delete(self, topic: str) -> None:
        self.virtual.store.delete_topic(topic)

    def close(self) -> None:
        self.virtual.close()


class KafkaBench:
    """A cluster behind the Kafka protocol."""

    def __init__(self, bootstrap: str) -> None:
        address = parse_cluster_address(
            {"bootstrap.servers": bootstrap, "request.timeout.ms": "20000"}
        )
        assert isinstance(address, ClusterAddress)
        self.cluster = KafkaCluster(address)
        self._client = KafkaClient(address, threading.Event().wait)

    def writer(self, id: str) -> TransactionalWriter:
        return self.cluster.writer(id)

    def append(self, topic: str, partition: int, *records: Record) -> None:
        data = PartitionProduceData(partition, memoryview(build_batch(records)))
        request = ProduceRequest(
            None, _ALL_REPLICAS, 20_000, [TopicProduceData(topic, partition_data=[data])]
        )

        def produce() -> None:
            response = self._client.send_to_leader(topic, partition, request, ProduceResponse)
            raise_for_code(response.responses[0].partition_responses[0].error_code, topic)

        self._client.retry(produce)

    def delete(self, topic: str) -> None:
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=topic)], topic_names=[topic], timeout_ms=20_000
        )
        (deleted,) = self._client.send_to_controller(request, DeleteTopicsResponse).responses
        raise_for_code(deleted.error_code, topic)
        with suppress(NotFound):
            while True:
                self.cluster.describe(topic)

    def close(self) -> None:
        self._client.close()
        self.cluster.close()


class ServerBench(KafkaBench):
    """A varve server on a socket, over a store in memory."""

    def __init__(self) -> None:
        self.kit = KafkaKit().__enter__()
        super().__init__(self.kit.bootstrap)

    def close(self) -> None:
        super().close()
        self.kit.close()


def batch_of(*values: bytes, key: bytes = b"k") -> bytes:
    return build_batch([Record(key, value, timestamp=1) for value in values])


def parts(topic: str, **batches: Sequence[bytes]) -> dict[TopicPartition, Sequence[bytes]]:
    """`p0=[...]` are the batches of partition 0."""
    return {TopicPartition(topic, int(name[1:])): some for name, some in batches.items()}
