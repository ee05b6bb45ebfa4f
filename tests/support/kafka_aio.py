"""aiokafka, told what to do from outside of its loop."""

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, Final, TypeVar

import aiokafka.errors as told
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.structs import OffsetAndMetadata

from tests.support.kafka_clients import (
    FETCH_WAIT_MS,
    RETRY_MS,
    ConsumerClient,
    ConsumerOptions,
    Fenced,
    GroupFacts,
    Headers,
    Isolation,
    OutOfRange,
    Partition,
    Place,
    ProducerOptions,
    Received,
    received_of,
)
from tests.support.kafka_login import Login
from tests.support.loop_thread import LoopThread
from varve.foundation.closing import Closing

T = TypeVar("T")

_CONNECTION: Final[dict[str, Any]] = {"retry_backoff_ms": RETRY_MS}
_FENCED: Final = (told.ProducerFenced, told.InvalidProducerEpoch)
_OUT_OF_RANGE: Final = (told.OffsetOutOfRangeError, told.NoOffsetForPartitionError)


class AioProducer(Closing):
    def __init__(
        self,
        loop: LoopThread,
        bootstrap: str,
        options: ProducerOptions,
        connection: Mapping[str, Any] = _CONNECTION,
    ) -> None:
        self._loop = loop
        self._connection = connection
        self._futures: list[Future[Any]] = []
        self._producer = loop.run(self._make(bootstrap, options))
        loop.run(self._producer.start())

    async def _make(self, bootstrap: str, options: ProducerOptions) -> Any:
        return AIOKafkaProducer(
            **self._connection,
            bootstrap_servers=bootstrap,
            acks=options.acks if options.acks == "all" else int(options.acks),
            compression_type=None if options.codec == "none" else options.codec,
            linger_ms=options.linger_ms,
            max_request_size=options.request_bytes_max,
            request_timeout_ms=options.request_timeout_ms,
            enable_idempotence=options.is_idempotent,
            transactional_id=options.transactional_id,
            transaction_timeout_ms=options.transaction_timeout_ms,
        )

    def send(
        self,
        partition: Partition,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> "Future[int]":
        if key is None and value is None:
            pytest.skip("aiokafka sends no record without key and value")
        sent: Future[int] = Future()
        pending = self._loop.run(
            self._producer.send(
                partition[0],
                value,
                key=key,
                partition=partition[1],
                timestamp_ms=timestamp_ms,
                headers=list(headers),
            )
        )
        pending.add_done_callback(lambda done: _hand_over(done, sent))
        return sent

    def flush(self) -> None:
        self._loop.run(self._producer.flush())

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def send_offsets(
        self, offsets: Mapping[Partition, int], consumer: ConsumerClient, group: str
    ) -> None:
        self._run(self._producer.send_offsets_to_transaction(_positions(offsets), group))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._loop.run(work)
        except told.KafkaError as error:
            raise _translated(error) from error

    def close(self) -> None:
        with suppress(CancelledError):
            self._loop.run(self._producer.stop())


class AioConsumer(Closing):
    def __init__(
        self,
        loop: LoopThread,
        bootstrap: str,
        options: ConsumerOptions,
        connection: Mapping[str, Any] = _CONNECTION,
    ) -> None:
        self._loop = loop
        self._connection = connection
        self._consumer = loop.run(self._make(bootstrap, options))
        loop.run(self._consumer.start())

    async def _make(self, bootstrap: str, options: ConsumerOptions) -> Any:
        if options.protocol != "classic":
            pytest.skip("aiokafka has classic groups alone")
        return AIOKafkaConsumer(
            **self._connection,
            bootstrap_servers=bootstrap,
            group_id=options.group,
            group_instance_id=options.instance,
            enable_auto_commit=False,
            auto_offset_reset=options.reset,
            isolation_level=options.isolation,
            session_timeout_ms=options.session_timeout_ms,
            rebalance_timeout_ms=options.session_timeout_ms,
            heartbeat_interval_ms=max(1, options.session_timeout_ms // 10),
            fetch_max_wait_ms=FETCH_WAIT_MS,
        )

    def assign(self, places: Mapping[Partition, Place]) -> None:
        self._loop.run(self._assign(places))

    async def _assign(self, places: Mapping[Partition, Place]) -> None:
        self._consumer.assign([TopicPartition(*one) for one in places])
        for one, place in places.items():
            partition = TopicPartition(*one)
            if place == "beginning":
                await self._consumer.seek_to_beginning(partition)
            elif place == "end":
                await self._consumer.seek_to_end(partition)
            else:
                self._consumer.seek(partition, place)

    def subscribe(self, topic: str) -> None:
        self._loop.run(self._subscribe(topic))

    async def _subscribe(self, topic: str) -> None:
        self._consumer.subscribe([topic])

    def assignment(self) -> set[Partition]:
        return {(one.topic, one.partition) for one in self._consumer.assignment()}

    def poll(self, seconds: float) -> list[Received]:
        try:
            found = self._loop.run(self._consumer.getmany(timeout_ms=int(seconds * 1000)))
        except _OUT_OF_RANGE as error:
            raise OutOfRange(str(error)) from error
        return [received_of(record) for records in found.values() for record in records]

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        self._loop.run(self._consumer.commit(_positions(offsets)))

    def committed(self, partition: Partition) -> int | None:
        found: int | None = self._loop.run(self._consumer.committed(TopicPartition(*partition)))
        return found

    def offset_at(self, partition: Partition, timestamp_ms: int) -> int | None:
        asked = TopicPartition(*partition)
        found = self._loop.run(self._consumer.offsets_for_times({asked: timestamp_ms}))[asked]
        return None if found is None else int(found.offset)

    def close(self) -> None:
        # It hands on that its own work was cancelled, if that was about to connect anew.
        with suppress(CancelledError):
            self._loop.run(self._consumer.stop())


class AioAdmin(Closing):
    def __init__(
        self, loop: LoopThread, bootstrap: str, login: Mapping[str, Any] | None = None
    ) -> None:
        self._loop = loop
        self._login = dict(login or {})
        self._bootstrap = bootstrap
        self._admin = loop.run(self._make(bootstrap))
        loop.run(self._admin.start())

    async def _make(self, bootstrap: str) -> Any:
        return AIOKafkaAdminClient(**self._login, bootstrap_servers=bootstrap)

    def create(
        self, topic: str, partition_count: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        new = NewTopic(topic, partition_count, 1, topic_configs=dict(configs or {}))
        found = self._loop.run(self._admin.create_topics([new]))
        for one in found.topic_errors:
            _check(one[1], one)

    def topics(self) -> set[str]:
        return set(self._loop.run(self._admin.list_topics()))

    def topic_id(self, topic: str) -> str:
        pytest.skip("aiokafka asks for metadata of a version without ids")

    def partition_count(self, topic: str) -> int:
        (found,) = self._loop.run(self._admin.describe_topics([topic]))
        _check(found["error_code"], found)
        return len(found["partitions"])

    def add_partitions(self, topic: str, count: int) -> None:
        self._loop.run(self._admin.create_partitions({topic: NewPartitions(count)}))

    def configs(self, topic: str) -> dict[str, str]:
        asked = ConfigResource(ConfigResourceType.TOPIC, topic)
        (found,) = self._loop.run(self._admin.describe_configs([asked]))
        ((code, *_, entries),) = found.resources
        _check(code, found)
        return {entry[0]: entry[1] for entry in entries}

    def alter_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        changed = ConfigResource(ConfigResourceType.TOPIC, topic, dict(configs))
        (found,) = self._loop.run(self._admin.alter_configs([changed]))
        for one in found.resources:
            _check(one[0], one)

    def delete_records(self, partition: Partition, before: int) -> int:
        asked = TopicPartition(*partition)
        found = self._loop.run(self._admin.delete_records({asked: RecordsToDelete(before)}))
        return int(found[asked])

    def delete(self, topic: str) -> None:
        found = self._loop.run(self._admin.delete_topics([topic]))
        for one in found.topic_error_codes:
            _check(one[1], one)

    def earliest(self, partition: Partition) -> int:
        return self._offset("beginning_offsets", partition, "read_uncommitted")

    def latest(self, partition: Partition, isolation: Isolation = "read_uncommitted") -> int:
        return self._offset("end_offsets", partition, isolation)

    def _offset(self, method: str, partition: Partition, isolation: Isolation) -> int:
        """Its admin does not list offsets; its consumer does."""
        asked = TopicPartition(*partition)
        options = ConsumerOptions(isolation=isolation)
        connection = _CONNECTION | self._login
        with AioConsumer(self._loop, self._bootstrap, options, connection) as consumer:
            return int(self._loop.run(getattr(consumer._consumer, method)([asked]))[asked])

    def groups(self) -> set[str]:
        return {one[0] for one in self._loop.run(self._admin.list_consumer_groups())}

    def group(self, group: str) -> GroupFacts:
        (found,) = self._loop.run(self._admin.describe_consumer_groups([group]))
        ((code, _, state, _, _, members, *_),) = found.groups
        _check(code, found)
        return GroupFacts(state, len(members))

    def group_offsets(self, group: str) -> dict[Partition, int]:
        found = self._loop.run(self._admin.list_consumer_group_offsets(group))
        return {(one.topic, one.partition): at.offset for one, at in found.items()}

    def alter_group_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        pytest.skip("aiokafka does not alter the offsets of groups")

    def delete_groups(self, groups: Iterable[str]) -> None:
        pytest.skip("aiokafka does not delete groups")

    def close(self) -> None:
        self._loop.run(self._admin.close())


class AioClient:
    """Makes the three of them, in one loop."""

    def __init__(self, login: Login | None = None) -> None:
        self._loop = LoopThread()
        self._login = login.for_python() if login else {}
        self._connection = _CONNECTION | self._login

    def producer(self, bootstrap: str, options: ProducerOptions) -> AioProducer:
        return AioProducer(self._loop, bootstrap, options, self._connection)

    def consumer(self, bootstrap: str, options: ConsumerOptions) -> AioConsumer:
        return AioConsumer(self._loop, bootstrap, options, self._connection)

    def admin(self, bootstrap: str) -> AioAdmin:
        return AioAdmin(self._loop, bootstrap, self._login)

    def close(self) -> None:
        self._loop.close()


def _hand_over(done: "asyncio.Future[Any]", sent: "Future[int]") -> None:
    error = done.exception()
    if error is not None:
        sent.set_exception(_translated(error))
    else:
        metadata = done.result()
        sent.set_result(-1 if metadata is None else metadata.offset)


def _check(code: int, answer: object) -> None:
    if code:
        raise told.for_code(code)(str(answer))


def _positions(offsets: Mapping[Partition, int]) -> dict[Any, Any]:
    return {TopicPartition(*one): OffsetAndMetadata(at, "") for one, at in offsets.items()}


def _translated(error: BaseException) -> BaseException:
    if isinstance(error, _FENCED):
        return Fenced(str(error))
    return error
