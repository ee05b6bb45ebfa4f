"""Requests that name very many things, or one thing many times: honest clients are answered
meanwhile, and the answers and the memory stay within bounds (G7).

Every API is asked in its last version and one shape, with `make crash` in all.
"""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.exhausting_requests import SHAPES, UNTRIED, exhausting_frames
from tests.support.hostile_bench import PREY, HostileBench, ask
from tests.support.hostile_requests import LENGTH
from tests.support.kafka_server import HOST
from tests.support.rounds import IS_LONG
from varve.broker.settings import BrokerSettings
from varve.wire import APIS, Api
from varve.wire.messages.cluster import ApiVersionsRequest

ALLOWED_GROWTH_BYTES = 256 << 20
HONEST_SECONDS = 2.5
"""How long an honest client may wait on a machine that does other things too."""
SECONDS_MAX = 20.0
FEW = [shape for shape in SHAPES if "few" in shape.name]
TRIED = [one for one in APIS.values() if one.key not in UNTRIED]


class HonestClient:
    """Asks all the time, in a thread of its own."""

    def __init__(self, bench: HostileBench) -> None:
        self._bench = bench
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.longest_seconds = 0.0
        self.count = 0

    @contextmanager
    def asking(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            self._thread.join()

    def _run(self) -> None:
        with self._bench.honest() as client:
            while not self._is_over.wait(0.01):
                began = time.monotonic()
                ask(client, ApiVersionsRequest("honest", "1"))
                self.longest_seconds = max(self.longest_seconds, time.monotonic() - began)
                self.count += 1


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


@pytest.mark.parametrize("api", TRIED, ids=lambda api: str(api.key.name))
def test_many_elements_cost_little(bench: HostileBench, api: Api) -> None:
    bench.give_all()
    [id, *_] = bench.ids(PREY[:1])
    shapes = SHAPES if IS_LONG else [FEW[api.key % len(FEW)]]
    versions = range(api.versions.first, api.versions.last + 1)
    honest = HonestClient(bench)
    bench.server.forget_peak()
    had = bench.server.rss_bytes()
    with honest.asking():
        for version in versions if IS_LONG else versions[-1:]:
            for shape, data in exhausting_frames(api, version, PREY[0], id, shapes):
                began = time.monotonic()
                answer_bytes = _send(bench, data)
                seconds = time.monotonic() - began
                what = f"{api.key.name} {version}, {shape.name}: {len(data)} bytes"
                assert answer_bytes <= BrokerSettings().response_max_bytes, what
                assert seconds < SECONDS_MAX, f"{what} took {seconds:.1f} s"
    assert honest.longest_seconds < HONEST_SECONDS, api.key.name
    grown = bench.server.peak_bytes() - had
    assert grown < ALLOWED_GROWTH_BYTES, f"{api.key.name}: {grown >> 20} MiB more at the peak"
    assert bench.server.troubles() == []
