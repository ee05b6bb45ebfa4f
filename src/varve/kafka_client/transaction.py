"""A blocking transactional producer: batches and committed offsets of one transaction.

Offsets of a group are committed with the batches: a reader of the group sees them if, and only if,
the transaction is committed.

Invariant  batches of a partition carry ascending sequences from 0 on, as each `begin` brings a new
           producer epoch; a batch that is sent again is recognized by them. `begin` fences earlier
           producers of the same id and ends their open transaction before it returns.
Crash      the coordinator completes an open transaction: commits it if the commit was recorded,
           else aborts it at the next `begin` or after the timeout.
Threads    one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from varve.foundation.errors import Fenced, InvalidRequest
from varve.kafka_client.client import GROUP, TRANSACTION, KafkaClient, get_only, retried
from varve.wire.errors import ErrorCode, RetriableError, raise_for_code
from varve.wire.messages import data, groups, transactions
from varve.wire.schema import Message

R = TypeVar("R", bound=Message)

ALL_REPLICAS: Final = -1
_IN_FLIGHT_MAX: Final = 5
"""A log remembers the last five batches of a producer, as in Kafka."""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """An offset that a group has committed, with its metadata text."""

    topic: str
    offset: int
    metadata: str
    partition: int = 0


class TransactionalProducer:
    """One transactional id; `begin` comes first."""

    def __init__(self, client: KafkaClient, id: str, *, timeout_ms: int) -> None:
        self.id = id
        self.producer_id = self.producer_epoch = -1
        self._client = client
        self._timeout_ms = timeout_ms
        self.retry = client.retry

    @retried
    def begin(self) -> None:
        """Fences earlier producers of the id; their open transaction is committed or aborted."""
        request = transactions.InitProducerIdRequest(self.id, self._timeout_ms)
        response = self._send_to_coordinator(request, transactions.InitProducerIdResponse)
        raise_for_code(response.error_code, f"{self._where}, timeout {self._timeout_ms} ms")
        self.producer_id, self.producer_epoch = response.producer_id, response.producer_epoch

    def add_partitions(self, topic: str, partitions: Sequence[int]) -> None:
        self.add_topics({topic: partitions})

    @retried
    def add_topics(self, partitions: Mapping[str, Sequence[int]]) -> None:
        """Adds partitions, by topic, to the transaction."""
        request = transactions.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.producer_epoch,
            v3_and_below_topics=[
                transactions.AddPartitionsToTxnTopic(topic, list(numbers))
                for topic, numbers in partitions.items()
            ],
        )
        response = self._send_to_coordinator(request, transactions.AddPartitionsToTxnResponse)
        codes = [
            result.partition_error_code
            for topic in response.results_by_topic_v3_and_below
            for result in topic.results_by_partition
        ]
        if len(codes) != sum(map(len, partitions.values())):
            raise RetriableError(f"{self._where}: the response does not have every partition")
        # Where one partition fails, the code of the others is OPERATION_NOT_ATTEMPTED.
        for code in sorted(codes, key=lambda code: code == ErrorCode.OPERATION_NOT_ATTEMPTED):
            raise_for_code(code, f"{self._where}, topic {', '.join(partitions)}")

    def append(self, topic: str, partition: int, batch: bytearray) -> None:
        """Appends one batch that carries the producer and its sequence."""
        self.append_all(topic, partition, [batch])

    def append_all(self, topic: str, partition: int, batches: Sequence[bytearray]) -> int:
        """Appends batches whose sequences follow each other; returns the offset of the last one.

        At most `_IN_FLIGHT_MAX` are in flight, so that the log recognizes repeated batches by their
        sequences. Returns -1 if the server does not report the offset.
        """
        offset = -1
        for start in range(0, len(batches), _IN_FLIGHT_MAX):
            offset = self._send(topic, partition, batches[start : start + _IN_FLIGHT_MAX])
        return offset

    @retried
    def _send(self, topic: str, partition: int, batches: Sequence[bytearray]) -> int:
        requests = [
            data.ProduceRequest(
                self.id,
                ALL_REPLICAS,
                self._client.address.timeout_ms,
                [
                    data.TopicProduceData(
                        topic,
                        partition_data=[data.PartitionProduceData(partition, memoryview(batch))],
                    )
                ],
            )
            for batch in batches
        ]
        responses = self._client.send_all_to_leader(
            topic, partition, requests, data.ProduceResponse
        )
        where = f"{self._client.address.name}: {topic}-{partition}"
        results = [
            get_only(get_only(response.responses, where).partition_responses, where)
            for response in responses
        ]
        # The first error is the cause: batches after it are out of order then.
        for result in results:
            if result.error_code != ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                raise_for_code(result.error_code, where, result.error_message)
        return results[-1].base_offset

    def commit_offset(self, group: str, committed: CommittedOffset) -> None:
        """Adds a committed offset of a group to the transaction."""
        self._add_group(group)
        self._commit_offset(group, committed)

    @retried
    def _add_group(self, group: str) -> None:
        request = transactions.AddOffsetsToTxnRequest(
            self.id, self.producer_id, self.producer_epoch, group
        )
        response = self._send_to_coordinator(request, transactions.AddOffsetsToTxnResponse)
        raise_for_code(response.error_code, f"{self._where}, group {group}")

    @retried
    def _commit_offset(self, group: str, committed: CommittedOffset) -> None:
        partition = transactions.TxnOffsetCommitRequestPartition(
            committed.partition, committed.offset, committed_metadata=committed.metadata
        )
        request = transactions.TxnOffsetCommitRequest(
            self.id,
            group,
            self.producer_id,
            self.producer_epoch,
            topics=[transactions.TxnOffsetCommitRequestTopic(committed.topic, [partition])],
        )
        response = self._client.send_to_coordinator(
            GROUP, group, request, transactions.TxnOffsetCommitResponse
        )
        where = f"{self._where}, group {group}"
        result = get_only(get_only(response.topics, where).partitions, where)
        raise_for_code(result.error_code, where)

    @retried
    def end(self, *, is_committed: bool) -> None:
        """Raises Fenced where another producer, or the timeout, has ended the transaction."""
        request = transactions.EndTxnRequest(
            self.id, self.producer_id, self.producer_epoch, is_committed
        )
        response = self._send_to_coordinator(request, transactions.EndTxnResponse)
        if response.error_code == ErrorCode.INVALID_TXN_STATE:
            raise Fenced(f"{self._where}: it was ended by its timeout or by another producer")
        raise_for_code(response.error_code, self._where)

    @property
    def _where(self) -> str:
        return f"{self._client.address.name}: transaction of {self.id}"

    def _send_to_coordinator(self, request: Message, response_type: type[R]) -> R:
        return self._client.send_to_coordinator(TRANSACTION, self.id, request, response_type)


@retried
def fetch_offsets(client: KafkaClient, group: str) -> list[CommittedOffset]:
    """All committed offsets of a group, once no transaction that would change them is open."""
    requested = groups.OffsetFetchRequestGroup(group, topics=None)
    request = groups.OffsetFetchRequest(groups=[requested], require_stable=True)
    response = client.send_to_coordinator(GROUP, group, request, groups.OffsetFetchResponse)
    where = f"{client.address.name}: group {group}"
    if not response.groups:
        raise InvalidRequest(f"{where}: a sink needs Kafka 3.0 or later, or varve")
    fetched = get_only(response.groups, where)
    raise_for_code(fetched.error_code, where)
    for topic in fetched.topics:
        for partition in topic.partitions:
            raise_for_code(partition.error_code, where)
    return [
        CommittedOffset(
            topic.name, item.committed_offset, item.metadata or "", item.partition_index
        )
        for topic in fetched.topics
        for item in topic.partitions
        if item.committed_offset >= 0
    ]
