"""How far a micro-batch goes: limits, a fixed end, new and expired offsets."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from tests.support.source_topic import NAME, SourceTopic
from varve.commit_log import TopicPartition
from varve.foundation.errors import InvalidRequest, OffsetOutOfRange
from varve.jobs.source.columns import make_schema
from varve.jobs.source.options import parse_options
from varve.jobs.source.partition import TaskPartition
from varve.jobs.source.stream import VarveStreamReader
from varve.records import Record


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


def read(reader: VarveStreamReader, start: dict[str, int], end: dict[str, int]) -> list[int]:
    rows = []
    for partition in reader.partitions(start, end):
        assert isinstance(partition, TaskPartition)
        rows += [row["offset"] for batch in reader.read(partition) for row in batch.to_pylist()]
    return rows


def test_offsets_name_what_was_not_read_yet(topic: SourceTopic) -> None:
    reader = stream(topic)
    assert reader.initialOffset() == {"0": 0, "1": 0}
    assert reader.latestOffset({"0": 0, "1": 0}, ReadAllAvailable()) == {"0": 10, "1": 2}
    assert read(reader, {"0": 7, "1": 0}, {"0": 9, "1": 1}) == [7, 8, 0]
    assert reader.partitions({"0": 3, "1": 1}, {"0": 3, "1": 1}) == []
    assert stream(topic, startingOffsets="latest").initialOffset() == {"0": 10, "1": 2}
    assert stream(topic, startingOffsets='{"0": 4, "1": -1}').initialOffset() == {"0": 4, "1": 2}


def test_a_limit_takes_a_share_of_each_partition(topic: SourceTopic) -> None:
    reader = stream(topic, maxOffsetsPerTrigger="6")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(6)
    at = reader.latestOffset({"0": 0, "1": 0}, limit)
    assert at == {"0": 5, "1": 1}
    assert reader.latestOffset(at, limit) == {"0": 10, "1": 2}
    assert reader.latestOffset({"0": 0, "1": 0}, ReadMaxBytes(1)) == {"0": 1, "1": 1}


def test_what_comes_after_the_start_of_available_now_waits(topic: SourceTopic) -> None:
    reader = stream(topic)
    reader.prepareForTriggerAvailableNow()
    topic.put(("late", "1"))
    topic.flush()
    assert reader.latestOffset({"0": 0, "1": 0}, ReadAllAvailable()) == {"0": 10, "1": 2}


def test_undecided_transactions_hold_a_stream_back(topic: SourceTopic) -> None:
    topic.write([Record(b"a", b"1", timestamp=topic.now)], producer_id=1)
    topic.put(("b", "1"))
    topic.flush()
    start = {"0": 10, "1": 2}
    assert stream(topic).latestOffset(start, ReadAllAvailable()) == start
    topic.end(producer_id=1, committed=False)
    topic.flush()
    end = stream(topic).latestOffset(start, ReadAllAvailable())
    assert end == {"0": 13, "1": 2}
    assert read(stream(topic), start, end) == [11]


def test_a_partition_that_is_new_is_read_from_its_beginning(topic: SourceTopic) -> None:
    reader = stream(topic)
    assert reader.latestOffset({"0": 10}, ReadAllAvailable()) == {"0": 10, "1": 2}
    assert read(reader, {"0": 10}, {"0": 10, "1": 2}) == [0, 1]


def test_offsets_that_expired_unread_are_an_error(topic: SourceTopic) -> None:
    topic.roll()
    topic.put(("z", "1"))
    topic.flush()
    topic.topic.delete_records(5, 0)
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
        {"maxOffsetsPerTrigger": "1", "maxBytesPerTrigger": "1"},
    ],
)
def test_options_that_no_stream_can_keep_are_refused(
    topic: SourceTopic, more: dict[str, str]
) -> None:
    options = parse_options({"url": topic.url, "topic": NAME, **more})
    with pytest.raises(InvalidRequest):
        VarveStreamReader(options, make_schema())
