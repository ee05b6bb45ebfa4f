"""Appending and reading: what callers may give, where records go, what comes back."""

import random
import threading
from collections.abc import Callable, Iterator

import pytest

import varve
from varve.disk import MemoryFileSystem
from varve.embedded.topic import partition_of
from varve.foundation import errors
from varve.foundation.clock import ManualClock
from varve.records import build_batch

OpenStore = Callable[..., varve.Store]


@pytest.fixture
def topic(store: varve.Store) -> varve.Topic:
    return store.create_topic("orders")


@pytest.fixture
def wide(store: varve.Store) -> varve.Topic:
    return store.create_topic("wide", partitions=3)


def _values(records: Iterator[varve.Record]) -> list[bytes | None]:
    return [record.value for record in records]


def test_an_append_says_where_the_record_stands(topic: varve.Topic, clock: ManualClock) -> None:
    assert topic.append(value=b"a") == varve.AppendResult(0, 0, clock.now_ms())
    assert topic.append(value=b"b", timestamp_ms=5) == varve.AppendResult(0, 1, 5)


def test_text_is_stored_as_utf8_and_null_stays_null(topic: varve.Topic) -> None:
    topic.append(key="kö", value="v", headers={"h": "x", "n": None})
    topic.append(None, headers=[("h", b"1"), ("h", b"2")])
    first, second = topic.read()
    assert (first.key, first.value) == ("kö".encode(), b"v")
    assert first.headers == (("h", b"x"), ("n", None))
    assert (second.key, second.value) == (None, None)
    assert second.headers == (("h", b"1"), ("h", b"2"))


@pytest.mark.parametrize(
    "append",
    [
        lambda topic: topic.append("v", key=3),
        lambda topic: topic.append(value=["x"]),
        lambda topic: topic.append(value="\ud800"),
        lambda topic: topic.append(value=b"x", timestamp_ms="now"),
        lambda topic: topic.append(value=b"x", timestamp_ms=True),
        lambda topic: topic.append(value=b"x", timestamp_ms=-2),
        lambda topic: topic.append(value=b"x", timestamp_ms=2**63),
        lambda topic: topic.append(value=b"x", headers=[("only",)]),
        lambda topic: topic.append(value=b"x", headers=7),
        lambda topic: topic.append(value=b"x", headers={b"bytes": b"x"}),
        lambda topic: topic.append(value=b"x", headers={"h": 3}),
        lambda topic: topic.append(value=b"x", partition=1),
        lambda topic: topic.append(value=b"x", partition=-1),
        lambda topic: topic.append(value=b"x" * 2_000_000),
        lambda topic: topic.append_many([b"x"]),
        lambda topic: topic.append_many([(b"only",)]),
        lambda topic: topic.append_many([(b"k", b"v", {}, 1, 2)]),
        lambda topic: topic.append_many([(b"k", b"v")], codec="brotli"),
        lambda topic: topic.append_many([], partition=4),
        lambda topic: topic.append_batch(b""),
        lambda topic: topic.append_batch(b"\0" * 100),
        lambda topic: topic.append_batch(build_batch([varve.NewRecord(None, b"x")])[:-1]),
    ],
)
def test_what_cannot_be_stored_is_refused_and_changes_nothing(
    topic: varve.Topic, append: Callable[[varve.Topic], object]
) -> None:
    with pytest.raises((errors.InvalidRequest, errors.Corrupt)):
        append(topic)
    assert topic.offsets().end == 0


def test_keyed_records_go_where_kafka_puts_them(wide: varve.Topic) -> None:
    for number in range(30):
        key = b"key-%d" % number
        assert wide.append("v", key=key).partition == partition_of(key, 3)
    wide.append_many((b"key-%d" % number, b"many") for number in range(30))
    for record in wide.read():
        assert record.key is not None
        assert record.partition == partition_of(record.key, 3)


def test_records_without_key_go_round(wide: varve.Topic) -> None:
    first = wide.append(value=b"x").partition
    following = [wide.append(value=b"x").partition for _ in range(5)]
    assert following == [(first + turn) % 3 for turn in range(1, 6)]


def test_the_named_partition_wins_over_the_key(wide: varve.Topic) -> None:
    for partition in range(3):
        assert wide.append(None, key=b"same", partition=partition).partition == partition


