"""A snapshot is the state at an offset, with where to read on; the next goes on from it."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.snapshot_topic import SnapshotTopic, apply
from tests.support.source_topic import SourceTopic


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[SnapshotTopic]:
    topic = SourceTopic(tmp_path, partitions=2, cleanup_policy="compact", index_interval_bytes=64)
    yield SnapshotTopic(topic)
    topic.close()


def fill(kit: SnapshotTopic, *, first: int = 0, count: int = 40, keys: int = 12) -> None:
    """Keys over and over in both partitions, every seventh record a tombstone."""
    for number in range(first, first + count):
        value = None if number % 7 == 3 else f"value {number}"
        kit.topic.put((f"k{number % keys}", value), partition=number % 2)


def copy(kit: SnapshotTopic) -> None:
    for partition in (0, 1):
        kit.topic.roll(partition)
    kit.topic.kit.clean_now(roll=False)
    for partition in (0, 1):
        kit.topic.copy(partition)


def test_a_snapshot_of_both_tiers_is_what_a_dict_holds(kit: SnapshotTopic) -> None:
    for number in range(3):
        fill(kit, first=number * 40)
        copy(kit)
    fill(kit, first=120, count=9)
    result = kit.take()
    assert kit.rows() == kit.model()
    assert result.is_new
    assert result.resume_offsets == {0: 65, 1: 64}
    assert result.rows == len(kit.model())


def test_state_and_replay_from_the_resume_offsets_make_the_whole(kit: SnapshotTopic) -> None:
    fill(kit)
    copy(kit)
    kit.take()
    state, resume = kit.rows(), kit.open().resume_offsets
    fill(kit, first=40, count=31)
    for number, offset in resume.items():
        records = kit.topic.topic.read(partition=number, isolation="read_committed")
        apply(state, number, [one for one in records if one.offset >= offset])
    assert state == kit.model()


def test_the_next_snapshot_reads_what_is_new_and_rewrites_what_changed(
    kit: SnapshotTopic,
) -> None:
    fill(kit)
    copy(kit)
    first = kit.take()
    kit.topic.put(("k1", "new"), ("k2", None), partition=1)
    second = kit.take()
    assert kit.rows() == kit.model()
    assert second.document.previous == first.snapshot
    assert second.rows_read == 2
    assert 1 <= second.files_written <= 2
    before = {file.path for file in first.document.files}
    assert len(before & {file.path for file in second.document.files}) >= len(before) - 2
    assert kit.rows(first.snapshot) != kit.rows(second.snapshot)
