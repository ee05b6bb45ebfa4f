"""What a program sees that uses confluent-kafka: rates, latencies, and how soon a group reads."""

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import quantiles
from struct import Struct
from typing import Final

from confluent_kafka import OFFSET_END, Consumer, Message, Producer, TopicPartition

from benchmarks.measure import Contest, Scale, at_most
from benchmarks.server.brokers import RunningBroker, SharedPair, delete_topic, make_topic
from benchmarks.server.throughput import aim_for, volume_for
from benchmarks.sizes import SizeUnit
from benchmarks.workspace import Workspace

_MESSAGE_BYTES: Final = 4 << 10
_LATENCY_SECONDS: Final = 5.0
_QUICK_LATENCY_SECONDS: Final = 1.5
_WARM_UP_MESSAGES: Final = 30
_PATIENCE_SECONDS: Final = 60.0
_CONSUMED_AT_ONCE: Final = 500
_REPEAT_COUNT_MAX: Final = 5
_STAMP: Final = Struct(">d")


class LibraryMeasure:
    """Size: `batch.size` of the producer."""

    name = "library"
    title = "confluent-kafka producing and consuming messages of 4 KiB"
    size_unit = SizeUnit.BYTES

    def __init__(self, pair: SharedPair) -> None:
        self._pair = pair

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (16 << 10, 128 << 10, 1 << 20)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        pair, volume = self._pair.open(workspace, scale), volume_for(size, scale)
        workspace.require(volume * 2 * (_REPEAT_COUNT_MAX + 1))
        count, mib = volume // _MESSAGE_BYTES, volume / (1 << 20)
        with _topic(pair.varve) as ours, _topic(pair.kafka) as theirs:
            yield [
                Contest(
                    "library_produce",
                    "MiB/s",
                    lambda: mib / _produce_all(pair.varve, ours, count, size),
                    lambda: mib / _produce_all(pair.kafka, theirs, count, size),
                    aim_for(size),
                    "confluent-kafka, acks=all, idempotent; the client has its share of the time",
                    repeat_count_max=_REPEAT_COUNT_MAX,
                    is_wall_time=True,
                ),
                Contest(
                    "library_consume",
                    "MiB/s",
                    lambda: mib / _consume_all(pair.varve, ours, count),
                    lambda: mib / _consume_all(pair.kafka, theirs, count),
                    aim_for(size),
                    "confluent-kafka, its defaults; the client has its share of the time",
                    repeat_count_max=_REPEAT_COUNT_MAX,
                    is_wall_time=True,
                ),
            ]


class LatencyMeasure:
    """Size: messages per second."""

    name = "latency"
    title = "from produce to consume at a low rate, confluent-kafka on both ends"
    size_unit = SizeUnit.COUNT

    def __init__(self, pair: SharedPair) -> None:
        self._pair = pair

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (100,) if quick else (100, 500)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        pair = self._pair.open(workspace, scale)
        count = int(size * (_QUICK_LATENCY_SECONDS if scale.is_quick else _LATENCY_SECONDS))
        with _topic(pair.varve) as ours, _topic(pair.kafka) as theirs:
            our_runs = _Percentiles(partial(_take_latencies, pair.varve, ours, count, size))
            other_runs = _Percentiles(partial(_take_latencies, pair.kafka, theirs, count, size))
            note = "acks=all, linger.ms=0, 100 B; one message at a time, both ends in one process"
            yield [
                Contest(
                    "latency_p50",
                    "ms",
                    our_runs.take_median,
                    other_runs.take_median,
                    at_most(2),
                    note,
                    repeat_count_max=3,
                    is_wall_time=True,
                ),
                Contest(
                    "latency_p99",
                    "ms",
                    our_runs.worst,
                    other_runs.worst,
                    at_most(2),
                    note + "; of all runs of latency_p50 but the first",
                    repeat_count_max=1,
                    is_wall_time=True,
                ),
            ]


class GroupMeasure:
    """Size: partitions of the topic."""

    name = "group"
    title = "a new consumer of a new group, from its making to its first record"
    size_unit = SizeUnit.COUNT

    def __init__(self, pair: SharedPair) -> None:
        self._pair = pair

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (1,) if quick else (1, 16)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        pair = self._pair.open(workspace, scale)
        with _topic(pair.varve, size) as ours, _topic(pair.kafka, size) as theirs:
            for broker, topic in ((pair.varve, ours), (pair.kafka, theirs)):
                _produce_all(broker, topic, size, 16 << 10)
            yield [
                Contest(
                    "group_first_record",
                    "s",
                    lambda: _join_and_read(pair.varve, ours),
                    lambda: _join_and_read(pair.kafka, theirs),
                    at_most(2),
                    "classic protocol; group.initial.rebalance.delay.ms=0 on both sides",
                    repeat_count_max=_REPEAT_COUNT_MAX,
                    is_wall_time=True,
                )
            ]