def test_many_records_become_few_batches_in_order(topic: varve.Topic) -> None:
    values = [b"%d" % number * 10 for number in range(30_000)]
    summary = topic.append_many((b"k", value) for value in values)
    assert (summary.record_count, summary.end_offsets) == (30_000, {0: 30_000})
    assert 1 < len(list(topic.batches())) < 10
    assert _values(topic.read()) == values


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_stored_and_read(topic: varve.Topic, codec: str) -> None:
    topic.append_many([("k", "v" * 100)] * 50, codec=codec)
    (batch,) = topic.batches()
    assert batch.header.codec is varve.Codec[codec.upper()]
    assert _values(topic.read()) == [b"v" * 100] * 50


def test_the_topics_own_codec_counts(store: varve.Store) -> None:
    topic = store.create_topic("orders", settings={"compression.type": "zstd"})
    topic.append_many([("k", "v" * 100)] * 50, codec="lz4")
    (batch,) = topic.batches()
    assert batch.header.codec is varve.Codec.ZSTD


@pytest.mark.parametrize("limit", [300, 2_000, 20_000])
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_batches_keep_to_the_largest_size_even_if_nothing_compresses(
    store: varve.Store, codec: str, limit: int
) -> None:
    topic = store.create_topic("orders", settings={"max.message.bytes": limit})
    chance = random.Random(limit)
    values = [chance.randbytes(chance.randrange(100)) for _ in range(500)]
    topic.append_many(((None, value) for value in values), codec=codec)
    assert max(batch.header.size for batch in topic.batches()) <= limit
    assert _values(topic.read()) == values


def test_records_can_be_copied_from_topic_to_topic(topic: varve.Topic, wide: varve.Topic) -> None:
    topic.append(key=b"k", value=b"v", headers={"h": "x"}, timestamp_ms=77)
    wide.append_many(topic.read())
    (copied,) = wide.read()
    assert (copied.key, copied.value, copied.headers) == (b"k", b"v", (("h", b"x"),))
    assert copied.timestamp == 77


def test_a_stream_that_fails_leaves_whole_batches_only(topic: varve.Topic) -> None:
    def stream() -> Iterator[tuple[bytes, bytes]]:
        for _ in range(20):
            yield b"k", b"v" * 100_000
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        topic.append_many(stream(), codec="none")
    assert 0 < topic.offsets().end < 20


def test_a_read_begins_and_ends_within_batches(topic: varve.Topic) -> None:
    for start in range(0, 30, 10):
        topic.append_many((None, b"%d" % (start + number)) for number in range(10))
    assert _values(topic.read(start=7, end=23)) == [b"%d" % number for number in range(7, 23)]
    assert _values(topic.read(partition=0, start=7, limit=2)) == [b"7", b"8"]
    assert _values(topic.read(start=30)) == []
    assert _values(topic.read(end=0)) == []
    assert _values(topic.read(start=9, end=5)) == []
    batches = list(topic.batches(start=7, end=23))
    assert [batch.header.base_offset for batch in batches] == [0, 10, 20]
    columns = list(topic.columns(start=7, end=23))
    assert [offset for one in columns for offset in one.offsets.tolist()] == list(range(7, 23))


def test_a_read_ends_where_the_log_ended_when_it_began(topic: varve.Topic) -> None:
    topic.append(value=b"a")
    for record in topic.read():
        topic.append(value=record.value)
    assert topic.offsets().end == 2


