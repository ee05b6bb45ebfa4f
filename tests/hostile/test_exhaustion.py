"""Requests that name very many things, or one thing many times: honest clients are answered
meanwhile, and the answers and the memory stay within bounds (G7).

Every API is asked in its last version and a few shapes, with `make crash` in all.
"""

import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.exhausting_requests import (
    SHAPES,
    exhausting_frames,
    frame_of,
    random_shapes,
)
from tests.support.hostile_bench import PREY, VAULT, HostileBench, ask, end_of, produce
from tests.support.hostile_requests import LENGTH
from tests.support.kafka_server import HOST
from tests.support.rounds import IS_LONG
from varve.broker.settings import BrokerSettings
from varve.records import Codec, Record, build_batch
from varve.wire import APIS, Api
from varve.wire.messages.cluster import ApiVersionsRequest
from varve.wire.messages.data import PartitionProduceData, ProduceRequest, TopicProduceData

ALLOWED_GROWTH_BYTES = 256 << 20
HONEST_SECONDS = 2.5
"""How long an honest client may wait on a machine that does other things too."""
SECONDS_MAX = 60.0
SECONDS_PER_BYTE = 10e-6
"""Many times what a byte takes; what grows faster than linearly takes more."""
CODECS = list(Codec)[1:] if IS_LONG else [Codec.LZ4, Codec.ZSTD]
CONTENT_BYTES, TINY_COUNT = 40 << 20, 200_000
BOMBED_COUNT = 40 if IS_LONG else 16
ASKED = [
    (api, version)
    for api in APIS.values()
    for version in range(
        api.versions.first if IS_LONG else api.versions.last, api.versions.last + 1
    )
]
FEW = [shape for shape in SHAPES if "few" in shape.name]


class HonestClient:
    """Asks and produces all the time, in a thread of its own."""

    def __init__(self, bench: HostileBench) -> None:
        self._bench = bench
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.longest_seconds = SECONDS_MAX

    @contextmanager
    def asking(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            self._thread.join()

    def _run(self) -> None:
        longest = 0.0
        with self._bench.honest() as client:
            offset = end_of(client, VAULT, 1)
            while not self._is_over.wait(0.01):
                began = time.monotonic()
                ask(client, ApiVersionsRequest("honest", "1"))
                produce(client, VAULT, 1, offset)
                offset += 2
                longest = max(longest, time.monotonic() - began)
        self.longest_seconds = longest  # an error leaves the longest there is


def _send(bench: HostileBench, data: bytes) -> int:
    """The bytes of the answer; 0 where the connection was closed without one."""
    with socket.create_connection((HOST, bench.port), SECONDS_MAX) as connection:
        connection.sendall(data)
        try:
            length = LENGTH.unpack(connection.recv(LENGTH.size, socket.MSG_WAITALL))[0]
            left = length
            while left:
                left -= len(connection.recv(min(left, 1 << 20)))
        except Exception:
            return 0
    return int(length)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: str(codec.name))
@pytest.mark.parametrize("partition_count", [BOMBED_COUNT, 1], ids=["many", "one, repeated"])
def test_batches_that_unpack_to_much_delay_no_other_topic(
    bench: HostileBench, codec: Codec, partition_count: int
) -> None:
    """A few kilobytes in each batch, whose content no topic refuses."""
    bench.give_all()
    large = memoryview(build_batch([Record(b"key", bytes(CONTENT_BYTES))], codec=codec))
    tiny = memoryview(build_batch([Record(None, b"")] * TINY_COUNT, codec=codec))
    topic = f"bombed-{codec.name}-{partition_count}"
    with bench.honest() as client:
        bench.create(client, topic, partition_count)
    data = [
        PartitionProduceData(number % partition_count, large if number % 2 else tiny)
        for number in range(BOMBED_COUNT)
    ]
    request = ProduceRequest(None, -1, 60_000, [TopicProduceData(topic, partition_data=data)])
    with _spared(bench, f"{codec.name}, {partition_count} partitions"):
        assert _send(bench, frame_of(request, 9)) > 0


@contextmanager
def _spared(bench: HostileBench, what: str) -> Iterator[None]:
    """Little memory, no error, and an honest client that hardly waits."""
    honest = HonestClient(bench)
    bench.server.forget_peak()
    had = bench.server.rss_bytes()
    with honest.asking():
        yield
    assert honest.longest_seconds < HONEST_SECONDS, what
    grown = bench.server.peak_bytes() - had
    assert grown < ALLOWED_GROWTH_BYTES, f"{what}: {grown >> 20} MiB more at the peak"
    assert bench.server.troubles() == []


@pytest.mark.parametrize(
    ("api", "version"), ASKED, ids=[f"{api.key.name} {version}" for api, version in ASKED]
)
def test_many_elements_cost_little(bench: HostileBench, api: Api, version: int) -> None:
    bench.give_all()
    [id, *_] = bench.ids(PREY[:1])
    chance = random.Random(int(api.key) * 100 + version)
    shapes = [*SHAPES, *random_shapes(chance, 8)] if IS_LONG else [FEW[api.key % len(FEW)]]
    shapes += random_shapes(chance, 2)
    frames = exhausting_frames(api, version, PREY[0], id, shapes)
    with _spared(bench, f"{api.key.name} {version}"):
        for shape, data in frames:
            began = time.monotonic()
            answer_bytes = _send(bench, data)
            seconds = time.monotonic() - began
            what = f"{api.key.name} {version}, {shape.name}: {len(data)} bytes"
            assert answer_bytes <= BrokerSettings().response_max_bytes, what
            allowed = HONEST_SECONDS + len(data) * SECONDS_PER_BYTE
            assert seconds < allowed, f"{what} took {seconds:.1f} s"
