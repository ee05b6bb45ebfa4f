"""Reading a log from start to end, against a plain file read with the same chunk size."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.baselines import read_in_chunks
from benchmarks.hot_log.logs import BATCH_BYTES, open_log, ready_batches, write_log
from benchmarks.measure import Contest, Scale, Ticker, at_least
from benchmarks.sizes import SizeUnit, format_bytes
from benchmarks.workspace import Workspace
from varve.commit_log import Log, LogSettings


class ReadMeasure:
    """Size: bytes asked for in one read."""

    name = "read"
    title = "sequential read of batches, against a file read with the same chunk size"
    size_unit = SizeUnit.BYTES

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (128 << 10, 1 << 20)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        workspace.require(scale.volume_bytes)
        with workspace.directory("read") as parent:
            directory = parent / "log"
            batches = ready_batches(BATCH_BYTES, scale.volume_bytes)
            write_log(directory, batches, LogSettings())
            volume_mib = sum(map(len, batches)) / (1 << 20)
            log = open_log(directory, clean=True)
            data_path = str(directory / f"{0:020}.log")
            yield [
                Contest(
                    "read",
                    "MiB/s",
                    lambda: volume_mib / read_all(log, size, scale.ticker),
                    lambda: volume_mib / read_in_chunks(data_path, size, scale.ticker),
                    at_least(0.8),
                    f"whole batches of {format_bytes(BATCH_BYTES)} from the page cache, by offset",
                )
            ]
            log.abandon()


def read_all(log: Log, max_bytes: int, ticker: Ticker) -> float:
    """Seconds to read every batch, each read going on where the last one ended."""
    offset, end_offset = 0, log.end_offset
    start = ticker()
    while offset < end_offset:
        offset = log.read(start_offset=offset, max_bytes=max_bytes).next_offset
    return ticker() - start
