"""`varve.open` and `varve.connect` give the same results through the same calls."""

import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from uuid import uuid4

import pytest

import varve
from varve import errors
from varve.embedded.topic import partition_of
from varve.foundation.clock import SystemClock
from varve.records import build_batch
from varve.testing.kafka_kit import KafkaKit

Target = varve.Store | varve.Cluster
CLOCK = SystemClock()
_INCOMPRESSIBLE = Random(0).randbytes(2_000)

Handle = varve.TopicHandle


@pytest.fixture(scope="module", params=["store", "broker"])
def target(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Target]:
    if request.param == "store":
        with varve.open(tmp_path_factory.mktemp("store") / "data") as store:
            yield store
        return
    # The server compares the timestamps of records with its clock.
    with KafkaKit(now_ms=CLOCK.now_ms()) as kit, varve.connect(kit.bootstrap) as cluster:
        yield cluster


@pytest.fixture
def name() -> str:
    return f"orders-{uuid4().hex}"


@pytest.fixture
def topic(target: Target, name: str) -> Handle:
    return target.create_topic(name, partitions=1)


@pytest.fixture
def wide(target: Target) -> Handle:
    return target.create_topic(f"wide-{uuid4().hex}", partitions=3)


def _values(records: Iterable[varve.Record]) -> list[bytes | None]:
    return [record.value for record in records]


# Topics


def test_a_topic_is_created_listed_and_deleted(target: Target, name: str) -> None:
    created = target.create_topic(name, partitions=2)
    assert (created.name, created.partition_count) == (name, 2)
    assert (name, 2) in [(topic.name, topic.partition_count) for topic in target.topics()]
    assert target.topic(name).partition_count == 2
    target.delete_topic(name)
    assert name not in [topic.name for topic in target.topics()]
    with pytest.raises(errors.NotFound, match=name):
        target.topic(name)


def test_an_existing_topic_is_accepted_only_if_it_is_the_same(target: Target, name: str) -> None:
    settings = {"retention.ms": 60_000}
    target.create_topic(name, partitions=2, settings=settings)
    with pytest.raises(errors.TopicExists, match=name):
        target.create_topic(name, partitions=2, settings=settings)
    for same in (
        target.create_topic(name, exist_ok=True),
        target.create_topic(name, partitions=2, settings=settings, exist_ok=True),
    ):
        assert same.partition_count == 2
    with pytest.raises(errors.TopicExists, match="2 partitions, not 3"):
        target.create_topic(name, partitions=3, exist_ok=True)
    with pytest.raises(errors.TopicExists, match="alter_topic"):
        target.create_topic(name, settings={"retention.ms": 70_000}, exist_ok=True)


