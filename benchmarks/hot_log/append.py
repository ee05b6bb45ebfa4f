"""Appending ready batches, against a plain file write of the same bytes with their CRC32C."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.baselines import fastest_checksum, write_with_checksum
from benchmarks.hot_log.logs import open_log, ready_batches
from benchmarks.measure import Aim, Contest, Scale, Ticker, at_least
from benchmarks.sizes import SizeUnit
from benchmarks.workspace import Workspace
from varve.commit_log import LogSettings

_AIMS = ((1 << 20, 0.85), (128 << 10, 0.7), (16 << 10, 0.4))
_MAX_MESSAGE_BYTES = LogSettings().max_message_bytes


class AppendMeasure:
    """Size: bytes of a batch."""

    name = "append"
    title = "append of ready batches, against a file write of the same bytes with their CRC32C"
    size_unit = SizeUnit.BYTES

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (16 << 10, 128 << 10, 1 << 20)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        volume = max(size, scale.volume_bytes)
        workspace.require(volume)
        batches = ready_batches(size, volume)
        volume_mib = sum(map(len, batches)) / (1 << 20)
        checksum = fastest_checksum(batches[0])
        with workspace.directory("append") as directory:
            plain = str(directory / "plain")
            yield [
                Contest(
                    "append",
                    "MiB/s",
                    lambda: volume_mib / append_to_new_log(workspace, batches, scale.ticker),
                    lambda: (
                        volume_mib / write_with_checksum(plain, batches, checksum, scale.ticker)
                    ),
                    aim_for(size),
                    "1 KiB records, into a new log or file each time; no sync on either side",
                )
            ]


def aim_for(batch_bytes: int) -> Aim | None:
    """The aim of the largest stated size that is not above this one; None below all."""
    return next((at_least(aim) for size, aim in _AIMS if batch_bytes >= size), None)


def append_to_new_log(workspace: Workspace, batches: Sequence[bytes], ticker: Ticker) -> float:
    """Seconds to append the batches to a log that is open and has taken its first batch.

    The first append writes and syncs the leader epoch file, once in the life of a log.
    """
    settings = LogSettings(max_message_bytes=max(_MAX_MESSAGE_BYTES, *map(len, batches[:1])))
    with workspace.directory("log") as parent:
        log = open_log(Path(parent), settings=settings)
        log.append(batches[0])
        append = log.append
        start = ticker()
        for batch in batches:
            append(batch)
        elapsed = ticker() - start
        log.abandon()
    return elapsed
