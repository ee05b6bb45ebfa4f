"""How far a micro-batch goes: limits, a fixed end, new and expired offsets."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from tests.support.source_topic import NAME, SourceTopic
from varve.commit_log import TopicPartition
from varve.disk.real import RealFile
from varve.foundation.errors import (
    Corrupt,
    InconsistentTopicId,
    InvalidRequest,
    NotFound,
    OffsetOutOfRange,
)
from varve.jobs.source.options import parse_options
from varve.jobs.tier.bucket import Bucket, count_requests, find_cluster
from varve.object_store import open_object_store
from varve.records import Record, build_batch
from varve.spark.columns import make_schema
from varve.spark.data_source import VarveDataSource
from varve.spark.stream_reader import TaskPartition, VarveStreamReader
from varve.testing import VirtualStore


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[SourceTopic]:
    made = SourceTopic(tmp_path, partitions=2)
    for number in range(10):
        made.put((f"k{number}", "1"), partition=0)
    made.put(("a", "1"), ("b", "2"), partition=1)
    made.flush()
    yield made
    made.close()


def stream(topic: SourceTopic, **more: str) -> VarveStreamReader:
    return VarveStreamReader(topic.options(is_hot=True, **more), make_schema())


def read(reader: VarveStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    rows = []
    for partition in reader.partitions(start, end):
        assert isinstance(partition, TaskPartition)
        rows += [row["offset"] for batch in reader.read(partition) for row in batch.to_pylist()]
    return rows


def test_offsets_name_what_was_not_read_yet(topic: SourceTopic) -> None:
    reader = stream(topic)
    assert reader.initialOffset()["offsets"] == {"0": 0, "1": 0}
    assert reader.latestOffset({"0": 0, "1": 0}, ReadAllAvailable())["offsets"] == {"0": 10, "1": 2}
    assert read(reader, {"0": 7, "1": 0}, {"0": 9, "1": 1}) == [7, 8, 0]
    assert reader.partitions({"0": 3, "1": 1}, {"0": 3, "1": 1}) == []
    assert stream(topic, startingOffsets="latest").initialOffset()["offsets"] == {"0": 10, "1": 2}
    assert stream(topic, startingOffsets='{"0": 4, "1": -1}').initialOffset()["offsets"] == {
        "0": 4,
        "1": 2,
    }


def test_a_limit_takes_a_share_of_each_partition(topic: SourceTopic) -> None:
    reader = stream(topic, maxOffsetsPerTrigger="6")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(6)
    at = reader.latestOffset({"0": 0, "1": 0}, limit)
    assert at["offsets"] == {"0": 5, "1": 1}
    assert reader.latestOffset(at, limit)["offsets"] == {"0": 10, "1": 2}
    assert reader.latestOffset({"0": 0, "1": 0}, ReadMaxBytes(1))["offsets"] == {"0": 1, "1": 1}


def test_what_comes_after_the_start_of_available_now_waits(topic: SourceTopic) -> None:
    reader = stream(topic)
    reader.prepareForTriggerAvailableNow()
    topic.put(("late", "1"))
    topic.flush()
    assert reader.latestOffset({"0": 0, "1": 0}, ReadAllAvailable())["offsets"] == {"0": 10, "1": 2}


def test_undecided_transactions_hold_a_stream_back(topic: SourceTopic) -> None:
    topic.write([Record(b"a", b"1", timestamp=topic.now)], producer_id=1)
    topic.put(("b", "1"))
    topic.flush()
    start = {"0": 10, "1": 2}
    assert stream(topic).latestOffset(start, ReadAllAvailable())["offsets"] == start
    topic.end(producer_id=1, committed=False)
    topic.flush()
    end = stream(topic).latestOffset(start, ReadAllAvailable())
    assert end["offsets"] == {"0": 13, "1": 2}
    assert read(stream(topic), start, end) == [11]


def test_a_partition_that_is_new_is_read_from_its_beginning(topic: SourceTopic) -> None:
    reader = stream(topic)
    assert reader.latestOffset({"0": 10}, ReadAllAvailable())["offsets"] == {"0": 10, "1": 2}
    assert read(reader, {"0": 10}, {"0": 10, "1": 2}) == [0, 1]


def test_offsets_that_expired_unread_are_an_error(topic: SourceTopic) -> None:
    topic.roll()
    topic.put(("z", "1"))
    topic.flush()
    topic.topic.delete_records(5, partition=0)
    tier = topic.kit.store.tier
    assert tier is not None
    tier.expire(TopicPartition(NAME, 0), topic.now)
    with pytest.raises(OffsetOutOfRange, match="offsets 2 to 4 expired"):
        stream(topic).latestOffset({"0": 2, "1": 2}, ReadAllAvailable())


@pytest.mark.parametrize(
    "more",
    [
        {"mode": "latest"},
        {"asOf": "5"},
        {"endingOffset": "1"},
        {"pushFilters": "true"},
        {"maxOffsetsPerTrigger": "1", "maxBytesPerTrigger": "1"},
    ],
)
def test_options_that_no_stream_can_keep_are_refused(
    topic: SourceTopic, more: dict[str, str]
) -> None:
    source = VarveDataSource({"url": topic.url, "topic": NAME, **more})
    with pytest.raises(InvalidRequest, match=next(iter(more))):
        source.streamReader(make_schema())


@pytest.mark.parametrize("more", [{"mode": "history"}, {"pushFilters": "false"}])
def test_options_of_a_batch_at_their_default_are_accepted(
    topic: SourceTopic, more: dict[str, str]
) -> None:
    source = VarveDataSource({"directory": topic.kit.path, "topic": NAME, **more})
    assert source.streamReader(make_schema()).initialOffset()["offsets"] == {"0": 0, "1": 0}


def _all_read(topic: SourceTopic) -> dict[str, Any]:
    reader = stream(topic)
    return reader.latestOffset(reader.initialOffset(), ReadAllAvailable())


def test_a_checkpoint_of_another_topic_is_refused(topic: SourceTopic) -> None:
    end = _all_read(topic)
    topic.kit.store.create_topic("payments", partitions=2)
    topic.flush()
    options = parse_options({"directory": topic.kit.path, "topic": "payments"})
    other = VarveStreamReader(options, make_schema())
    with pytest.raises(InconsistentTopicId, match=f"belongs to topic {NAME} .* topic payments"):
        other.latestOffset(end, ReadAllAvailable())
    with pytest.raises(InconsistentTopicId, match="another topic"):
        other.partitions(end, end)


@pytest.mark.parametrize("records", [1, 30])
def test_a_checkpoint_of_a_topic_that_was_created_again_is_refused(
    tmp_path: Path, records: int
) -> None:
    kit = VirtualStore(directory=f"{tmp_path}/data")
    options = parse_options({"directory": kit.path, "topic": NAME})
    reader = VarveStreamReader(options, make_schema())
    for count in (10, records):
        log = kit.store.create_topic(NAME).partition(0).log
        log.append(build_batch([Record(b"k", b"v")] * count))
        log.flush()
        if count == 10:
            end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
            kit.store.delete_topic(NAME)
    with pytest.raises(InconsistentTopicId, match="deleted and created again"):
        reader.latestOffset(end, ReadAllAvailable())
    kit.close()


def test_a_log_that_lost_its_end_is_an_error_unless_loss_is_allowed(topic: SourceTopic) -> None:
    end = _all_read(topic)
    ahead = {**end, "offsets": {"0": 40, "1": 2}, "marks": {}}
    with pytest.raises(OffsetOutOfRange, match="ends at offset 10, and was read up to 40"):
        stream(topic).latestOffset(ahead, ReadAllAvailable())
    with pytest.raises(OffsetOutOfRange, match="failOnDataLoss"):
        stream(topic).partitions(end, ahead)
    tolerant = stream(topic, failOnDataLoss="false")
    assert tolerant.latestOffset(ahead, ReadAllAvailable())["offsets"] == {"0": 10, "1": 2}


def test_a_log_that_lost_its_end_and_grew_again_is_an_error(topic: SourceTopic) -> None:
    end = _all_read(topic)
    lost = {**end["marks"]["0"], "crc": end["marks"]["0"]["crc"] ^ 1}
    other = {**end, "marks": {**end["marks"], "0": lost}}
    assert stream(topic).latestOffset(other, ReadAllAvailable()) == other
    topic.put(("after", "1"))
    topic.flush()
    with pytest.raises(OffsetOutOfRange, match="in front of offset 10 the batch was"):
        stream(topic).latestOffset(other, ReadAllAvailable())
    assert stream(topic).latestOffset(end, ReadAllAvailable())["offsets"] == {"0": 11, "1": 2}
    tolerant = stream(topic, failOnDataLoss="false")
    assert tolerant.latestOffset(other, ReadAllAvailable())["offsets"] == {"0": 11, "1": 2}


def test_a_partition_that_vanished_is_an_error(topic: SourceTopic) -> None:
    end = _all_read(topic)
    with pytest.raises(NotFound, match=r"partitions \[7\]"):
        stream(topic).latestOffset(
            {**end, "offsets": {**end["offsets"], "7": 3}}, ReadAllAvailable()
        )


def test_an_offset_that_did_not_move_stays_as_it_is(topic: SourceTopic) -> None:
    end = _all_read(topic)
    assert set(end["marks"]) == {"0", "1"}
    assert stream(topic).latestOffset(end, ReadAllAvailable()) == end


def test_a_checkpoint_that_holds_something_else_is_named_corrupt(topic: SourceTopic) -> None:
    for document in ({"0": "x"}, {"offsets": {"0": -1}, "topic": "a", "topic_id": "b"}):
        with pytest.raises(Corrupt, match="not an offset of a varve stream"):
            stream(topic).latestOffset(document, ReadAllAvailable())


def _trigger_requests(topic: SourceTopic, **more: str) -> int:
    """What the second and third trigger of a stream ask of the object store."""
    reader = VarveStreamReader(topic.options(is_hot=False, **more), make_schema())
    limit = reader.getDefaultReadLimit()
    start = reader.latestOffset(reader.initialOffset(), limit)
    before = count_requests()
    for _ in range(2):
        end = reader.latestOffset(start, limit)
        assert reader.partitions(start, end)
        reader.reportLatestOffset()
        start = end
    return (count_requests() - before).requests


def _tiered(root: Path, segments: int) -> SourceTopic:
    topic = SourceTopic(root)
    for number in range(segments):
        topic.put((f"k{number}", "v" * 1000))
        topic.roll()
    topic.copy()
    return topic


@pytest.mark.parametrize("limit", [{"maxBytesPerTrigger": "3000"}, {"maxOffsetsPerTrigger": "3"}])
def test_a_trigger_asks_no_more_of_a_store_with_many_topics_and_a_long_log(
    tmp_path: Path, limit: dict[str, str]
) -> None:
    short, long = _tiered(tmp_path / "short", 12), _tiered(tmp_path / "long", 60)
    objects = open_object_store(long.url)
    cluster = find_cluster(Bucket(long.url))
    for number in range(40):
        objects.put(f"{cluster}/other-{number}.{'A' * 22}/0/x", b"x")
    try:
        assert _trigger_requests(long, **limit) == _trigger_requests(short, **limit)
    finally:
        short.close()
        long.close()


def test_a_trigger_reads_only_what_was_appended_to_a_local_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = SourceTopic(tmp_path)
    read_bytes = 0

    def count(method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(file: RealFile, position: int, what: Any) -> Any:
            nonlocal read_bytes
            found = method(file, position, what)
            read_bytes += len(found) if isinstance(found, bytes) else found
            return found

        return counted

    try:
        for number in range(64):
            topic.put((f"k{number}", "v" * 64_000))
        topic.flush()
        reader = VarveStreamReader(
            parse_options({"directory": topic.kit.path, "topic": NAME}), make_schema()
        )
        start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        topic.put(("new", "v"))
        topic.flush()
        for name in ("read_at", "read_into"):
            monkeypatch.setattr(RealFile, name, count(getattr(RealFile, name)))
        end = reader.latestOffset(start, ReadAllAvailable())
        assert read(reader, start, end) == [64]
        monkeypatch.undo()
    finally:
        topic.close()
    assert 0 < read_bytes < 1_000_000, "the log has four megabytes"


def test_a_log_that_changed_below_what_was_walked_is_walked_again(topic: SourceTopic) -> None:
    reader = stream(topic)
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    topic.topic.partition(0).log.truncate_to(4)
    for number in range(8):
        topic.put((f"n{number}", "a longer value than before"), partition=0)
    topic.flush()
    assert reader.reportLatestOffset()["offsets"] == {"0": 12, "1": 2}
    with pytest.raises(OffsetOutOfRange, match="the batch was"):
        reader.latestOffset(start, ReadAllAvailable())
