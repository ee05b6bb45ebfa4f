"""Kafka's serde, partitioner and cache agree with varve on the topic __remote_log_metadata."""

import random
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from tests.conformance.tools.shell import Answer, JavaShell, from_text, to_text
from tests.conformance.tools.toolchain import Toolchain
from tests.support.metadata_bench import MetadataBench
from tests.support.remote_builder import HOME
from tests.support.tier_history import TierHistory
from varve.commit_log.directory_files import encode_topic_id, random_topic_id
from varve.foundation.errors import StoreError
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.segment import RemoteSegment, SegmentState
from varve.tiering.metadata.events import (
    EpochStart,
    Event,
    RemoteState,
    SegmentEvent,
    SegmentId,
    SegmentUpdate,
    TopicIdPartition,
    decode_event,
    encode_event,
)
from varve.tiering.metadata.topic import choose_partition
from varve.tiering.metadata.topic_manifest_store import TopicManifestStore

pytestmark = pytest.mark.java

METADATA_SHELL = "varve.conformance.MetadataShell"
STATES = {
    SegmentState.COPY_STARTED: 0,
    SegmentState.COPY_FINISHED: 1,
    SegmentState.DELETE_STARTED: 2,
}


@pytest.fixture(scope="module")
def kafka(toolchain: Toolchain) -> Iterator[JavaShell]:
    with JavaShell(toolchain, METADATA_SHELL) as shell:
        yield shell


def draw_event(chance: random.Random) -> Event:
    """Any event that Kafka's own classes can hold."""
    home = TopicIdPartition(
        chance.choice(["orders", "a", "t" * 249, "größe"]),
        random_topic_id(chance),
        chance.choice([0, 7, 2**31 - 1]),
    )
    id = UUID(bytes=chance.randbytes(16))
    start = chance.choice([0, 1, 2**40, 2**63 - 301])
    sizes = [0, 1, 126, 127, 128, 16_384]
    custom = chance.choice([None, *(chance.randbytes(size) for size in sizes)])
    fields: dict[str, Any] = {
        "segment": SegmentId(home, id),
        "broker_id": chance.choice([0, 1, 2**31 - 1]),
        "at_ms": chance.choice([-1, 0, 1_700_000_000_000]),
        "state": chance.choice(list(RemoteState)),
        "custom": custom,
    }
    if chance.random() < 0.5:
        return SegmentUpdate(**fields)
    return SegmentEvent(
        start_offset=start,
        end_offset=start + chance.randrange(300),
        max_timestamp=chance.choice([-1, 0, 2**62]),
        size=chance.choice([0, 1, 2**31 - 1]),
        epochs=[EpochStart(epoch, start + epoch) for epoch in range(chance.choice([1, 2, 130]))],
        is_txn_index_empty=chance.random() < 0.5,
        **fields,
    )


def describe(event: Event) -> dict[str, Any]:
    """An event as the shell takes and gives it."""
    row: dict[str, Any] = {
        "kind": type(event).__name__,
        "id": encode_topic_id(event.segment.id),
        "topic": event.segment.path.topic,
        "topic_id": encode_topic_id(event.segment.path.topic_id),
        "partition": event.segment.path.partition,
        "broker_id": event.broker_id,
        "at_ms": event.at_ms,
        "state": int(event.state),
        "custom": to_text(event.custom),
    }
    if isinstance(event, SegmentEvent):
        row |= {
            "start_offset": event.start_offset,
            "end_offset": event.end_offset,
            "max_timestamp": event.max_timestamp,
            "size": event.size,
            "epochs": [[epoch.leader_epoch, epoch.offset] for epoch in event.epochs],
            "is_txn_index_empty": event.is_txn_index_empty,
        }
    return row


