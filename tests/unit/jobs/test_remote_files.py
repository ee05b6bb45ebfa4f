"""Objects of the remote tier as files, and the scratch files of tasks."""

import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from varve.foundation.errors import Corrupt, InvalidRequest
from varve.jobs.tier.remote_files import BLOCK_BYTES, TierFiles, scratch, sweep_scratch
from varve.object_store import MemoryObjectStore, ObjectStore
from varve.testing import FaultyObjectStore

DATA = random.Random(1).randbytes(5 * BLOCK_BYTES + 77)
_stores: dict[str, ObjectStore] = {}


def open_store() -> ObjectStore:
    return _stores["now"]


def make(size: int = len(DATA)) -> tuple[TierFiles, FaultyObjectStore]:
    objects = FaultyObjectStore(MemoryObjectStore())
    objects.put("a/log", DATA)
    _stores["now"] = objects
    return TierFiles(open_store, {"a/log": size}), objects


def test_any_range_is_what_the_object_holds() -> None:
    files, _ = make()
    source = random.Random(2)
    with files, files.open("a/log") as file:
        for _ in range(200):
            start = source.randrange(len(DATA) + 10)
            size = source.choice([0, 1, 100, BLOCK_BYTES - 1, BLOCK_BYTES, 3 * BLOCK_BYTES])
            assert file.read_at(start, size) == DATA[start : start + size]


def test_small_reads_of_a_block_ask_once() -> None:
    files, objects = make()
    before = objects.steps
    with files:
        for start in range(0, 1000, 100):
            with files.open("a/log") as file:
                file.read_at(start, 100)
    assert objects.steps == before + 1


def test_a_large_read_is_one_request_and_a_walk_is_fetched_ahead() -> None:
    files, objects = make()
    before = objects.steps
    with files:
        file = files.open("a/log")
        found = file.read_at(0, 2 * BLOCK_BYTES)
        assert objects.steps == before + 1
        position = len(found)
        while piece := file.read_at(position, BLOCK_BYTES):
            found += piece
            position += len(piece)
    assert found == DATA
    ranges = [step for step in objects.trace[before:] if step.operation == "get range"]
    assert len(ranges) == 5


def test_an_object_that_is_too_short_is_corrupt() -> None:
    files, _ = make(len(DATA) + 1)
    with files, files.open("a/log") as file, pytest.raises(Corrupt, match="a/log"):
        file.read_at(len(DATA) - 5, 100)


def test_what_is_not_named_is_not_found_and_nothing_is_written() -> None:
    files, _ = make()
    with files, pytest.raises(FileNotFoundError):
        files.open("a/index")
    with files.open("a/log") as file, pytest.raises(InvalidRequest, match="never change"):
        file.write_at(0, b"x")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_leaves_with_its_task_and_no_other_takes_it(place: Path) -> None:
    (place / "varve-other").mkdir()
    with scratch() as first, scratch() as second:
        sweep_scratch()
        (Path(first) / "log").write_bytes(b"ann")
        assert Path(second).is_dir()
    assert [one.name for one in place.iterdir()] == ["varve-other"]


def test_what_a_killed_task_left_goes_with_the_next(place: Path) -> None:
    code = (
        "import os, signal, tempfile; from varve.jobs.tier.remote_files import scratch\n"
        "with scratch() as path:\n"
        "    open(f'{path}/log', 'w').write('ann')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    env = {**os.environ, "TMPDIR": str(place)}
    ended = subprocess.run([sys.executable, "-c", code], env=env, check=False)
    assert ended.returncode == -signal.SIGKILL
    (left,) = place.iterdir()
    assert (left / "log").read_text() == "ann"
    with scratch() as path:
        assert [str(one) for one in place.iterdir()] == [path]
