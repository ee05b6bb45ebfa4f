"""A topic as rows: both tiers, transactions, ranges, filters, splits and the latest state."""

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

import varve
from tests.support.source_topic import NAME, SourceTopic, offsets, read_rows
from varve.commit_log import TopicPartition
from varve.foundation.errors import Corrupt, InvalidRequest, NotFound, ObjectNotFound
from varve.jobs.data_source_options import OptionUse, declared_options
from varve.jobs.sink.target import SinkOptions, parse_sink_options
from varve.jobs.source.arrow_columns import EXTRA_COLUMNS
from varve.jobs.source.options import SourceFilters, SourceOptions, parse_options
from varve.jobs.source.pieces import RemotePiece
from varve.jobs.source.plan import estimate, plan_read, plan_tasks
from varve.jobs.source.topic_source import open_partitions
from varve.records import Codec, Record, build_batch_from_columns
from varve.records.columns import BinaryColumn, HeaderColumns
from varve.spark.columns import make_schema
from varve.spark.data_source import FilteringReader
from varve.spark.topic_query import plan_query
from varve.tiering.manifest.manifest import Manifest

START_MS = 1_700_000_000_000


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[SourceTopic]:
    made = SourceTopic(tmp_path)
    yield made
    made.close()


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[SourceTopic]:
    made = SourceTopic(tmp_path, cleanup_policy="compact")
    yield made
    made.close()


def test_every_column_of_a_record_is_there(topic: SourceTopic) -> None:
    headers = (("trace", b"1"), ("empty", None))
    topic.append([Record(b"k", b"v", headers, START_MS + 5), Record(None, None)], codec=Codec.ZSTD)
    topic.roll()
    topic.copy()
    first, second = topic.rows(columns="producerId,sequence,isTransactional,batchOffset,size")
    assert first == {
        "topic": NAME,
        "partition": 0,
        "offset": 0,
        "timestamp": datetime.fromtimestamp((START_MS + 5) / 1000, UTC),
        "timestampType": 0,
        "key": b"k",
        "value": b"v",
        "headers": [{"key": "trace", "value": b"1"}, {"key": "empty", "value": None}],
        "producerId": None,
        "sequence": None,
        "isTransactional": False,
        "batchOffset": 0,
        "size": 24,
    }
    assert (second["offset"], second["key"], second["value"]) == (1, None, None)
    assert second["timestamp"] is None
    assert second["headers"] == []


def test_a_header_key_that_is_no_text_is_shown_as_kafka_shows_it(topic: SourceTopic) -> None:
    headers = HeaderColumns([1], BinaryColumn.of([b"\xffa"]), BinaryColumn.of([b"1"]))
    batch = build_batch_from_columns(None, BinaryColumn.of([b"v"]), [START_MS], headers)
    topic.topic.partition(0).append_batch(batch)
    topic.roll()
    topic.copy()
    assert topic.rows()[0]["headers"] == [{"key": "\ufffda", "value": b"1"}]


def test_a_directory_alone_is_read(topic: SourceTopic) -> None:
    topic.fill(3, 4)
    options = parse_options({"directory": topic.kit.path, "topic": NAME})
    assert offsets(read_rows(options, SourceFilters())) == list(range(7))


def test_offsets_bound_a_read(topic: SourceTopic) -> None:
    topic.fill(5, 5, 5)
    assert offsets(topic.rows(startingOffset="3", endingOffset="8")) == [3, 4, 5, 6, 7]
    start, end = '{"orders": {"0": 4}}', '{"0": 6}'
    assert offsets(topic.rows(startingOffsets=start, endingOffsets=end)) == [4, 5]
    assert offsets(topic.rows(is_hot=True, startingOffset="12")) == [12, 13, 14]


def test_times_bound_a_read_as_offsets_do(topic: SourceTopic) -> None:
    topic.fill(2, 2, 2)  # a minute between segments
    minute = START_MS + 60_000
    assert offsets(topic.rows(startingTimestamp=str(minute))) == [2, 3]
    assert offsets(topic.rows(endingTimestamp=str(minute))) == [0, 1]
    hot = topic.rows(is_hot=True, startingTimestamp=str(minute + 1))
    assert offsets(hot) == [4, 5]


