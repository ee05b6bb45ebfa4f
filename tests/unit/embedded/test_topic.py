"""Appending and reading: what callers may give, where records go, what comes back."""

import random
import threading
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import varve
from varve.disk import MemoryFileSystem
from varve.embedded.topic import partition_of
from varve.foundation import errors
from varve.kernels.hashes import murmur2
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


@pytest.mark.parametrize(
    "append",
    [
        lambda topic: topic.append(value="\ud800"),
        lambda topic: topic.append(value=b"x", timestamp_ms=True),
        lambda topic: topic.append(value=b"x", timestamp_ms=-2),
        lambda topic: topic.append(value=b"x", timestamp_ms=2**63),
        lambda topic: topic.append(value=b"x", headers=[("only",)]),
        lambda topic: topic.append(value=b"x", headers={b"bytes": b"x"}),
        lambda topic: topic.append(value=b"x", headers={"h": 3}),
        lambda topic: topic.append_many([(b"k", b"v", {}, 1, 2)]),
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


def test_records_without_key_go_round(wide: varve.Topic) -> None:
    first = wide.append(value=b"x").partition
    following = [wide.append(value=b"x").partition for _ in range(5)]
    assert following == [(first + turn) % 3 for turn in range(1, 6)]


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


def test_a_stream_that_fails_leaves_whole_batches_only(topic: varve.Topic) -> None:
    def stream() -> Iterator[tuple[bytes, bytes]]:
        for _ in range(20):
            yield b"k", b"v" * 100_000
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        topic.append_many(stream(), codec="none")
    assert 0 < topic.offsets().end < 20


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


def test_forgetting_the_value_deletes_nothing(topic: varve.Topic) -> None:
    topic.append("v", key="k")
    with pytest.raises(TypeError):
        topic.append(key="k")  # type: ignore[call-arg]  # what a user may forget
    assert [record.value for record in topic.read()] == [b"v"]


# The partition of a key is that of Kafka's own clients


def hash_of(key: bytes) -> int:
    return murmur2(np.frombuffer(key, np.uint8))


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_that_of_kafkas_tests(key: bytes, expected: int) -> None:
    assert hash_of(key) == expected & 0xFFFFFFFF


def test_the_hash_equals_another_clients() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the client's own imports warn
        from kafka.partitioner.default import murmur2 as reference
    chance = random.Random(1)
    for size in range(70):
        key = chance.randbytes(size)
        assert hash_of(key) == reference(key) & 0xFFFFFFFF


def test_a_partition_lies_within_the_topic() -> None:
    keys = [b"key-%d" % number for number in range(1000)]
    assert {partition_of(key, 7) for key in keys} == set(range(7))
    assert {partition_of(key, 1) for key in keys} == {0}
