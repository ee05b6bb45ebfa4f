"""confluent-kafka, which is librdkafka."""

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # not exported by name
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.support.kafka_clients import (
    FETCH_WAIT_MS,
    RECONNECT_MAX_MS,
    RETRY_MS,
    WAIT_SECONDS,
    Broken,
    ConsumerClient,
    ConsumerOptions,
    Failed,
    Fenced,
    GroupFacts,
    Headers,
    Isolation,
    OutOfRange,
    Partition,
    Place,
    ProducerOptions,
    Received,
)
from tests.support.kafka_login import Login
from varve.foundation.closing import Closing

_POLL_COUNT: Final = 500
_CONNECTION: Final[dict[str, Any]] = {
    "reconnect.backoff.ms": RETRY_MS,
    "reconnect.backoff.max.ms": RECONNECT_MAX_MS,
    "retry.backoff.ms": RETRY_MS,
    "retry.backoff.max.ms": RECONNECT_MAX_MS,
    "log_level": 0,
}
_FENCED: Final = frozenset(
    (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
)

_STEP_SECONDS = 2
"""A call that ends a transaction is made again until it is done."""


class ConfluentProducer(Closing):
    def __init__(
        self, bootstrap: str, options: ProducerOptions, connection: Mapping[str, Any] = _CONNECTION
    ) -> None:
        settings: dict[str, Any] = {
            **connection,
            "bootstrap.servers": bootstrap,
            "acks": options.acks,
            "compression.type": options.codec,
            "linger.ms": options.linger_ms,
            "message.max.bytes": options.request_bytes_max,
            "socket.timeout.ms": options.request_timeout_ms,
            "request.timeout.ms": options.request_timeout_ms,
            "message.timeout.ms": 0 if options.is_idempotent else int(WAIT_SECONDS * 1000),
            "enable.idempotence": options.is_idempotent or options.transactional_id is not None,
        }
        if options.transactional_id is not None:
            settings["transactional.id"] = options.transactional_id
            settings["transaction.timeout.ms"] = options.transaction_timeout_ms
            settings["message.timeout.ms"] = options.transaction_timeout_ms
            settings["socket.timeout.ms"] = min(
                options.transaction_timeout_ms, options.request_timeout_ms
            )
        self._producer = Producer(settings)
        if options.transactional_id is not None:
            self._producer.init_transactions(WAIT_SECONDS)

    def send(
        self,
        partition: Partition,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> "Future[int]":
        sent: Future[int] = Future()

        def note(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                sent.set_exception(_translated(KafkaException(error)))
            else:
                offset = message.offset()
                sent.set_result(-1 if offset is None or offset < 0 else offset)

        extra: dict[str, Any] = {} if timestamp_ms is None else {"timestamp": timestamp_ms}
        self._producer.produce(
            partition[0],
            value,
            key,
            partition[1],
            headers=list(headers),
            on_delivery=note,
            **extra,
        )
        self._producer.poll(0)
        return sent

    def flush(self) -> None:
        assert self._producer.flush(WAIT_SECONDS) == 0, "records were not acknowledged in time"

    def begin(self) -> None:
        self._producer.begin_transaction()

    def commit(self) -> None:
        self._end(self._producer.commit_transaction)

    def abort(self) -> None:
        self._end(self._producer.abort_transaction)

    def _end(self, call: Any) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                call(_STEP_SECONDS)
                return
            except KafkaException as error:
                told = error.args[0]
                is_slow = told.code() == KafkaError._TIMED_OUT
                if not (is_slow or told.retriable()) or time.monotonic() > deadline:
                    raise _translated(error) from error
            # It waits for reports of records, which are told by polling alone.
            self._producer.poll(0.1)

    def send_offsets(
        self, offsets: Mapping[Partition, int], consumer: ConsumerClient, group: str
    ) -> None:
        assert isinstance(consumer, ConfluentConsumer)
        try:
            self._producer.send_offsets_to_transaction(
                _positions(offsets), consumer.metadata(), WAIT_SECONDS
            )
        except KafkaException as error:
            raise _translated(error) from error

    def close(self) -> None:
        self._producer.purge()
        try:
            self._producer.close()
        except KafkaException as error:
            if not isinstance(_translated(error), Fenced | Broken):
                raise


class ConfluentConsumer(Closing):
    def __init__(
        self, bootstrap: str, options: ConsumerOptions, connection: Mapping[str, Any] = _CONNECTION
    ) -> None:
        settings: dict[str, Any] = {
            **connection,
            "bootstrap.servers": bootstrap,
            "group.id": options.group or "nobody",
            "enable.auto.commit": False,
            "auto.offset.reset": "error" if options.reset == "none" else options.reset,
            "isolation.level": options.isolation,
            "group.protocol": options.protocol,
            "fetch.wait.max.ms": FETCH_WAIT_MS,
            "fetch.error.backoff.ms": RETRY_MS,
        }
        if options.protocol == "classic":
            settings["session.timeout.ms"] = options.session_timeout_ms
            settings["heartbeat.interval.ms"] = max(1, options.session_timeout_ms // 10)
        if options.instance is not None:
            settings["group.instance.id"] = options.instance
        self._consumer = Consumer(settings)

    def metadata(self) -> Any:
        return self._consumer.consumer_group_metadata()

    def assign(self, places: Mapping[Partition, Place]) -> None:
        # It would learn of a topic that is new to it up to a second later by itself.
        for topic in {one[0] for one in places}:
            self._consumer.list_topics(topic, WAIT_SECONDS)
        self._consumer.assign(
            [TopicPartition(*one, self._offset(one, place)) for one, place in places.items()]
        )

    def _offset(self, partition: Partition, place: Place) -> int:
        if place == "beginning":
            return OFFSET_BEGINNING
        if place == "end":
            # OFFSET_END would be looked up later, perhaps after the next record has come.
            asked = TopicPartition(*partition)
            watermarks = self._consumer.get_watermark_offsets(asked, WAIT_SECONDS)
            assert watermarks is not None
            return watermarks[1]
        return place

    def subscribe(self, topic: str) -> None:
        self._consumer.subscribe([topic])

    def assignment(self) -> set[Partition]:
        return {(one.topic, one.partition) for one in self._consumer.assignment()}

    def poll(self, seconds: float) -> list[Received]:
        found = self._consumer.consume(1, seconds)
        if found:
            found += self._consumer.consume(_POLL_COUNT, 0.001)
        for message in found:
            error = message.error()
            if error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise OutOfRange(error.str())
            if error is not None and error.fatal():
                raise KafkaException(error)
        return [_received(message) for message in found if message.error() is None]

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        for one in self._consumer.commit(offsets=_positions(offsets), asynchronous=False) or []:
            assert one.error is None, str(one.error)

    def committed(self, partition: Partition) -> int | None:
        (found,) = self._consumer.committed([TopicPartition(*partition)], WAIT_SECONDS)
        assert found.error is None, str(found.error)
        return found.offset if found.offset >= 0 else None

    def offset_at(self, partition: Partition, timestamp_ms: int) -> int | None:
        asked = [TopicPartition(*partition, timestamp_ms)]
        (found,) = self._consumer.offsets_for_times(asked, WAIT_SECONDS)
        return found.offset if found.offset >= 0 else None

    def close(self) -> None:
        self._consumer.close()


class ConfluentAdmin(Closing):
    def __init__(self, bootstrap: str, connection: Mapping[str, Any] = _CONNECTION) -> None:
        self._admin = AdminClient({**connection, "bootstrap.servers": bootstrap})

    def create(
        self, topic: str, partition_count: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        new = NewTopic(topic, partition_count, 1, config=dict(configs or {}))
        _done(self._admin.create_topics([new]))

    def topics(self) -> set[str]:
        return set(self._admin.list_topics(timeout=WAIT_SECONDS).topics)

    def _describe(self, topic: str) -> Any:
        (found,) = _done(self._admin.describe_topics(TopicCollection([topic])))
        return found

    def topic_id(self, topic: str) -> str:
        return str(self._describe(topic).topic_id)

    def partition_count(self, topic: str) -> int:
        return len(self._describe(topic).partitions)

    def add_partitions(self, topic: str, count: int) -> None:
        _done(self._admin.create_partitions([NewPartitions(topic, count)]))

    def configs(self, topic: str) -> dict[str, str]:
        asked = [ConfigResource(ResourceType.TOPIC, topic)]
        (found,) = _done(self._admin.describe_configs(asked))
        return {name: entry.value for name, entry in found.items()}

    def alter_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in configs.items()
        ]
        changed = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        _done(self._admin.incremental_alter_configs([changed]))

    def delete_records(self, partition: Partition, before: int) -> int:
        asked = [TopicPartition(*partition, before)]
        (found,) = _done(self._admin.delete_records(asked))
        return int(found.low_watermark)

    def delete(self, topic: str) -> None:
        _done(self._admin.delete_topics([topic]))

    def earliest(self, partition: Partition) -> int:
        asked = {TopicPartition(*partition): OffsetSpec.earliest()}  # type: ignore[no-untyped-call]
        (found,) = _done(self._admin.list_offsets(asked))
        return int(found.offset)

    def latest(self, partition: Partition, isolation: Isolation = "read_uncommitted") -> int:
        asked = {TopicPartition(*partition): OffsetSpec.latest()}  # type: ignore[no-untyped-call]
        level = IsolationLevel[isolation.upper()]
        (found,) = _done(self._admin.list_offsets(asked, isolation_level=level))
        return int(found.offset)

    def groups(self) -> set[str]:
        found = self._admin.list_consumer_groups().result(WAIT_SECONDS)
        assert not found.errors
        return {one.group_id for one in found.valid}

    def group(self, group: str) -> GroupFacts:
        (found,) = _done(self._admin.describe_consumer_groups([group]))
        return GroupFacts(found.state.name.title().replace("_", ""), len(found.members))

    def group_offsets(self, group: str) -> dict[Partition, int]:
        asked = [ConsumerGroupTopicPartitions(group)]
        (found,) = _done(self._admin.list_consumer_group_offsets(asked))
        return {(one.topic, one.partition): one.offset for one in found.topic_partitions}

    def alter_group_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        asked = [ConsumerGroupTopicPartitions(group, _positions(offsets))]
        (found,) = _done(self._admin.alter_consumer_group_offsets(asked))
        assert all(one.error is None for one in found.topic_partitions)

    def delete_groups(self, groups: Iterable[str]) -> None:
        _done(self._admin.delete_consumer_groups(list(groups)))

    def close(self) -> None:
        del self._admin


class ConfluentClient:
    """Makes the three of them; `settings` are librdkafka's own."""

    def __init__(
        self, login: Login | None = None, settings: Mapping[str, Any] | None = None
    ) -> None:
        own = login.for_librdkafka() if login else {}
        self._connection = {**_CONNECTION, **own, **(settings or {})}

    def producer(self, bootstrap: str, options: ProducerOptions) -> ConfluentProducer:
        return ConfluentProducer(bootstrap, options, self._connection)

    def consumer(self, bootstrap: str, options: ConsumerOptions) -> ConfluentConsumer:
        return ConfluentConsumer(bootstrap, options, self._connection)

    def admin(self, bootstrap: str) -> ConfluentAdmin:
        return ConfluentAdmin(bootstrap, self._connection)

    def close(self) -> None:
        """Each one closes itself."""


def _done(futures: Mapping[Any, "Future[Any]"]) -> list[Any]:
    return [one.result(WAIT_SECONDS) for one in futures.values()]


def _positions(offsets: Mapping[Partition, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, number, at) for (topic, number), at in offsets.items()]


def _received(message: Message) -> Received:
    headers: Any = message.headers()
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return Received(
        partition,
        offset,
        message.key(),
        message.value(),
        tuple(headers or ()),
        message.timestamp()[1],
    )


def _translated(error: KafkaException) -> Exception:
    told = error.args[0]
    if told.code() in _FENCED:
        return Fenced(told.str())
    if told.txn_requires_abort():
        return Failed(told.str())
    return Broken(told.str()) if told.fatal() else error
