"""Events of __remote_log_metadata as bytes, and what varve adds to them."""

from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from tests.support.metadata_bench import make_id
from tests.support.remote_builder import HOME as REMOTE_HOME
from varve.commit_log.directory_files import decode_topic_id
from varve.foundation.errors import Corrupt, InvalidRequest, UnsupportedFormat
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.segment import ObjectPart, RemoteSegment, SegmentState
from varve.tiering.metadata.events import (
    CommitNote,
    CustomMetadata,
    EpochStart,
    Event,
    RemoteState,
    SegmentEvent,
    SegmentId,
    SegmentUpdate,
    TopicIdPartition,
    decode_event,
    encode_custom,
    encode_event,
    is_own,
)
from varve.tiering.metadata.topic import announced
from varve.tiering.metadata.topic_manifest_store import plan_events

HOME = TopicIdPartition("orders", UUID(int=(1 << 64) + 2), 3)
KEY = SegmentId(HOME, UUID(int=(3 << 64) + 4))
HOME_BYTES = "076f7264657273 00000000000000010000000000000002 00000003 00"
KEY_BYTES = f"{HOME_BYTES} 00000000000000030000000000000004 00"
FACTS_BYTES = (
    "0000000000000005 0000000000000006 00000008 0000000000000007 0000000000000009 "
    "02 00000000 0000000000000005 00 0000000a"
)
FIRST = SegmentEvent(
    segment=KEY,
    start_offset=5,
    end_offset=6,
    broker_id=8,
    max_timestamp=7,
    at_ms=9,
    epochs=[EpochStart(0, 5)],
    size=10,
    custom=b"\x01\x02",
    state=RemoteState.COPY_STARTED,
)
EVENTS: list[tuple[Event, str]] = [
    (FIRST, f"010000 {KEY_BYTES} {FACTS_BYTES} 030102 00 00"),
    (
        replace(FIRST, custom=None, is_txn_index_empty=True),
        f"010000 {KEY_BYTES} {FACTS_BYTES} 00 00 01000101",
    ),
    (
        SegmentUpdate(
            segment=KEY, broker_id=8, at_ms=9, state=RemoteState.DELETE_FINISHED, custom=None
        ),
        f"010100 {KEY_BYTES} 00000008 0000000000000009 00 03 00",
    ),
]
SKIPPED = [
    f"010200 {HOME_BYTES} 0000000c 000000000000000b 01 00",
    f"010300 00000000000000030000000000000004 {FACTS_BYTES} 01 01 00",
]


@pytest.mark.parametrize("text", SKIPPED)
def test_the_deletion_of_a_partition_and_a_snapshot_are_skipped(text: str) -> None:
    assert decode_event(bytes.fromhex(text), "event") is None


@pytest.mark.parametrize(("event", "text"), EVENTS)
def test_an_event_has_the_bytes_that_kafka_gives_it(event: Event, text: str) -> None:
    assert encode_event(event) == bytes.fromhex(text)
    assert decode_event(bytes.fromhex(text), "event") == event


@pytest.mark.parametrize(("event", "text"), EVENTS)
def test_a_cut_event_is_corrupt(event: Event, text: str) -> None:
    data = bytes.fromhex(text)
    for size in range(len(data)):
        with pytest.raises(Corrupt, match="topic at 5"):
            decode_event(data[:size], "topic at 5")
    with pytest.raises(Corrupt, match="1 bytes after the end"):
        decode_event(data + b"\0", "event")


def test_tagged_fields_of_later_versions_are_passed_over() -> None:
    event, text = EVENTS[2]
    data = bytes.fromhex(text)[:-1] + bytes.fromhex("01 63 02 abcd")
    assert decode_event(data, "event") == event


@pytest.mark.parametrize("prefix", ["020000", "010400", "010001"])
def test_an_unknown_version_or_type_is_named(prefix: str) -> None:
    with pytest.raises(UnsupportedFormat, match="use a later one"):
        decode_event(bytes.fromhex(prefix) + bytes(80), "event")


@pytest.mark.parametrize("state", [9, 255])
def test_an_unknown_state_is_corrupt(state: int) -> None:
    data = bytearray.fromhex(EVENTS[2][1])
    data[-2] = state
    with pytest.raises(Corrupt, match="is not a state"):
        decode_event(bytes(data), "event")


def test_a_number_that_does_not_fit_its_field_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="4294967296"):
        encode_event(replace(FIRST, size=1 << 32))


def read_back(custom: bytes, segment: RemoteSegment, event_ms: int) -> RemoteSegment:
    """The segment from its custom metadata and what an event says of it."""
    first = replace(
        FIRST,
        segment=SegmentId(HOME, UUID(segment.id)),
        start_offset=segment.base_offset,
        end_offset=segment.end_offset,
        max_timestamp=segment.max_timestamp,
        size=segment.size,
        epochs=[EpochStart(*epoch) for epoch in segment.epochs],
    )
    base = replace(announced(first, segment.state), at_ms=segment.at_ms)
    return CustomMetadata(custom, event_ms=event_ms, where="event").decode_segment(base)


