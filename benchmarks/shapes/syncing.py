"""The first sync of a client, and how soon a change reaches one."""

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import varve
from benchmarks.measure import Contest, Scale, at_least
from benchmarks.server.brokers import VarveServer
from benchmarks.shapes.engines import TOPIC, make_rows
from benchmarks.shapes.serving import ShapeReader, serve_files, serve_shapes
from benchmarks.sizes import SizeUnit
from benchmarks.workspace import Workspace

_ROW_BYTES: Final = 260
_WAIT_SECONDS: Final = 30.0


class SyncMeasure:
    """Size: bytes of the snapshot, about."""

    name = "initial_sync"
    title = "a client's first sync, against a static file of the same bytes"
    size_unit = SizeUnit.BYTES

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (1 << 20, 8 << 20) if quick else (1 << 20, 64 << 20)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        workspace.require(size * 8)
        with (
            workspace.directory("sync") as directory,
            _served(directory, size // _ROW_BYTES) as reader,
        ):
            reader.sync()
            volume = reader.sync()
            files = directory / "files"
            files.mkdir()
            names = _save_bodies(reader, files)
            with serve_files(files) as port:
                static = ShapeReader(port, TOPIC)
                yield [
                    Contest(
                        self.name,
                        "MiB/s",
                        lambda: _rate(volume, reader.sync),
                        lambda: _rate(volume, lambda: _get_all(static, names)),
                        at_least(0.6),
                        f"{len(names)} answers, {volume:,} bytes; a client with one connection; "
                        "starlette's FileResponse on the same HTTP server",
                        is_wall_time=True,
                    )
                ]
                static.close()


@contextmanager
def _served(directory: Path, row_count: int) -> Iterator[ShapeReader]:
    with varve.open(str(directory / "store")) as store:
        topic = store.create_topic(TOPIC, partitions=1)
        topic.append_many(
            (str(number).encode(), value)
            for number, (_, value) in enumerate(make_rows(range(row_count), 10))
        )
    with serve_shapes(directory / "shapes", "--dir", str(directory / "store")) as port:
        reader = ShapeReader(port, TOPIC)
        yield reader
        reader.close()


def _save_bodies(reader: ShapeReader, directory: Path) -> list[str]:
    """The answers of a sync as files."""
    sizes: list[int] = []
    reader.offset, reader.handle, reader.is_up_to_date = "-1", "", False
    while not reader.is_up_to_date:
        sizes.append(reader.ask()[0])
    names = [f"{number}.json" for number in range(len(sizes))]
    for name, size in zip(names, sizes, strict=True):
        (directory / name).write_bytes(b"x" * size)
    return names


def _get_all(reader: ShapeReader, names: Sequence[str]) -> int:
    return sum(reader.get(f"/{name}")[0] for name in names)


def _rate(volume: int, read: Callable[[], int]) -> float:
    start = time.perf_counter()
    found = read()
    seconds = time.perf_counter() - start
    if found != volume:
        raise RuntimeError(f"{found} bytes came of {volume}")
    return volume / seconds / (1 << 20)


class LatencyMeasure:
    """Size: changes, one after another."""

    name = "latency"
    title = "from a produced record to a live client, against one HTTP round trip"
    size_unit = SizeUnit.COUNT

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (200,) if quick else (200, 1_000)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        with workspace.directory("latency") as directory, _live(directory) as live:
            seconds: list[float] = []
            trips: list[float] = []

            def take() -> None:
                seconds[:] = [live.change(number) for number in range(size)]
                trips[:] = [live.round_trip() for _ in range(size)]

            def half(figures: list[float]) -> Callable[[], float]:
                return lambda: 1_000 * statistics.median(figures)

            def most(figures: list[float]) -> Callable[[], float]:
                return lambda: 1_000 * statistics.quantiles(figures, n=100)[98]

            take()
            note = (
                f"{size} records, each sent when the one before had come; librdkafka to varve "
                "serve, varve shape serve, long poll; the round trip is GET /v1/health"
            )
            yield [
                Contest(
                    f"{self.name}_{name}",
                    "ms",
                    ours(seconds),
                    ours(trips),
                    None,
                    note,
                    repeat_count_max=1,
                    is_wall_time=True,
                )
                for name, ours in (("p50", half), ("p99", most))
            ]


class _Live:
    """A producer and a client that waits."""

    def __init__(self, producer: Producer, reader: ShapeReader) -> None:
        self._producer = producer
        self._reader = reader

    def change(self, number: int) -> float:
        """Seconds from the call of the producer until the change has come."""
        start = time.perf_counter()
        value = json.dumps({"n": number, "at": time.time_ns()}).encode()
        self._producer.produce(TOPIC, key=b"row", value=value)
        self._producer.poll(0)
        before = self._reader.offset
        deadline = start + _WAIT_SECONDS
        while self._reader.offset == before:
            self._reader.ask(live=True)
            if time.perf_counter() > deadline:
                raise RuntimeError(f"change {number} did not come within {_WAIT_SECONDS} s")
        return time.perf_counter() - start

    def round_trip(self) -> float:
        start = time.perf_counter()
        self._reader.get("/v1/health")
        return time.perf_counter() - start


@contextmanager
def _live(directory: Path) -> Iterator[_Live]:
    server = VarveServer(directory)
    server.start()
    try:
        admin = AdminClient({"bootstrap.servers": server.address, "log_level": 2})
        for made in admin.create_topics([NewTopic(TOPIC, 1, 1)]).values():
            made.result(_WAIT_SECONDS)
        producer = Producer(
            {"bootstrap.servers": server.address, "linger.ms": 0, "acks": "1", "log_level": 2}
        )
        with serve_shapes(directory / "shapes", "-b", server.address) as port:
            reader = ShapeReader(port, TOPIC)
            reader.sync()
            yield _Live(producer, reader)
            reader.close()
        producer.flush(_WAIT_SECONDS)
    finally:
        server.stop()
