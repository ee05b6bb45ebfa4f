"""The faulty disk: steps, planned failures, and what each kind of crash leaves."""

import errno
import os

import pytest

from varve.disk import PowerLoss
from varve.foundation.clock import ManualClock
from varve.foundation.errors import InvalidRequest, Locked
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem

SEEDS = range(200)


@pytest.fixture
def fs() -> FaultyFileSystem:
    """A disk with the durable, empty directory /d."""
    fs = FaultyFileSystem(ManualClock())
    fs.make_directory("/d")
    fs.sync_directory("/")
    return fs


def _put_durably(fs: FaultyFileSystem, path: str, data: bytes) -> None:
    with fs.open_writable(path) as file:
        file.write_at(0, data)
        file.sync()
    fs.sync_directory(os.path.dirname(path))


def _random_states(fs: FaultyFileSystem) -> list[FaultyFileSystem]:
    return [fs.after_crash(CrashMode.RANDOM, seed) for seed in SEEDS]


def _contents(states: list[FaultyFileSystem], path: str) -> set[bytes | None]:
    return {state.read(path) if state.exists(path) else None for state in states}


# Steps


def test_every_changing_call_is_a_step_and_no_other(fs: FaultyFileSystem) -> None:
    start = fs.steps
    file = fs.open_writable("/d/a")
    file.write_at(0, b"x", b"y")
    file.truncate(1)
    file.sync()
    fs.rename("/d/a", "/d/b")
    fs.set_modified_ms("/d/b", 5)
    fs.make_directory("/d/e/f")
    fs.remove("/d/b")
    fs.remove_tree("/d/e")
    fs.sync_directory("/d")
    assert [step.operation for step in fs.trace[start:]] == [
        "create",
        "write",
        "truncate",
        "sync",
        "rename",
        "set modified",
        "make directory",
        "make directory",
        "remove",
        "remove directory",
        "remove directory",
        "sync directory",
    ]
    end = fs.steps
    assert end == start + 12 == fs.trace[-1].number
    fs.make_directory("/d")
    fs.names("/d")
    fs.exists("/d/a")
    with pytest.raises(FileNotFoundError):
        fs.remove("/d/a")
    assert fs.steps == end
    assert "rename /d/a to /d/b" in fs.describe_trace()


def test_a_fault_planned_for_a_past_step_is_refused(fs: FaultyFileSystem) -> None:
    with pytest.raises(InvalidRequest, match="has passed"):
        fs.crash_at(fs.steps)
    with pytest.raises(InvalidRequest, match="has passed"):
        fs.fail_at(1, OSError(errno.EIO, "bad"))


# Power loss


def test_power_loss_stops_every_later_call_but_close(fs: FaultyFileSystem) -> None:
    file = fs.open_writable("/d/a")
    lock = fs.lock("/d/.lock")
    fs.crash_at(fs.steps + 1)
    with pytest.raises(PowerLoss, match="step 5: sync /d/a"):
        file.sync()
    for call in (
        lambda: file.read_at(0, 1),
        lambda: file.write_at(0, b"x"),
        file.size,
        file.sync,
        lambda: fs.names("/d"),
        lambda: fs.open("/d/missing"),
        lambda: fs.remove("/d/missing"),
        lambda: fs.remove_tree("/d/missing"),
        lambda: fs.rename("/d/missing", "/d/b"),
        lambda: fs.lock("/d/.lock"),
    ):
        with pytest.raises(PowerLoss, match="step 5"):
            call()
    file.close()
    lock.release()
    assert not issubclass(PowerLoss, Exception)


def test_the_call_at_the_power_loss_does_nothing_unless_it_writes(fs: FaultyFileSystem) -> None:
    _put_durably(fs, "/d/a", b"old")
    fs.crash_at(fs.steps + 1)
    with pytest.raises(PowerLoss):
        fs.rename("/d/a", "/d/b")
    assert fs.after_crash(CrashMode.KEEP_ALL).names("/d") == ["a"]


