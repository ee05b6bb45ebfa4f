"""Offsets and groups that were answered for are there after a crash, wherever it happens."""

import pytest

from tests.support.broker_kit import BrokerKit
from tests.support.group_bench import Member, classic_group, commit, offset_of
from varve.broker.settings import GroupSettings
from varve.disk import PowerLoss
from varve.foundation.clock import ManualClock
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem

_SETTINGS = GroupSettings(offsets_topic_num_partitions=2)
_GROUPS = ("one", "two", "three")


class _Run:
    """Commits and a group of one; `answered` is what the broker has answered for."""

    def __init__(self, disk: FaultyFileSystem, clock: ManualClock) -> None:
        self.kit = BrokerKit(fs=disk, clock=clock, groups=_SETTINGS)
        self.answered: dict[str, int] = {}
        self.asked: dict[str, int] = {}
        self.assigned: str | None = None

    def go(self) -> None:
        self.kit._open()
        self.kit.make_topic("events")
        for offset in range(1, 3):
            for group in _GROUPS:
                self.asked[group] = offset
                assert commit(self.kit, group, "events", 0, offset) == 0
                self.answered[group] = offset
        member = Member(self.kit, "members")
        member.settle()
        self.assigned = member.id
        self.asked["members"] = 7
        fields = {"generation_id_or_member_epoch": 1, "member_id": member.id}
        assert commit(self.kit, "members", "events", 0, 7, **fields) == 0
        self.answered["members"] = 7

    def abandon(self) -> None:
        self.kit._close_loop()

    def judge(self, disk: FaultyFileSystem, clock: ManualClock) -> None:
        with BrokerKit(fs=disk, clock=clock, groups=_SETTINGS) as kit:
            for group, asked in self.asked.items():
                found = offset_of(kit, group, "events", 0)
                assert self.answered.get(group, -1) <= found <= asked
            if self.assigned is not None:
                group_found = classic_group(kit, "members")
                assert group_found.members[self.assigned].assignment == b"all"


def _step_count() -> int:
    clock = ManualClock()
    disk = FaultyFileSystem(clock)
    run = _Run(disk, clock)
    run.go()
    run.abandon()
    return disk.steps


@pytest.mark.parametrize(
    ("first", "mode"),
    [(1, CrashMode.LOSE_UNSYNCED), (5, CrashMode.KEEP_ALL), (9, CrashMode.RANDOM)],
)
def test_what_was_answered_survives_a_crash_at_any_step(
    first: int, mode: CrashMode, rounds_factor: int
) -> None:
    stride = 1 if rounds_factor > 1 else 13
    for step in range(first, _step_count() + 1, stride):
        clock = ManualClock()
        disk = FaultyFileSystem(clock, seed=step)
        disk.crash_at(step)
        run = _Run(disk, clock)
        with pytest.raises(PowerLoss):
            run.go()
        run.abandon()
        run.judge(disk.after_crash(mode, step), clock)
