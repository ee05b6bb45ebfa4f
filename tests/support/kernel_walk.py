"""Which kernels a served store calls with argument types that nobody compiled before.

Run as a program in a process of its own, with a directory: warms the kernels as `python -m
varve.kernels` does, lets a client do all that reaches kernels from the serving loop and the thread
that appends, and prints the signatures that came on top, a line each.
"""

import gc
import itertools
import sys
from typing import Any, Final

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # not exported by name
    AdminClient,
    NewTopic,
)
from numba.core.registry import CPUDispatcher

from varve.kernels.__main__ import warm_all
from varve.testing.kafka_kit import KafkaKit

_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_TOPICS: Final = {
    "plain": {"segment.bytes": "16384"},
    "compacted": {"cleanup.policy": "compact", "segment.bytes": "16384"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "pressed": {"compression.type": "zstd"},
    "synced": {"flush": "ack", "compression.type": "uncompressed"},
}
_PATIENCE_SECONDS: Final = 30


def main() -> None:
    warm_all()
    known = _signatures()
    with KafkaKit(directory=sys.argv[1]) as kit:
        _make_topics(kit)
        _write(kit)
        _end_transactions(kit)
        _read(kit)
        kit.restart()
        _read(kit)
        _delete(kit)
        kit.restart(crash=True)
        _read(kit)
        kit.store.run_once()
    for one in sorted(_signatures() - known):
        print(one)


def _signatures() -> set[str]:
    """Of every kernel in the process."""
    kernels = (one for one in gc.get_objects() if isinstance(one, CPUDispatcher))
    return {
        f"{one.py_func.__module__}.{one.py_func.__name__}{signature}"
        for one in kernels
        if one.py_func.__module__.startswith("varve.")
        for signature in one.signatures
    }


def _make_topics(kit: KafkaKit) -> None:
    admin = AdminClient({"bootstrap.servers": kit.bootstrap})
    asked = admin.create_topics(
        [NewTopic(name, num_partitions=1, config=config) for name, config in _TOPICS.items()]
    )
    for one in asked.values():
        one.result(_PATIENCE_SECONDS)


def _producer(kit: KafkaKit, **config: Any) -> Producer:
    given = {name.replace("_", "."): value for name, value in config.items()}
    return Producer({"bootstrap.servers": kit.bootstrap, "linger.ms": 1, **given})


def _write(kit: KafkaKit) -> None:
    for codec, is_idempotent in itertools.product(_CODECS, (False, True)):
        producer = _producer(kit, compression_type=codec, enable_idempotence=is_idempotent)
        for topic in _TOPICS:
            for number in range(60):
                headers: Any = {"n": str(number)} if number % 2 else None
                text = f"{codec} {number} " * 20
                producer.produce(topic, key=f"k{number % 7}", value=text, headers=headers)
        assert producer.flush(_PATIENCE_SECONDS) == 0


def _end_transactions(kit: KafkaKit) -> None:
    producer = _producer(kit, transactional_id="walker")
    producer.init_transactions(_PATIENCE_SECONDS)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce("plain", key="t", value="in a transaction")
        producer.flush(_PATIENCE_SECONDS)
        end(_PATIENCE_SECONDS)


def _read(kit: KafkaKit) -> None:
    for isolation in ("read_committed", "read_uncommitted"):
        consumer = Consumer(
            {
                "bootstrap.servers": kit.bootstrap,
                "group.id": isolation,
                "auto.offset.reset": "earliest",
                "isolation.level": isolation,
                "enable.auto.commit": False,
            }
        )
        partitions = [TopicPartition(topic, 0, kit.now_ms - 1) for topic in _TOPICS]
        consumer.offsets_for_times(partitions, timeout=_PATIENCE_SECONDS)
        ends = {one: consumer.get_watermark_offsets(TopicPartition(one, 0))[1] for one in _TOPICS}
        consumer.assign([TopicPartition(topic, 0, 0) for topic in _TOPICS])
        passed: dict[str, int] = {}
        while any(passed.get(topic, 0) < end - 4 for topic, end in ends.items()):
            message = consumer.poll(_PATIENCE_SECONDS)
            assert message is not None
            assert message.error() is None
            topic, offset = message.topic(), message.offset()
            assert topic is not None
            assert offset is not None
            passed[topic] = offset + 1
        consumer.commit(
            offsets=[TopicPartition(topic, 0, 5) for topic in _TOPICS], asynchronous=False
        )
        consumer.close()


def _delete(kit: KafkaKit) -> None:
    admin = AdminClient({"bootstrap.servers": kit.bootstrap})
    for one in admin.delete_records([TopicPartition("plain", 0, 30)]).values():
        one.result(_PATIENCE_SECONDS)
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("read_committed")])
    for found in asked.values():
        found.result(_PATIENCE_SECONDS)


if __name__ == "__main__":
    main()
