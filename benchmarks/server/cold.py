"""Fetch of records that only the cold tier holds."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.measure import Contest, Scale
from benchmarks.server.brokers import VarveServer, pause
from benchmarks.server.load import TopicLoad, open_load
from benchmarks.server.throughput import volume_for
from benchmarks.sizes import SizeUnit
from benchmarks.workspace import Workspace

_SEGMENT_BYTES: Final = 4 << 20
_BATCH_BYTES: Final = 16 << 10
_TRIES: Final = 600
_TRY_SECONDS: Final = 0.1
_SERVER: Final = {
    "remote.log.manager.task.interval.ms": "200",
    "log.retention.check.interval.ms": "200",
    "varve.tier.cache.bytes": str(16 << 20),
}
_TOPIC: Final = {
    "remote.storage.enable": "true",
    "segment.bytes": str(_SEGMENT_BYTES),
    "local.retention.bytes": "1",
    "file.delete.delay.ms": "0",
}


class ColdMeasure:
    """Size: bytes of records that each answer has."""

    name = "cold"
    title = "prepared Fetch requests for records that only the cold tier holds, varve alone"
    size_unit = SizeUnit.BYTES

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (128 << 10, 1 << 20)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        volume = volume_for(size, scale)
        workspace.require(volume * 4)
        with workspace.directory("cold") as home:
            url = {"varve.tier.url": f"file:{home / 'bucket'}"}
            server = VarveServer(home, {**_SERVER, **url})
            server.start()
            try:
                with open_load(
                    server, volume_bytes=volume, batch_bytes=_BATCH_BYTES, settings=_TOPIC
                ) as load:
                    load.produce(acks=1)
                    # What must become cold is followed by a segment that never does.
                    load.produce(acks=1)
                    _wait_until_cold(home / "data", volume)
                    yield [_contest(load, size)]
            finally:
                server.stop()


def _contest(load: TopicLoad, size: int) -> Contest:
    return Contest(
        "fetch_cold",
        "MiB/s",
        lambda: load.mib / load.fetch(max_bytes=size),
        None,
        None,
        "segments of 4 MiB in a directory as object store, 16 MiB of memory for them",
        is_wall_time=True,
    )


def _wait_until_cold(data: Path, volume: int) -> None:
    for _ in range(_TRIES):
        local = sum(one.stat().st_size for one in data.glob("bench-*/*.log") if one.exists())
        if local <= volume:
            return
        pause(_TRY_SECONDS)
    raise AssertionError(f"{local} bytes are still on the local disk")
