"""A transactional producer that waits for its answers: batches and notes of one transaction.

A note is a committed offset of a group, with a text: what a reader of the group finds is there if,
and only if, the batches of its transaction are.

Invariant  batches of a partition carry ascending sequences from 0 on, as each beginning has a new
           producer epoch; one that is sent again is known by them. An earlier producer of the same
           id is fenced, and what it left open is ended, before the beginning returns.
Crash      the coordinator ends what is left open: committed once it has noted the end, else aborted
           by the next beginning or after the timeout.
Threads    one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from varve.foundation.errors import Fenced, InvalidRequest
from varve.kafka_client.answers import Refused, check, only
from varve.kafka_client.client import ServerClient
from varve.wire.errors import ErrorCode
from varve.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from varve.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from varve.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from varve.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from varve.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from varve.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from varve.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from varve.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from varve.wire.schema import Message

R = TypeVar("R", bound=Message)

_GROUP: Final = 0
_TRANSACTION: Final = 1
_ALL_REPLICAS: Final = -1
_IN_FLIGHT_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Note:
    """What a group has noted of a topic."""

    topic: str
    number: int
    text: str
    partition: int = 0


class TransactionalProducer:
    """One transactional id; `begin` comes first."""

    def __init__(self, client: ServerClient, id: str, *, timeout_ms: int) -> None:
        self.id = id
        self.producer_id = self.producer_epoch = -1
        self._client = client
        self._timeout_ms = timeout_ms

    def begin(self) -> None:
        """Fences earlier producers of the id; what they left open is committed or aborted."""
        request = InitProducerIdRequest(self.id, self._timeout_ms)

        def ask() -> InitProducerIdResponse:
            answer = self._ask_coordinator(request, InitProducerIdResponse)
            check(answer.error_code, f"{self._where}, timeout {self._timeout_ms} ms")
            return answer

        answer = self._client.patiently(ask)
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
                raise Refused(f"{self._where}: the answer does not tell of every partition")
            for code in sorted(codes, key=lambda one: one == ErrorCode.OPERATION_NOT_ATTEMPTED):
                check(code, f"{self._where}, topic {', '.join(partitions)}")

        self._client.patiently(ask)

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
            offset = self._client.patiently(partial(self._send, topic, partition, flight))
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
        answers = self._client.ask_leader_all(topic, partition, requests, ProduceResponse)
        where = f"{self._client.address.name}: {topic}-{partition}"
        found = [only(only(one.responses, where).partition_responses, where) for one in answers]
        # The first that fails tells why: those behind it are out of order then.
        for one in found:
            if one.error_code != ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                check(one.error_code, where, one.error_message)
        return found[-1].base_offset

    def note(self, group: str, note: Note) -> None:
        """Makes a note of a group part of the transaction."""
        joined = AddOffsetsToTxnRequest(self.id, self.producer_id, self.producer_epoch, group)
        place = TxnOffsetCommitRequestPartition(
            note.partition, note.number, committed_metadata=note.text
        )
        request = TxnOffsetCommitRequest(
            self.id,
            group,
            self.producer_id,
            self.producer_epoch,
            topics=[TxnOffsetCommitRequestTopic(note.topic, [place])],
        )

        def join() -> None:
            answer = self._ask_coordinator(joined, AddOffsetsToTxnResponse)
            check(answer.error_code, f"{self._where}, group {group}")

        def commit() -> None:
            answer = _ask(self._client, group, _GROUP, request, TxnOffsetCommitResponse)
            where = f"{self._where}, group {group}"
            check(only(only(answer.topics, where).partitions, where).error_code, where)

        self._client.patiently(join)
        self._client.patiently(commit)

    def end(self, *, is_committed: bool) -> None:
        """Raises Fenced where another producer, or the timeout, has ended the transaction."""
        request = EndTxnRequest(self.id, self.producer_id, self.producer_epoch, is_committed)

        def ask() -> None:
            answer = self._ask_coordinator(request, EndTxnResponse)
            if answer.error_code == ErrorCode.INVALID_TXN_STATE:
                raise Fenced(f"{self._where}: it was ended by its timeout or by another producer")
            check(answer.error_code, self._where)

        self._client.patiently(ask)

    @property
    def _where(self) -> str:
        return f"{self._client.address.name}: transaction of {self.id}"

    def _ask_coordinator(self, request: Message, kind: type[R]) -> R:
        return _ask(self._client, self.id, _TRANSACTION, request, kind)


def find_notes(client: ServerClient, group: str) -> list[Note]:
    """All that a group has noted, once no transaction that would change it is open."""
    asked = OffsetFetchRequestGroup(group, topics=None)
    request = OffsetFetchRequest(groups=[asked], require_stable=True)

    def ask() -> list[Note]:
        answer = _ask(client, group, _GROUP, request, OffsetFetchResponse)
        where = f"{client.address.name}: group {group}"
        if not answer.groups:
            raise InvalidRequest(f"{where}: a sink needs Kafka 3.0 or later, or varve")
        told = only(answer.groups, where)
        check(told.error_code, where)
        found = []
        for topic in told.topics:
            for place in topic.partitions:
                check(place.error_code, where)
                if place.committed_offset >= 0:
                    text, number = place.metadata or "", place.partition_index
                    found.append(Note(topic.name, place.committed_offset, text, number))
        return found

    return client.patiently(ask)


def _ask(client: ServerClient, key: str, kind: int, request: Message, answer: type[R]) -> R:
    """Asks the coordinator of a group or a transactional id."""
    host, port = _find_coordinator(client, key, kind)
    return client.ask_at(host, port, request, answer)


def _find_coordinator(client: ServerClient, key: str, kind: int) -> tuple[str, int]:
    request = FindCoordinatorRequest(key, kind, [key])
    answer = client.ask_any(request, FindCoordinatorResponse)
    where = f"{client.address.name}: the coordinator of {key}"
    check(answer.error_code, where, answer.error_message)
    if not answer.coordinators:
        return answer.host, answer.port
    found = only(answer.coordinators, where)
    check(found.error_code, where, found.error_message)
    return found.host, found.port
