"""How soon a broker serves after its start, and what it holds in memory after some load."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from benchmarks.generators import make_batches
from benchmarks.measure import Contest, Scale, at_most
from benchmarks.server.brokers import (
    RunningBroker,
    SharedPair,
    VarveServer,
    make_kafka,
    make_topic,
    resident_mib,
)
from benchmarks.server.load import open_load
from benchmarks.server.wire_client import WireClient, make_produce
from benchmarks.sizes import SizeUnit
from benchmarks.workspace import Workspace

_LOAD_BATCH_BYTES: Final = 128 << 10
_REPEAT_COUNT_MAX: Final = 3


class StartMeasure:
    """Size: partitions that the brokers have."""

    name = "start"
    title = "from the start of the process to the first acknowledged record"
    size_unit = SizeUnit.COUNT

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (1,) if quick else (1, 100)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        batch = make_batches(1, value_bytes=100, batch_bytes=1 << 10)[0]
        with workspace.directory("start") as home:
            kafka = make_kafka(home / "kafka")
            varve = VarveServer(home / "varve")
            try:
                our_frame, their_frame = (
                    make_produce(_make_stopped(one, size), batch, acks=-1) for one in (varve, kafka)
                )
                yield [
                    Contest(
                        "start_first_record",
                        "s",
                        lambda: _start(varve, our_frame),
                        lambda: _start(kafka, their_frame),
                        at_most(0.2),
                        "after a stop in good order; by a connection that needs no metadata",
                        repeat_count_max=1 if scale.is_quick else _REPEAT_COUNT_MAX,
                        is_wall_time=True,
                    )
                ]
            finally:
                varve.kill()
                kafka.kill()


def _make_stopped(broker: RunningBroker, partitions: int) -> str:
    broker.start()
    topic = make_topic(broker, partitions=partitions)
    broker.stop()
    return topic


def _start(broker: RunningBroker, frame: bytes) -> float:
    began = time.perf_counter()
    broker.start()
    with WireClient(broker.address) as client:
        client.produce_first(frame)
    seconds = time.perf_counter() - began
    broker.stop()
    return seconds


class MemoryMeasure:
    """Size: bytes that are produced and fetched before."""

    name = "memory"
    title = "resident memory after load"
    size_unit = SizeUnit.BYTES

    def __init__(self, pair: SharedPair) -> None:
        self._pair = pair

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (32 << 20, 64 << 20) if quick else (256 << 20, 1 << 30)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        pair = self._pair.open(workspace, scale)
        workspace.require(size * 2)
        for broker in pair.both:
            with open_load(broker, volume_bytes=size, batch_bytes=_LOAD_BATCH_BYTES) as load:
                load.produce(acks=1)
                load.fetch(max_bytes=1 << 20)
        yield [
            Contest(
                "memory",
                "MiB",
                lambda: resident_mib(pair.varve),
                lambda: resident_mib(pair.kafka),
                at_most(0.3),
                "of the same processes as the measures before; Kafka's heap may grow to 1 GiB",
                repeat_count_max=1,
            )
        ]
