"""A transactional producer of the public API, returned by `Cluster.producer`.

Invariant  the records of one transaction become visible to read_committed readers together or not
           at all. A newer producer of the same transactional id fences this one.
Crash      the cluster's transaction coordinator aborts an open transaction when the next producer
           of the id begins, or after `transaction.timeout.ms`.
Threads    one.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from varve.brokers.client import RESPONSE_SECONDS, BrokerClient
from varve.brokers.producing import Deliveries, Delivery, enqueue
from varve.brokers.record import to_topic_record
from varve.foundation.errors import InvalidRequest, StoreError
from varve.foundation.topic_records import (
    GivenBytes,
    GivenHeaders,
    GivenRecord,
    check_int,
    check_text,
)

_WAIT_SECONDS = 0.1


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
        delivery = Delivery(transactional_id=transactional_id)
        self._producer = client.producer(**delivery.settings())
        self._deliveries: dict[str, Deliveries] | None = None
        self._call(lambda: self._producer.init_transactions(RESPONSE_SECONDS))

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
        self._call(self._producer.begin_transaction)
        self._deliveries = {}
        try:
            yield self
            for deliveries in self._deliveries.values():
                deliveries.wait(self._producer, _WAIT_SECONDS)
                deliveries.check()
            self._call(lambda: self._producer.commit_transaction(RESPONSE_SECONDS))
        except BaseException:
            # The first error counts; the coordinator aborts what cannot be aborted from here.
            with suppress(StoreError):
                self._call(lambda: self._producer.abort_transaction(RESPONSE_SECONDS))
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
        number = -1 if partition is None else check_int(partition, "partition")
        if check_text(topic, "topic") not in self._deliveries:
            self._deliveries[topic] = Deliveries(self._client, topic)
        for record in records:
            stored = to_topic_record(topic, record, number)
            enqueue(self._producer, stored, self._deliveries[topic])

    def _call(self, work: Callable[[], object]) -> None:
        from confluent_kafka import KafkaException

        try:
            work()
        except KafkaException as error:
            what = f"transaction {self.transactional_id}"
            raise self._client.as_error(error.args[0], what) from error