@pytest.mark.parametrize("seed", range(4))
def test_kafka_writes_the_same_bytes_and_we_read_them(kafka: JavaShell, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(100):
        event = draw_event(chance)
        written = from_text(kafka.call("encode", **describe(event))["value"])
        assert written is not None
        assert written == encode_event(event)
        assert decode_event(written, "event") == event


@pytest.mark.parametrize("seed", range(4))
def test_kafka_reads_what_we_write(kafka: JavaShell, seed: int) -> None:
    chance = random.Random(100 + seed)
    for _ in range(100):
        event = draw_event(chance)
        value = encode_event(event)
        found = kafka.call("decode", value=to_text(value))
        assert from_text(found.pop("again")) == value
        assert found == describe(event)


def test_what_we_refuse_kafka_refuses_or_reads_with_a_rest(kafka: JavaShell) -> None:
    """Bytes cut or of another version: Kafka never takes what we call damaged for whole."""
    chance = random.Random(5)
    for _ in range(300):
        value = bytearray(encode_event(draw_event(chance)))
        if chance.random() < 0.5:
            del value[chance.randrange(len(value)) :]
        else:
            value[chance.randrange(3)] = chance.randrange(4)
        try:
            event = decode_event(bytes(value), "event")
        except StoreError:
            answer = kafka.try_call("decode", value=to_text(bytes(value)))
            assert "error" in answer or from_text(answer["again"]) != bytes(value)
        else:
            assert event is None or encode_event(event) == bytes(value)


def test_kafka_chooses_the_same_partition(kafka: JavaShell) -> None:
    chance = random.Random(6)
    for _ in range(400):
        home = TopicIdPartition("t", random_topic_id(chance), chance.choice([0, 1, 77, 2**31 - 1]))
        count = chance.choice([1, 2, 3, 50, 1_000])
        answer = kafka.call(
            "partition",
            topic=home.topic,
            topic_id=encode_topic_id(home.topic_id),
            partition=home.partition,
            count=count,
        )
        assert answer["partition"] == choose_partition(home, count)


@pytest.mark.parametrize("seed", range(6))
def test_a_broker_that_reads_our_events_finds_the_same_segments(
    kafka: JavaShell, seed: int
) -> None:
    """After every commit, by id and by leader epoch and offset, in Kafka's own cache."""
    bench = MetadataBench(partition_count=1)
    store = bench.store(HOME)
    history = TierHistory(random.Random(seed))
    taken = 0
    for _ in range(60):
        for change in history.draw(store.load().segments):
            store.commit(
                change, leader_epoch=history.leader_epoch, writer="test", now_ms=history.now_ms
            )
            values = bench.values()
            news = [to_text(value) for value in values[taken:]]
            answer = kafka.call("fill", cache=f"{seed}", values=news)
            assert answer["taken"] == len(news)
            taken = len(values)
            check_same(kafka, f"{seed}", store, history.chance)
    assert taken > 60


def check_same(
    kafka: JavaShell, cache: str, store: TopicManifestStore, chance: random.Random
) -> None:
    manifest = store.load()
    reads = list(draw_reads(manifest, chance))
    answer = kafka.call("look", cache=cache, reads=[pair for pair, _ in reads])
    theirs = sorted(map(theirs_of, answer["segments"]))
    assert theirs == sorted(ours_of(segment) for segment in manifest.segments)
    expected = [None if one is None else encode_topic_id(UUID(one.id)) for _, one in reads]
    assert answer["reads"] == expected
    for (_, offset), one in reads:
        assert store.find(manifest, offset) == one


def draw_reads(
    manifest: Manifest, chance: random.Random
) -> Iterator[tuple[tuple[int, int], RemoteSegment | None]]:
    """Leader epochs and offsets to read, each with the segment that should be read."""
    for segment in manifest.segments:
        if segment.is_readable:
            offset = chance.randint(segment.base_offset, segment.end_offset)
            epoch = max(epoch for epoch, start in segment.epochs if start <= offset)
            yield (epoch, offset), segment
    readable = [one for one in manifest.segments if one.is_readable]
    for segment in manifest.segments:
        offset = segment.base_offset
        if not any(one.base_offset <= offset <= one.end_offset for one in readable):
            yield (segment.epochs[0][0], offset), None


def ours_of(segment: RemoteSegment) -> tuple[object, ...]:
    return (
        encode_topic_id(UUID(segment.id)),
        segment.base_offset,
        segment.end_offset,
        segment.size,
        segment.max_timestamp,
        STATES[segment.state],
        segment.at_ms,
    )


def theirs_of(row: Answer) -> tuple[object, ...]:
    names = ("id", "start_offset", "end_offset", "size", "max_timestamp", "state", "at_ms")
    return tuple(row[name] for name in names)
