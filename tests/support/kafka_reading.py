"""Reads by a client until enough has come, or too much time has passed."""

import time
from collections.abc import Iterable
from typing import Final

from tests.support.kafka_clients import (
    WAIT_SECONDS,
    ConsumerClient,
    ConsumerOptions,
    Isolation,
    KafkaClient,
    Partition,
    Received,
)

POLL_SECONDS: Final = 0.1
QUIET_SECONDS: Final = 0.3


def read_count(consumer: ConsumerClient, count: int) -> list[Received]:
    """So many records, or more where the last answer had more."""
    found: list[Received] = []
    deadline = time.monotonic() + WAIT_SECONDS
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records in {WAIT_SECONDS} s"
        found += consumer.poll(POLL_SECONDS)
    return found


def read_all(
    client: KafkaClient,
    bootstrap: str,
    partitions: Iterable[Partition],
    count: int,
    isolation: Isolation = "read_uncommitted",
) -> list[Received]:
    """All records from the beginning on; there must be just so many."""
    with client.consumer(bootstrap, ConsumerOptions(isolation=isolation)) as consumer:
        consumer.assign(dict.fromkeys(partitions, "beginning"))
        found = read_count(consumer, count)
        found += consumer.poll(QUIET_SECONDS)
    assert len(found) == count
    return found
