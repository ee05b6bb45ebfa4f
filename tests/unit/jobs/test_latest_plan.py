"""The latest state is planned by key indexes: many tasks, and what is superseded is not read."""

import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.source_topic import NAME, SourceTopic, read_rows
from varve.cleaning.key_index.key_index import BATCH
from varve.foundation.clock import SystemClock
from varve.foundation.errors import Corrupt, Unavailable
from varve.jobs.key_plans import remove_left_work, remove_old_read_plans
from varve.jobs.source import plan as source_plan
from varve.jobs.source.arrow_columns import ArrowColumns
from varve.jobs.source.options import SourceFilters
from varve.jobs.source.piece_reading import GAP_BYTES, join_positions
from varve.jobs.source.pieces import ChosenPiece, KeptPiece, LocalPiece, RemotePiece
from varve.jobs.source.plan import plan_read, plan_tasks
from varve.jobs.source.read import read_task
from varve.jobs.tier.bucket import find_topic
from varve.object_store import open_object_store
from varve.records import Codec, Record

EVERYTHING = SourceFilters()


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[SourceTopic]:
    made = SourceTopic(tmp_path, cleanup_policy="compact", index_interval_bytes=64)
    yield made
    made.close()


def fill(topic: SourceTopic, *segments: tuple[int, ...]) -> None:
    """A cold segment of these keys each, a batch for every two; values tell the segment."""
    for number, keys in enumerate(segments):
        for first in range(0, len(keys), 2):
            topic.append(
                [
                    Record(f"k{key}".encode(), f"{number}".encode() * 50, timestamp=topic.now)
                    for key in keys[first : first + 2]
                ],
                codec=Codec.ZSTD if number % 2 else Codec.NONE,
            )
        topic.roll()
    topic.kit.clean_now(roll=False)
    topic.copy()
    topic.flush()


def state(topic: SourceTopic, end: int = 1 << 60) -> dict[bytes | None, int]:
    found: dict[bytes | None, int] = {}
    for one in topic.topic.read(isolation="read_committed"):
        if one.offset < end:
            found[one.key] = one.offset
            if one.value is None:
                del found[one.key]
    return found


def test_a_large_partition_is_read_by_many_tasks_that_skip_what_is_superseded(
    topic: SourceTopic,
) -> None:
    fill(topic, tuple(range(20)), tuple(range(4, 24)), (1, 9, 30, 31))
    options = topic.options(mode="latest", splitBytes="400")
    tasks = plan_tasks(options, EVERYTHING)
    pieces = [piece for task in tasks for piece in task.pieces]
    assert len(tasks) > 2
    assert all(isinstance(piece, KeptPiece) for piece in pieces)
    assert sum(piece.size for piece in pieces) < plan_read(options, EVERYTHING).size
    rows = read_rows(options, EVERYTHING)
    assert {row["key"]: row["offset"] for row in rows} == state(topic)
    assert len(rows) == len(state(topic))


def test_what_a_plan_sends_through_the_driver_does_not_grow_with_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: dict[int, int] = {}
    for keys in (40, 4_000):
        topic = SourceTopic(tmp_path / str(keys), cleanup_policy="compact")
        fill(topic, tuple(range(keys)), tuple(range(0, keys, 3)))
        half = plan_read(topic.options(mode="latest"), EVERYTHING).size // 2
        options = topic.options(is_hot=False, mode="latest", splitBytes=str(half))
        inline = read_rows(options, EVERYTHING)
        monkeypatch.setattr(source_plan, "INLINE_BYTES", 0)
        tasks = plan_tasks(options, EVERYTHING)
        sent[keys] = sum(len(pickle.dumps(task)) for task in tasks)
        stored = read_rows(options, EVERYTHING)
        assert {row["key"]: row["offset"] for row in stored} == state(topic)
        assert len(stored) == len(inline)
        monkeypatch.undo()
        topic.close()
    assert sent[4_000] < 1.2 * sent[40]


