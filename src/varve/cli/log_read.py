"""The work of `varve log read`: a range of records, or the files of a topic as they grow."""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from varve.cli.log_start import Start, StartKind
from varve.commit_log import Isolation
from varve.disk import FileSystem
from varve.embedded import Partition, StoredRecord, Topic
from varve.embedded.follower import Follower, find_partitions
from varve.foundation.errors import InvalidRequest, NotFound

POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """What the command line asked for."""

    topic: str
    partition: int | None
    start: Start
    count: int | None
    isolation: Isolation


def read_records(topic: Topic, request: ReadRequest) -> Iterator[StoredRecord]:
    """The records that are there now."""
    if request.partition is None and request.start.kind is not StartKind.OFFSET:
        partitions = topic.partitions
    else:
        partitions = [topic.partition(request.partition)]
    reads = [
        partition.read(_find_start(partition, request.start), isolation=request.isolation)
        for partition in partitions
    ]
    return itertools.islice(itertools.chain.from_iterable(reads), request.count)


def _find_start(partition: Partition, start: Start) -> int | None:
    match start.kind:
        case StartKind.BEGINNING:
            return None
        case StartKind.OFFSET:
            return start.number
        case StartKind.END:
            return partition.offsets().end
        case StartKind.TIME:
            found = partition.offset_for_time(start.number)
            return partition.offsets().end if found is None else found


def follow_records(
    fs: FileSystem, roots: Sequence[str], request: ReadRequest, idle: Callable[[], None]
) -> Iterator[StoredRecord]:
    """The records that are there and those that come, without opening the store.

    Calls `idle` whenever all that has come is given out.
    """
    followers = _followers(fs, roots, request)
    pause = threading.Event()
    left = request.count
    while left is None or left > 0:
        for follower in followers:
            for record in _wanted(follower, request.start):
                yield record
                if left is not None:
                    left -= 1
                    if left <= 0:
                        return
        idle()
        pause.wait(POLL_SECONDS)


def _followers(fs: FileSystem, roots: Sequence[str], request: ReadRequest) -> list[Follower]:
    found = [
        (root, one)
        for root in roots
        for one in find_partitions(fs, root, request.topic)
        if request.partition in (None, one.partition)
    ]
    if not found:
        raise NotFound(f"there is no topic {request.topic!r:.260} with such a partition")
    if request.start.kind is StartKind.OFFSET and len(found) > 1:
        raise InvalidRequest(
            f"topic {request.topic} has {len(found)} partitions, each with its own offsets; "
            "name one with --partition"
        )
    start = request.start.number if request.start.kind is StartKind.OFFSET else None
    followers = [Follower(fs, root, one, start=start) for root, one in found]
    if request.start.kind is StartKind.END:
        for follower in followers:
            follower.skip_to_end()
    return followers


def _wanted(follower: Follower, start: Start) -> Iterator[StoredRecord]:
    if start.kind is not StartKind.TIME:
        return follower.poll()
    return (record for record in follower.poll() if record.timestamp >= start.number)
