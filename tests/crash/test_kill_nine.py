"""`kill -9` at random moments on a real disk: every acknowledged offset is read back: G1, G2."""

import hashlib
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.log_model import read_all
from varve.commit_log import LogSettings, LogStore, TopicPartition
from varve.disk import RealFileSystem
from varve.foundation.clock import SystemClock

WRITER = Path(__file__).with_name("killed_writer.py")
ROUNDS = 3


def _kill_after(process: subprocess.Popen[str], line_count: int) -> list[tuple[int, str]]:
    """Reads so many acknowledgements, kills, and gives all that were made."""
    assert process.stdout is not None
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if len(lines) == line_count:
            process.send_signal(signal.SIGKILL)
    process.wait()
    watchdog.cancel()
    process.stdout.close()
    assert len(lines) >= line_count
    whole = [line.split() for line in lines if line.endswith("\n") and len(line.split()) == 2]
    return [(int(offset), digest) for offset, digest in whole if len(digest) == 64]


def _digests(path: str) -> dict[int, str]:
    """What a fresh start reads, by base offset."""
    settings = LogSettings(segment_bytes=20_000, index_interval_bytes=500)
    store = LogStore(
        [path],
        fs=RealFileSystem(),
        clock=SystemClock(),
        random=random.Random(1),
        topic_settings=lambda topic: settings,
    ).open()
    stored = read_all(store.get(TopicPartition("orders", 0)), max_bytes=100_000)
    store.abandon()
    return {int.from_bytes(d[:8], "big"): hashlib.sha256(d).hexdigest() for d in stored}


@pytest.mark.parametrize("flush", ["interval", "ack"])
def test_g1_g2_every_offset_acknowledged_before_a_kill_is_read_back(
    flush: str, tmp_path: Path, rounds_factor: int
) -> None:
    source = random.Random(flush)
    acknowledged: dict[int, str] = {}
    for seed in range(ROUNDS * rounds_factor):
        process = subprocess.Popen(
            [sys.executable, str(WRITER), str(tmp_path / "log"), flush, str(seed)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for offset, digest in _kill_after(process, source.randint(1, 120)):
            assert offset not in acknowledged
            acknowledged[offset] = digest
        stored = _digests(str(tmp_path / "log"))
        assert {offset: stored.get(offset) for offset in acknowledged} == acknowledged
        assert list(stored) == sorted(stored)