def test_altered_settings_take_effect_and_none_restores_the_default(
    target: Target, topic: Handle
) -> None:
    target.alter_topic(topic.name, {"max.message.bytes": 1_000})
    with pytest.raises(errors.RecordTooLarge):
        topic.append(_INCOMPRESSIBLE, key="k")
    target.alter_topic(topic.name, {"max.message.bytes": None})
    assert topic.append(_INCOMPRESSIBLE, key="k").offset == 0


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda target, name: target.create_topic(name, partitions=0), errors.InvalidRequest),
        (lambda target, _: target.create_topic("not/a/name"), errors.InvalidRequest),
        (
            lambda target, name: target.create_topic(name, settings={"retention.ms": "soon"}),
            errors.InvalidSetting,
        ),
        (lambda target, name: target.topic(name), errors.NotFound),
        (lambda target, name: target.alter_topic(name, {"retention.ms": 1}), errors.NotFound),
        (lambda target, name: target.delete_topic(name), errors.NotFound),
        (lambda target, name: target.add_partitions(name, 2), errors.NotFound),
    ],
)
def test_wrong_calls_of_a_target_raise_the_same_errors(
    target: Target, name: str, call: Callable[[Target, str], object], kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        call(target, name)


def test_a_setting_that_is_refused_changes_nothing(target: Target, topic: Handle) -> None:
    with pytest.raises(errors.InvalidSetting):
        target.alter_topic(topic.name, {"max.message.bytes": 100, "retention.ms": "soon"})
    assert topic.append(b"x" * 500).offset == 0


# Appends


def test_an_appended_record_is_read_as_it_was_given(topic: Handle) -> None:
    now_ms = CLOCK.now_ms()
    result = topic.append(
        "3 äpfel", key="älice", headers={"by": "shop", "none": None}, timestamp_ms=now_ms
    )
    assert result == varve.AppendResult(0, 0, now_ms)
    assert topic.append(b"\x00", timestamp_ms=now_ms - 5) == varve.AppendResult(0, 1, now_ms - 5)
    topic.append(None, headers=[("h", b"1"), ("h", b"2")], timestamp_ms=now_ms)
    headers = (("by", b"shop"), ("none", None))
    assert list(topic.read()) == [
        varve.Record(0, 0, now_ms, "älice".encode(), "3 äpfel".encode(), headers),
        varve.Record(0, 1, now_ms - 5, None, b"\x00"),
        varve.Record(0, 2, now_ms, None, None, (("h", b"1"), ("h", b"2"))),
    ]


def test_the_default_timestamp_is_now(topic: Handle) -> None:
    assert abs(topic.append("x").timestamp - CLOCK.now_ms()) < 60_000


def test_log_append_time_is_what_an_append_returns(target: Target, name: str) -> None:
    topic = target.create_topic(name, settings={"message.timestamp.type": "LogAppendTime"})
    result = topic.append("x", timestamp_ms=5)
    assert [record.timestamp for record in topic.read()] == [result.timestamp]
    assert result.timestamp != 5


def test_a_deleted_key_has_a_tombstone(topic: Handle) -> None:
    topic.append("1", key="alice")
    assert topic.delete_key("alice", headers={"by": "test"}).offset == 1
    (_, tombstone) = topic.read()
    assert (tombstone.key, tombstone.value) == (b"alice", None)
    assert tombstone.headers == (("by", b"test"),)


def test_keys_choose_kafkas_partition_and_a_named_one_wins(wide: Handle) -> None:
    keys = ("alice", "bob", "carol")
    expected = [partition_of(key.encode(), 3) for key in keys]
    assert [wide.append("x", key=key).partition for key in keys] == expected
    counts = {number: 4 * expected.count(number) for number in set(expected)}
    assert wide.append_many([(key, "x") for key in keys * 3]).end_offsets == counts
    assert [wide.append("x", key="alice", partition=number).partition for number in range(3)] == [
        0,
        1,
        2,
    ]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_many_records_keep_their_order(topic: Handle, codec: str) -> None:
    values = [b"%d" % number for number in range(2_000)]
    result = topic.append_many(((None, value) for value in values), codec=codec)
    assert result == varve.BulkAppendResult(2_000, {0: 2_000})
    assert _values(topic.read()) == values


def test_many_records_come_in_every_form(wide: Handle) -> None:
    now_ms = CLOCK.now_ms()
    wide.append_many(
        [
            ("k", "pair"),
            ("k", "headers", {"h": "x"}),
            ("k", "time", None, now_ms),
            varve.NewRecord(b"k", b"new", timestamp=now_ms),
            varve.Record(0, 77, now_ms, b"k", b"read"),
        ],
        partition=1,
    )
    records = list(wide.read(partition=1))
    assert _values(records) == [b"pair", b"headers", b"time", b"new", b"read"]
    assert records[1].headers == (("h", b"x"),)
    assert [record.timestamp for record in records[2:]] == [now_ms] * 3


def test_nothing_to_append_is_nothing(topic: Handle) -> None:
    assert topic.append_many([]) == varve.BulkAppendResult(0, {})
    assert list(topic.read()) == []


def test_after_a_refused_record_the_next_is_taken(topic: Handle) -> None:
    with pytest.raises(errors.RecordTooLarge):
        topic.append(bytes(3 << 20))
    assert topic.append("small").offset == 0


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda topic: topic.append(5), errors.InvalidRecord),
        (lambda topic: topic.append("x", key=5), errors.InvalidRecord),
        (lambda topic: topic.append("x", headers=5), errors.InvalidRecord),
        (lambda topic: topic.append("x", timestamp_ms="now"), errors.InvalidRecord),
        (lambda topic: topic.append("x", partition=3), errors.NotFound),
        (lambda topic: topic.append("x", partition=-1), errors.NotFound),
        (lambda topic: topic.append_many([("one",)]), errors.InvalidRecord),
        (lambda topic: topic.append_many([5]), errors.InvalidRecord),
        (lambda topic: topic.append_many([("k", "v")], partition=9), errors.NotFound),
        (lambda topic: topic.append_many([("k", "v")], codec="zip"), errors.InvalidRequest),
        (lambda topic: topic.read(partition=9), errors.NotFound),
        (lambda topic: topic.read(start=0), errors.InvalidRequest),
        (lambda topic: topic.read(end=5), errors.InvalidRequest),
        (lambda topic: topic.read(partition=0, start=1), errors.OffsetOutOfRange),
        (lambda topic: topic.read(partition=0, start=-1), errors.OffsetOutOfRange),
        (lambda topic: topic.read(limit=-1), errors.InvalidRequest),
        (lambda topic: topic.read(isolation="serializable"), errors.InvalidRequest),
        (lambda topic: topic.offsets(), errors.InvalidRequest),
        (lambda topic: topic.offsets(9), errors.NotFound),
        (lambda topic: topic.offset_for_time(0), errors.InvalidRequest),
        (lambda topic: topic.offset_for_time(0, partition=9), errors.NotFound),
        (lambda topic: topic.batches(partition=9), errors.NotFound),
        (lambda topic: topic.columns(start=0), errors.InvalidRequest),
        (lambda topic: topic.columns(partition=0, start=1), errors.OffsetOutOfRange),
        (lambda topic: topic.batches(isolation="serializable"), errors.InvalidRequest),
        (lambda topic: topic.delete_key(None), errors.InvalidRecord),
        (lambda topic: topic.get(None), errors.InvalidRequest),
        (lambda topic: topic.delete_records(1), errors.InvalidRequest),
        (lambda topic: topic.delete_records(1, partition=0), errors.OffsetOutOfRange),
    ],
)
def test_wrong_calls_of_a_topic_raise_the_same_errors(
    wide: Handle, call: Callable[[Handle], object], kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        call(wide)
    assert list(wide.read()) == []


# Reads


def test_a_read_has_bounds(topic: Handle) -> None:
    topic.append_many((None, b"%d" % number) for number in range(100))
    assert _values(topic.read(start=7, limit=2)) == [b"7", b"8"]
    assert _values(topic.read(start=97)) == [b"97", b"98", b"99"]
    assert _values(topic.read(start=7, end=9)) == [b"7", b"8"]
    assert _values(topic.read(end=2)) == [b"0", b"1"]
    assert _values(topic.read(start=98, end=1_000)) == [b"98", b"99"]
    assert _values(topic.read(start=9, end=7)) == []
    assert _values(topic.read(start=100)) == []
    assert _values(topic.read(limit=0)) == []


def test_partitions_are_read_in_turn(wide: Handle) -> None:
    for number in range(9):
        wide.append(b"%d" % number, partition=2 - number % 3)
    places = [(record.partition, record.offset) for record in wide.read()]
    assert places == [(partition, offset) for partition in range(3) for offset in range(3)]
    assert len(list(wide.read(limit=4))) == 4
    assert {record.partition for record in wide.read(partition=1)} == {1}


def test_a_read_ends_where_the_log_ended_when_it_began(topic: Handle) -> None:
    topic.append("before")
    records = topic.read()
    topic.append("after")
    assert _values(records) == [b"before"]


def test_without_transactions_committed_records_are_all(topic: Handle) -> None:
    topic.append_many([(None, "a"), (None, "b")])
    assert _values(topic.read(isolation="read_committed")) == [b"a", b"b"]


# Offsets


def test_offsets_show_where_records_begin_and_end(topic: Handle) -> None:
    topic.append_many((None, b"%d" % number) for number in range(10))
    assert topic.delete_records(4) == 4
    offsets = topic.offsets()
    assert (offsets.log_start, offsets.last_stable, offsets.high_watermark, offsets.end) == (
        4,
        10,
        10,
        10,
    )
    assert topic.offsets(0) == offsets
    assert _values(topic.read(limit=1)) == [b"4"]
    with pytest.raises(errors.OffsetOutOfRange):
        topic.read(start=3)
    assert topic.delete_records(-1, partition=0) == 10
    assert list(topic.read()) == []


def test_an_offset_is_found_by_time(topic: Handle) -> None:
    start_ms = CLOCK.now_ms() - 1_000
    for number in range(5):
        topic.append("x", timestamp_ms=start_ms + number * 10)
    assert topic.offset_for_time(0) == 0
    assert topic.offset_for_time(start_ms + 21) == 3
    assert topic.offset_for_time(start_ms + 20, partition=0) == 2
    assert topic.offset_for_time(start_ms + 41) is None


# Closing


@pytest.mark.parametrize("kind", ["store", "broker"])
def test_a_closed_handle_says_how_to_go_on(kind: str, tmp_path: Path) -> None:
    with KafkaKit() as kit:
        target = varve.open(tmp_path / "data") if kind == "store" else varve.connect(kit.bootstrap)
        topic = target.create_topic("orders")
        target.close()
        target.close()
        calls: list[Callable[[], object]] = [
            target.topics,
            lambda: target.topic("orders"),
            lambda: target.create_topic("other"),
            lambda: target.delete_topic("orders"),
            lambda: topic.append("x"),
            lambda: topic.append_many([("k", "v")]),
            lambda: topic.read(),
            topic.offsets,
        ]
        for call in calls:
            with pytest.raises(errors.Closed, match=r"closed; (open it|call varve\.connect) again"):
                call()


def test_a_broker_that_is_not_there_is_reported_within_seconds() -> None:
    with closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        start = time.monotonic()
        with pytest.raises(errors.Unavailable, match=rf"{address}.*varve serve.*name another"):
            varve.connect(address)
        assert time.monotonic() - start < 15


@pytest.mark.parametrize("setting", [{"no_such_setting": 1}, {"socket_timeout_ms": "soon"}])
def test_a_wrong_client_setting_is_reported(setting: dict[str, object]) -> None:
    with pytest.raises(errors.InvalidSetting, match=r"no\.such\.setting|socket\.timeout\.ms"):
        varve.connect("127.0.0.1:9", **setting)


# What needs the batches themselves


def test_batches_and_columns_hold_the_records_that_a_read_returns(wide: Handle) -> None:
    wide.append_many(((f"k{number}", f"v{number}") for number in range(300)), codec="zstd")
    wide.append("last", headers={"by": "shop"}, partition=1)
    expected = list(wide.read())
    assert [
        (record.offset, record.key, record.value)
        for batch in wide.batches()
        for record in batch.records()
    ] == [(record.offset, record.key, record.value) for record in expected]
    found = [
        (columns.offsets[row], columns.key(row), columns.value(row))
        for columns in wide.columns()
        for row in range(len(columns))
    ]
    assert found == [(record.offset, record.key, record.value) for record in expected]


def test_columns_have_the_bounds_of_a_read(topic: Handle) -> None:
    topic.append_many(((None, b"%d" % number) for number in range(100)), codec=varve.Codec.GZIP)
    for start, end in ((7, 9), (None, 2), (98, 1_000), (9, 7), (100, None)):
        offsets = [
            offset for part in topic.columns(start=start, end=end) for offset in part.offsets
        ]
        assert offsets == [record.offset for record in topic.read(start=start, end=end)]
    assert [batch.header.base_offset for batch in topic.batches(start=7, end=9)] == [0]
    columns = topic.columns()
    topic.append("after")
    assert sum(len(part) for part in columns) == 100


def test_the_partition_of_a_key_is_the_same_for_all(wide: Handle) -> None:
    for key in ("alice", "bob", "carol"):
        assert wide.partition_for(key) == wide.partition_for(key.encode())
        assert wide.append("x", key=key).partition == wide.partition_for(key)


def test_a_cluster_refuses_what_needs_the_files_and_names_the_remedy(topic: Handle) -> None:
    topic.append("1", key="alice")
    topic.append("2", key="alice")
    batch = build_batch([varve.NewRecord(b"alice", b"3")])
    if isinstance(topic, varve.Topic):
        assert topic.append_batch(batch).offset == 2
        record = topic.get("alice")
        assert record is not None
        assert record.value == b"3"
        assert topic.get("bob") is None
        return
    with pytest.raises(errors.InvalidRequest, match=r"partition_for\(key\).*varve\.open"):
        topic.get("alice")
    with pytest.raises(errors.InvalidRequest, match=r"append_many.*varve\.open"):
        topic.append_batch(batch)


def test_partitions_are_added_and_only_added(target: Target, topic: Handle) -> None:
    topic.append("x", key="alice")
    assert target.add_partitions(topic.name, 3).partition_count == 3
    assert topic.append("y", partition=2).partition == 2
    for count in (3, 2, 0):
        with pytest.raises(errors.InvalidRequest, match="3 partitions"):
            target.add_partitions(topic.name, count)


def test_given_settings_are_those_of_the_topic_itself(target: Target, name: str) -> None:
    target.create_topic(name, settings={"retention.ms": 60_000})
    assert target.given_settings(name) == {"retention.ms": "60000"}
    target.alter_topic(name, {"retention.ms": None, "segment.bytes": 1_000_000})
    assert target.given_settings(name) == {"segment.bytes": "1000000"}
    with pytest.raises(errors.NotFound):
        target.given_settings("missing")


# Transactions


def test_a_transaction_is_committed_or_aborted_as_a_whole(target: Target, name: str) -> None:
    orders, totals = target.create_topic(name), target.create_topic(f"{name}-totals")
    if isinstance(target, varve.Store):
        with pytest.raises(errors.InvalidRequest, match=r"varve serve.*varve\.connect"):
            target.producer("billing")
        return
    producer = target.producer(f"billing-{name}")
    with producer.transaction():
        producer.append("3 apples", topic=orders.name, key="alice", headers={"by": "shop"})
        producer.append_many([("alice", "3"), ("bob", "0")], topic=totals.name, partition=0)
        assert list(orders.read(isolation="read_committed")) == []
    records = [(None, "4 pears"), (None, 5)]
    with pytest.raises(errors.InvalidRecord), producer.transaction():
        producer.append_many(records, topic=orders.name)  # type: ignore[arg-type]
    with producer.transaction():
        producer.append("5 plums", topic=orders.name)
    assert _values(orders.read(isolation="read_committed")) == [b"3 apples", b"5 plums"]
    assert _values(totals.read(isolation="read_committed")) == [b"3", b"0"]
    columns = list(orders.columns(isolation="read_committed"))
    assert [part.value(0) for part in columns] == [b"3 apples", b"5 plums"]


def test_a_producer_is_fenced_by_a_newer_one_of_its_id(target: Target, topic: Handle) -> None:
    if isinstance(target, varve.Store):
        return
    first = target.producer(f"p-{topic.name}")
    second = target.producer(f"p-{topic.name}")
    with pytest.raises(errors.Fenced), first.transaction():
        first.append("old", topic=topic.name)
    with second.transaction():
        second.append("new", topic=topic.name)
    assert _values(topic.read(isolation="read_committed")) == [b"new"]


def test_a_producer_appends_in_one_transaction_at_a_time(target: Target, topic: Handle) -> None:
    if isinstance(target, varve.Store):
        return
    for id in ("", None, 5):
        with pytest.raises(errors.InvalidRequest, match="transactional_id"):
            target.producer(id)  # type: ignore[arg-type]
    producer = target.producer(f"p-{topic.name}")
    with pytest.raises(errors.InvalidRequest, match="no open transaction"):
        producer.append("x", topic=topic.name)
    with (
        pytest.raises(errors.InvalidRequest, match="open transaction"),
        producer.transaction(),
        producer.transaction(),
    ):
        pass
    with pytest.raises(errors.InvalidRecord), producer.transaction():
        producer.append(5, topic=topic.name)  # type: ignore[arg-type]
    assert list(topic.read(isolation="read_committed")) == []
