"""Producers of a broker: deliveries counted as they are acknowledged, and transactions.

Invariant  `delivered_count` counts acknowledged records. The records of one transaction become
           visible to read_committed readers together or not at all; one that fails is aborted. A
           newer producer of the same transactional id fences the older one.
Crash      the cluster's transaction coordinator aborts an open transaction when the next producer
           of the id begins, or after `transaction.timeout.ms`.
Threads    one, except that threads may share librdkafka's producer, each with its own Deliveries.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from varve.brokers.client import RESPONSE_SECONDS, BrokerClient
from varve.foundation.errors import InvalidRequest, StoreError
from varve.foundation.topic_records import (
    NO_TIMESTAMP,
    AppendResult,
    GivenBytes,
    GivenHeaders,
    GivenRecord,
    StoredRecord,
    check_int,
    check_text,
    split_record,
    to_bytes,
    to_headers,
    to_timestamp,
)
from varve.foundation.units import format_count

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message
    from confluent_kafka import Producer as LibraryProducer

_POLL_SECONDS: Final = 0.1
_WAIT_SECONDS: Final = 0.01


@dataclass(frozen=True, slots=True)
class Delivery:
    """How records are delivered; None leaves it to the client settings."""

    codec: str | None = None
    acks: str | None = None
    is_idempotent: bool | None = None
    transactional_id: str | None = None

    def open(self, client: BrokerClient) -> "LibraryProducer":
        """A producer; client settings may change the defaults, not the rest."""
        defaults: dict[str, object] = {
            "compression_type": "lz4",
            "acks": "all",
            "enable_idempotence": True,
            "partitioner": "murmur2_random",
            "linger_ms": 20,
            "message_timeout_ms": int(RESPONSE_SECONDS * 1000),
        }
        # Idempotence needs acknowledgements of all replicas.
        is_idempotent = False if self.acks not in (None, "all") else self.is_idempotent
        options = {
            "compression_type": self.codec,
            "acks": self.acks,
            "enable_idempotence": is_idempotent,
            "transactional_id": self.transactional_id,
        }
        required = {name: value for name, value in options.items() if value is not None}
        return client.producer(defaults=defaults, **required)


class Deliveries:
    """What became of the records that one producer, or one call, has sent to a topic."""

    def __init__(self, client: BrokerClient, producer: "LibraryProducer", topic: str) -> None:
        self._client = client
        self._producer = producer
        self._topic = topic
        self._failure: tuple[KafkaError, str] | None = None
        self._sent_count = 0
        self._done_count = 0
        self.delivered_count = 0
        self.end_offsets: dict[int, int] = {}
        self.last: AppendResult | None = None

    def send_all(self, records: Iterable[GivenRecord], partition: int | None) -> None:
        """Sends records of any form that `append_many` accepts; raises InvalidRecord for others."""
        number = -1 if partition is None else partition
        for record in records:
            key, value, headers, timestamp_ms = split_record(record)
            self.send(
                StoredRecord(
                    number,
                    -1,
                    to_timestamp(timestamp_ms, NO_TIMESTAMP),
                    to_bytes(key, "key"),
                    to_bytes(value, "value"),
                    to_headers(headers) if headers else (),
                )
            )

    def send(self, record: StoredRecord) -> None:
        """Hands a record to the producer; -1 stands for any partition, and for the time of now.

        Raises if it is refused or an earlier delivery failed.
        """
        options: dict[str, Any] = {"headers": list(record.headers) or None}
        if record.partition >= 0:
            options["partition"] = record.partition
        if record.timestamp >= 0:
            options["timestamp"] = record.timestamp
        while not self._enqueue(record, options):
            self._producer.poll(_POLL_SECONDS)
            self.check()
        self._sent_count += 1
        self._producer.poll(0)
        self.check()

    def _enqueue(self, record: StoredRecord, options: dict[str, Any]) -> bool:
        """False while the producer's queue is full."""
        from confluent_kafka import KafkaException

        try:
            self._producer.produce(
                self._topic, record.value, record.key, on_delivery=self._add, **options
            )
        except BufferError:
            return False
        except KafkaException as error:
            raise self._client.as_error(error.args[0], f"topic {self._topic}") from error
        return True

    def _add(self, error: "KafkaError | None", message: "Message[Any, Any]") -> None:
        """Called by librdkafka for each record, in the thread that polls."""
        number, offset = message.partition(), message.offset()
        if error is None:
            self.delivered_count += 1
            if number is not None and offset is not None:
                self.end_offsets[number] = max(offset + 1, self.end_offsets.get(number, 0))
                self.last = AppendResult(number, offset, message.timestamp()[1])
        elif self._failure is None:
            is_known = number is not None and number >= 0
            what = f"partition {self._topic}-{number}" if is_known else f"topic {self._topic}"
            self._failure = (error, what)
        self._done_count += 1

    @property
    def is_fatal(self) -> bool:
        return self._failure is not None and self._failure[0].fatal()

    def check(self) -> None:
        """Raises if a delivery failed."""
        if self._failure is not None:
            raise self._client.as_error(*self._failure)

    def wait(self) -> None:
        """Waits for the acknowledgements; librdkafka ends the wait at `message.timeout.ms`."""
        while self._done_count < self._sent_count:
            self._client.call(f"topic {self._topic}", self._producer.flush, _WAIT_SECONDS)


