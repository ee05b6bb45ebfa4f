"""The test kit: time that is moved, power that is cut, and a check at the end."""

from pathlib import Path

import pytest

from varve.foundation.errors import Closed, Corrupt, InvalidRequest
from varve.testing import CrashMode, PowerLoss, VirtualStore

DAY_MS = 86_400_000


def _values(kit: VirtualStore, topic: str = "orders") -> list[bytes | None]:
    return [record.value for record in kit.store.topic(topic).read()]


def test_the_clock_moves_only_when_told() -> None:
    with VirtualStore(now_ms=5_000) as kit:
        assert kit.store.create_topic("orders").append(value="x").timestamp == 5_000
        assert kit.advance(days=30, seconds=0.25) == 5_000 + 30 * DAY_MS + 250
        assert kit.store.topic("orders").append(value="y").timestamp == kit.now_ms
        with pytest.raises(InvalidRequest, match="cannot go back"):
            kit.advance(hours=-1)


def test_background_work_is_done_in_the_callers_thread() -> None:
    with VirtualStore() as kit:
        kit.store.create_topic("orders", settings={"retention.ms": DAY_MS}).append(value="old")
        kit.run_background()
        assert _values(kit) == [b"old"]
        kit.advance(days=1, milliseconds=1)
        kit.run_background()
        assert _values(kit) == []
        assert kit.store.health().workers == ()


def test_cleaning_now_takes_in_what_was_just_written() -> None:
    with VirtualStore() as kit:
        topic = kit.store.create_topic("orders", settings={"cleanup.policy": "compact"})
        topic.append_many([("a", "1"), ("b", "2"), ("a", "3")])
        kit.clean_now("orders", roll=False)
        assert _values(kit) == [b"1", b"2", b"3"]
        (cleaned,) = kit.clean_now()
        assert cleaned.compaction is not None
        assert _values(kit) == [b"2", b"3"]


@pytest.mark.parametrize(
    ("mode", "found"), [(CrashMode.KEEP_ALL, [b"x"]), (CrashMode.LOSE_UNSYNCED, [])]
)
def test_a_crash_leaves_what_the_mode_says(mode: CrashMode, found: list[bytes]) -> None:
    with VirtualStore() as kit:
        kit.store.create_topic("orders").append(value="x")
        kit.crash_now()
        with pytest.raises(Closed, match=r"reopen\(\)"):
            _ = kit.store
        kit.reopen(mode)
        assert _values(kit) == found


def test_a_planned_crash_is_taken_in_and_told() -> None:
    with VirtualStore() as kit:
        topic = kit.store.create_topic("orders", settings={"flush": "ack"})
        topic.append(value="kept")
        with kit.crash_at(1) as crash:
            topic.append(value="lost")
        assert crash.happened
        kit.reopen()
        assert _values(kit) == [b"kept"]


def test_a_planned_crash_that_did_not_come_is_taken_back() -> None:
    with VirtualStore() as kit:
        topic = kit.store.create_topic("orders")
        with kit.crash_at(1_000) as crash:
            topic.append(value="x")
        assert not crash.happened
        topic.append_many([(None, "y")] * 3000)
        kit.reopen()
        assert len(_values(kit)) == 3001


def test_a_crash_without_a_block_is_raised() -> None:
    with VirtualStore() as kit:
        topic = kit.store.create_topic("orders")
        kit.crash_at(1)
        with pytest.raises(PowerLoss):
            topic.append(value="x")
        kit.reopen()
        assert _values(kit) == []


def test_an_error_within_the_block_is_not_swallowed() -> None:
    with VirtualStore() as kit, pytest.raises(ZeroDivisionError), kit.crash_at(50):
        raise ZeroDivisionError


def test_equal_seeds_give_equal_bytes() -> None:
    def run() -> bytes:
        with VirtualStore(seed=7) as kit:
            topic = kit.store.create_topic("orders")
            with kit.crash_at(2):
                topic.append(value="x" * 1000)
                topic.append(value="y" * 1000)
            kit.reopen(CrashMode.RANDOM)
            return kit.fs.read(f"{kit.path}/orders-0/00000000000000000000.log")

    assert run() == run()


def test_steps_count_changes_of_the_disk() -> None:
    with VirtualStore() as kit:
        topic = kit.store.create_topic("orders")
        topic.append(value="the first brings files with it")
        before = kit.steps
        topic.append(value="x")
        assert kit.steps == before + 1
        with pytest.raises(InvalidRequest, match="step 1"):
            kit.crash_at(0)


def test_a_kit_on_a_real_directory_can_be_killed_but_not_powered_off(tmp_path: Path) -> None:
    with VirtualStore(directory=tmp_path) as kit:
        kit.store.create_topic("orders").append(value="x")
        kit.crash_now()
        kit.reopen()
        assert _values(kit) == [b"x"]
        with pytest.raises(InvalidRequest, match="in memory"):
            kit.crash_at(1)
    assert (tmp_path / "orders-0").is_dir()


def test_a_broken_log_fails_the_test_that_left_it() -> None:
    kit = VirtualStore()
    topic = kit.store.create_topic("orders")
    topic.append(value="x")
    topic.partition().log.roll()
    path = f"{kit.path}/orders-0/00000000000000000000.log"
    with kit.fs.open_writable(path) as file:
        file.write_at(70, b"damage")
    with pytest.raises(Corrupt, match=r"00000000000000000000\.log"):
        kit.close()
