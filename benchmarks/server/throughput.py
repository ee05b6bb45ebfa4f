"""Produce and Fetch by a client that replays prepared requests."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from benchmarks.measure import Aim, Contest, Scale, at_least
from benchmarks.server.brokers import SharedPair
from benchmarks.server.load import TopicLoad, open_load
from benchmarks.sizes import SizeUnit, format_bytes
from benchmarks.workspace import Workspace

_VOLUME_SHARE: Final = 4
_REQUESTS_MIN: Final = 16
_SIZES: Final = (16 << 10, 128 << 10, 1 << 20)
_SMALL_RECORD_BYTES: Final = 100
_FETCHED_BATCH_BYTES: Final = 16 << 10
_REPEAT_COUNT_MAX: Final = 9


def aim_for(request_bytes: int) -> Aim:
    """As fast as Kafka where requests are large, half as fast where they are many."""
    return at_least(1) if request_bytes >= 128 << 10 else at_least(0.5)


def volume_for(size: int, scale: Scale) -> int:
    return max(size * _REQUESTS_MIN, scale.volume_bytes // _VOLUME_SHARE)


class ProduceMeasure:
    """Size: bytes of a batch, of which each request has one."""

    name = "produce"
    title = "prepared Produce requests, five in flight on one connection"
    size_unit = SizeUnit.BYTES

    def __init__(self, pair: SharedPair) -> None:
        self._pair = pair

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return _SIZES

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        pair, volume = self._pair.open(workspace, scale), volume_for(size, scale)
        workspace.require(volume * 6 * (_REPEAT_COUNT_MAX + 1))
        with (
            open_load(pair.varve, volume_bytes=volume, batch_bytes=size) as ours,
            open_load(pair.kafka, volume_bytes=volume, batch_bytes=size) as theirs,
            open_load(
                pair.varve,
                volume_bytes=volume,
                batch_bytes=size,
                record_bytes=_SMALL_RECORD_BYTES,
            ) as our_small,
            open_load(
                pair.kafka,
                volume_bytes=volume,
                batch_bytes=size,
                record_bytes=_SMALL_RECORD_BYTES,
            ) as their_small,
        ):
            yield [
                self._contest("produce_acks_1", size, ours, theirs, acks=1),
                self._contest("produce_acks_all", size, ours, theirs, acks=-1),
                Contest(
                    "produce_records",
                    "records/s",
                    lambda: our_small.record_count / our_small.produce(acks=-1),
                    lambda: their_small.record_count / their_small.produce(acks=-1),
                    aim_for(size),
                    "records of 100 B, acks=all",
                    repeat_count_max=_REPEAT_COUNT_MAX,
                    is_wall_time=True,
                ),
            ]

    def _contest(
        self, name: str, size: int, ours: TopicLoad, theirs: TopicLoad, *, acks: int
    ) -> Contest:
        return Contest(
            name,
            "MiB/s",
            lambda: ours.mib / ours.produce(acks=acks),
            lambda: theirs.mib / theirs.produce(acks=acks),
            aim_for(size),
            "records of 1 KiB; requests were made before, one batch each, five in flight",
            repeat_count_max=_REPEAT_COUNT_MAX,
            is_wall_time=True,
        )


class FetchMeasure:
    """Size: bytes of records that each answer has."""

    name = "fetch"
    title = "prepared Fetch requests one after another, records in the page cache"
    size_unit = SizeUnit.BYTES

    def __init__(self, pair: SharedPair) -> None:
        self._pair = pair

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return _SIZES

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        pair, volume = self._pair.open(workspace, scale), volume_for(size, scale)
        workspace.require(volume * 2)
        batch_bytes = min(size, _FETCHED_BATCH_BYTES)
        with (
            open_load(pair.varve, volume_bytes=volume, batch_bytes=batch_bytes) as ours,
            open_load(pair.kafka, volume_bytes=volume, batch_bytes=batch_bytes) as theirs,
        ):
            for one in (ours, theirs):
                one.produce(acks=1)
            yield [
                Contest(
                    "fetch_hot",
                    "MiB/s",
                    lambda: ours.mib / ours.fetch(max_bytes=size),
                    lambda: theirs.mib / theirs.fetch(max_bytes=size),
                    aim_for(size),
                    f"batches of {format_bytes(batch_bytes)}; one request in flight, answers are "
                    "received and thrown away",
                    repeat_count_max=_REPEAT_COUNT_MAX,
                    is_wall_time=True,
                )
            ]