def large_segment() -> RemoteSegment:
    """A segment with every part and field, in a partition of half a quadrillion records."""
    names = ("log", "index", "timeindex", "txnindex", "snapshot", "epochs", "keys")
    sizes = (2**31 - 1, 10 << 20, 10 << 20, 1 << 19, 1 << 19, 8_000, 2**31)
    now_ms = 1_790_000_000_000
    return RemoteSegment(
        id=make_id("large"),
        base_offset=2**49 - 2**31,
        end_offset=2**49 - 2,
        size=2**31 - 1,
        record_count=2**31 - 1,
        max_timestamp=-1,
        append_ms=(now_ms - 31_000_000_000, now_ms - 1),
        epochs=((2**20, 2**49 - 2**31),),
        parts=tuple(
            ObjectPart(name, size, 2**32 - 1) for name, size in zip(names, sizes, strict=True)
        ),
        has_aborted=True,
        state=SegmentState.DELETE_STARTED,
        at_ms=now_ms,
        key_count=2**31 - 1,
        stale_bytes=2**31 - 1,
        delete_horizon_ms=now_ms + 31_000_000_000,
        replaced_until_ms=now_ms + 31_000_000_000,
        undecided_from=2**49 - 3,
    )


def test_all_that_varve_says_of_a_large_segment_fits_the_limit_of_kafka() -> None:
    segment = large_segment()
    note = CommitNote(
        number=2**28 - 1,
        leader_epoch=2**20,
        at_ms=segment.at_ms,
        log_start_offset=2**49 - 1,
        cleaned_up_to=2**49 - 1,
    )
    custom = encode_custom(note, segment, event_ms=segment.at_ms)
    assert len(custom) <= 128
    assert read_back(custom, segment, segment.at_ms) == segment


def test_damaged_custom_metadata_is_corrupt_and_a_later_format_is_named() -> None:
    segment = large_segment()
    note = CommitNote(number=1, leader_epoch=0, at_ms=0, log_start_offset=0, cleaned_up_to=0)
    custom = encode_custom(note, segment, event_ms=segment.at_ms)
    for size in range(1, len(custom)):
        with pytest.raises(Corrupt):
            read_back(custom[:size], segment, segment.at_ms)
    with pytest.raises(Corrupt, match="after the end"):
        read_back(custom + b"\0", segment, segment.at_ms)
    with pytest.raises(UnsupportedFormat, match="format 2"):
        read_back(custom[:1] + b"\2" + custom[2:], segment, segment.at_ms)
    assert not is_own(b"\0plugin")
    assert not is_own(None)


# The examples of docs/reference/formats/remote-log-metadata.md are what a commit writes


PAGE = Path(__file__).parents[4] / "docs" / "reference" / "formats" / "remote-log-metadata.md"
USER = TopicIdPartition(
    REMOTE_HOME.topic, decode_topic_id(REMOTE_HOME.topic_id), REMOTE_HOME.partition
)
ANNOUNCED = RemoteSegment(
    id="1a5d8c3f-e0b4-4297-9f68-c7b2a1d4e3f5",
    base_offset=3_000,
    end_offset=3_999,
    size=1_048_576,
    record_count=1_000,
    max_timestamp=1_767_225_780_000,
    append_ms=(1_767_225_720_000, 1_767_225_780_000),
    epochs=((5, 3_000),),
    parts=(ObjectPart("log", 1_048_576, 2_774_839_118), ObjectPart("index", 2_048, 1_044_311_523)),
    has_aborted=False,
    state=SegmentState.COPY_STARTED,
    at_ms=1_767_225_880_000,
)


def examples() -> list[bytes]:
    blocks = PAGE.read_text(encoding="utf-8").split("```hex\n")[1:]
    return [
        b"".join(bytes.fromhex(line.split(";")[0]) for line in block.split("```")[0].splitlines())
        for block in blocks
    ]


def encode(base: Manifest, changed: Manifest) -> bytes:
    (event,) = plan_events(USER, base, changed, broker_id=1, at_ms=changed.segments[0].at_ms)
    return encode_event(event)


def test_the_examples_are_what_is_written() -> None:
    base = Manifest(
        path=REMOTE_HOME, version=6, leader_epoch=5, log_start_offset=1_000, cleaned_up_to=2_000
    )
    announced = base.announce(ANNOUNCED)
    seventh = replace(announced, version=7)
    finished = seventh.finish(
        replace(ANNOUNCED, state=SegmentState.COPY_FINISHED, at_ms=1_767_225_890_000)
    )
    assert examples() == [encode(base, announced), encode(seventh, finished)]
