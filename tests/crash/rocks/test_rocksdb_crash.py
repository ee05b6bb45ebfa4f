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
from tests.support.window_model import WindowModel
from tests.support.window_writer import parse_line
from varve.foundation.errors import Corrupt, DiskFull, Locked, Unavailable
from varve.rocks.database import rocks_failure
from varve.windows.changelog import LoggedWrite
from varve.windows.entries import WindowEntry, decode_window_key

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


def _replayed(changelog: MemoryChangelog) -> list[WindowEntry]:
    model = WindowModel(10_000, 25_000)
    for batch in changelog.read(0):
        for key, value in batch.puts:
            model.put(decode_window_key(key).key, value, decode_window_key(key).time_ms)
    return model.visible()


def _check(bench: WindowBench, lines: list[str]) -> None:
    """The store holds what was printed; one write more may be there, which was not."""
    bench.changelog = _changelog(lines)
    with bench.store() as store:
        found, wanted = set(visible(store)), set(_replayed(bench.changelog))
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


def _data_file(bench: WindowBench) -> Path:
    return min(_segment(bench).glob("*.sst"))


def _truncate_data(bench: WindowBench) -> None:
    os.truncate(_data_file(bench), 100)


def _remove_data(bench: WindowBench) -> None:
    _data_file(bench).unlink()


def _remove_current(bench: WindowBench) -> None:
    (_segment(bench) / "CURRENT").unlink()


def _empty_current(bench: WindowBench) -> None:
    os.truncate(_segment(bench) / "CURRENT", 0)


def _unreadable_current(bench: WindowBench) -> None:
    (_segment(bench) / "CURRENT").unlink()
    (_segment(bench) / "CURRENT").mkdir()


def _remove_manifest(bench: WindowBench) -> None:
    for path in _segment(bench).glob("MANIFEST-*"):
        path.unlink()


def _scribble_manifest(bench: WindowBench) -> None:
    for path in _segment(bench).glob("MANIFEST-*"):
        data = bytearray(path.read_bytes())
        data[10:30] = bytes(20)
        path.write_bytes(data)


def _file_for_segment(bench: WindowBench) -> None:
    shutil.rmtree(_segment(bench))
    _segment(bench).write_bytes(b"stray")


def _lose_segment(bench: WindowBench) -> None:
    shutil.rmtree(_segment(bench))


def _empty_segment(bench: WindowBench) -> None:
    shutil.rmtree(_segment(bench))
    _segment(bench).mkdir()


@pytest.mark.parametrize(
    "damage",
    [
        _truncate_data,
        _remove_data,
        _remove_current,
        _empty_current,
        _unreadable_current,
        _remove_manifest,
        _scribble_manifest,
        _file_for_segment,
        _lose_segment,
        _empty_segment,
    ],
)
def test_a_damaged_segment_is_wiped_and_restored_with_a_warning(
    bench: WindowBench, damage: Callable[[WindowBench], None], caplog: pytest.LogCaptureFixture
) -> None:
    damage(bench)
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