def test_plans_of_reads_are_kept_for_a_day(
    topic: SourceTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(topic, tuple(range(20)), tuple(range(10)))
    monkeypatch.setattr(source_plan, "INLINE_BYTES", 0)
    options = topic.options(is_hot=False, mode="latest", splitBytes="400")
    tasks = plan_tasks(options, EVERYTHING)
    assert options.address is not None
    (home,) = find_topic(options.address, NAME).partitions
    objects = options.address.objects()
    plans = [entry.key for entry in objects.list(home.work_folder)]
    assert plans
    objects.put(f"{home.work_folder}compact-1/0/000000", b"of a job that was killed")
    remove_left_work(objects, home.work_folder, now_ms=SystemClock().now_ms())
    assert [entry.key for entry in objects.list(home.work_folder)] == plans
    columns = ArrowColumns(["key"])
    rows = sum(
        batch.num_rows for task in tasks for batch in read_task(task, columns, options, EVERYTHING)
    )
    assert rows == len(state(topic))
    remove_old_read_plans(objects, home.work_folder, now_ms=1 << 60)
    assert not list(objects.list(home.work_folder))
    with pytest.raises(Unavailable, match="run it again"):
        list(read_task(tasks[0], columns, options, EVERYTHING))


def test_a_damaged_plan_loses_no_rows(topic: SourceTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the object of a plan is cut, and whichever byte is wrong."""
    fill(topic, tuple(range(20)), tuple(range(4, 12)), tuple(range(3)))
    monkeypatch.setattr(source_plan, "INLINE_BYTES", 0)
    options = topic.options(is_hot=False, mode="latest", splitBytes="400")
    tasks = plan_tasks(options, EVERYTHING)
    assert options.address is not None
    (home,) = find_topic(options.address, NAME).partitions
    objects = options.address.objects()
    (plan,) = [entry.key for entry in objects.list(home.work_folder)]
    whole = objects.get(plan)
    damaged = [whole[:size] for size in range(len(whole))]
    damaged += [
        whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
        for at in range(len(whole))
        for bit in range(8)
    ]
    columns, expected = ArrowColumns(["key"]), state(topic)
    for data in damaged:
        objects.put(plan, data)
        try:
            rows = sum(
                batch.num_rows
                for task in tasks
                for batch in read_task(task, columns, options, EVERYTHING)
            )
        except Corrupt:
            continue
        assert rows == len(expected)


def test_a_plan_may_be_put_into_another_store(
    topic: SourceTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(topic, tuple(range(20)), tuple(range(10)))
    monkeypatch.setattr(source_plan, "INLINE_BYTES", 0)
    plans = f"file://{tmp_path}/plans"
    open_object_store(plans).put("x", b"")
    options = topic.options(is_hot=False, mode="latest", splitBytes="400", planUrl=plans)
    assert len(read_rows(options, EVERYTHING)) == len(state(topic))
    assert len(list(open_object_store(plans).list(""))) > 1
    assert options.address is not None
    (home,) = find_topic(options.address, NAME).partitions
    assert not list(options.address.objects().list(home.work_folder))


def test_the_local_end_supersedes_what_is_remote(topic: SourceTopic) -> None:
    fill(topic, tuple(range(20)), tuple(range(10)))
    topic.put(("k3", "new"), ("k19", None), ("k99", "new"))
    topic.flush()
    options = topic.options(is_hot=True, mode="latest", splitBytes="400")
    kinds = {type(one) for task in plan_tasks(options, EVERYTHING) for one in task.pieces}
    assert kinds == {KeptPiece, ChosenPiece}
    rows = read_rows(options, EVERYTHING)
    assert sorted((row["key"], row["offset"]) for row in rows) == sorted(state(topic).items())


def test_a_small_partition_or_one_without_indexes_is_left_to_a_task(
    topic: SourceTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(topic, tuple(range(20)))
    (task,) = plan_tasks(topic.options(mode="latest"), EVERYTHING)
    assert isinstance(task.pieces[0], RemotePiece)
    topic.put(*((f"k{number}", "new") for number in range(5)))
    topic.flush()
    monkeypatch.setattr(source_plan, "LOOSE_BYTES_MAX", 10)
    options = topic.options(is_hot=True, mode="latest", splitBytes="300")
    (task,) = plan_tasks(options, EVERYTHING)
    assert {type(piece) for piece in task.pieces} == {RemotePiece, LocalPiece}
    assert {row["key"]: row["offset"] for row in read_rows(options, EVERYTHING)} == state(topic)


def test_a_key_index_of_another_segment_is_told(topic: SourceTopic) -> None:
    fill(topic, tuple(range(20)), tuple(range(30, 50)))
    first, second = [
        piece
        for piece in plan_read(topic.options(mode="latest"), EVERYTHING).pieces
        if isinstance(piece, RemotePiece)
    ]
    objects = topic.kit.objects
    other = objects.get(first.remote_path.part_key(first.segment, "keys"))
    objects.put(second.remote_path.part_key(second.segment, "keys"), other)
    with pytest.raises(Corrupt, match="of another segment"):
        plan_tasks(topic.options(mode="latest", splitBytes="300"), EVERYTHING)


def test_near_batches_are_fetched_together() -> None:
    batches = np.zeros(3, BATCH)
    batches["size"] = 10
    batches["position"] = [0, 50, 100 + GAP_BYTES]
    assert join_positions(batches) == [(0, 60), (100 + GAP_BYTES, 110 + GAP_BYTES)]
    assert join_positions(batches[:0]) == []