@contextmanager
def _topic(broker: RunningBroker, partitions: int = 1) -> Iterator[str]:
    name = make_topic(broker, partitions=partitions)
    yield name
    delete_topic(broker, name)


def _produce_all(broker: RunningBroker, topic: str, count: int, batch_bytes: int) -> float:
    producer = Producer(
        {
            "bootstrap.servers": broker.address,
            "log_level": 2,
            "enable.idempotence": True,
            "batch.size": batch_bytes,
            "linger.ms": 20,
            "queue.buffering.max.kbytes": 1 << 20,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    value = bytes(_MESSAGE_BYTES)
    producer.produce(topic, value)
    _flush(producer)
    began = time.perf_counter()
    for _ in range(count):
        producer.produce(topic, value)
    _flush(producer)
    return time.perf_counter() - began


def _flush(producer: Producer) -> None:
    left = producer.flush(_PATIENCE_SECONDS)
    if left:
        raise AssertionError(f"{left} messages were not delivered within {_PATIENCE_SECONDS} s")


def _consumer(broker: RunningBroker, group: str, **settings: str | int | bool) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.address,
            "log_level": 2,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )


def _consume_all(broker: RunningBroker, topic: str, count: int) -> float:
    consumer = _consumer(broker, "unused")
    consumer.assign([TopicPartition(topic, 0, 0)])
    first = consumer.poll(_PATIENCE_SECONDS)
    # Connecting is another question.
    began = time.perf_counter()
    left = count - (first is not None)
    while left > 0 and time.perf_counter() < began + _PATIENCE_SECONDS:
        left -= len(consumer.consume(min(left, _CONSUMED_AT_ONCE), timeout=1.0))
    seconds = time.perf_counter() - began
    consumer.close()
    if left:
        raise AssertionError(f"{left} of {count} messages did not come")
    return seconds


class _Percentiles:
    """Runs that give milliseconds; their medians at once, and what the slowest took afterwards."""

    def __init__(self, run: Callable[[], list[float]]) -> None:
        self._run = run
        self._runs: list[list[float]] = []

    def take_median(self) -> float:
        self._runs.append(self._run())
        return quantiles(self._runs[-1], n=100)[49]

    def worst(self) -> float:
        """The 99th percentile of all that came after the first run."""
        return quantiles([one for run in self._runs[1:] for one in run], n=100)[98]


def _take_latencies(broker: RunningBroker, topic: str, count: int, per_second: int) -> list[float]:
    producer = Producer(
        {"bootstrap.servers": broker.address, "linger.ms": 0, "acks": "all", "log_level": 2}
    )
    consumer = _consumer(broker, "unused")
    consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
    found: list[float] = []
    consumer.poll(0.5)
    wanted = count + _WARM_UP_MESSAGES
    next_at = time.perf_counter()
    for _ in range(wanted):
        producer.produce(topic, _STAMP.pack(time.perf_counter()) + bytes(92))
        producer.poll(0)
        next_at += 1 / per_second
        while (wait := next_at - time.perf_counter()) > 0:
            _note(consumer.poll(wait), found)
    _flush(producer)
    deadline = time.perf_counter() + _PATIENCE_SECONDS
    while len(found) < wanted and time.perf_counter() < deadline:
        _note(consumer.poll(0.1), found)
    consumer.close()
    if len(found) < count:
        raise AssertionError(f"{len(found)} of {wanted} messages came back")
    return found[_WARM_UP_MESSAGES:]


def _note(message: Message | None, found: list[float]) -> None:
    if message is None:
        return
    value = message.value()
    if message.error() is not None or value is None:
        raise AssertionError(f"the consumer told an error: {message.error()}")
    found.append((time.perf_counter() - _STAMP.unpack_from(value)[0]) * 1_000)


def _join_and_read(broker: RunningBroker, topic: str) -> float:
    began = time.perf_counter()
    consumer = _consumer(broker, f"bench-{uuid.uuid4().hex[:12]}")
    consumer.subscribe([topic])
    message = consumer.poll(_PATIENCE_SECONDS)
    seconds = time.perf_counter() - began
    consumer.close()
    if message is None or message.error() is not None:
        raise AssertionError(f"the group read nothing: {message and message.error()}")
    return seconds
