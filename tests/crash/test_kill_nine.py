"""`kill -9` at random moments on a real disk: every acknowledged offset is read back: G1, G2."""

import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lab import open_logs
from tests.support.log_model import read_all
from varve.commit_log import LogSettings, TopicPartition
from varve.disk import RealFileSystem
from varve.foundation.clock import SystemClock

WRITER = Path(__file__).with_name("killed_writer.py")
ROUNDS = 5


@pytest.fixture(scope="module")
def writers() -> Iterator[subprocess.Popen[str]]:
    """A process that has loaded everything and forks a writer per line of input."""
    with subprocess.Popen(
        [sys.executable, str(WRITER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def _append_until_killed(
    writers: subprocess.Popen[str], command: str, kill_after: int
) -> list[tuple[int, str]]:
    """Has a writer killed once it acknowledged so many batches; gives all it acknowledged."""
    assert writers.stdin is not None
    assert writers.stdout is not None
    print(command, file=writers.stdin, flush=True)
    word, pid = writers.stdout.readline().split()
    assert word == "pid"
    watchdog = threading.Timer(60, os.kill, (int(pid), signal.SIGKILL))
    watchdog.start()
    acknowledged: list[tuple[int, str]] = []
    for line in writers.stdout:
        if line == "dead\n":
            break
        if len(line.split()) == 2 and len(line.split()[1]) == 64:
            acknowledged.append((int(line.split()[0]), line.split()[1]))
            if len(acknowledged) == kill_after:
                os.kill(int(pid), signal.SIGKILL)
    watchdog.cancel()
    assert len(acknowledged) >= kill_after
    return acknowledged


def _digests(path: str) -> dict[int, str]:
    """What a fresh start reads, by base offset."""
    settings = LogSettings(segment_bytes=20_000, index_interval_bytes=500)
    store = open_logs(RealFileSystem(), SystemClock(), settings, paths=[path])
    stored = read_all(store.get(TopicPartition("orders", 0)), max_bytes=100_000)
    store.abandon()
    return {int.from_bytes(d[:8], "big"): hashlib.sha256(d).hexdigest() for d in stored}


@pytest.mark.parametrize("flush", ["interval", "ack"])
def test_g1_g2_every_offset_acknowledged_before_a_kill_is_read_back(
    flush: str, writers: subprocess.Popen[str], tmp_path: Path, rounds_factor: int
) -> None:
    source = random.Random(flush)
    acknowledged: dict[int, str] = {}
    for seed in range(ROUNDS * rounds_factor):
        command = f"{tmp_path}/log {flush} {seed}"
        for offset, digest in _append_until_killed(writers, command, source.randint(1, 120)):
            assert offset not in acknowledged
            acknowledged[offset] = digest
        stored = _digests(f"{tmp_path}/log")
        assert {offset: stored.get(offset) for offset in acknowledged} == acknowledged
        assert list(stored) == sorted(stored)