def test_the_write_at_the_power_loss_is_torn_by_the_seed() -> None:
    sizes = set()
    for seed in SEEDS:
        fs = FaultyFileSystem(ManualClock(), seed=seed)
        fs.crash_at(2)
        with pytest.raises(PowerLoss), fs.open_writable("/a") as file:
            file.write_at(0, bytes(range(250)) * 8)
        left = fs.after_crash(CrashMode.KEEP_ALL).read("/a")
        assert left == (bytes(range(250)) * 8)[: len(left)]
        sizes.add(len(left))
    assert {0, 512, 1024, 1536, 2000} <= sizes
    assert any(size % 512 for size in sizes - {2000})


# What survives


def test_only_synced_bytes_and_names_survive_the_worst(fs: FaultyFileSystem) -> None:
    _put_durably(fs, "/d/a", b"synced")
    with fs.open_writable("/d/a") as file:
        file.write_at(0, b"SYNCED and more")
    with fs.open_writable("/d/unnamed") as file:
        file.write_at(0, b"content synced, name not")
        file.sync()
    with fs.open_writable("/d/empty") as file:
        file.write_at(0, b"name synced, content not")
    left = fs.after_crash(CrashMode.LOSE_UNSYNCED)
    assert left.names("/d") == ["a"]
    assert left.read("/d/a") == b"synced"
    fs.sync_directory("/d")
    left = fs.after_crash(CrashMode.LOSE_UNSYNCED)
    assert left.names("/d") == ["a", "empty", "unnamed"]
    assert left.read("/d/empty") == b""
    assert left.read("/d/unnamed") == b"content synced, name not"


def test_unsynced_truncate_rename_and_remove_are_undone(fs: FaultyFileSystem) -> None:
    for name in ("a", "b", "c"):
        _put_durably(fs, f"/d/{name}", name.encode() * 3)
    with fs.open_writable("/d/a") as file:
        file.truncate(1)
    fs.rename("/d/b", "/d/x")
    fs.remove("/d/c")
    left = fs.after_crash(CrashMode.LOSE_UNSYNCED)
    assert {n: left.read(f"/d/{n}") for n in left.names("/d")} == {
        "a": b"aaa",
        "b": b"bbb",
        "c": b"ccc",
    }
    fs.sync_directory("/d")
    assert fs.after_crash(CrashMode.LOSE_UNSYNCED).names("/d") == ["a", "x"]


def test_a_directory_needs_its_parent_synced(fs: FaultyFileSystem) -> None:
    fs.make_directory("/d/e/f")
    fs.sync_directory("/d/e/f")
    fs.sync_directory("/d/e")
    assert fs.after_crash(CrashMode.LOSE_UNSYNCED).names("/d") == []
    fs.sync_directory("/d")
    assert fs.after_crash(CrashMode.LOSE_UNSYNCED).names("/d/e") == ["f"]


def test_a_killed_process_loses_nothing_and_syncs_nothing(fs: FaultyFileSystem) -> None:
    _put_durably(fs, "/d/a", b"old")
    fs.lock("/d/.lock")
    with fs.open_writable("/d/a") as file:
        file.write_at(0, b"new")
    fs.rename("/d/a", "/d/b")
    killed = fs.after_crash(CrashMode.KEEP_ALL)
    assert killed.read("/d/b") == b"new"
    assert killed.after_crash(CrashMode.LOSE_UNSYNCED).read("/d/a") == b"old"
    killed.lock("/d/.lock").release()
    with killed.open("/d/b") as file:
        file.sync()
    killed.sync_directory("/d")
    assert killed.after_crash(CrashMode.LOSE_UNSYNCED).read("/d/b") == b"new"
    assert fs.after_crash(CrashMode.LOSE_UNSYNCED).read("/d/a") == b"old"
    with pytest.raises(Locked):
        fs.lock("/d/.lock")


