"""Produce and Fetch by a client that replays prepared requests."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from benchmarks.measure import Aim, Contest, Scale, at_least
from benchmarks.server.brokers import SharedPair, cpu_seconds
from benchmarks.server.load import TopicLoad, open_load
from benchmarks.sizes import SizeUnit, format_bytes
from benchmarks.workspace import Workspace

_VOLUME_SHARE: Final = 4
_REQUESTS_MIN: Final = 16
_SIZES: Final = (16 << 10, 128 << 10, 1 << 20)
_SMALL_RECORD_BYTES: Final = 100
_FETCHED_BATCH_BYTES: Final = 16 << 10
_REPEAT_COUNT_MAX: Final = 9
_NOTE: Final = "records of 1 KiB; requests were made before, one batch each, five in flight"


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
        aim = aim_for(size)
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
                *_contests("produce_acks_1", partial(_Side, acks=1), ours, theirs, aim, _NOTE),
                *_contests("produce_acks_all", partial(_Side, acks=-1), ours, theirs, aim, _NOTE),
                Contest(
                    "produce_records",
                    "records/s",
                    lambda: our_small.record_count / our_small.produce(acks=-1),
                    lambda: their_small.record_count / their_small.produce(acks=-1),
                    aim,
                    "records of 100 B, acks=all",
                    repeat_count_max=_REPEAT_COUNT_MAX,
                    is_wall_time=True,
                ),
            ]


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
            note = (
                f"batches of {format_bytes(batch_bytes)}; one request in flight, answers are "
                "received and thrown away"
            )
            fetching = partial(_Side, max_bytes=size)
            yield _contests("fetch_hot", fetching, ours, theirs, aim_for(size), note)


class _Side:
    """One broker's runs: their rates at once, what they cost afterwards."""

    def __init__(self, load: TopicLoad, *, acks: int = 0, max_bytes: int = 0) -> None:
        self._load = load
        self._run = (
            partial(load.fetch, max_bytes=max_bytes)
            if max_bytes
            else partial(load.produce, acks=acks)
        )
        self._cpu_seconds: list[float] = []

    def rate(self) -> float:
        """MiB/s."""
        before = cpu_seconds(self._load.broker)
        seconds = self._run()
        self._cpu_seconds.append(cpu_seconds(self._load.broker) - before)
        return self._load.mib / seconds

    def cost(self) -> float:
        """CPU seconds of the broker per GiB, of all runs but the first, which warms up."""
        taken = self._cpu_seconds[1:] or self._cpu_seconds
        return sum(taken) / (len(taken) * self._load.mib / 1024)


def _contests(
    name: str,
    make_side: Callable[[TopicLoad], _Side],
    ours: TopicLoad,
    theirs: TopicLoad,
    aim: Aim,
    note: str,
) -> list[Contest]:
    """The rate, and the processor time that the broker's process took for it."""
    our_side, other_side = make_side(ours), make_side(theirs)
    return [
        Contest(
            name,
            "MiB/s",
            our_side.rate,
            other_side.rate,
            aim,
            note,
            repeat_count_max=_REPEAT_COUNT_MAX,
            is_wall_time=True,
        ),
        Contest(
            f"{name}_cpu",
            "CPU s/GiB",
            our_side.cost,
            other_side.cost,
            None,
            "of the broker's process in the runs above",
            repeat_count_max=1,
        ),
    ]
