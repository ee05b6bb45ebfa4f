"""The work of `varve log read`: a range of records, or the files of a topic as they grow."""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from varve.cli.log_start import Start, StartKind
from varve.cli.tier_access import find_tiered
from varve.commit_log import Isolation, TopicPartition
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
    store_settings: list[str] = field(default_factory=list)
    """Those of the object store of the cold tier."""


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
    return itertools.islice(_follow(fs, roots, request, idle), request.count)


def _follow(
    fs: FileSystem, roots: Sequence[str], request: ReadRequest, idle: Callable[[], None]
) -> Iterator[StoredRecord]:
    followers = _followers(fs, roots, request)
    for root, one, follower in followers:
        yield from _remote_records(fs, root, one, follower, request)
    pause = threading.Event()
    while True:
        for _, _, follower in followers:
            yield from _wanted(follower, request.start)
        idle()
        pause.wait(POLL_SECONDS)


def _remote_records(
    fs: FileSystem, root: str, partition: TopicPartition, follower: Follower, request: ReadRequest
) -> Iterator[StoredRecord]:
    """What lies before the files of a partition, as far as it is wanted."""
    start, end = follower.log_start, follower.local_start
    if request.start.kind is StartKind.OFFSET:
        start = request.start.number
    if request.start.kind is StartKind.END or start >= end:
        return
    from varve.cli.remote_follow import RemotePart

    remote = RemotePart(fs, root, partition, request.store_settings)
    try:
        if request.start.kind is StartKind.TIME:
            start = remote.find_time(request.start.number, start=start, end=end)
        records = remote.read(start=start, end=end)
        yield from (record for record in records if _is_wanted(record, request.start))
    finally:
        remote.close()


def _followers(
    fs: FileSystem, roots: Sequence[str], request: ReadRequest
) -> list[tuple[str, TopicPartition, Follower]]:
    found = [
        (root, partition)
        for root in roots
        for partition in find_partitions(fs, root, request.topic)
        if request.partition in (None, partition.partition)
    ]
    if not found:
        raise NotFound(f"there is no topic {request.topic!r:.260} with such a partition")
    if request.start.kind is StartKind.OFFSET and len(found) > 1:
        raise InvalidRequest(
            f"topic {request.topic} has {len(found)} partitions, each with its own offsets; "
            "name one with --partition"
        )
    start = request.start.number if request.start.kind is StartKind.OFFSET else None
    followers = [
        (
            root,
            one,
            Follower(fs, root, one, start=start, is_tiered=one.topic in find_tiered(fs, root)),
        )
        for root, one in found
    ]
    if request.start.kind is StartKind.END:
        for _, _, follower in followers:
            follower.skip_to_end()
    return followers


def _wanted(follower: Follower, start: Start) -> Iterator[StoredRecord]:
    return (record for record in follower.poll() if _is_wanted(record, start))


def _is_wanted(record: StoredRecord, start: Start) -> bool:
    return start.kind is not StartKind.TIME or record.timestamp >= start.number
