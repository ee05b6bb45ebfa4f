"""Positions with marks of history: a topic that lost its end and grew again is noticed."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.topics_bench import ServerBench, StoreBench
from varve.foundation.errors import OffsetOutOfRange
from varve.records import BatchHeader, Record, build_batch, decode_header
from varve.topics import HistoryMark, LogTruncated, Position, StoreCluster, TopicReader, find_break

MARK = HistoryMark(base_offset=10, last_offset=14, leader_epoch=3, crc=0xDEADBEEF)


def _header(**changes: int) -> BatchHeader:
    batch = build_batch([Record(b"k", b"%d" % number, timestamp=1) for number in range(5)])
    return decode_header(batch)._replace(base_offset=10, partition_leader_epoch=3, **changes)


def test_a_mark_is_in_front_of_the_offsets_behind_its_first() -> None:
    assert [MARK.is_in_front_of(offset) for offset in (10, 11, 15, 16)] == [
        False,
        True,
        True,
        False,
    ]


def test_the_epoch_of_a_position_is_known_only_with_the_batch_in_front_of_it() -> None:
    assert Position(15, MARK).leader_epoch == 3
    assert Position(40, MARK).leader_epoch == -1
    assert Position(15).leader_epoch == -1


def test_a_mark_survives_json() -> None:
    assert HistoryMark.from_json(MARK.to_json()) == MARK


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("base_offset", -1),
        ("last_offset", 9),
        ("leader_epoch", -2),
        ("crc", 1 << 32),
        ("crc", "1"),
        ("crc", True),
    ],
)
def test_a_mark_out_of_range_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        HistoryMark.from_json({**MARK.to_json(), name: value})


def test_the_same_batch_is_no_break() -> None:
    header = _header()
    assert HistoryMark.of(header).find_break(header) is None


def test_another_checksum_is_a_break_unless_records_were_removed() -> None:
    mark = HistoryMark.of(_header())
    assert mark.find_break(_header(crc=1)) is not None
    assert mark.find_break(_header(crc=1, records_count=4)) is None
    assert mark.find_break(_header(crc=1, attributes=0x40)) is None


def test_other_offsets_or_another_epoch_are_a_break_even_after_compaction() -> None:
    mark = HistoryMark.of(_header())
    compacted = _header(crc=1, records_count=4)
    assert replace(mark, leader_epoch=2).find_break(compacted) is not None
    assert replace(mark, last_offset=15).find_break(compacted) is not None


READ_BYTES = 1 << 20


@pytest.fixture
def server() -> Iterator[ServerBench]:
    bench = ServerBench()
    yield bench
    bench.close()


def _read_to_end(reader: TopicReader, position: Position) -> Position:
    while found := reader.fetch({0: position}, max_bytes=READ_BYTES, wait_ms=0):
        position = Position.after(found[0])
    return position


def test_a_store_that_was_truncated_and_grew_again_is_noticed_on_resume() -> None:
    bench = StoreBench()
    topic = bench.virtual.store.create_topic("orders", partitions=1)
    for number in range(5):
        topic.append(key=b"k", value=b"%d" % number)
    position = _read_to_end(bench.cluster.reader("orders"), Position(0))
    topic.partition(0).log.truncate_to(3)
    short = bench.cluster.reader("orders")
    with pytest.raises(LogTruncated, match="ends at offset 3"):
        short.fetch({0: position}, max_bytes=READ_BYTES, wait_ms=0)
    for number in range(4):
        topic.append(key=b"k", value=b"other %d" % number)
    assert topic.partition(0).log.end_offset > position.offset
    reader = bench.cluster.reader("orders")
    assert "checksum" in (find_break(reader, 0, position) or "")
    with pytest.raises(LogTruncated, match="checksum"):
        reader.fetch({0: position}, max_bytes=READ_BYTES, wait_ms=0)
    bench.close()


def test_a_reader_notices_that_the_server_lost_the_end_while_it_was_connected(
    server: ServerBench,
) -> None:
    server.cluster.find_or_create("orders", partitions=1, settings={})
    topic = server.kit.store.topic("orders")
    topic.append(key=b"k", value=b"on disk")
    topic.flush()
    for number in range(4):
        topic.append(key=b"k", value=b"%d" % number)
    reader = server.cluster.reader("orders")
    position = _read_to_end(reader, Position(0))
    assert position.offset == 5
    server.kit.restart(crash=True)
    assert server.kit.store.topic("orders").offsets().end == 1
    for number in range(9):
        server.kit.store.topic("orders").append(key=b"k", value=b"other %d" % number)
    with pytest.raises(LogTruncated):
        reader.fetch({0: position}, max_bytes=READ_BYTES, wait_ms=0)
    resumed = server.cluster.reader("orders")
    assert find_break(resumed, 0, position) is not None
    reader.close()
    resumed.close()


def test_an_end_that_was_lost_and_did_not_grow_again_is_out_of_range(server: ServerBench) -> None:
    server.cluster.find_or_create("orders", partitions=1, settings={})
    topic = server.kit.store.topic("orders")
    topic.append(key=b"k", value=b"on disk")
    topic.flush()
    topic.append(key=b"k", value=b"lost")
    reader = server.cluster.reader("orders")
    position = _read_to_end(reader, Position(0))
    server.kit.restart(crash=True)
    with pytest.raises(OffsetOutOfRange):
        reader.fetch({0: position}, max_bytes=READ_BYTES, wait_ms=0)
    reader.close()


def test_a_compacted_batch_in_front_of_the_position_is_no_break() -> None:
    bench = StoreBench()
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    topic = bench.virtual.store.create_topic("orders", partitions=1, settings=settings)
    topic.append_many([(b"a", b"1"), (b"b", b"1"), (b"a", b"2")])
    reader = StoreCluster(bench.virtual.store).reader("orders")
    position = _read_to_end(reader, Position(0))
    topic.append(key=b"c", value=b"3")
    bench.virtual.store.clean("orders", roll=True)
    resumed = bench.cluster.reader("orders")
    header = resumed.find_batch_before(0, position.offset)
    assert header is not None
    assert header.records_count == 2
    assert find_break(resumed, 0, position) is None
    bench.close()
