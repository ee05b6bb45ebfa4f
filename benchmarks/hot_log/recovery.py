"""Opening a log after a crash, against reading its data file with the CRC32C of its bytes."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.baselines import fastest_checksum, read_with_checksum
from benchmarks.hot_log.logs import BATCH_BYTES, open_log, ready_batches, write_log
from benchmarks.measure import Contest, Scale, Ticker, at_most
from benchmarks.sizes import SizeUnit, format_bytes
from benchmarks.workspace import Workspace
from varve.commit_log import LogSettings

_CHUNK_BYTES = 1 << 20
_TORN_BYTES = 1000
_REBUILT_SUFFIXES = (".index", ".timeindex", ".snapshot")


class RecoveryMeasure:
    """Size: bytes of the log, none of them known to be on disk."""

    name = "recovery"
    title = "recovery of an unclean log, against reading it with its CRC32C"
    size_unit = SizeUnit.BYTES

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (64 << 20, 256 << 20) if quick else (256 << 20, 1 << 30)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        workspace.require(size)
        with workspace.directory("recovery") as parent:
            directory = parent / "log"
            batches = ready_batches(BATCH_BYTES, size)
            end_offset = write_log(directory, batches, LogSettings())
            torn = batches[0][:_TORN_BYTES]
            data_paths = [str(path) for path in sorted(directory.glob("*.log"))]
            checksum = fastest_checksum(bytes(_CHUNK_BYTES))
            yield [
                Contest(
                    "recovery",
                    "s",
                    lambda: recover(directory, torn, end_offset, scale.ticker),
                    lambda: read_with_checksum(data_paths, _CHUNK_BYTES, checksum, scale.ticker),
                    at_most(1.5),
                    f"batches of {format_bytes(BATCH_BYTES)}, a torn batch at the end, indexes and "
                    "snapshots missing, recovery point 0; page cache warm",
                )
            ]


def recover(directory: Path, torn: bytes, end_offset: int, ticker: Ticker) -> float:
    """Seconds to open the directory as a crash leaves it."""
    for path in directory.iterdir():
        if path.suffix in _REBUILT_SUFFIXES:
            path.unlink()
    last = max(directory.glob("*.log"))
    with open(last, "ab") as file:
        file.write(torn)
        file.flush()
        torn_size = os.fstat(file.fileno()).st_size
    start = ticker()
    log = open_log(directory)
    elapsed = ticker() - start
    log.abandon()
    if log.end_offset != end_offset or last.stat().st_size != torn_size - len(torn):
        raise AssertionError(f"recovery ended at offset {log.end_offset}, not {end_offset}")
    return elapsed
