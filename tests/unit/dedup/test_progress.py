"""The record that tells how far a partition has come."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support.dedup_cases import rules_of
from varve.dedup.progress import (
    Progress,
    decode_progress,
    encode_progress,
    find_progress,
    progress_batch,
)
from varve.dedup.rules import Counts, DedupRules, LatePolicy, NullPolicy, parse_id_source
from varve.foundation.errors import Corrupt
from varve.records import Producer, Record, build_batch
from varve.testing import VirtualStore
from varve.topics import HistoryMark, StoreCluster

SECRET = "00" * 16


def progress(position: int) -> Progress:
    return Progress(position=position, secret=SECRET, rules=rules_of(), input="in", output="out")


class ProgressTopic:
    """A progress topic in memory, and how often it was fetched from."""

    def __init__(self) -> None:
        self.virtual = VirtualStore()
        self.topic = self.virtual.store.create_topic("p", partitions=1)
        self.fetches = 0

    def append(self, data: bytes) -> None:
        self.topic.append_batch(data, 0)

    def find(self) -> Progress | None:
        reader = StoreCluster(self.virtual.store).reader("p")
        fetch = reader.fetch

        def counted(*options: Any, **more: Any) -> Any:
            self.fetches += 1
            return fetch(*options, **more)

        reader.fetch = counted  # type: ignore[method-assign]
        return find_progress(reader, 0)


def test_what_was_written_is_read_back() -> None:
    options = Progress(
        position=17,
        secret="ab" * 16,
        rules=DedupRules(
            by=parse_id_source("header:id"),
            before_ms=5,
            after_ms=6,
            lateness_ms=7,
            late=LatePolicy.SIDE,
            future=LatePolicy.DROP,
            null=NullPolicy.DROP,
            is_refreshing=True,
        ),
        input="in",
        output="out",
        stream_time_ms=99,
        counts=Counts(kept=3, duplicates=2, no_id=1),
        input_id="in",
        output_id="out",
        committed_ms=12,
        generation=2,
        producer=Producer(1 << 62, 7),
        sequences={"out": 3},
        mark=HistoryMark(base_offset=10, last_offset=16, leader_epoch=4, crc=7),
    )
    assert decode_progress(encode_progress(options), "p-0") == options
    assert decode_progress(encode_progress(progress(3)), "p-0") == progress(3)


def test_the_producer_is_written_by_its_fields() -> None:
    options = replace(progress(3), producer=Producer(5, 7))
    assert json.loads(encode_progress(options))["producer"] == {"id": 5, "epoch": 7}


@pytest.mark.parametrize(
    "value", [None, b"", b"{}", b"[]", b'{"format":9}', encode_progress(progress(1))[:-2]]
)
def test_what_no_deduplication_wrote_is_refused(value: bytes | None) -> None:
    with pytest.raises(Corrupt, match=r"p-0, offset 4: .* choose another name"):
        decode_progress(value, "p-0, offset 4")


def test_an_empty_topic_has_no_progress() -> None:
    assert ProgressTopic().find() is None


def test_the_last_record_counts_and_is_found_from_the_end() -> None:
    topic = ProgressTopic()
    for position in range(1_000):
        topic.append(progress_batch(progress(position), 5))
    assert topic.find() == progress(999)
    assert topic.fetches <= 2


def test_a_record_far_from_the_end_is_found_as_well() -> None:
    topic = ProgressTopic()
    topic.append(progress_batch(progress(1), 5))
    topic.append(progress_batch(progress(2), 5))
    for _ in range(300):
        topic.append(build_batch([Record(b"other", b"x")]))
    assert topic.find() == progress(2)
    topic.topic.delete_records(before=1)
    assert topic.find() == progress(2)
    topic.topic.delete_records(before=2)
    assert topic.find() is None
