"""Following files that another owner appends to."""

import pytest

import varve
from varve.commit_log import TopicPartition
from varve.disk import MemoryFileSystem
from varve.embedded.follower import Follower, find_partitions
from varve.foundation import errors

ORDERS = TopicPartition("orders", 0)
PATH = "/data/orders-0/00000000000000000000.log"


@pytest.fixture
def topic(store: varve.Store) -> varve.Topic:
    return store.create_topic("orders", settings={"segment.bytes": 500})


def _poll(follower: Follower) -> list[bytes | None]:
    return [record.value for record in follower.poll()]


def test_each_record_comes_once_across_segments(topic: varve.Topic, fs: MemoryFileSystem) -> None:
    follower = Follower(fs, "/data", ORDERS, start=None)
    assert _poll(follower) == []
    values = [b"%d" % number * 20 for number in range(40)]
    seen: list[bytes | None] = []
    for number, value in enumerate(values):
        topic.append(value=value)
        if number % 7 == 0:
            seen += _poll(follower)
    assert seen + _poll(follower) == values
    assert _poll(follower) == []
    assert len(topic.partition(0).log.view) > 3


def test_it_begins_within_a_batch_at_the_end_or_at_the_log_start(
    store: varve.Store, topic: varve.Topic, fs: MemoryFileSystem
) -> None:
    topic.append_many((None, b"%d" % number) for number in range(10))
    assert _poll(Follower(fs, "/data", ORDERS, start=7)) == [b"7", b"8", b"9"]
    at_end = Follower(fs, "/data", ORDERS, start=None)
    at_end.skip_to_end()
    assert _poll(at_end) == []
    topic.append(value=b"new")
    assert _poll(at_end) == [b"new"]
    topic.delete_records(9)
    assert _poll(Follower(fs, "/data", ORDERS, start=None)) == [b"9", b"new"]
    with pytest.raises(errors.OffsetOutOfRange, match="log start offset 9"):
        Follower(fs, "/data", ORDERS, start=8)


def test_a_write_in_flight_is_waited_for(topic: varve.Topic, fs: MemoryFileSystem) -> None:
    topic.append(value=b"first")
    batch = fs.read(PATH)
    follower = Follower(fs, "/data", ORDERS, start=None)
    with fs.open_writable(PATH) as file:
        moved = (1).to_bytes(8, "big") + batch[8:]
        file.write_at(len(batch), moved[:30])
        assert _poll(follower) == [b"first"]
        assert _poll(follower) == []
        file.write_at(len(batch), moved)
        assert _poll(follower) == [b"first"]


def test_zeros_of_a_preallocated_file_are_its_end(topic: varve.Topic, fs: MemoryFileSystem) -> None:
    topic.append(value=b"first")
    with fs.open_writable(PATH) as file:
        file.truncate(450)
    follower = Follower(fs, "/data", ORDERS, start=None)
    assert [_poll(follower) for _ in range(30)] == [[b"first"], *[[]] * 29]


def test_bytes_that_stay_wrong_are_named(topic: varve.Topic, fs: MemoryFileSystem) -> None:
    topic.append(value=b"first")
    with fs.open_writable(PATH) as file:
        file.write_at(file.size() - 1, b"?")
    follower = Follower(fs, "/data", ORDERS, start=None)
    with pytest.raises(errors.Corrupt, match=r"00000000000000000000.log.*position 0"):
        [_poll(follower) for _ in range(100)]


def test_partitions_are_found_by_name(store: varve.Store, fs: MemoryFileSystem) -> None:
    store.create_topic("orders", partitions=2)
    store.create_topic("orders-0")
    fs.make_directory("/data/something else")
    found = find_partitions(fs, "/data", "orders")
    assert found == [TopicPartition("orders", 0), TopicPartition("orders", 1)]
