"""Connections made to do harm cost little, and honest clients do not notice them (G7)."""

import itertools
import random
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from tests.support.hostile_bench import HONEST_GROUP, PREY, VAULT, HostileBench, end_of, produce
from tests.support.hostile_client import cuts_of
from tests.support.hostile_requests import LENGTH, FrameMaker
from tests.support.kafka_server import HOST
from tests.support.shape_engine import wait_until
from varve.wire import APIS, ApiKey, encode, write_request_header
from varve.wire.messages.data import FetchPartition, FetchRequest, FetchTopic

ALLOWED_GROWTH_BYTES = 128 << 20
GREEDY_GROWTH_BYTES = 400 << 20
"""What all answers may hold, and some being read; 900 MB are asked for."""
QUICK_COUNT = 2_000
SILENT_COUNT = 300
REQUEST_MAX = 100 << 20
LARGE_BYTES = 900_000
GREEDY_COUNT, ASKED_COUNT = 20, 50
"""Readers, and what each asks for: nearly a gigabyte in all."""
VANISHING_COUNT = 300
KEPT_BYTES = 64 << 20
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER without patience: the end is a reset, and no port waits for it."""
WAIT_SECONDS = 10.0
BOMB_COUNT, EXPANDED_BYTES = 12, 40 << 20
"""Batches of a few kilobytes that are so large when they are read."""
_numbers = itertools.count()


def _connect(bench: HostileBench) -> socket.socket:
    made = socket.create_connection((HOST, bench.port), WAIT_SECONDS)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    return made


def _is_ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


@contextmanager
def _unharmed(bench: HostileBench, allowed: int = ALLOWED_GROWTH_BYTES) -> Iterator[None]:
    """The same state after as before, and little more memory and service all along."""
    before = bench.state()
    with _frugal(bench, allowed):
        yield
        assert bench.state() == before
    bench.check_served()


@contextmanager
def _frugal(bench: HostileBench, allowed: int) -> Iterator[None]:
    """At no time more memory than allowed besides that of before."""
    bench.server.forget_peak()
    had = bench.server.rss_bytes()
    yield
    grown = bench.server.peak_bytes() - had
    assert grown < allowed, f"{grown >> 20} MiB more at the peak"


def test_requests_cut_at_every_point_do_nothing(bench: HostileBench) -> None:
    names = (VAULT, HONEST_GROUP, *PREY)
    maker = FrameMaker(3, names, bench.ids(names))
    whole = [one for one in (maker.make() for _ in range(3 * len(APIS))) if not one.is_mutant]
    with _unharmed(bench):
        for data in cuts_of(whole[: len(APIS) // 3]):
            with _connect(bench) as one:
                one.sendall(data)


def test_random_bytes_end_their_connections(bench: HostileBench) -> None:
    chance = random.Random(4)
    with _unharmed(bench):
        for _ in range(QUICK_COUNT // 4):
            with _connect(bench) as one:
                one.sendall(chance.randbytes(chance.randint(1, 300)))


def test_thousands_of_quick_connections(bench: HostileBench) -> None:
    with _unharmed(bench):
        for _ in range(QUICK_COUNT):
            _connect(bench).close()


def test_connections_that_never_speak_cost_little(bench: HostileBench) -> None:
    with ExitStack() as stack, _unharmed(bench):
        for _ in range(SILENT_COUNT):
            stack.enter_context(_connect(bench))


def test_lengths_alone_take_no_memory(bench: HostileBench) -> None:
    with ExitStack() as stack, _unharmed(bench):
        for _ in range(SILENT_COUNT):
            stack.enter_context(_connect(bench)).sendall(LENGTH.pack(REQUEST_MAX) + b"\0" * 9)


def test_half_closed_connections_are_ended(bench: HostileBench) -> None:
    with ExitStack() as stack, _unharmed(bench):
        made = [stack.enter_context(_connect(bench)) for _ in range(50)]
        for number, one in enumerate(made):
            one.sendall(LENGTH.pack(40)[: number % 5])
            one.shutdown(socket.SHUT_WR)
        assert all(_is_ended(one) for one in made)


def test_readers_that_do_not_read_take_bounded_memory(bench: HostileBench) -> None:
    data = _large_fetch(bench)
    with ExitStack() as stack, _unharmed(bench, GREEDY_GROWTH_BYTES):
        for _ in range(GREEDY_COUNT):
            stack.enter_context(_connect(bench)).sendall(data * ASKED_COUNT)


def test_memory_returns_when_readers_vanish(bench: HostileBench) -> None:
    data = _large_fetch(bench)
    had = bench.server.rss_bytes()
    with _unharmed(bench, GREEDY_GROWTH_BYTES):
        with ExitStack() as stack:
            for _ in range(VANISHING_COUNT):
                stack.enter_context(_connect(bench)).sendall(data * ASKED_COUNT)
        wait_until(lambda: bench.server.rss_bytes() < had + KEPT_BYTES)


def _large_fetch(bench: HostileBench) -> bytes:
    """A request for nearly a megabyte that is there."""
    with bench.honest() as client:
        end = end_of(client, PREY[0], 0)
        produce(client, PREY[0], 0, end, value=random.Random(5).randbytes(LARGE_BYTES))
    asked = FetchPartition(partition=0, fetch_offset=end, partition_max_bytes=2 * LARGE_BYTES)
    topics = [FetchTopic(PREY[0], partitions=[asked])]
    body = encode(FetchRequest(max_bytes=2 * LARGE_BYTES, topics=topics), 11)
    head = write_request_header(ApiKey.FETCH, 11, 1, "greedy", is_flexible=False)
    return LENGTH.pack(len(head) + len(body)) + head + body


def test_batches_that_expand_take_bounded_memory(bench: HostileBench) -> None:
    topic, value = f"bombed-{next(_numbers)}", bytes(EXPANDED_BYTES)

    def send(number: int) -> None:
        with bench.honest() as client:
            produce(client, topic, number, 0, value=value)

    with bench.honest() as client:
        bench.create(client, topic, BOMB_COUNT)
    with _frugal(bench, BOMB_COUNT // 2 * EXPANDED_BYTES), ThreadPoolExecutor(BOMB_COUNT) as pool:
        list(pool.map(send, range(BOMB_COUNT)))
    bench.check_served()
