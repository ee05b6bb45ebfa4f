"""A topic behind a server feeds shapes as one of an open store does."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.feed_bench import build_feed
from varve.foundation.errors import NotFound
from varve.kafka_client.address import ClusterAddress
from varve.kafka_client.client import KafkaClient
from varve.records import Producer, build_batch, stamp_producer
from varve.records.batch import Record
from varve.shapes.feed.changes import Transaction
from varve.shapes.feed.resuming import find_tombstone_retention
from varve.shapes.feed.topic_feed import TopicFeed
from varve.testing import KafkaKit
from varve.topics import KafkaCluster
from varve.wire.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from varve.wire.schema import NO_ID


@pytest.fixture
def kit() -> Iterator[KafkaKit]:
    with KafkaKit() as created:
        yield created


@pytest.fixture
def cluster(kit: KafkaKit) -> Iterator[KafkaCluster]:
    opened = KafkaCluster(_address(kit))
    yield opened
    opened.close()


def _address(kit: KafkaKit) -> ClusterAddress:
    host, _, port = kit.bootstrap.rpartition(":")
    return ClusterAddress(hosts=((host, int(port)),), timeout_ms=10_000)


def _create(kit: KafkaKit, topic: str = "orders", count: int = 1, **settings: str) -> None:
    client = KafkaClient(_address(kit), threading.Event().wait)
    options = {name.replace("_", "."): value for name, value in settings.items()}
    client.create_topic(topic, partitions=count, settings=options, exist_ok=True)
    client.close()


def _delete(kit: KafkaKit) -> None:
    client = KafkaClient(_address(kit), threading.Event().wait)
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name="orders")])
    (answer,) = client.send_to_controller(request, DeleteTopicsResponse).responses
    assert answer.error_code == 0
    client.close()


def _put(kit: KafkaKit, key: str, n: int, partition: int = 0) -> None:
    value = json.dumps({"n": n}).encode()
    kit.store.topic("orders").append(key=key.encode(), value=value, partition=partition)


def _poll(feed: TopicFeed) -> list[Transaction]:
    options: list[Transaction] = []
    for _ in range(4):
        options += feed.poll(max_records=100, wait_ms=1)
    return options


def test_partitions_behind_a_server_are_read_in_one_order(
    kit: KafkaKit, cluster: KafkaCluster, tmp_path: Path
) -> None:
    _create(kit, count=3, cleanup_policy="compact,delete")
    _put(kit, "a", 0, partition=1)
    reader = cluster.reader("orders")
    feed = build_feed(reader, tmp_path)
    feed.open()
    feed.checkpoint(feed.mark())
    for number in range(9):
        _put(kit, f"k{number}", number, partition=number % 3)
    options = _poll(feed)
    assert sorted(int(item.changes[0].row["n"]) for item in options if item.changes[0].row) == list(
        range(9)
    )
    feed.close()
    assert feed.open() is None
    assert _poll(feed) == options
    assert feed.is_caught_up
    with feed.view() as view:
        assert len(dict(view.rows())) == 10
    kit.store.topic("orders").partition(2).delete_records(3)
    _put(kit, "a", 10, partition=1)
    feed.close()
    reason = feed.open()
    assert reason is not None
    assert "begins at 3" in reason.text
    feed.close()
    reader.close()


def test_open_and_aborted_transactions_are_left_out(
    kit: KafkaKit, cluster: KafkaCluster, tmp_path: Path
) -> None:
    _create(kit)
    reader = cluster.reader("orders")
    feed = build_feed(reader, tmp_path)
    feed.open()
    log = kit.store.topic("orders").partition(0).log
    options = []
    for sequence, is_committed in enumerate([False, True]):
        record = Record(key=b"a", value=b'{"n":%d}' % sequence, timestamp=1)
        log.append(stamp_producer(build_batch([record]), Producer(7, 0), sequence))
        options += _poll(feed)
        log.end_transaction(producer_id=7, producer_epoch=0, committed=is_committed)
    options += _poll(feed)
    ((only,),) = [item.changes for item in options]
    assert only.row == {"key": b'"a"', "n": b"1"}
    assert feed.is_caught_up
    feed.close()
    reader.close()


def test_deletions_are_kept_as_long_as_the_topic_says(kit: KafkaKit, cluster: KafkaCluster) -> None:
    _create(kit, cleanup_policy="compact", delete_retention_ms="5000")
    _create(kit, "plain")
    compacted, plain = cluster.reader("orders"), cluster.reader("plain")
    assert find_tombstone_retention(compacted) == 5000
    assert find_tombstone_retention(plain) is None
    compacted.close()
    plain.close()


def test_a_topic_that_is_not_there_is_said_to_be_missing(
    kit: KafkaKit, cluster: KafkaCluster
) -> None:
    reader = cluster.reader("nothing")
    with pytest.raises(NotFound):
        reader.info()
    reader.close()


def test_a_topic_made_anew_behind_a_server_is_not_read_on(
    kit: KafkaKit, cluster: KafkaCluster, tmp_path: Path
) -> None:
    _create(kit)
    _put(kit, "a", 1)
    reader = cluster.reader("orders")
    feed = build_feed(reader, tmp_path)
    feed.open()
    feed.checkpoint(feed.mark())
    assert _poll(feed) == []
    _delete(kit)
    _create(kit)
    for number in range(3):
        _put(kit, "b", number)
    options = feed.poll(max_records=100, wait_ms=1)
    assert [item.reset is not None for item in options] == [True]
    reset = feed.open()
    assert reset is not None
    assert "created again" in reset.text
    with feed.view() as view:
        assert [row["n"] for _, row in view.rows()] == [b"2"]
    feed.close()
    reader.close()


def test_a_server_that_comes_to_tell_ids_of_topics_has_the_same_ones(
    kit: KafkaKit, cluster: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _create(kit)
    reader = cluster.reader("orders")
    feed = build_feed(reader, tmp_path)
    with monkeypatch.context() as older:
        ask = KafkaClient.topic
        older.setattr(KafkaClient, "topic", lambda *reported: replace(ask(*reported), id=NO_ID))
        feed.open()
        feed.checkpoint(feed.mark())
        assert reader.info().id_text == ""
    assert reader.info().partition_count == 1
    assert reader.info().id_text != ""
    _put(kit, "a", 1)
    assert [item.reset for item in _poll(feed)] == [None]
    assert feed.open() is None
    feed.close()
    reader.close()
