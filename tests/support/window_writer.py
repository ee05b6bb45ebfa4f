"""Writes a window store on RocksDB until it is killed, or kills itself at a chosen step.

Arguments: directory, seed, step at which to die (0: never), largest file in bytes (0: any).
Prints a line per write that is in the changelog: time, key in hex, value in hex or `-`. The lines
are the changelog: what was printed is on record. Ends with `error <kind>` when the store refuses.
"""

import os
import random
import resource
import signal
import sys
from collections.abc import Sequence

from tests.support.memory_changelog import MemoryChangelog
from tests.support.window_bench import SMALL_MEMORY_BYTES, window_settings
from varve.disk import RealFileSystem
from varve.disk.real import RealFile
from varve.foundation.clock import SystemClock
from varve.foundation.errors import StoreError
from varve.rocks.database import RocksDatabases
from varve.windows.changelog import LoggedWrite
from varve.windows.window_store import WindowStore


class DyingFileSystem(RealFileSystem):
    """Kills the process in place of its n-th changing call."""

    def __init__(self, step: int) -> None:
        self._left = step

    def open_writable(self, path: str) -> RealFile:
        self._step()
        return super().open_writable(path)

    def rename(self, source: str, target: str) -> None:
        self._step()
        super().rename(source, target)

    def remove_tree(self, path: str) -> None:
        self._step()
        super().remove_tree(path)

    def sync_directory(self, path: str) -> None:
        self._step()
        super().sync_directory(path)

    def _step(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class PrintedChangelog(MemoryChangelog):
    """A changelog that survives the process in who reads its lines."""

    def append(self, writes: Sequence[LoggedWrite]) -> int:
        for key, value, time_ms in writes:
            print(time_ms, key.hex(), "-" if value is None else value.hex(), flush=True)
        return super().append(writes)


def parse_line(line: str) -> LoggedWrite:
    time_ms, key, value = line.split()
    return LoggedWrite(
        bytes.fromhex(key), None if value == "-" else bytes.fromhex(value), int(time_ms)
    )


def write(directory: str, seed: int, die_at_step: int) -> None:
    windows = WindowStore(
        window_settings(),
        directory=directory,
        databases=RocksDatabases(memory_bytes=SMALL_MEMORY_BYTES),
        file_system=DyingFileSystem(die_at_step),
        clock=SystemClock(),
        changelog=PrintedChangelog(),
        pending_count_max=1,
    ).open()
    source = random.Random(seed)
    time_ms = 0
    while True:
        time_ms += source.choice([10, 100, 3_000])
        late_ms = max(0, time_ms - source.choice([0, 0, 0, 9_000]))
        value = None if source.random() < 0.1 else source.randbytes(source.choice([5, 2_000]))
        windows.put(source.choice([b"a", b"b", b"cc"]), value, late_ms)
        if source.random() < 0.05:
            windows.checkpoint()


def main() -> None:
    directory, seed, die_at_step, file_bytes = sys.argv[1:]
    if int(file_bytes):
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(file_bytes), int(file_bytes)))
    try:
        write(directory, int(seed), int(die_at_step))
    except StoreError as error:
        print("error", type(error).__name__, flush=True)


if __name__ == "__main__":
    main()
