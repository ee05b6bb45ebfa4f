"""Every promise of `varve.topics`, for a store in memory and for a varve server on a socket.

`tests/conformance/kafka/test_topics_of_kafka.py` runs it once more against Apache Kafka.
"""

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from time import monotonic
from uuid import uuid4

import pytest

from tests.support.topics_bench import ServerBench, StoreBench, TopicsBench, batch_of, parts
from varve.commit_log import Isolation, TopicPartition
from varve.foundation.errors import Fenced, NotFound, OffsetOutOfRange
from varve.records import Record, build_batch
from varve.topics import (
    HistoryMark,
    LogTruncated,
    Position,
    TopicReader,
    find_break,
    read_last,
    read_range,
)

READ_BYTES = 1 << 20


@pytest.fixture(params=[StoreBench, ServerBench], ids=["store", "server"])
def bench(request: pytest.FixtureRequest) -> Iterator[TopicsBench]:
    made: TopicsBench = request.param()
    yield made
    made.close()


@pytest.fixture
def topic(bench: TopicsBench) -> str:
    """A new topic with two partitions."""
    name = f"orders-{uuid4().hex}"
    bench.cluster.find_or_create(name, partitions=2, settings={"retention.ms": "-1"})
    return name


def _append(bench: TopicsBench, topic: str, *values: bytes, partition: int = 0) -> None:
    bench.append(topic, partition, *(Record(b"k", value, timestamp=1) for value in values))


def _read_all(reader: TopicReader, partition: int = 0, start: int = 0) -> list[bytes | None]:
    end = reader.offsets(partition).end
    return [
        record.value
        for fetched in read_range(reader, partition, start=start, end=end)
        for batch in fetched
        for record in batch.records()
        if record.offset >= start
    ]


def _read_when_committed(reader: TopicReader, expected: list[bytes], partition: int = 0) -> None:
    """A coordinator may write its markers a little after it has answered."""
    deadline = monotonic() + 10
    while _read_all(reader, partition) != expected and monotonic() < deadline:
        threading.Event().wait(0.01)
    assert _read_all(reader, partition) == expected


def _fetch(
    reader: TopicReader, positions: Mapping[int, Position], *, wait_ms: int = 0
) -> dict[int, list[bytes | None]]:
    found = reader.fetch(positions, max_bytes=READ_BYTES, wait_ms=wait_ms)
    return {
        partition: [record.value for batch in fetched for record in batch.records()]
        for partition, fetched in found.items()
    }


# Topics


def test_a_topic_is_described_with_its_id_and_partitions(bench: TopicsBench, topic: str) -> None:
    found = bench.cluster.describe(topic)
    assert (found.name, found.partition_count) == (topic, 2)
    assert found.id is not None
    assert len(found.id_text) == 22
    assert bench.cluster.reader(topic).info() == found


def test_a_missing_topic_is_not_found(bench: TopicsBench) -> None:
    with pytest.raises(NotFound):
        bench.cluster.describe("nothing")


def test_find_or_create_leaves_an_existing_topic_alone(bench: TopicsBench, topic: str) -> None:
    before = bench.cluster.describe(topic)
    assert bench.cluster.find_or_create(topic, partitions=5, settings={}) == before


def test_settings_of_a_topic_are_created_and_altered(bench: TopicsBench) -> None:
    name = f"kept-{uuid4().hex}"
    bench.cluster.find_or_create(name, partitions=1, settings={"retention.ms": "60000"})
    assert bench.cluster.settings(name)["retention.ms"] == "60000"
    bench.cluster.alter(name, {"retention.ms": "70000"})
    assert bench.cluster.settings(name)["retention.ms"] == "70000"


# Reading


def test_fetch_returns_the_partitions_that_have_records(bench: TopicsBench, topic: str) -> None:
    reader = bench.cluster.reader(topic)
    _append(bench, topic, b"a", b"b", partition=1)
    assert _fetch(reader, {0: Position(0), 1: Position(0)}) == {1: [b"a", b"b"]}
    _append(bench, topic, b"c", partition=0)
    assert _fetch(reader, {0: Position(0), 1: Position(2)}) == {0: [b"c"]}
    reader.close()


def test_positions_lead_from_fetch_to_fetch(bench: TopicsBench, topic: str) -> None:
    reader = bench.cluster.reader(topic)
    values = [b"%d" % number for number in range(20)]
    for value in values:
        _append(bench, topic, value)
    found, position = [], Position(0)
    while position.offset < 20:
        fetched = reader.fetch({0: position}, max_bytes=200, wait_ms=0)[0]
        found += [record.value for batch in fetched for record in batch.records()]
        position = Position.after(fetched)
    assert found == values
    assert position.mark is not None
    assert position.mark.last_offset == 19
    reader.close()


