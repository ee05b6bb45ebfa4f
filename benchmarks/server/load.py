"""A topic with prepared requests of one size: what is produced to it and fetched from it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from benchmarks.generators import make_batches, records_per_batch, repeat_to
from benchmarks.measure import Scale
from benchmarks.server.brokers import RunningBroker, delete_topic, make_topic
from benchmarks.server.wire_client import WireClient, make_fetch, make_produce

RECORD_BYTES: Final = 1 << 10
_DISTINCT_BATCHES: Final = 8
_WARM_UP_BATCH_BYTES: Final = 4 << 10
_WARM_UP_REQUESTS: Final = 20_000
_QUICK_WARM_UP_REQUESTS: Final = 4_000


class TopicLoad:
    """One topic of one broker, a connection to it, and batches that are all of one length."""

    def __init__(
        self,
        broker: RunningBroker,
        topic: str,
        *,
        volume_bytes: int,
        batch_bytes: int,
        record_bytes: int = RECORD_BYTES,
    ) -> None:
        self.broker = broker
        self._client = WireClient(broker.address)
        self._topic = topic
        distinct = make_batches(
            min(_DISTINCT_BATCHES, max(1, volume_bytes // batch_bytes)),
            value_bytes=record_bytes,
            batch_bytes=batch_bytes,
        )
        self._records_each = records_per_batch(value_bytes=record_bytes, batch_bytes=batch_bytes)
        self._batch_bytes = len(distinct[0])
        assert all(len(one) == self._batch_bytes for one in distinct)
        self._batches = repeat_to(distinct, volume_bytes)
        first = make_produce(topic, distinct[0], acks=1)
        self._client.produce_first(first)

    @property
    def mib(self) -> float:
        return len(self._batches) * self._batch_bytes / (1 << 20)

    @property
    def record_count(self) -> int:
        return len(self._batches) * self._records_each

    def produce(self, *, acks: int) -> float:
        """Seconds until all batches are acknowledged."""
        made = {id(one): make_produce(self._topic, one, acks=acks) for one in self._batches}
        return self._client.produce([made[id(one)] for one in self._batches])

    def fetch(self, *, max_bytes: int) -> float:
        """Seconds to read what was produced once, in answers of about that size."""
        most = max(1, max_bytes // self._batch_bytes) * self._batch_bytes
        frames = [
            make_fetch(self._topic, offset=at * self._records_each, max_bytes=most)
            for at in range(len(self._batches))
        ]
        return self._client.fetch(frames, batch_bytes=self._batch_bytes)

    def close(self) -> None:
        self._client.__exit__(None, None, None)


@contextmanager
def open_load(
    broker: RunningBroker,
    *,
    volume_bytes: int,
    batch_bytes: int,
    record_bytes: int = RECORD_BYTES,
    settings: Mapping[str, str] | None = None,
) -> Iterator[TopicLoad]:
    """A new topic that is deleted on leaving in good order; else it goes with its broker."""
    topic = make_topic(broker, settings=settings)
    load = TopicLoad(
        broker,
        topic,
        volume_bytes=volume_bytes,
        batch_bytes=batch_bytes,
        record_bytes=record_bytes,
    )
    try:
        yield load
    finally:
        load.close()
    delete_topic(broker, topic)


def warm_up(broker: RunningBroker, scale: Scale) -> None:
    """Small requests of both kinds, so many that Java's compilers have seen what matters."""
    count = _QUICK_WARM_UP_REQUESTS if scale.is_quick else _WARM_UP_REQUESTS
    size = _WARM_UP_BATCH_BYTES
    with open_load(broker, volume_bytes=count * size, batch_bytes=size) as load:
        load.produce(acks=1)
        load.fetch(max_bytes=size)
