"""RocksDB segments after `kill -9`, on a disk that refuses, and damaged: the changelog mends them.

Carries G3 and G7.
"""

import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.memory_changelog import MemoryChangelog
from tests.support.window_bench import WindowBench, put_all, rocks_bench, times, visible
from tests.support.window_model import replay
from tests.support.window_writer import parse_line
from varve.foundation.errors import Corrupt, DiskFull, Locked, Unavailable
from varve.rocks.database import rocks_failure
from varve.windows.changelog import LoggedWrite

ROOT = Path(__file__).parents[3]


def _start(bench: WindowBench, *, seed: int, step: int, file_bytes: int) -> subprocess.Popen[str]:
    arguments = [bench.directory, str(seed), str(step), str(file_bytes)]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.window_writer", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
    )


def _write_until_dead(
    bench: WindowBench, *, seed: int, step: int = 0, kill_after: int = 0, file_bytes: int = 0
) -> list[str]:
    """Lines of a writer that dies at its step, or is killed after so many lines."""
    lines = []
    with _start(bench, seed=seed, step=step, file_bytes=file_bytes) as process:
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if len(lines) == kill_after:
                process.send_signal(signal.SIGKILL)
        watchdog.cancel()
    return [line for line in lines if line.endswith("\n")]


def _changelog(lines: list[str]) -> MemoryChangelog:
    changelog = MemoryChangelog()
    changelog.append([parse_line(line) for line in lines])
    return changelog


def _check(bench: WindowBench, lines: list[str]) -> None:
    """The store holds what was printed; one write more may be there, which was not."""
    bench.changelog = _changelog(lines)
    with bench.store() as store:
        found, wanted = set(visible(store)), set(replay(bench.changelog))
        assert len(found ^ wanted) <= 1
        assert wanted, "the writer died before its first write"


@pytest.mark.parametrize("step", [6, 9, 14, 22])
def test_a_killed_writer_at_a_step_of_checkpoint_or_drop(tmp_path: Path, step: int) -> None:
    bench = rocks_bench(tmp_path)
    _check(bench, _write_until_dead(bench, seed=step, step=step))


@pytest.mark.parametrize("kill_after", [40, 171])
def test_a_killed_writer_at_any_moment(tmp_path: Path, kill_after: int) -> None:
    bench = rocks_bench(tmp_path)
    lines = _write_until_dead(bench, seed=kill_after, kill_after=kill_after)
    assert len(lines) >= kill_after
    _check(bench, lines)


def test_files_that_cannot_grow_end_in_an_error_and_lose_nothing(tmp_path: Path) -> None:
    bench = rocks_bench(tmp_path)
    *lines, last = _write_until_dead(bench, seed=5, file_bytes=12_000)
    assert last in ("error Unavailable\n", "error DiskFull\n")
    _check(bench, lines)


# Damage


@pytest.fixture
def bench(tmp_path: Path) -> WindowBench:
    """A closed store with segments 0, 10 s and 20 s, the last with two files of data."""
    bench = rocks_bench(tmp_path)
    with bench.store() as store:
        put_all(store, [5_000, 12_000, 22_000])
        store.checkpoint()
        put_all(store, [23_000])
    return bench


def _segment(bench: WindowBench) -> Path:
    return Path(bench.path("s.20000"))


def _data_file(segment: Path) -> Path:
    return min(segment.glob("*.sst"))


def _scribble(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[10:30] = bytes(20)
    path.write_bytes(data)


def _replace(path: Path, make: Callable[[Path], object]) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    make(path)


_DAMAGES: dict[str, Callable[[Path], object]] = {
    "data cut": lambda segment: os.truncate(_data_file(segment), 100),
    "data gone": lambda segment: _data_file(segment).unlink(),
    "CURRENT gone": lambda segment: (segment / "CURRENT").unlink(),
    "CURRENT empty": lambda segment: os.truncate(segment / "CURRENT", 0),
    "CURRENT a directory": lambda segment: _replace(segment / "CURRENT", Path.mkdir),
    "manifest gone": lambda segment: min(segment.glob("MANIFEST-*")).unlink(),
    "manifest damaged": lambda segment: _scribble(min(segment.glob("MANIFEST-*"))),
    "segment a file": lambda segment: _replace(segment, lambda path: path.write_bytes(b"stray")),
    "segment gone": shutil.rmtree,
    "segment empty": lambda segment: _replace(segment, Path.mkdir),
}


@pytest.mark.parametrize("damage", _DAMAGES.values(), ids=_DAMAGES)
def test_a_damaged_segment_is_wiped_and_restored_with_a_warning(
    bench: WindowBench, damage: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    damage(_segment(bench))
    with caplog.at_level(logging.WARNING), bench.store() as store:
        assert times(store.all()) == [5_000, 12_000, 22_000, 23_000]
    assert "wiped and restored" in caplog.text


def test_a_stray_file_is_no_damage(bench: WindowBench, caplog: pytest.LogCaptureFixture) -> None:
    Path(bench.path("notes.txt")).write_text("mine")
    (_segment(bench) / "notes.txt").write_text("mine")
    with bench.store() as store:
        assert times(store.all()) == [5_000, 12_000, 22_000, 23_000]
    assert [record.message for record in caplog.records] == ["foreign name in a store's directory"]
    assert Path(bench.path("notes.txt")).read_text() == "mine"


def test_a_damaged_block_is_found_by_the_read_and_rebuilt(bench: WindowBench) -> None:
    for path in _segment(bench).glob("*.sst"):
        data = bytearray(path.read_bytes())
        data[3] ^= 0xFF
        path.write_bytes(data)
    store = bench.store()
    with pytest.raises(Corrupt, match="checksum mismatch") as caught:
        list(store.all())
    store.rebuild(caught.value)
    assert times(store.all()) == [5_000, 12_000, 22_000, 23_000]
    store.close()


def test_a_segment_that_was_being_made_is_made_anew(bench: WindowBench) -> None:
    """A crash in between leaves a directory without data; the checkpoint does not know it."""
    left = Path(bench.path("s.40000"))
    left.mkdir()
    (left / "LOG").write_text("begun")
    (left / "LOCK").touch()
    assert isinstance(bench.changelog, MemoryChangelog)
    bench.changelog.append(
        [LoggedWrite(b"k" + bytes([0] * 6 + [0xA0, 0, 0, 0, 0, 0]), b"v", 40_960)]
    )
    with bench.store() as store:
        assert times(store.all()) == [22_000, 23_000, 40_960]


def test_a_store_whose_directory_vanished_ends_in_an_error_and_opens_again(
    tmp_path: Path,
) -> None:
    bench = rocks_bench(tmp_path)
    store = bench.store()
    put_all(store, [5_000])
    store.checkpoint()
    put_all(store, [6_000, 12_000])
    shutil.rmtree(bench.directory)
    with pytest.raises(Unavailable, match="No such file or directory"):
        store.close()
    with bench.store() as store:
        assert times(store.all()) == [5_000, 6_000, 12_000]


def test_rocksdbs_words_become_kinds_of_errors() -> None:
    kinds = {
        "Corruption: block checksum mismatch": Corrupt,
        "IO error: No space left on device: While appending to file": DiskFull,
        "IO error: lock hold by current process: /s/LOCK: No locks available": Locked,
        "IO error: While lock file: /s/LOCK: Resource temporarily unavailable": Locked,
        "IO error: File too large": Unavailable,
    }
    for text, kind in kinds.items():
        failure = rocks_failure(Exception(text), "flush of s.0")
        assert type(failure) is kind
        assert str(failure).startswith("flush of s.0: ")