class Producer:
    """Appends to topics in transactions; returned by `Cluster.producer`.

    Records become visible to `read_committed` readers when their transaction is committed:

        with producer.transaction():
            producer.append("3 apples", topic="orders", key="alice")
            producer.append("3", topic="totals", key="alice")

    A later producer of the same transactional id fences this one: its calls raise Fenced then.
    """

    def __init__(self, client: BrokerClient, transactional_id: str) -> None:
        self.transactional_id = check_text(transactional_id, "transactional_id")
        self._client = client
        self._producer = Delivery(transactional_id=transactional_id).open(client)
        self._what = f"transaction {transactional_id}"
        self._deliveries: dict[str, Deliveries] | None = None
        client.call(self._what, self._producer.init_transactions, RESPONSE_SECONDS)

    def __repr__(self) -> str:
        return f"<Producer {self.transactional_id!r} at {self._client.address}>"

    @contextmanager
    def transaction(self) -> Iterator["Producer"]:
        """Commits at the end of the `with` block; aborts if the block raises, and raises that.

        Raises InvalidRequest within another transaction, Fenced if a newer producer of the id
        exists, Unavailable if the cluster does not answer.
        """
        if self._deliveries is not None:
            raise InvalidRequest(
                f"producer {self.transactional_id} has an open transaction: end it first"
            )
        call, producer = self._client.call, self._producer
        call(self._what, producer.begin_transaction)
        self._deliveries = {}
        try:
            yield self
            for deliveries in self._deliveries.values():
                deliveries.wait()
                deliveries.check()
            call(self._what, producer.commit_transaction, RESPONSE_SECONDS)
        except BaseException:
            # The first error counts; the coordinator aborts what cannot be aborted from here.
            with suppress(StoreError):
                call(self._what, producer.abort_transaction, RESPONSE_SECONDS)
            raise
        finally:
            self._deliveries = None

    def append(
        self,
        value: GivenBytes,
        *,
        topic: str,
        key: GivenBytes = None,
        headers: GivenHeaders | None = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> None:
        """Appends a record to the open transaction; as `Topic.append` otherwise.

        Raises InvalidRequest outside a transaction.
        """
        self.append_many([(key, value, headers, timestamp_ms)], topic=topic, partition=partition)

    def append_many(
        self, records: Iterable[GivenRecord], *, topic: str, partition: int | None = None
    ) -> None:
        """Appends a stream of records to the open transaction; as `Topic.append_many` otherwise.

        Raises InvalidRequest outside a transaction.
        """
        if self._deliveries is None:
            raise InvalidRequest(
                f"producer {self.transactional_id} has no open transaction: append in a block "
                "`with producer.transaction():`"
            )
        number = None if partition is None else check_int(partition, "partition")
        if check_text(topic, "topic") not in self._deliveries:
            self._deliveries[topic] = Deliveries(self._client, self._producer, topic)
        self._deliveries[topic].send_all(records, number)


class LineProducer:
    """Sends the records of an input to one topic, in a transaction if it has a transactional id.

    Unlike that of a `Producer` the delivery is chosen, and the outcome of a failure is described.
    """

    def __init__(self, client: BrokerClient, topic: str, delivery: Delivery) -> None:
        self._client = client
        self._producer = delivery.open(client)
        self._what = f"transaction {delivery.transactional_id}"
        self._is_transactional = delivery.transactional_id is not None
        self._is_open = False
        self.deliveries = Deliveries(client, self._producer, topic)

    def begin(self) -> None:
        if self._is_transactional:
            self._client.call(self._what, self._producer.init_transactions, RESPONSE_SECONDS)
            self._client.call(self._what, self._producer.begin_transaction)
            self._is_open = True

    def poll(self) -> None:
        """Take in acknowledgements; raises if a delivery failed."""
        self._producer.poll(0)
        self.deliveries.check()

    def finish(self) -> None:
        """Wait until everything is delivered, and commit."""
        self.deliveries.wait()
        self.deliveries.check()
        if self._is_open:
            self._client.call(self._what, self._producer.commit_transaction, RESPONSE_SECONDS)
            self._is_open = False

    def stop_reading(self) -> None:
        """Deliver the records before a bad one, or abort the transaction."""
        if self._is_open:
            self.abandon()
        else:
            self.finish()

    def abandon(self) -> None:
        """Drop records in flight and abort the transaction."""
        # The first error is reported; after a fatal one these calls raise it again.
        with suppress(StoreError):
            self._client.call(self._what, self._producer.purge)
            self._client.call(self._what, self._producer.flush, 1)
        if self._is_open:
            with suppress(StoreError):
                self._client.call(self._what, self._producer.abort_transaction, RESPONSE_SECONDS)

    def outcome(self) -> str:
        """What became of the records, for a message."""
        if self._is_open:
            return "the transaction was aborted: no record was kept"
        count = self.deliveries.delivered_count
        verb = "was" if count == 1 else "were"
        return f"{format_count(count, 'record')} {verb} delivered before it"
