"""What `flush=ack` costs: appends that return when the disk has the record, beside the default."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import varve
from benchmarks.measure import Contest, Scale
from benchmarks.sizes import SizeUnit
from benchmarks.workspace import Workspace

_VALUE = bytes(1 << 10)
_APPENDS = 2_000
_APPENDS_QUICK = 500


class FlushMeasure:
    """Size: threads that append to one partition, each waiting for its acknowledgement."""

    name = "flush"
    title = "appends with flush=ack, against flush=interval"
    size_unit = SizeUnit.COUNT

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (1, 16)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        count = (_APPENDS_QUICK if scale.is_quick else _APPENDS) // size
        yield [
            Contest(
                "flush",
                "ms",
                lambda: _append_seconds(workspace, "ack", size, count) * 1000,
                lambda: _append_seconds(workspace, "interval", size, count) * 1000,
                note="from an append to its acknowledgement; one record of 1 KiB at a time",
                is_wall_time=True,
            )
        ]


def _append_seconds(workspace: Workspace, flush: str, threads: int, count: int) -> float:
    """The mean time of an append, as each thread sees it."""
    with (
        workspace.directory("flush") as directory,
        varve.open(directory / "data", maintain=False) as store,
    ):
        topic = store.create_topic("flush", settings={"flush": flush})
        topic.append(_VALUE)

        def append_all() -> None:
            for _ in range(count):
                topic.append(_VALUE)

        workers = [threading.Thread(target=append_all) for _ in range(threads)]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return (time.perf_counter() - start) / count
