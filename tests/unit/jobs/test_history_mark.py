"""Snapshots and tables go on only where the log has the history that they were made of."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.snapshot_topic import SnapshotTopic
from tests.support.source_topic import NAME, SourceTopic
from tests.support.table_bench import TableBench
from varve.commit_log import LogSettings
from varve.foundation.errors import Corrupt, InvalidRequest
from varve.foundation.settings import parse_settings
from varve.jobs.compact.job import compact
from varve.jobs.compact.settings import CompactSettings
from varve.jobs.snapshot.document import SnapshotDocument
from varve.jobs.source.topic_source import PartitionSource, keeps_tombstones, open_partitions
from varve.jobs.table.definition import TableMode, TableSettings, ValueFormat
from varve.jobs.table.table_state import BATCH_MARKS, SyncState, commit, read_sync_state
from varve.jobs.tasks import LocalRunner
from varve.jobs.tier.bucket import Bucket


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[SourceTopic]:
    topic = SourceTopic(tmp_path, cleanup_policy="compact", index_interval_bytes=64)
    yield topic
    topic.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[TableBench]:
    bench = TableBench(tmp_path, cleanup_policy="compact")
    yield bench
    bench.close()


@pytest.fixture
def local(tmp_path: Path) -> Iterator[SourceTopic]:
    topic = SourceTopic(
        tmp_path, cleanup_policy="compact", min_cleanable_dirty_ratio=0, remote_storage_enable=False
    )
    yield topic
    topic.close()


UPSERT = TableSettings(
    mode=TableMode.UPSERT, format=ValueFormat.JSON, schema='{"id": "long"}', buckets=2
)


def lose(topic: SourceTopic, offset: int) -> None:
    """The end of the log from an offset on, as a power loss does or a restore of the directory."""
    topic.topic.partition(0).log.truncate_to(offset)


def look(topic: SourceTopic, *, is_hot: bool = True) -> PartitionSource:
    topic.flush()
    (source,) = open_partitions(topic.options(is_hot=is_hot))
    return source


def test_a_batch_is_known_again_in_either_tier(topic: SourceTopic) -> None:
    topic.put(("a", "1"), ("b", "2"))
    topic.put(("c", "3"), ("d", "4"), ("e", "5"))
    mark = look(topic).find_mark(5)
    assert mark is not None
    assert (mark.base_offset, mark.last_offset) == (2, 4)
    assert look(topic).find_mark(4) == mark
    assert mark.is_in_front_of(4)
    assert not mark.is_in_front_of(2)
    assert look(topic).find_mark(0) is None
    assert look(topic).find_mark(6) is None
    topic.roll()
    topic.copy()
    topic.move()
    assert look(topic, is_hot=False).find_mark(5) == mark
    assert look(topic, is_hot=False).find_break(5, mark) is None


def test_what_was_lost_and_written_anew_is_told(topic: SourceTopic) -> None:
    topic.put(("a", "1"))
    topic.put(("b", "2"), ("c", "3"))
    mark = look(topic).find_mark(3)
    lose(topic, 1)
    told = look(topic).find_break(3, mark)
    assert told is not None
    assert "ends at offset 1, and was read up to 3" in told
    topic.put(("b", "2"), ("c", "other"))
    told = look(topic).find_break(3, mark)
    assert told is not None
    assert "in front of offset 3 the batch was 1 to 2 of epoch" in told
    assert look(topic).find_break(3, None) is None


def test_a_tier_that_lies_behind_has_lost_nothing(topic: SourceTopic) -> None:
    topic.put(("a", "1"))
    topic.roll()
    topic.copy()
    topic.put(("b", "2"))
    mark = look(topic).find_mark(2)
    assert look(topic, is_hot=False).find_break(2, mark) is None


def test_a_batch_that_was_compacted_is_no_other(local: SourceTopic) -> None:
    topic = local
    topic.put(("a", "1"), ("b", "2"), ("c", "3"))
    mark = look(topic).find_mark(3)
    assert mark is not None
    topic.put(("a", "4"))
    topic.roll()
    topic.kit.clean_now(roll=False)
    now = look(topic).find_mark(3)
    assert now is not None
    assert now.crc != mark.crc
    assert look(topic).find_break(3, mark) is None
    assert look(topic).find_break(3, replace(mark, leader_epoch=mark.leader_epoch + 1))
    assert look(topic).find_break(3, replace(mark, base_offset=1))
    topic.put(("b", None), ("c", "5"))
    topic.roll()
    topic.kit.clean_now(roll=False)
    assert look(topic).find_mark(3) is None
    assert look(topic).find_break(3, mark) is None


def test_a_snapshot_does_not_go_on_from_records_that_were_lost(topic: SourceTopic) -> None:
    kit = SnapshotTopic(topic)
    topic.put(*((f"k{number}", "kept") for number in range(6)))
    topic.put(("k0", "lost"), ("ghost", "lost"))
    kit.take()
    lose(topic, 6)
    topic.put(*((f"n{number}", "new") for number in range(2)))
    same_end = kit.take()
    assert same_end.is_new
    assert "was truncated" in same_end.partitions[0].note
    assert kit.rows() == kit.model()
    lose(topic, 6)
    topic.put(*((f"m{number}", "newer") for number in range(4)))
    further = kit.take()
    assert (further.partitions[0].read_from, further.rows_read) == (0, 10)
    assert kit.rows() == kit.model()
    topic.put(("k1", "more"))
    after = kit.take()
    assert (after.partitions[0].read_from, after.partitions[0].note) == (10, "")
    assert kit.rows() == kit.model()


def test_a_document_without_marks_is_gone_on_from(topic: SourceTopic) -> None:
    kit = SnapshotTopic(topic)
    topic.put(("a", "1"))
    document = kit.take().document
    told = json.loads(document.encode())
    assert told["partitions"][0]["mark"]["last_offset"] == 0
    told["partitions"][0]["mark"]["crc"] = -1
    with pytest.raises(Corrupt, match="crc of a mark is -1"):
        SnapshotDocument.decode(json.dumps(told).encode(), "here")
    del told["partitions"][0]["mark"]
    kit.store.put(document.key, json.dumps(told).encode())
    topic.put(("b", "2"))
    assert kit.take().partitions[0].read_from == 1


@pytest.mark.parametrize("count", [0, 2, 5])
def test_an_upserted_table_is_made_anew_where_the_log_lost_records(
    bench: TableBench, count: int
) -> None:
    bench.topic.put(("a", '{"id": 1}'), ("b", '{"id": 2}'), ("x", "bad"))
    bench.topic.put(("b", '{"id": 3}'), ("y", "lost and bad"))
    bench.sync(UPSERT)
    lose(bench.topic, 3)
    if count:
        bench.topic.put(*((f"n{number}", '{"id": 4}') for number in range(count)))
    result = bench.sync(UPSERT)
    assert (result.is_rebuilt, result.offsets) == (True, {0: 3 + count})
    assert bench.places() == [(0, 0), (0, 1), *((0, 3 + number) for number in range(count))]
    assert [row["_offset"] for row in bench.bad_rows()] == [2]
    bench.topic.put(("c", '{"id": 5}'))
    after = bench.sync(UPSERT)
    assert (after.is_rebuilt, after.records) == (False, 1)


@pytest.mark.parametrize("count", [0, 2, 5])
def test_an_appended_table_is_refused_where_the_log_lost_records(
    bench: TableBench, count: int
) -> None:
    bench.topic.put(("a", "1"), ("b", "2"))
    bench.sync()
    first = bench.table().current_snapshot()
    assert first is not None
    bench.topic.put(("c", "lost"), ("d", "lost"))
    bench.sync()
    lose(bench.topic, 2)
    if count:
        bench.topic.put(*((f"n{number}", "new") for number in range(count)))
    before = bench.table().current_snapshot()
    with pytest.raises(InvalidRequest, match=r"orders-0: .* Roll the table back .* drop it"):
        bench.sync()
    assert bench.table().current_snapshot() == before
    bench.table().manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    assert bench.sync().records == count
    assert [row["value"] for row in bench.rows()] == [b"1", b"2", *[b"new"] * count]


def test_a_table_goes_on_where_its_last_batch_was_compacted(bench: TableBench) -> None:
    bench.topic.put(("a", "1"), ("b", "2"), ("a", "3"))
    bench.topic.roll()
    bench.topic.copy()
    bench.sync()
    mark = read_sync_state(bench.table()).marks[0]
    assert (mark.base_offset, mark.last_offset) == (0, 2)
    log = parse_settings(LogSettings, {"cleanup.policy": "compact"}, "test")
    compact(
        Bucket(bench.topic.url),
        [NAME],
        settings=CompactSettings(log=log, is_forced=True),
        runner=LocalRunner(),
    )
    bench.topic.put(("a", "4"))
    assert look(bench.topic).find_mark(3) not in (None, mark)
    assert bench.sync().records == 1


def test_every_commit_of_a_backlog_has_its_marks(bench: TableBench) -> None:
    for number in range(3):
        bench.topic.put((f"k{number}", "x"), (f"l{number}", "y"))
        bench.topic.roll()
    assert bench.sync(TableSettings(commit_bytes=1)).commits == 3
    told = [one.summary.additional_properties for one in bench.table().snapshots() if one.summary]
    lasts = [json.loads(one[BATCH_MARKS])["0"]["last_offset"] for one in told]
    assert lasts == [1, 3, 5]


def test_a_table_without_marks_is_gone_on_from(bench: TableBench) -> None:
    bench.topic.put(("a", "1"))
    bench.sync()
    commit(bench.table(), progress=SyncState({0: 1}, {}), run_id="without-marks")
    bench.topic.put(("b", "2"))
    assert bench.sync().records == 1


def test_marks_that_cannot_be_read_are_corrupt(bench: TableBench) -> None:
    bench.topic.put(("a", "1"))
    bench.sync()
    with bench.table().transaction() as change:
        change.set_properties({BATCH_MARKS: '{"0": {"base_offset": 0}}'})
    table = bench.table()
    table.metadata.snapshots.clear()
    with pytest.raises(Corrupt, match=r"varve\.marks"):
        read_sync_state(table)


@pytest.mark.parametrize(
    ("offset", "bounds", "cleaned_before", "cleaned_up_to", "is_same_tier", "expected"),
    [
        (50, (0, 90), 40, 50, True, True),  # nothing behind the offset was compacted
        (50, (0, 90), 40, 51, True, False),
        (50, (0, 90), 40, 39, True, False),  # how far it was compacted is forgotten
        (50, (0, 90), 40, 50, False, False),
        (4, (0, 7), 0, 6, True, False),
        (4, (4, 7), 0, 6, True, True),  # the whole log is read
        (4, (0, 4), 0, 6, True, True),  # nothing is unread
        (4, (0, 7), 3, 3, True, True),
        (4, (0, 7), 3, 0, True, False),
    ],
)
def test_tombstones_are_there_from_where_the_log_was_compacted_to(
    offset: int,
    bounds: tuple[int, int],
    cleaned_before: int,
    cleaned_up_to: int,
    is_same_tier: bool,
    expected: bool,
) -> None:
    outcome = keeps_tombstones(
        offset,
        bounds=bounds,
        cleaned_before=cleaned_before,
        cleaned_up_to=cleaned_up_to,
        is_same_tier=is_same_tier,
    )
    assert outcome is expected