def test_fetch_waits_for_records_and_then_gives_up(bench: TopicsBench, topic: str) -> None:
    reader = bench.cluster.reader(topic)
    assert reader.fetch({0: Position(0)}, max_bytes=READ_BYTES, wait_ms=20) == {}
    timer = threading.Timer(0.1, _append, (bench, topic, b"late"))
    timer.start()
    assert _fetch(reader, {0: Position(0)}, wait_ms=15_000) == {0: [b"late"]}
    timer.join()
    reader.close()


def test_fetch_waits_for_any_of_its_partitions(bench: TopicsBench, topic: str) -> None:
    reader = bench.cluster.reader(topic)
    timer = threading.Timer(0.1, _append, (bench, topic, b"late"), {"partition": 1})
    timer.start()
    positions = {0: Position(0), 1: Position(0)}
    assert _fetch(reader, positions, wait_ms=15_000) == {1: [b"late"]}
    timer.join()
    reader.close()


def test_a_closed_reader_reads_the_topic_that_has_the_name_then(
    bench: TopicsBench, topic: str
) -> None:
    reader = bench.cluster.reader(topic)
    before = reader.info().id
    bench.delete(topic)
    bench.cluster.find_or_create(topic, partitions=1, settings={})
    with pytest.raises(NotFound):
        reader.info()
    reader.close()
    assert reader.info().id not in (None, before)
    reader.close()


def test_a_reader_knows_the_settings_of_its_topic(bench: TopicsBench, topic: str) -> None:
    reader = bench.cluster.reader(topic)
    assert reader.settings()["retention.ms"] == "-1"
    reader.close()


def test_a_position_beyond_the_end_is_out_of_range(bench: TopicsBench, topic: str) -> None:
    reader = bench.cluster.reader(topic)
    _append(bench, topic, b"a")
    with pytest.raises(OffsetOutOfRange):
        reader.fetch({0: Position(2)}, max_bytes=READ_BYTES, wait_ms=0)
    reader.close()


def test_records_of_aborted_transactions_are_left_out(bench: TopicsBench, topic: str) -> None:
    writer = bench.writer(f"w-{topic}")
    writer.init_transactions()
    writer.append(parts(topic, p0=[batch_of(b"no")]))
    writer.abort()
    writer.append(parts(topic, p0=[batch_of(b"yes")]))
    writer.commit()
    reader = bench.cluster.reader(topic)
    _read_when_committed(reader, [b"yes"])
    position = Position(0)
    while fetched := reader.fetch({0: position}, max_bytes=READ_BYTES, wait_ms=0):
        position = Position.after(fetched[0])
    assert position.offset == reader.offsets(0).end
    reader.close()


def test_an_open_transaction_hides_what_follows_it(bench: TopicsBench, topic: str) -> None:
    writer = bench.writer(f"w-{topic}")
    writer.init_transactions()
    _append(bench, topic, b"before")
    start = bench.cluster.reader(topic).offsets(0).end
    writer.append(parts(topic, p0=[batch_of(b"open")]))
    _append(bench, topic, b"after")
    committed = bench.cluster.reader(topic)
    assert committed.offsets(0).end == start
    assert _read_all(committed) == [b"before"]
    uncommitted = bench.cluster.reader(topic, isolation=Isolation.READ_UNCOMMITTED)
    assert _read_all(uncommitted) == [b"before", b"open", b"after"]
    writer.commit()
    _read_when_committed(committed, [b"before", b"open", b"after"])
    committed.close()
    uncommitted.close()


def test_the_last_record_of_a_key_is_found_from_the_end(bench: TopicsBench, topic: str) -> None:
    reader = bench.cluster.reader(topic)
    assert read_last(reader, 0, key=b"wanted") is None
    for number in range(300):
        key = b"wanted" if number in (1, 2) else b"other"
        bench.append(topic, 0, Record(key, b"%d" % number, timestamp=1))
    found = read_last(reader, 0, key=b"wanted")
    assert found is not None
    assert (found.offset, found.value) == (2, b"2")
    reader.close()


def test_a_topic_created_again_is_not_read_on(bench: TopicsBench, topic: str) -> None:
    reader = bench.cluster.reader(topic)
    _append(bench, topic, b"old")
    assert _fetch(reader, {0: Position(0)}) == {0: [b"old"]}
    bench.delete(topic)
    bench.cluster.find_or_create(topic, partitions=2, settings={"retention.ms": "-1"})
    _append(bench, topic, b"new", b"new")
    with pytest.raises(NotFound):
        reader.fetch({0: Position(1)}, max_bytes=READ_BYTES, wait_ms=0)
    with pytest.raises(NotFound):
        reader.info()
    reader.close()


# History


def test_the_batch_in_front_of_a_position_is_found(bench: TopicsBench, topic: str) -> None:
    _append(bench, topic, b"a", b"b")
    _append(bench, topic, b"c")
    reader = bench.cluster.reader(topic)
    fetched = reader.fetch({0: Position(0)}, max_bytes=READ_BYTES, wait_ms=0)[0]
    position = Position.after(fetched)
    header = reader.find_batch_before(0, 3)
    assert header is not None
    assert HistoryMark.of(header) == position.mark
    inner = reader.find_batch_before(0, 1)
    assert inner is not None
    assert (inner.base_offset, inner.last_offset) == (0, 1)
    assert reader.find_batch_before(0, 0) is None
    assert reader.find_batch_before(0, 9) is None
    reader.close()


