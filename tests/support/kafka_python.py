"""kafka-python."""

import gc
import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Final

import pytest

from tests.support.kafka_clients import (
    FETCH_WAIT_MS,
    RECONNECT_MAX_MS,
    RETRY_MS,
    WAIT_SECONDS,
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
from varve.foundation.closing import Closing

with warnings.catch_warnings():
    # kafka-python reads its schemas by a function that Python 3.11 has marked as deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.errors as told
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
    from kafka.protocol.consumer.offsets import IsolationLevel
    from kafka.structs import OffsetAndMetadata

_WAIT_MS: Final = int(WAIT_SECONDS * 1000)
_CONNECTION: Final[dict[str, Any]] = {
    "reconnect_backoff_ms": RETRY_MS,
    "reconnect_backoff_max_ms": RECONNECT_MAX_MS,
    "retry_backoff_ms": RETRY_MS,
}
_FENCED: Final = (told.ProducerFencedError, told.InvalidProducerEpochError)
_OUT_OF_RANGE: Final = (told.OffsetOutOfRangeError, told.NoOffsetForPartitionError)


class PythonProducer(Closing):
    def __init__(
        self, bootstrap: str, options: ProducerOptions, connection: Mapping[str, Any] = _CONNECTION
    ) -> None:
        extra: dict[str, Any] = {}
        if options.transactional_id is not None:
            extra["transactional_id"] = options.transactional_id
            extra["transaction_timeout_ms"] = options.transaction_timeout_ms
        self._producer = KafkaProducer(
            **connection,
            **extra,
            metrics_enabled=False,
            bootstrap_servers=bootstrap,
            acks=options.acks if options.acks == "all" else int(options.acks),
            compression_type=None if options.codec == "none" else options.codec,
            linger_ms=options.linger_ms,
            max_request_size=options.request_bytes_max,
            request_timeout_ms=options.request_timeout_ms,
            delivery_timeout_ms=_WAIT_MS + options.request_timeout_ms,
            max_block_ms=_WAIT_MS,
            enable_idempotence=options.is_idempotent or options.transactional_id is not None,
        )
        if options.transactional_id is not None:
            self._producer.init_transactions()

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
            pytest.skip("kafka-python sends no record without key and value")
        if any(content is None for _, content in headers):
            pytest.skip("kafka-python sends no header without a value")
        sent: Future[int] = Future()
        pending = self._call(
            self._producer.send,
            partition[0],
            value,
            key=key,
            headers=list(headers),
            partition=partition[1],
            timestamp_ms=timestamp_ms,
        )
        pending.add_callback(lambda metadata: sent.set_result(metadata.offset))
        pending.add_errback(lambda error: sent.set_exception(_translated(error)))
        return sent

    def _call(self, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        try:
            return call(*args, **named)
        except told.KafkaError as error:
            raise _translated(error) from error

    def flush(self) -> None:
        self._producer.flush(WAIT_SECONDS)

    def begin(self) -> None:
        self._call(self._producer.begin_transaction)

    def commit(self) -> None:
        self._call(self._producer.commit_transaction)

    def abort(self) -> None:
        self._call(self._producer.abort_transaction)

    def send_offsets(
        self, offsets: Mapping[Partition, int], consumer: ConsumerClient, group: str
    ) -> None:
        assert isinstance(consumer, PythonConsumer)
        self._call(
            self._producer.send_offsets_to_transaction, _positions(offsets), consumer.metadata()
        )

    def close(self) -> None:
        self._producer.close(1)


class PythonConsumer(Closing):
    def __init__(
        self, bootstrap: str, options: ConsumerOptions, connection: Mapping[str, Any] = _CONNECTION
    ) -> None:
        if options.protocol != "classic":
            pytest.skip("kafka-python has classic groups alone")
        self._consumer = KafkaConsumer(
            **connection,
            metrics_enabled=False,
            bootstrap_servers=bootstrap,
            group_id=options.group,
            group_instance_id=options.instance,
            enable_auto_commit=False,
            auto_offset_reset=options.reset,
            isolation_level=options.isolation,
            session_timeout_ms=options.session_timeout_ms,
            heartbeat_interval_ms=max(1, options.session_timeout_ms // 10),
            fetch_max_wait_ms=FETCH_WAIT_MS,
        )

    def metadata(self) -> Any:
        return self._consumer.group_metadata()

    def assign(self, places: Mapping[Partition, Place]) -> None:
        self._consumer.assign([TopicPartition(*one) for one in places])
        for one, place in places.items():
            partition = TopicPartition(*one)
            if place == "beginning":
                self._consumer.seek_to_beginning(partition)
            elif place == "end":
                self._consumer.seek_to_end(partition)
            else:
                self._consumer.seek(partition, place)

    def subscribe(self, topic: str) -> None:
        self._consumer.subscribe([topic])

    def assignment(self) -> set[Partition]:
        return {(one.topic, one.partition) for one in self._consumer.assignment()}

    def poll(self, seconds: float) -> list[Received]:
        try:
            found = self._consumer.poll(int(seconds * 1000))
        except _OUT_OF_RANGE as error:
            raise OutOfRange(str(error)) from error
        except told.KafkaConnectionError:
            return []  # a failed heartbeat is told here; the next poll begins anew
        return [received_of(record) for records in found.values() for record in records]

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        self._consumer.commit(_positions(offsets), timeout_ms=_WAIT_MS)

    def committed(self, partition: Partition) -> int | None:
        found: int | None = self._consumer.committed(
            TopicPartition(*partition), timeout_ms=_WAIT_MS
        )
        return found

    def offset_at(self, partition: Partition, timestamp_ms: int) -> int | None:
        asked = TopicPartition(*partition)
        found = self._consumer.offsets_for_times({asked: timestamp_ms})[asked]
        return None if found is None else int(found.offset)

    def close(self) -> None:
        self._consumer.close(autocommit=False, timeout_ms=1000)


class PythonAdmin(Closing):
    def __init__(self, bootstrap: str, connection: Mapping[str, Any] = _CONNECTION) -> None:
        self._admin = KafkaAdminClient(**connection, bootstrap_servers=bootstrap)

    def create(
        self, topic: str, partition_count: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        new = {"num_partitions": partition_count, "replication_factor": 1}
        self._admin.create_topics({topic: {**new, "configs": dict(configs or {})}})

    def topics(self) -> set[str]:
        return set(self._admin.list_topics())

    def _describe(self, topic: str) -> dict[str, Any]:
        (found,) = self._admin.describe_topics([topic])
        assert not found["error_code"], found
        return dict(found)

    def topic_id(self, topic: str) -> str:
        return str(self._describe(topic)["topic_id"])

    def partition_count(self, topic: str) -> int:
        return len(self._describe(topic)["partitions"])

    def add_partitions(self, topic: str, count: int) -> None:
        self._admin.create_partitions({topic: count})

    def configs(self, topic: str) -> dict[str, str]:
        asked = ConfigResource(ConfigResourceType.TOPIC, topic)
        found = self._admin.describe_configs([asked], config_filter="all")
        ((_, of_topics),) = found.items()
        return {name: entry["value"] for name, entry in of_topics[topic].items()}

    def alter_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        self._admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, dict(configs))])

    def delete_records(self, partition: Partition, before: int) -> int:
        asked = TopicPartition(*partition)
        found = self._admin.delete_records({asked: before})
        return int(found[asked]["low_watermark"])

    def delete(self, topic: str) -> None:
        self._admin.delete_topics([topic])

    def earliest(self, partition: Partition) -> int:
        asked = TopicPartition(*partition)
        return int(self._admin.list_partition_offsets({asked: OffsetSpec.EARLIEST})[asked].offset)

    def latest(self, partition: Partition, isolation: Isolation = "read_uncommitted") -> int:
        asked = TopicPartition(*partition)
        found = self._admin.list_partition_offsets(
            {asked: OffsetSpec.LATEST}, IsolationLevel[isolation.upper()]
        )
        return int(found[asked].offset)

    def groups(self) -> set[str]:
        return {one["group_id"] for one in self._admin.list_groups()}

    def group(self, group: str) -> GroupFacts:
        found = self._admin.describe_groups([group])[group]
        return GroupFacts(found["group_state"], len(found["members"]))

    def group_offsets(self, group: str) -> dict[Partition, int]:
        found = self._admin.list_group_offsets(group)[group]
        return {(one.topic, one.partition): at.offset for one, at in found.items()}

    def alter_group_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        found = self._admin.alter_group_offsets(group, _positions(offsets))
        assert set(found.values()) == {told.NoError}

    def delete_groups(self, groups: Iterable[str]) -> None:
        found = self._admin.delete_groups(list(groups))
        assert set(dict(found).values()) == {"OK"}, found

    def close(self) -> None:
        self._admin.close()


class PythonClient:
    """Makes the three of them."""

    def __init__(self, login: Login | None = None) -> None:
        self._connection = _CONNECTION | (login.for_python() if login else {})

    def producer(self, bootstrap: str, options: ProducerOptions) -> PythonProducer:
        return PythonProducer(bootstrap, options, self._connection)

    def consumer(self, bootstrap: str, options: ConsumerOptions) -> PythonConsumer:
        return PythonConsumer(bootstrap, options, self._connection)

    def admin(self, bootstrap: str) -> PythonAdmin:
        return PythonAdmin(bootstrap, self._connection)

    def close(self) -> None:
        """Each one closes itself, but sockets that could not connect are left to the collector."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


def _positions(offsets: Mapping[Partition, int]) -> dict[Any, Any]:
    return {TopicPartition(*one): OffsetAndMetadata(at, "", -1) for one, at in offsets.items()}


def _translated(error: Exception) -> Exception:
    if isinstance(error, _FENCED):
        return Fenced(str(error))
    return error