def test_random_survivors_are_sectors_in_any_order(fs: FaultyFileSystem) -> None:
    _put_durably(fs, "/d/a", b"")
    with fs.open_writable("/d/a") as file:
        file.write_at(0, b"1" * 512)
        file.write_at(512, b"2" * 512)
    found = _contents(_random_states(fs), "/d/a")
    ones, twos, zeros = b"1" * 512, b"2" * 512, bytes(512)
    assert found == {
        b"",
        ones,
        zeros,
        ones + twos,
        zeros + twos,
        ones + zeros,
        zeros + zeros,
    }


def test_random_overwrite_mixes_old_and_new_sectors_only(fs: FaultyFileSystem) -> None:
    _put_durably(fs, "/d/a", b"o" * 1536)
    with fs.open_writable("/d/a") as file:
        file.write_at(100, b"n" * 1000)
    found = _contents(_random_states(fs), "/d/a")
    pieces = [(100, 512), (512, 1024), (1024, 1100)]
    expected = set()
    for mask in range(8):
        content = bytearray(b"o" * 1536)
        for bit, (start, end) in enumerate(pieces):
            if mask >> bit & 1:
                content[start:end] = b"n" * (end - start)
        expected.add(bytes(content))
    assert found == expected


def test_nothing_survives_behind_a_cut_that_did_not(fs: FaultyFileSystem) -> None:
    _put_durably(fs, "/d/a", b"o" * 1024)
    with fs.open_writable("/d/a") as file:
        file.truncate(512)
        file.write_at(512, b"n" * 512)
    old, new, zeros = b"o" * 512, b"n" * 512, bytes(512)
    assert _contents(_random_states(fs), "/d/a") == {old + old, old, old + zeros, old + new}


def test_random_directory_changes_survive_as_a_prefix(fs: FaultyFileSystem) -> None:
    for name in ("1", "2", "3"):
        fs.open_writable(f"/d/{name}").close()
    fs.remove("/d/1")
    found = {tuple(state.names("/d")) for state in _random_states(fs)}
    assert found == {(), ("1",), ("1", "2"), ("1", "2", "3"), ("2", "3")}


def test_random_rename_is_old_or_new_never_both_or_none(fs: FaultyFileSystem) -> None:
    _put_durably(fs, "/d/target", b"old")
    _put_durably(fs, "/d/source", b"new")
    fs.rename("/d/source", "/d/target")
    assert {
        (state.read("/d/target"), state.exists("/d/source")) for state in _random_states(fs)
    } == {(b"old", True), (b"new", False)}


def test_a_move_between_directories_is_one_change(fs: FaultyFileSystem) -> None:
    fs.make_directory("/e")
    fs.sync_directory("/")
    with fs.open_writable("/d/a") as file:
        file.write_at(0, b"x")
        file.sync()
    fs.rename("/d/a", "/e/a")
    fs.open_writable("/d/later").close()
    for state in _random_states(fs):
        assert len(state.names("/d") + state.names("/e")) <= 2
        assert not (state.exists("/d/a") and state.exists("/e/a"))
        assert state.exists("/e/a") or not state.exists("/d/later")
    fs.sync_directory("/e")
    left = fs.after_crash(CrashMode.LOSE_UNSYNCED)
    assert left.names("/d") == []
    assert left.read("/e/a") == b"x"


# Failing calls


def test_a_failing_call_does_nothing_and_later_calls_work(fs: FaultyFileSystem) -> None:
    _put_durably(fs, "/d/a", b"x")
    fs.fail_at(fs.steps + 1, OSError(errno.EIO, "bad sector"))
    with pytest.raises(OSError, match="bad sector: '/d/a'") as failed:
        fs.remove("/d/a")
    assert failed.value.errno == errno.EIO
    fs.remove("/d/a")
    assert fs.names("/d") == []


def test_a_failing_write_may_be_short(fs: FaultyFileSystem) -> None:
    with fs.open_writable("/d/a") as file:
        fs.fail_at(fs.steps + 1, OSError(errno.ENOSPC, "full"), after_bytes=3)
        with pytest.raises(OSError, match="full"):
            file.write_at(0, b"abcdef")
        assert file.read_at(0, 10) == b"abc"


