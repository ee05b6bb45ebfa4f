"""A window store after a crash, a failed call or a full disk shows what its changelog says.

Carries G3 and G7: at any step of puts, drops, flushes, checkpoints and restores.
"""

import errno
from collections.abc import Callable

import pytest

from tests.support.crash_images import crash_images, named, record
from tests.support.memory_changelog import MemoryChangelog
from tests.support.window_bench import WindowBench, memory_bench, put_all, visible
from tests.support.window_model import replay
from varve.foundation.clock import ManualClock
from varve.foundation.errors import DiskFull, StoreError
from varve.rocks.memory_database import LOG_NAME, MemoryDatabases
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem
from varve.windows.window_store import WindowStore


def _bench(file_system: FaultyFileSystem, changelog: MemoryChangelog) -> WindowBench:
    bench = memory_bench(file_system)
    bench.changelog = changelog
    return bench


def _open(bench: WindowBench) -> WindowStore:
    """A store that logs each write at once, so that the changelog knows all but the last."""
    return bench.store(pending_count_max=1)


def _work(bench: WindowBench) -> None:
    """Puts in and out of order, deletions, drops of one and of several segments, a restart."""
    store = _open(bench)
    put_all(store, [1_000, 12_000, 5_000], key=b"a")
    store.checkpoint()
    put_all(store, [22_000, 23_000, 31_000], key=b"b")
    store.put(b"a", None, 12_000)
    store.flush()
    put_all(store, [36_000, 15_000], key=b"a")
    store.checkpoint()
    put_all(store, [47_000], key=b"a")
    store.close()
    store = _open(bench)
    put_all(store, [48_000, 90_000], key=b"c")
    store.checkpoint()
    put_all(store, [91_000], key=b"d")
    store.close()


def _check(file_system: FaultyFileSystem, changelog: MemoryChangelog) -> None:
    """What is there opens, shows the changelog's state, and goes on."""
    bench = _bench(file_system, changelog)
    store = _open(bench)
    assert visible(store) == replay(changelog)
    put_all(store, [92_000], key=b"e")
    store.close()
    with _open(bench) as store:
        assert visible(store) == replay(changelog)
        assert not [name for name in bench.names() if name.endswith(".deleting")]


def _step_count() -> int:
    file_system = FaultyFileSystem(ManualClock())
    _work(_bench(file_system, MemoryChangelog()))
    return file_system.steps


def _crash_everywhere(
    work: Callable[[WindowBench], object],
    file_system: FaultyFileSystem,
    changelog: MemoryChangelog,
) -> None:
    points = record(
        lambda: work(_bench(file_system, changelog)),
        lambda: changelog.writes,
        disk=file_system,
    )
    for image in crash_images(points):
        with named(image):
            _check(image.disk, MemoryChangelog(image.state))


def test_a_crash_at_every_step(rounds_factor: int) -> None:
    for seed in range(rounds_factor):
        _crash_everywhere(_work, FaultyFileSystem(ManualClock(), seed=seed), MemoryChangelog())


def _failure_of(work: Callable[[WindowBench], None], bench: WindowBench) -> str:
    """What the error said; a removal that fails is counted and goes on."""
    try:
        work(bench)
    except StoreError as error:
        return str(error)
    return "planned: passed over"


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_failed_call_at_every_step(number: int) -> None:
    for step in range(1, _step_count() + 1):
        file_system = FaultyFileSystem(ManualClock(), seed=step)
        changelog = MemoryChangelog()
        databases = MemoryDatabases(file_system)
        bench = _bench(file_system, changelog)
        bench.databases = databases
        file_system.fail_at(step, OSError(number, "planned"))
        assert "planned" in _failure_of(_work, bench)
        databases.crash()
        try:
            _check(file_system.after_crash(CrashMode.KEEP_ALL), changelog)
        except BaseException as error:
            error.add_note(f"failed at step {step}\n{file_system.describe_trace(5)}")
            raise


def _damaged() -> tuple[FaultyFileSystem, MemoryChangelog]:
    """A store that is wiped when it is opened: one of its segments is damaged."""
    file_system = FaultyFileSystem(ManualClock())
    changelog = MemoryChangelog()
    bench = _bench(file_system, changelog)
    with _open(bench) as store:
        put_all(store, [1_000, 12_000, 22_000])
    path = f"s.10000/{LOG_NAME}"
    data = bytearray(file_system.read(bench.path(path)))
    data[9] ^= 1
    bench.write_file(path, bytes(data + data))
    return file_system.after_crash(CrashMode.KEEP_ALL), changelog


def _left_to_restore() -> tuple[FaultyFileSystem, MemoryChangelog]:
    """A store whose changelog has gone on, so that its opening restores and drops."""
    file_system = FaultyFileSystem(ManualClock())
    changelog = MemoryChangelog()
    bench = _bench(file_system, changelog)
    with _open(bench) as store:
        put_all(store, [1_000, 12_000])
    other = _bench(FaultyFileSystem(ManualClock()), changelog)
    with _open(other) as store:
        put_all(store, [22_000, 39_000, 48_000])
    return file_system.after_crash(CrashMode.KEEP_ALL), changelog


@pytest.mark.parametrize("make", [_damaged, _left_to_restore])
def test_a_crash_at_every_step_of_an_opening(
    make: Callable[[], tuple[FaultyFileSystem, MemoryChangelog]],
) -> None:
    _crash_everywhere(lambda bench: _open(bench).close(), *make())


def test_a_full_disk_refuses_the_flush_and_room_lets_it_through() -> None:
    file_system = FaultyFileSystem(ManualClock())
    bench = _bench(file_system, MemoryChangelog())
    store = _open(bench)
    put_all(store, range(0, 20_000, 100))
    file_system.full_at(file_system.used_bytes() + 100)
    with pytest.raises(DiskFull, match="free some space"):
        store.checkpoint()
    assert len(visible(store)) == 200
    file_system.full_at(None)
    store.checkpoint()
    store.close()
    with _open(bench) as store:
        assert len(visible(store)) == 200


def test_a_crash_keeps_a_prefix_of_the_flushes_and_the_changelog_gives_the_rest() -> None:
    bench = memory_bench()
    assert isinstance(bench.databases, MemoryDatabases)
    store = _open(bench)
    put_all(store, [1_000, 2_000])
    store.checkpoint()
    put_all(store, [3_000])
    bench.databases.crash()
    segments = store.segments
    segments.close()
    store = bench.store()
    assert store.restored.written_count == 1
    assert [entry.time_ms for entry in store.all()] == [1_000, 2_000, 3_000]