def test_a_read_of_all_partitions_takes_them_in_turn(wide: varve.Topic) -> None:
    for number in range(9):
        wide.append(value=b"%d" % number)
    assert [record.partition for record in wide.read()] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert len(list(wide.read(limit=4))) == 4


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (lambda topic: topic.read(start=1), errors.InvalidRequest),
        (lambda topic: topic.read(partition=0, start=1), errors.OffsetOutOfRange),
        (lambda topic: topic.read(partition=0, start=-1), errors.OffsetOutOfRange),
        (lambda topic: topic.read(partition=3), errors.NotFound),
        (lambda topic: topic.read(isolation="serializable"), errors.InvalidRequest),
        (lambda topic: topic.read(limit=-1), errors.InvalidRequest),
        (lambda topic: topic.offsets(), errors.InvalidRequest),
        (lambda topic: topic.delete_records(5, partition=0), errors.OffsetOutOfRange),
        (lambda topic: topic.offset_for_time(5, partition=9), errors.NotFound),
    ],
)
def test_a_wrong_question_is_refused_at_once(
    wide: varve.Topic, read: Callable[[varve.Topic], object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        read(wide)


def test_records_are_found_by_time(topic: varve.Topic) -> None:
    for number in range(10):
        topic.append(value=b"x", timestamp_ms=1000 + number * 10)
    assert topic.offset_for_time(0) == 0
    assert topic.offset_for_time(1041) == 5
    assert topic.offset_for_time(2000) is None


def test_deleted_records_are_not_read(topic: varve.Topic) -> None:
    topic.append_many((None, b"%d" % number) for number in range(10))
    assert topic.delete_records(4) == 4
    assert topic.offsets() == varve.PartitionOffsets(4, 4, 10, 10, 10)
    assert _values(topic.read())[0] == b"4"
    with pytest.raises(errors.OffsetOutOfRange):
        topic.read(start=3)
    assert topic.delete_records(-1) == 10


def test_log_append_time_is_reported_and_read(store: varve.Store, clock: ManualClock) -> None:
    settings = {"message.timestamp.type": "LogAppendTime"}
    topic = store.create_topic("orders", settings=settings)
    assert topic.append(value=b"x", timestamp_ms=5).timestamp == clock.now_ms()
    assert next(topic.read()).timestamp == clock.now_ms()


def test_read_committed_leaves_out_aborted_and_open_transactions(topic: varve.Topic) -> None:
    log = topic.partition(0).log

    def send(producer_id: int, sequence: int, *values: bytes) -> None:
        records = [varve.NewRecord(None, value, timestamp=1) for value in values]
        log.append(
            build_batch(
                records,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=sequence,
                transactional=True,
            )
        )

    topic.append(value=b"plain")
    send(1, 0, b"aborted-1", b"aborted-2")
    send(2, 0, b"committed")
    topic.append(value=b"between")
    send(1, 2, b"aborted-3")
    log.end_transaction(producer_id=1, producer_epoch=0, committed=False)
    log.end_transaction(producer_id=2, producer_epoch=0, committed=True)
    send(1, 3, b"second try")
    log.end_transaction(producer_id=1, producer_epoch=0, committed=True)
    topic.append(value=b"after")
    send(2, 1, b"open")
    topic.append(value=b"behind the open one")

    committed = _values(topic.read(isolation="read_committed"))
    assert committed == [b"plain", b"committed", b"between", b"second try", b"after"]
    assert _values(topic.read(start=5, isolation="read_committed")) == [b"second try", b"after"]
    everything = _values(topic.read())
    assert everything == [
        *(b"plain", b"aborted-1", b"aborted-2", b"committed", b"between", b"aborted-3"),
        *(b"second try", b"after", b"open", b"behind the open one"),
    ]


def test_a_batch_with_a_wrong_crc_is_never_given_out(
    topic: varve.Topic, fs: MemoryFileSystem
) -> None:
    topic.append(value=b"good")
    topic.append(value=b"precious")
    path = f"{topic.partition(0).log.directory}/00000000000000000000.log"
    with fs.open_writable(path) as file:
        file.write_at(file.size() - 3, b"?")
    reader = topic.read()
    assert next(reader).value == b"good"
    with pytest.raises(errors.Corrupt, match=r"orders-0.*offset 1.*CRC.*varve check"):
        next(reader)


def test_a_compacted_topic_demands_keys(store: varve.Store) -> None:
    topic = store.create_topic("state", settings={"cleanup.policy": "compact"})
    with pytest.raises(errors.InvalidRecord, match="no key"):
        topic.append(value=b"x")
    with pytest.raises(errors.PolicyViolation):
        topic.delete_records(0)


def test_many_threads_append_without_loss(wide: varve.Topic) -> None:
    def work(name: int) -> None:
        for number in range(100):
            wide.append(key=b"%d" % name, value=b"%d" % number)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    by_key: dict[bytes | None, list[bytes | None]] = {}
    for record in wide.read():
        by_key.setdefault(record.key, []).append(record.value)
    assert by_key == {b"%d" % name: [b"%d" % n for n in range(100)] for name in range(6)}


def test_records_survive_a_reopen(open_store: OpenStore) -> None:
    store = open_store()
    topic = store.create_topic("orders", partitions=2, settings={"segment.bytes": 2_000})
    topic.append_many((b"%d" % number, b"x" * 50) for number in range(200))
    before = list(topic.read())
    topic.flush()
    store.close()
    assert list(open_store().topic("orders").read()) == before


def test_forgetting_the_value_deletes_nothing(topic: varve.Topic) -> None:
    topic.append("v", key="k")
    with pytest.raises(TypeError):
        topic.append(key="k")  # type: ignore[call-arg]  # what a user may forget
    assert [record.value for record in topic.read()] == [b"v"]


def test_a_key_is_deleted_by_a_tombstone(topic: varve.Topic) -> None:
    topic.append("v", key="k")
    position = topic.delete_key("k", headers={"by": "test"})
    (_, tombstone) = topic.read()
    assert (position.offset, tombstone.key, tombstone.value) == (1, b"k", None)
    assert tombstone.headers == (("by", b"test"),)