def test_failures_may_last_until_mended(fs: FaultyFileSystem) -> None:
    fs.fail_from(fs.steps + 2, PermissionError(errno.EACCES, "no"))
    file = fs.open_writable("/d/a")
    for _ in range(3):
        with pytest.raises(PermissionError):
            file.write_at(0, b"x")
    assert file.size() == 0
    fs.mend()
    file.write_at(0, b"x")


def test_a_failed_sync_loses_its_bytes_though_a_later_sync_succeeds(fs: FaultyFileSystem) -> None:
    _put_durably(fs, "/d/a", b"ok")
    with fs.open_writable("/d/a") as file:
        file.write_at(2, b"lost")
        fs.fail_at(fs.steps + 1, OSError(errno.EIO, "bad"))
        with pytest.raises(OSError, match="bad"):
            file.sync()
        file.sync()
        assert file.read_at(0, 10) == b"oklost"
        assert fs.after_crash(CrashMode.KEEP_ALL).read("/d/a") == b"oklost"
        assert fs.after_crash(CrashMode.LOSE_UNSYNCED).read("/d/a") == b"ok"
        assert _contents(_random_states(fs), "/d/a") == {b"ok"}
        file.write_at(6, b"kept")
        file.sync()
    assert fs.after_crash(CrashMode.LOSE_UNSYNCED).read("/d/a") == b"ok\0\0\0\0kept"


def test_a_failed_directory_sync_leaves_the_names_for_a_later_one(fs: FaultyFileSystem) -> None:
    fs.open_writable("/d/a").close()
    fs.fail_at(fs.steps + 1, OSError(errno.EIO, "bad"))
    with pytest.raises(OSError, match="bad"):
        fs.sync_directory("/d")
    assert fs.after_crash(CrashMode.LOSE_UNSYNCED).names("/d") == []
    fs.sync_directory("/d")
    assert fs.after_crash(CrashMode.LOSE_UNSYNCED).names("/d") == ["a"]


def test_a_broken_directory_fails_reads_too_and_spares_the_others(fs: FaultyFileSystem) -> None:
    fs.make_directory("/disk1")
    fs.make_directory("/disk10")
    file = fs.open_writable("/disk1/a")
    file.write_at(0, b"x")
    fs.fail_under("/disk1", OSError(errno.EIO, "dead"))
    for call in (
        lambda: file.read_at(0, 1),
        file.sync,
        lambda: fs.names("/disk1"),
        lambda: fs.open("/disk1/a"),
        lambda: fs.rename("/disk10", "/disk1/b"),
    ):
        with pytest.raises(OSError, match="dead"):
            call()
    fs.open_writable("/disk10/a").close()
    fs.mend()
    file.sync()
    fs.sync_directory("/disk1")
    fs.sync_directory("/")
    assert fs.after_crash(CrashMode.LOSE_UNSYNCED).read("/disk1/a") == b""


# Full disk


def test_a_full_disk_writes_what_fits(fs: FaultyFileSystem) -> None:
    _put_durably(fs, "/d/a", b"12345678")
    fs.full_at(10)
    with fs.open_writable("/d/b") as file:
        with pytest.raises(OSError, match="No space") as full:
            file.write_at(0, b"abcd")
        assert full.value.errno == errno.ENOSPC
        assert full.value.filename == "/d/b"
        assert file.read_at(0, 10) == b"ab"
        with pytest.raises(OSError, match="No space"):
            file.write_at(2, b"x")
        file.write_at(0, b"AB")
        with pytest.raises(OSError, match="No space"):
            file.truncate(3)
        assert fs.used_bytes() == 10
        fs.remove("/d/a")
        file.write_at(2, b"cdefghij")
        assert fs.used_bytes() == 10
        fs.full_at(None)
        file.write_at(10, b"more")
