"""The examples of docs/reference/formats/remote-log-metadata.md are what a commit writes."""

from dataclasses import replace
from pathlib import Path

from tests.support.remote_builder import HOME
from varve.commit_log.directory_files import decode_topic_id
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.segment import ObjectPart, RemoteSegment, SegmentState
from varve.tiering.metadata.events import TopicIdPartition, encode_event
from varve.tiering.metadata.topic_manifest_store import plan_events

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "formats" / "remote-log-metadata.md"
USER = TopicIdPartition(HOME.topic, decode_topic_id(HOME.topic_id), HOME.partition)
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
        path=HOME, version=6, leader_epoch=5, log_start_offset=1_000, cleaned_up_to=2_000
    )
    announced = base.announce(ANNOUNCED)
    seventh = replace(announced, version=7)
    finished = seventh.finish(
        replace(ANNOUNCED, state=SegmentState.COPY_FINISHED, at_ms=1_767_225_890_000)
    )
    assert examples() == [encode(base, announced), encode(seventh, finished)]