def test_a_position_whose_batch_is_another_one_cannot_be_resumed(
    bench: TopicsBench, topic: str
) -> None:
    _append(bench, topic, b"a")
    _append(bench, topic, b"b")
    reader = bench.cluster.reader(topic)
    header = reader.find_batch_before(0, 1)
    assert header is not None
    mark = HistoryMark.of(header)
    assert find_break(reader, 0, Position(1, mark)) is None
    assert _fetch(reader, {0: Position(1, mark)}) == {0: [b"b"]}
    wrong = Position(1, replace(mark, crc=mark.crc ^ 1))
    assert find_break(reader, 0, wrong) is not None
    other = bench.cluster.reader(topic)
    with pytest.raises(LogTruncated, match="checksum"):
        other.fetch({0: wrong}, max_bytes=READ_BYTES, wait_ms=0)
    reader.close()
    other.close()


def test_a_position_beyond_the_end_cannot_be_resumed(bench: TopicsBench, topic: str) -> None:
    _append(bench, topic, b"a")
    reader = bench.cluster.reader(topic)
    assert "ends at offset 1" in (find_break(reader, 0, Position(2)) or "")
    reader.close()


# Writing


def test_a_commit_shows_the_batches_of_all_partitions(bench: TopicsBench, topic: str) -> None:
    writer = bench.writer(f"w-{topic}")
    writer.init_transactions()
    reader = bench.cluster.reader(topic)
    first, second = reader.offsets(0).end, reader.offsets(1).end
    ends = writer.append(
        parts(topic, p0=[batch_of(b"a", b"b"), batch_of(b"c")], p1=[batch_of(b"d")])
    )
    ends = {**ends, **writer.append(parts(topic, p0=[batch_of(b"e")]))}
    assert ends == {TopicPartition(topic, 0): first + 4, TopicPartition(topic, 1): second + 1}
    assert _read_all(reader, 0) == _read_all(reader, 1) == []
    writer.commit()
    _read_when_committed(reader, [b"a", b"b", b"c", b"e"])
    _read_when_committed(reader, [b"d"], partition=1)
    # A marker follows the last record.
    assert (reader.offsets(0).end, reader.offsets(1).end) == (first + 5, second + 2)
    reader.close()


def test_a_writer_goes_on_after_a_commit_and_after_an_abort(bench: TopicsBench, topic: str) -> None:
    writer = bench.writer(f"w-{topic}")
    writer.init_transactions()
    for number in range(3):
        writer.append(parts(topic, p0=[batch_of(b"kept %d" % number)]))
        writer.commit()
        writer.append(parts(topic, p0=[batch_of(b"aborted %d" % number)]))
        writer.abort()
    reader = bench.cluster.reader(topic)
    _read_when_committed(reader, [b"kept 0", b"kept 1", b"kept 2"])
    reader.close()


def test_a_later_writer_of_the_id_fences_and_aborts(bench: TopicsBench, topic: str) -> None:
    first, second = bench.writer(f"w-{topic}"), bench.writer(f"w-{topic}")
    first.init_transactions()
    first.append(parts(topic, p0=[batch_of(b"left open")]))
    second.init_transactions()
    with pytest.raises(Fenced):
        first.append(parts(topic, p0=[batch_of(b"too late")]))
    second.append(parts(topic, p0=[batch_of(b"mine")]))
    second.commit()
    reader = bench.cluster.reader(topic)
    _read_when_committed(reader, [b"mine"])
    reader.close()


def test_writers_of_other_ids_do_not_disturb_each_other(bench: TopicsBench, topic: str) -> None:
    one, other = bench.writer(f"one-{topic}"), bench.writer(f"other-{topic}")
    one.init_transactions()
    other.init_transactions()
    one.append(parts(topic, p0=[batch_of(b"one")]))
    other.append(parts(topic, p0=[batch_of(b"other")]))
    one.commit()
    other.abort()
    reader = bench.cluster.reader(topic)
    _read_when_committed(reader, [b"one"])
    reader.close()


def test_batches_without_timestamps_get_the_default(bench: TopicsBench, topic: str) -> None:
    writer = bench.writer(f"w-{topic}")
    writer.init_transactions()
    writer.append(
        parts(topic, p0=[build_batch([Record(b"k", b"v", timestamp=-1)])]),
        default_timestamp=1_700_000_000_000,
    )
    writer.commit()
    reader = bench.cluster.reader(topic)
    _read_when_committed(reader, [b"v"])
    fetched = reader.fetch({0: Position(0)}, max_bytes=READ_BYTES, wait_ms=0)[0]
    assert next(fetched.columns()).timestamps.tolist() == [1_700_000_000_000]
    reader.close()
