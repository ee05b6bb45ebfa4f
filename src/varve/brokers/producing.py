"""Delivery of records to a broker, counted as the broker acknowledges them.

Invariant  `delivered_count` counts acknowledged records; a transaction that fails is aborted.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from varve.brokers.client import RESPONSE_SECONDS, BrokerClient
from varve.brokers.record import TopicRecord
from varve.foundation.topic_records import AppendResult

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

_POLL_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Delivery:
    """How records are delivered; None leaves it to the client settings."""

    codec: str | None = None
    acks: str | None = None
    is_idempotent: bool | None = None
    transactional_id: str | None = None

    def settings(self) -> dict[str, Any]:
        """Settings of librdkafka; client settings may change the defaults, not the rest."""
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
        return {"defaults": defaults, **required}


class Deliveries:
    """What became of the records that one producer, or one call, has sent to a topic."""

    def __init__(self, client: BrokerClient, topic: str) -> None:
        self.client = client
        self._topic = topic
        self._failure: tuple[KafkaError, str] | None = None
        self.sent_count = 0
        self.done_count = 0
        self.delivered_count = 0
        self.end_offsets: dict[int, int] = {}
        self.last: AppendResult | None = None

    def add(self, error: "KafkaError | None", message: "Message[Any, Any]") -> None:
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
        self.done_count += 1

    @property
    def is_fatal(self) -> bool:
        return self._failure is not None and self._failure[0].fatal()

    def check(self) -> None:
        """Raises if a delivery failed."""
        if self._failure is not None:
            raise self.client.as_error(*self._failure)

    def wait(self, producer: "Producer", poll_seconds: float) -> None:
        """Waits for the acknowledgements; librdkafka ends the wait at `message.timeout.ms`."""
        from confluent_kafka import KafkaException

        while self.done_count < self.sent_count:
            try:
                producer.flush(poll_seconds)
            except KafkaException as error:
                raise self.client.as_error(error.args[0], f"topic {self._topic}") from error


def enqueue(producer: "Producer", record: TopicRecord, deliveries: Deliveries) -> None:
    """Hands a record to the producer; raises if it is refused or an earlier delivery failed."""
    from confluent_kafka import KafkaException

    options: dict[str, Any] = {"headers": record.headers or None}
    if record.partition >= 0:
        options["partition"] = record.partition
    if record.timestamp >= 0:
        options["timestamp"] = record.timestamp
    while True:
        try:
            producer.produce(
                record.topic,
                value=record.value,
                key=record.key,
                on_delivery=deliveries.add,
                **options,
            )
            break
        except BufferError:
            producer.poll(_POLL_SECONDS)
            deliveries.check()
        except KafkaException as error:
            what = f"topic {record.topic}"
            raise deliveries.client.as_error(error.args[0], what) from error
    deliveries.sent_count += 1
    producer.poll(0)
    deliveries.check()


class BrokerProducer:
    """Sends records to one topic, in a transaction if it has a transactional id."""

    def __init__(self, client: BrokerClient, topic: str, delivery: Delivery) -> None:
        self._client = client
        self._producer = client.producer(**delivery.settings())
        self._topic = topic
        self._transactional_id = delivery.transactional_id
        self._is_open = False
        self._deliveries = Deliveries(client, topic)

    @property
    def delivered_count(self) -> int:
        return self._deliveries.delivered_count

    def begin(self) -> None:
        if self._transactional_id is not None:
            self._call(lambda: self._producer.init_transactions(RESPONSE_SECONDS))
            self._call(self._producer.begin_transaction)
            self._is_open = True

    def _call(self, work: Callable[[], Any]) -> None:
        from confluent_kafka import KafkaException

        try:
            work()
        except KafkaException as error:
            what = f"transaction {self._transactional_id}"
            raise self._client.as_error(error.args[0], what) from error

    def _flush(self) -> int:
        """The number of records in flight; raises for an error that ended the producer."""
        from confluent_kafka import KafkaException

        try:
            return self._producer.flush(_POLL_SECONDS)
        except KafkaException as error:
            raise self._to_store_error(error) from error

    def send(self, record: TopicRecord) -> None:
        enqueue(self._producer, record, self._deliveries)

    def _to_store_error(self, error: Exception) -> Exception:
        from confluent_kafka import KafkaException

        if isinstance(error, KafkaException):
            return self._client.as_error(error.args[0], f"topic {self._topic}")
        return error

    def poll(self) -> None:
        """Take in acknowledgements; raises if a delivery failed."""
        self._producer.poll(0)
        self._deliveries.check()

    def finish(self) -> None:
        """Wait until everything is delivered, and commit."""
        while self._flush():
            self._deliveries.check()
        self._deliveries.check()
        if self._is_open:
            self._call(lambda: self._producer.commit_transaction(RESPONSE_SECONDS))
            self._is_open = False

    def stop_reading(self) -> None:
        """Deliver the records before a bad one, or abort the transaction."""
        if self._is_open:
            self.abandon()
        else:
            self.finish()

    def abandon(self) -> None:
        """Drop records in flight and abort the transaction."""
        from confluent_kafka import KafkaException

        # The first error is reported; after a fatal one these calls raise it again.
        with contextlib.suppress(KafkaException):
            self._producer.purge()
            self._producer.flush(1)
        if self._is_open:
            with contextlib.suppress(KafkaException):
                self._producer.abort_transaction(RESPONSE_SECONDS)

    def outcome(self) -> str:
        """What became of the records, for a message."""
        if self._is_open:
            return "the transaction was aborted: no record was kept"
        count = self.delivered_count
        return f"{count:,} record{' was' if count == 1 else 's were'} delivered before it"
