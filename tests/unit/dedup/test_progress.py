"""The record that tells how far a partition has come."""

import pytest

from tests.support.dedup_stage import rules_of
from varve.dedup.producing import Producer
from varve.dedup.progress import (
    Progress,
    decode_progress,
    encode_progress,
    find_last_progress,
    progress_batch,
)
from varve.dedup.rules import Counts, DedupRules, LatePolicy, NullPolicy, parse_id_source
from varve.foundation.errors import Corrupt
from varve.records import Batch, Record, build_batch

SECRET = "00" * 16


def progress(position: int) -> Progress:
    return Progress(position=position, secret=SECRET, rules=rules_of(), input="in", output="out")


class FakeTopic:
    """Batches by offset; a read gives one of them, as the smallest answer would."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.end = 0
        self.reads = 0

    def append(self, data: bytes) -> None:
        self.batches.append(Batch(bytes(self.end.to_bytes(8)) + data[8:]))
        self.end = self.batches[-1].header.next_offset

    def read(self, offset: int) -> tuple[list[Batch], int]:
        self.reads += 1
        found = [one for one in self.batches if one.header.last_offset >= offset]
        return (found[:1], found[0].header.next_offset) if found else ([], self.end)

    def find(self, start: int = 0) -> Progress | None:
        return find_last_progress(self.read, start=start, end=self.end, where="p-0")


def test_what_was_written_is_read_back() -> None:
    given = Progress(
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
    )
    assert decode_progress(encode_progress(given), "p-0") == given
    assert decode_progress(encode_progress(progress(3)), "p-0") == progress(3)


@pytest.mark.parametrize(
    "value", [None, b"", b"{}", b"[]", b'{"format":9}', encode_progress(progress(1))[:-2]]
)
def test_what_no_deduplication_wrote_is_refused(value: bytes | None) -> None:
    with pytest.raises(Corrupt, match=r"p-0, offset 4: .* choose another name"):
        decode_progress(value, "p-0, offset 4")


def test_an_empty_topic_has_no_progress() -> None:
    assert FakeTopic().find() is None


def test_the_last_record_counts_and_is_found_from_the_end() -> None:
    topic = FakeTopic()
    for position in range(1_000):
        topic.append(progress_batch(progress(position), 5))
    assert topic.find() == progress(999)
    assert topic.reads <= 16


def test_a_record_far_from_the_end_is_found_as_well() -> None:
    topic = FakeTopic()
    topic.append(progress_batch(progress(1), 5))
    topic.append(progress_batch(progress(2), 5))
    for _ in range(300):
        topic.append(build_batch([Record(b"other", b"x")]))
    assert topic.find() == progress(2)
    assert topic.find(start=1) == progress(2)
    assert topic.find(start=2) is None