def test_filters_narrow_what_is_read(tmp_path: Path) -> None:
    topic = SourceTopic(tmp_path, partitions=3)
    for number in range(3):
        topic.put(("a", "1"), ("b", "2"), partition=number)
        topic.roll(number)
        topic.copy(number)
    assert {row["partition"] for row in topic.rows()} == {0, 1, 2}
    only = SourceFilters(partitions=frozenset({1}), start_offset=1)
    assert [(row["partition"], row["offset"]) for row in topic.rows(only)] == [(1, 1)]
    assert {piece.partition for piece in plan_read(topic.options(), only).pieces} == {1}
    topic.close()


def test_segments_before_a_time_are_not_read(topic: SourceTopic) -> None:
    topic.fill(2, 2, 2, 2)
    late = SourceFilters(min_ms=START_MS + 90_000)
    plan = plan_read(topic.options(), late)
    assert [piece.start_offset for piece in plan.pieces] == [4]
    assert offsets(topic.rows(late)) == [4, 5]


def test_a_key_is_found_through_the_key_indexes(keyed: SourceTopic) -> None:
    keyed.fill(3, 5, 2, 1)
    wanted = SourceFilters(keys=frozenset({b"k4"}))
    assert offsets(keyed.rows(wanted)) == [7]
    assert offsets(keyed.rows(SourceFilters(keys=frozenset({b"k0"})))) == [0, 3, 8]
    assert keyed.rows(SourceFilters(keys=frozenset({b"none"}))) == []
    assert keyed.rows(SourceFilters(keys=frozenset())) == []


def test_a_segment_without_the_key_is_not_read(keyed: SourceTopic) -> None:
    keyed.fill(1, 3, 1)
    pieces = plan_read(keyed.options(), SourceFilters()).pieces
    assert isinstance(pieces[0], RemotePiece)
    key = pieces[0].remote_path.part_key(pieces[0].segment, "log")
    keyed.kit.objects.delete([key])
    wanted = SourceFilters(keys=frozenset({b"k2"}))
    assert offsets(keyed.rows(wanted)) == [3]
    with pytest.raises(ObjectNotFound, match="replaced or expired"):
        keyed.rows()


def test_an_older_manifest_shows_what_was_there(topic: SourceTopic) -> None:
    topic.fill(2, 2)
    before = topic.now
    topic.kit.advance(minutes=5)
    topic.fill(2, 2)
    assert len(topic.rows(asOf=str(before))) == 2
    assert len(topic.rows()) > 2
    with pytest.raises(NotFound, match="version 999"):
        topic.rows(version="999")


def test_records_before_the_log_start_are_not_rows(topic: SourceTopic) -> None:
    topic.fill(4, 4)
    topic.topic.delete_records(2)
    tier = topic.kit.store.tier
    assert tier is not None
    tier.expire(TopicPartition(NAME, 0), topic.now)
    assert offsets(topic.rows(is_hot=True)) == list(range(2, 8))


def test_splits_have_like_sizes_and_lose_nothing(topic: SourceTopic) -> None:
    for number in range(40):
        topic.append([Record(b"k", bytes(5_000), timestamp=START_MS)] * 2)
        if number % 13 == 12:
            topic.roll()
    topic.roll()
    topic.copy()
    tasks = plan_tasks(topic.options(splitBytes="60000"), SourceFilters())
    sizes = [sum(piece.size for piece in task.pieces) for task in tasks]
    assert len(sizes) == 6
    assert max(sizes) < 1.8 * min(sizes)
    assert offsets(topic.rows(splitBytes="60000")) == list(range(80))


def test_an_estimate_tells_requests_and_bytes(topic: SourceTopic) -> None:
    topic.fill(3, 4, 5)
    found = estimate(topic.options())
    assert (found.partitions, found.segments, found.records) == (1, 2, 7)
    assert found.requests >= 2
    assert found.cold_bytes == plan_read(topic.options(), SourceFilters()).size
    assert (found.cost, found.hot_bytes) == (0.0, 0)
    assert estimate(topic.options(is_hot=True)).hot_bytes > 0


def test_damaged_data_is_a_named_error(topic: SourceTopic) -> None:
    topic.fill(3, 1)
    (piece,) = plan_read(topic.options(), SourceFilters()).pieces
    assert isinstance(piece, RemotePiece)
    key = piece.remote_path.part_key(piece.segment, "log")
    data = np.frombuffer(bytearray(topic.kit.objects.get(key)), np.uint8)
    data[70] ^= 1
    topic.kit.objects.put(key, data.tobytes())
    with pytest.raises(Corrupt, match=r"log.*position 0.*CRC"):
        topic.rows()


