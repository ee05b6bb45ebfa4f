"""A blocking transactional producer: batches and committed offsets of one transaction.

Offsets of a group are committed with the batches: a reader of the group finds them if, and only if,
the batches of the transaction are committed.

Invariant  batches of a partition carry ascending sequences from 0 on, as each beginning has a new
           producer epoch; one that is sent again is known by them. An earlier producer of the same
           id is fenced, and what it left open is ended, before the beginning returns.
Crash      the coordinator ends what is left open: committed once it has noted the end, else aborted
           by the next beginning or after the timeout.
Threads    one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from varve.foundation.errors import Fenced, InvalidRequest
from varve.kafka_client.client import GROUP, TRANSACTION, KafkaClient, get_only
from varve.wire.errors import ErrorCode, RetriableError, raise_for_code
from varve.wire.messages.data import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from varve.wire.messages.groups import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from varve.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from varve.wire.schema import Message

R = TypeVar("R", bound=Message)

_ALL_REPLICAS: Final = -1
_IN_FLIGHT_MAX: Final = 5


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

    def begin(self) -> None:
        """Fences earlier producers of the id; what they left open is committed or aborted."""
        request = InitProducerIdRequest(self.id, self._timeout_ms)

        def ask() -> InitProducerIdResponse:
            answer = self._ask_coordinator(request, InitProducerIdResponse)
            raise_for_code(answer.error_code, f"{self._where}, timeout {self._timeout_ms} ms")
            return answer

        answer = self._client.retry(ask)
        self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch

    def add_partitions(self, topic: str, partitions: Sequence[int]) -> None:
        self.add_topics({topic: partitions})

    def add_topics(self, partitions: Mapping[str, Sequence[int]]) -> None:
        """Makes partitions, by their topics, part of the transaction."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.producer_epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(topic, list(numbers))
                for topic, numbers in partitions.items()
            ],
        )

        def ask() -> None:
            answer = self._ask_coordinator(request, AddPartitionsToTxnResponse)
            # The others say that nothing was attempted where one of them is at fault.
            codes = [
                one.partition_error_code
                for some in answer.results_by_topic_v3_and_below
                for one in some.results_by_partition
            ]
            if len(codes) != sum(map(len, partitions.values())):
                raise RetriableError(f"{self._where}: the answer does not tell of every partition")
            for code in sorted(codes, key=lambda one: one == ErrorCode.OPERATION_NOT_ATTEMPTED):
                raise_for_code(code, f"{self._where}, topic {', '.join(partitions)}")

        self._client.retry(ask)

    def append(self, topic: str, partition: int, batch: bytearray) -> None:
        """Appends one batch that carries the producer and its sequence."""
        self.append_all(topic, partition, [batch])

    def append_all(self, topic: str, partition: int, batches: Sequence[bytearray]) -> int:
        """Appends batches whose sequences follow each other; gives the offset of the last one.

        Several are on their way at a time, as many as a log remembers of a producer: those that
        are sent again are known by their sequences. -1 where the server does not tell the offset.
        """
        offset, sent = -1, 0
        while sent < len(batches):
            flight = batches[sent : sent + _IN_FLIGHT_MAX]
            offset = self._client.retry(self._send, topic, partition, flight)
            sent += len(flight)
        return offset

    def _send(self, topic: str, partition: int, batches: Sequence[bytearray]) -> int:
        requests = [
            ProduceRequest(
                self.id,
                _ALL_REPLICAS,
                self._client.address.timeout_ms,
                [
                    TopicProduceData(
                        topic, partition_data=[PartitionProduceData(partition, memoryview(batch))]
                    )
                ],
            )
            for batch in batches
        ]
        answers = self._client.send_all_to_leader(topic, partition, requests, ProduceResponse)
        where = f"{self._client.address.name}: {topic}-{partition}"
        found = [
            get_only(get_only(one.responses, where).partition_responses, where) for one in answers
        ]
        # The first that fails tells why: those behind it are out of order then.
        for one in found:
            if one.error_code != ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                raise_for_code(one.error_code, where, one.error_message)
        return found[-1].base_offset

    def commit_offset(self, group: str, committed: CommittedOffset) -> None:
        """Makes a committed offset of a group part of the transaction."""
        joined = AddOffsetsToTxnRequest(self.id, self.producer_id, self.producer_epoch, group)
        place = TxnOffsetCommitRequestPartition(
            committed.partition, committed.offset, committed_metadata=committed.metadata
        )
        request = TxnOffsetCommitRequest(
            self.id,
            group,
            self.producer_id,
            self.producer_epoch,
            topics=[TxnOffsetCommitRequestTopic(committed.topic, [place])],
        )

        def join() -> None:
            answer = self._ask_coordinator(joined, AddOffsetsToTxnResponse)
            raise_for_code(answer.error_code, f"{self._where}, group {group}")

        def commit() -> None:
            answer = self._client.send_to_coordinator(
                GROUP, group, request, TxnOffsetCommitResponse
            )
            where = f"{self._where}, group {group}"
            raise_for_code(
                get_only(get_only(answer.topics, where).partitions, where).error_code, where
            )

        self._client.retry(join)
        self._client.retry(commit)

    def end(self, *, is_committed: bool) -> None:
        """Raises Fenced where another producer, or the timeout, has ended the transaction."""
        request = EndTxnRequest(self.id, self.producer_id, self.producer_epoch, is_committed)

        def ask() -> None:
            answer = self._ask_coordinator(request, EndTxnResponse)
            if answer.error_code == ErrorCode.INVALID_TXN_STATE:
                raise Fenced(f"{self._where}: it was ended by its timeout or by another producer")
            raise_for_code(answer.error_code, self._where)

        self._client.retry(ask)

    @property
    def _where(self) -> str:
        return f"{self._client.address.name}: transaction of {self.id}"

    def _ask_coordinator(self, request: Message, kind: type[R]) -> R:
        return self._client.send_to_coordinator(TRANSACTION, self.id, request, kind)


def fetch_offsets(client: KafkaClient, group: str) -> list[CommittedOffset]:
    """All committed offsets of a group, once no transaction that would change them is open."""
    asked = OffsetFetchRequestGroup(group, topics=None)
    request = OffsetFetchRequest(groups=[asked], require_stable=True)

    def ask() -> list[CommittedOffset]:
        answer = client.send_to_coordinator(GROUP, group, request, OffsetFetchResponse)
        where = f"{client.address.name}: group {group}"
        if not answer.groups:
            raise InvalidRequest(f"{where}: a sink needs Kafka 3.0 or later, or varve")
        told = get_only(answer.groups, where)
        raise_for_code(told.error_code, where)
        found = []
        for topic in told.topics:
            for place in topic.partitions:
                raise_for_code(place.error_code, where)
                if place.committed_offset >= 0:
                    text, number = place.metadata or "", place.partition_index
                    found.append(CommittedOffset(topic.name, place.committed_offset, text, number))
        return found

    return client.retry(ask)
