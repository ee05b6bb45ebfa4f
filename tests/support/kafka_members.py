"""Members of a group that poll, each in a thread of its own, until enough was seen."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tests.support.kafka_clients import (
    WAIT_SECONDS,
    ConsumerClient,
    Partition,
    Received,
)

_POLL_SECONDS = 0.5
_LOOK_SECONDS = 0.02


@dataclass(slots=True)
class Seen:
    """What a member has read, and what it has to read."""

    records: list[Received] = field(default_factory=list)
    partitions: set[Partition] = field(default_factory=set)


def poll_until(
    members: Sequence[ConsumerClient], is_enough: Callable[[list[Seen]], bool]
) -> list[list[Received]]:
    """What each member has read when it was enough; each polls in a thread of its own."""
    seen = [Seen() for _ in members]
    enough = threading.Event()
    deadline = time.monotonic() + WAIT_SECONDS

    def poll(member: ConsumerClient, found: Seen) -> None:
        while not enough.is_set() and time.monotonic() < deadline:
            found.records += member.poll(_POLL_SECONDS)
            found.partitions = member.assignment()

    with ThreadPoolExecutor(len(members)) as pool:
        polls = [pool.submit(poll, *pair) for pair in zip(members, seen, strict=True)]
        while not is_enough(seen) and not any(one.done() for one in polls):
            enough.wait(_LOOK_SECONDS)
        enough.set()
    for one in polls:
        one.result()
    assert is_enough(seen), seen
    return [one.records for one in seen]


def settle(members: Sequence[ConsumerClient], partition_count: int) -> None:
    """Waits until all partitions are shared out evenly."""
    share = partition_count // len(members)

    def is_shared(seen: list[Seen]) -> bool:
        every = set().union(*(one.partitions for one in seen))
        return len(every) == partition_count and all(len(one.partitions) == share for one in seen)

    poll_until(members, is_shared)


def count(seen: list[Seen]) -> int:
    """Records that all members together have read."""
    return sum(len(one.records) for one in seen)