def test_aborted_records_are_no_rows_without_their_index(topic: SourceTopic) -> None:
    topic.write([Record(b"a", b"1", timestamp=topic.now)], producer_id=1)
    topic.end(producer_id=1, committed=False)
    topic.roll()
    topic.copy()
    assert topic.rows() == []

    def drop_index(manifest: Manifest) -> Manifest:
        (segment,) = manifest.segments
        parts = tuple(part for part in segment.parts if part.name != "txnindex")
        return manifest.update(replace(segment, parts=parts))

    manifests = topic.kit.store.tier.partitions.get(TopicPartition(NAME, 0)).manifests
    manifests.commit(drop_index, leader_epoch=None, writer="test", now_ms=topic.now)
    with pytest.raises(Corrupt, match="has no txnindex"):
        topic.rows()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"topc": "x"}, r"no option 'topc' of a read: did you mean topic\?$"),
        ({"subscribe": "x"}, r"did you mean topic\?$"),
        ({"path": "x"}, r"did you mean directory\?$"),
        ({"dir": "x"}, r"did you mean directory\?$"),
        ({"store": "x"}, r"did you mean url\?$"),
        ({"zzz": "x"}, r"there are topic, url, store.NAME.*bootstrap.servers"),
        ({"startingOfset": "1"}, r"did you mean startingOffset\?"),
        ({"bootstrap.server": "h:1"}, r"did you mean bootstrap.servers\?"),
        ({"topic": "x"}, "url, or directory"),
        ({"mode": "last"}, "mode='last' cannot be used: use one of history, latest$"),
        ({"isolation": "none"}, "use one of read_committed, read_uncommitted$"),
        ({"startingOffset": "abc"}, "write a number, earliest, latest, or JSON such as"),
        ({"startingOffset": "-5"}, "write a number, earliest, latest, or JSON such as"),
        ({"startingOffset": '{"0": '}, "write a number, earliest, latest, or JSON such as"),
        ({"startingOffset": '{"a": 1}'}, "write a number, earliest, latest, or JSON such as"),
        ({"startingOffset": '{"0": true}'}, "True of partition 0 is not an offset"),
        ({"endingOffset": '{"0": -7}'}, "-7 of partition 0 is not an offset"),
        ({"startingTimestamp": "yesterday"}, "write milliseconds since 1970, or 2026-03-01T12"),
        ({"splitBytes": "64m"}, "write a number, at least 1"),
        ({"url": "memory:"}, "topic is missing"),
        ({"url": "memory:", "topic": "x", "splitBytes": "0"}, "at least 1"),
        (
            {"url": "memory:", "topic": "x", "startingOffset": "1", "startingOffsets": "2"},
            "not both",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        parse_options(given)


def test_a_missing_directory_is_named_in_full(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    options = parse_options({"directory": "dta", "topic": "x"})
    with pytest.raises(NotFound, match=f"directory {tmp_path}/dta does not exist: name an exist"):
        open_partitions(options)


def test_every_extra_column_is_among_the_values_of_its_option() -> None:
    values = declared_options(SourceOptions)["columns"].values
    assert re.findall(r"`(\w+)`", values) == list(EXTRA_COLUMNS)


@pytest.mark.parametrize(
    ("cls", "given", "use", "message"),
    [
        (SourceOptions, {"maxOffsetsPerTrigger": "1"}, OptionUse.BATCH, "for a stream read"),
        (SourceOptions, {"failOnDataLoss": "false"}, OptionUse.BATCH, "for a stream read"),
        (SourceOptions, {"endingOffsets": "1"}, OptionUse.STREAM, "endingOffsets is for a batch"),
        (SinkOptions, {"epoch": "1", "sinkId": "s"}, OptionUse.STREAM, "epoch is for a batch"),
        (SinkOptions, {"queryName": "q"}, OptionUse.BATCH, "queryName is for a stream write"),
    ],
)
def test_an_option_that_a_query_would_ignore_is_refused(
    cls: type[SourceOptions | SinkOptions], given: dict[str, str], use: OptionUse, message: str
) -> None:
    parse = parse_options if cls is SourceOptions else parse_sink_options
    options = {"directory": "d", "topic": "x", **given}
    parse(options)
    with pytest.raises(InvalidRequest, match=message):
        parse(options, use)


@pytest.mark.parametrize("name", ["startingOffset", "endingOffset"])
def test_an_offset_of_a_partition_that_is_not_there_is_refused(
    topic: SourceTopic, name: str
) -> None:
    topic.fill(1, 1)
    given = topic.options(is_hot=True, **{name: '{"0": 0, "7": 1}'})
    with pytest.raises(NotFound, match=r"orders has no partition 7 \(partitions: 0\)"):
        plan_read(given, SourceFilters())


def test_a_query_of_a_partition_that_is_not_there_is_refused(topic: SourceTopic) -> None:
    topic.fill(1, 1)
    planned = plan_query(varve.TopicLocation(store=topic.url), NAME, partition=7)
    for refused in (planned.check, planned.estimate):
        with pytest.raises(NotFound, match="no partition 7"):
            refused()


@pytest.mark.parametrize("place", ["url", "directory"])
def test_an_unknown_topic_names_those_there_are(topic: SourceTopic, place: str) -> None:
    topic.fill(1, 1)
    at = {"url": topic.url, "directory": topic.kit.path}[place]
    with pytest.raises(NotFound, match=r"'order'.*; did you mean orders\? \(topics: orders\)"):
        plan_read(parse_options({place: at, "topic": "order"}), SourceFilters())


def test_one_directory_of_two_does_not_pass_for_the_whole_topic(tmp_path: Path) -> None:
    both = [str(tmp_path / "d1"), str(tmp_path / "d2")]
    with varve.open(both, maintain=False) as store:
        store.create_topic("plain", partitions=4)
    whole = SourceOptions(topic="plain", directories=tuple(both))
    assert [one.number for one in open_partitions(whole)] == [0, 1, 2, 3]
    half = SourceOptions(topic="plain", directories=(both[0],))
    with pytest.raises(InvalidRequest, match=r"partitions \d, \d of plain are not in .*/d1:"):
        open_partitions(half)
    there = {int(one.name.rpartition("-")[2]) for one in Path(both[0]).glob("plain-*")}
    assert {one.number for one in open_partitions(half, frozenset(there))} == there


MOMENT = datetime(2024, 1, 1, tzinfo=UTC)
MOMENT_MS = round(MOMENT.timestamp() * 1000)
LATE = GreaterThanOrEqual(("timestamp",), MOMENT)
SEVERAL = In(("offset",), (7, 3))
ABOVE = GreaterThan(("offset",), 4)
KEY = EqualTo(("key",), bytearray(b"k"))
KEYS = frozenset({b"k"})
UNUSED = [
    IsNotNull(("key",)),
    EqualNullSafe(("key",), None),
    EqualTo(("value",), b"v"),
    EqualTo(("headers", "key"), "h"),
]


@pytest.mark.parametrize(
    ("mode", "filters", "taken", "left"),
    [
        pytest.param(
            "history",
            [
                In(("partition",), (1, 2, 3)),
                EqualTo(("partition",), 2),
                ABOVE,
                LessThanOrEqual(("offset",), 9),
            ],
            SourceFilters(partitions=frozenset({2}), start_offset=5, end_offset=10),
            [],
            id="partitions and offsets for good",
        ),
        pytest.param(
            "history",
            [GreaterThanOrEqual(("offset",), 4), LessThan(("offset",), 7)],
            SourceFilters(start_offset=4, end_offset=7),
            [],
            id="bounds with and without themselves",
        ),
        pytest.param(
            "history",
            [LATE, KEY],
            SourceFilters(min_ms=MOMENT_MS - 1, keys=KEYS),
            [LATE, KEY],
            id="times and keys are looked at again",
        ),
        pytest.param(
            "history",
            [SEVERAL],
            SourceFilters(start_offset=3, end_offset=8),
            [SEVERAL],
            id="several offsets bound the read and are looked at again",
        ),
        pytest.param(
            "latest",
            [ABOVE, KEY, EqualTo(("partition",), 1)],
            SourceFilters(partitions=frozenset({1}), keys=KEYS),
            [ABOVE, KEY],
            id="of the latest state only partitions and keys",
        ),
        pytest.param("history", UNUSED, SourceFilters(), UNUSED, id="others are left to Spark"),
    ],
)
def test_what_a_filter_narrows_and_what_spark_looks_at_again(
    mode: str, filters: list[Filter], taken: SourceFilters, left: list[Filter]
) -> None:
    options = parse_options({"url": "memory:", "topic": "orders", "mode": mode})
    reader = FilteringReader(options, make_schema())
    assert list(reader.pushFilters(filters)) == left
    assert reader._filters == taken
