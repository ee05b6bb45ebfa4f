"""A topic read through its server: the same rows as from its files, the cold ones from the tier."""

from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from tests.support.certificates import Authority
from tests.support.secure_server import ADMIN, PASSWORD, SecureServer
from tests.support.serving import Serving
from tests.support.source_topic import NAME, Row, SourceTopic, offsets, read_rows
from varve.foundation.errors import (
    InvalidRequest,
    NotFound,
    OffsetOutOfRange,
    StoreDenied,
    Unavailable,
)
from varve.jobs.source.arrow_columns import ArrowColumns, list_columns
from varve.jobs.source.options import SourceFilters, SourceOptions, learn_tier, parse_options
from varve.jobs.source.pieces import RemotePiece, ServedPiece
from varve.jobs.source.plan import estimate, plan_read, plan_tasks
from varve.jobs.source.read import TaskRead, read_task
from varve.kafka_client.client import open_client
from varve.records import Codec, Record
from varve.spark.columns import make_schema
from varve.spark.stream_reader import TaskPartition, VarveStreamReader
from varve.testing import KafkaKit

START_MS = 1_700_000_000_000
COLUMNS = "producerId,producerEpoch,sequence,leaderEpoch,isTransactional,batchOffset,size"


class Bench:
    """A topic with a cold part, and its server."""

    def __init__(self, topic: SourceTopic, bootstrap: str) -> None:
        self.topic = topic
        self.bootstrap = bootstrap

    def options(self, **more: str) -> SourceOptions:
        given = {"bootstrap.servers": self.bootstrap, "topic": NAME, **more}
        return learn_tier(parse_options(given))

    def rows(self, filters: SourceFilters | None = None, **more: str) -> list[Row]:
        return read_rows(self.options(**more), filters or SourceFilters())


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    topic = SourceTopic(tmp_path, cleanup_policy="delete")
    with Serving(topic.kit.store) as serving:
        yield Bench(topic, serving.bootstrap)
    topic.close()


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[Bench]:
    topic = SourceTopic(tmp_path, cleanup_policy="compact")
    with Serving(topic.kit.store) as serving:
        yield Bench(topic, serving.bootstrap)
    topic.close()


def fill(topic: SourceTopic, *counts: int) -> None:
    """All segments but the last are copied, and leave the disk."""
    topic.fill(*counts)
    topic.move()
    topic.flush()


def values(rows: list[Row]) -> list[bytes | None]:
    return [row["value"] for row in rows]


def test_rows_are_those_of_the_files_with_all_that_batches_tell(bench: Bench) -> None:
    topic = bench.topic
    headers = (("trace", b"1"), ("empty", None))
    for codec in Codec:
        topic.append([Record(b"k", b"v" * 40, headers, START_MS + 5)] * 3, codec=codec)
    topic.append([Record(None, None)])
    topic.write([Record(b"t", b"1", (), START_MS)], producer_id=9)
    topic.end(producer_id=9, committed=True)
    topic.flush()
    expected = topic.rows(is_hot=True, columns=COLUMNS)
    assert bench.rows(columns=COLUMNS) == expected
    assert len(expected) == 3 * len(Codec) + 2


def test_the_remote_part_is_read_from_the_tier_that_the_server_names(bench: Bench) -> None:
    fill(bench.topic, 4, 3, 2)
    options = bench.options()
    assert options.address is not None
    assert options.address.url == bench.topic.url
    pieces = plan_read(options, SourceFilters()).pieces
    assert [type(one) for one in pieces] == [RemotePiece, RemotePiece, ServedPiece]
    assert (pieces[-1].start_offset, pieces[-1].end_offset) == (7, 9)
    assert offsets(bench.rows()) == list(range(9))
    assert bench.rows(url=bench.topic.url) == bench.rows()
    found = estimate(options)
    assert (found.segments, found.cold_bytes > 0, found.hot_bytes > 0) == (2, True, True)


def test_times_bound_a_read(bench: Bench) -> None:
    topic = bench.topic
    for number in range(10):
        if number == 5:
            topic.roll()
        topic.append([Record(b"k", b"%d" % number, (), START_MS + 1000 * number)])
    topic.copy()
    topic.move()
    topic.flush()
    for first, last in ((2, 4), (4, 8), (6, 8)):
        found = bench.rows(
            startingTimestamp=str(START_MS + 1000 * first - 1),
            endingTimestamp=str(START_MS + 1000 * last),
        )
        assert offsets(found) == list(range(first, last))
    later = SourceFilters(min_ms=START_MS + 7000, max_ms=START_MS + 8000)
    assert offsets(bench.rows(later)) == [7, 8]
    assert offsets(bench.rows(SourceFilters(min_ms=START_MS + 90_000))) == []
    assert offsets(bench.rows(startingTimestamp=str(START_MS + 90_000))) == []
    assert offsets(bench.rows(SourceFilters(start_offset=8))) == [8, 9]


def test_keys_and_the_latest_state(keyed: Bench) -> None:
    fill(keyed.topic, 6, 5, 4)
    keyed.topic.put(("k5", None), ("k0", "new"))
    keyed.topic.flush()
    wanted = SourceFilters(keys=frozenset({b"k3"}))
    assert values(keyed.rows(wanted)) == [b"s0", b"s1", b"s2"]
    expected = {(row["key"], row["value"]) for row in keyed.topic.rows(is_hot=True, mode="latest")}
    for name, value in (("mode", "latest"), ("throughServer", "true"), ("splitBytes", "50")):
        found = read_rows(keyed.options(**{"mode": "latest", name: value}), SourceFilters())
        assert {(row["key"], row["value"]) for row in found} == expected
        assert len(found) == len(expected) == 5
    assert values(keyed.rows(wanted, mode="latest")) == [b"s2"]


def test_a_stream_goes_on_behind_what_it_read(bench: Bench) -> None:
    fill(bench.topic, 6, 4)
    reader = VarveStreamReader(bench.options(maxOffsetsPerTrigger="7"), make_schema())
    begin = reader.initialOffset()
    middle = reader.latestOffset(begin, reader.getDefaultReadLimit())
    assert (begin["offsets"], middle["offsets"]) == ({"0": 0}, {"0": 7})
    assert _read(reader, begin, middle) == list(range(7))
    reader.prepareForTriggerAvailableNow()
    bench.topic.put(("late", "1"))
    bench.topic.flush()
    end = reader.latestOffset(middle, ReadAllAvailable())
    assert end["offsets"] == {"0": 10}
    assert _read(reader, middle, end) == [7, 8, 9]
    fresh = VarveStreamReader(bench.options(), make_schema())
    assert fresh.latestOffset(end, ReadAllAvailable())["offsets"] == {"0": 11}
    assert fresh.latestOffset({"0": 0}, ReadMaxRows(1))["offsets"] == {"0": 1}
    assert fresh.latestOffset({"0": 0}, ReadMaxBytes(1))["offsets"] == {"0": 1}


def _read(reader: VarveStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    rows: list[int] = []
    for partition in reader.partitions(start, end):
        assert isinstance(partition, TaskPartition)
        rows += [row["offset"] for batch in reader.read(partition) for row in batch.to_pylist()]
    return rows


def test_offsets_that_expired_since_the_plan_are_told(bench: Bench) -> None:
    fill(bench.topic, 3, 3)
    options = bench.options(throughServer="true")
    tasks = plan_tasks(options, SourceFilters())
    bench.topic.topic.partition(0).log.delete_records(5)
    with pytest.raises(OffsetOutOfRange, match="OFFSET_OUT_OF_RANGE"):
        _run(tasks, options)
    assert offsets(bench.rows()) == [5]
    assert offsets(bench.rows(throughServer="true")) == [5]


def _run(tasks: list[TaskRead], options: SourceOptions) -> int:
    columns = ArrowColumns(list_columns())
    read = [batch for task in tasks for batch in read_task(task, columns, options, SourceFilters())]
    return len(read)


def test_a_server_that_restarts_is_asked_again() -> None:
    with KafkaKit() as kit:
        topic = kit.store.create_topic("t", partitions=2)
        topic.append_many([Record(b"%d" % number, b"v") for number in range(20)])
        kit.restart()
        options = parse_options({"server": kit.bootstrap, "topic": "t"})
        before = read_rows(options, SourceFilters())
        assert len(before) == 20
        kit.restart()
        assert read_rows(options, SourceFilters()) == before
        only = SourceFilters(partitions=frozenset({1}))
        assert {row["partition"] for row in read_rows(options, only)} == {1}


def test_what_is_not_there_is_told_at_once(bench: Bench) -> None:
    with pytest.raises(NotFound, match="has no topic 'lost'"):
        bench.options(topic="lost")
    with pytest.raises(Unavailable, match="no broker answers at 127"):
        learn_tier(parse_options({"server": "127.0.0.1:1", "topic": "t"}))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"server": "h"}, "is not HOST:PORT"),
        ({"sasl.username": "u"}, "give bootstrap.servers too"),
        ({"server": "h:1", "bootstrap.servers": "h:1"}, "not both"),
        ({"server": "h:1", "directory": "d"}, "not both"),
        ({"server": "h:1", "security.protocol": "TLS"}, "security.protocol cannot be 'TLS'"),
        ({"server": "h:1", "security.protocol": "SASL_SSL"}, "sasl.mechanism is missing"),
        ({"server": "h:1", "request.timeout.ms": "soon"}, "is not a number of milliseconds"),
        ({"server": "h:1", "url": "memory:", "throughServer": "true"}, "without url"),
        ({"url": "memory:", "throughServer": "true"}, "goes with bootstrap.servers"),
        ({"server": "h:1", "acks": "1"}, "there is no option 'acks'"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        parse_options({"topic": "t", **given})


def test_an_older_manifest_is_not_asked_of_a_server(bench: Bench) -> None:
    with pytest.raises(InvalidRequest, match="leave out directory and"):
        bench.rows(asOf="2026-01-01")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureServer]:
    folder: Path = tmp_path_factory.mktemp("secure")
    with SecureServer(folder) as made:
        topic = made.store.create_topic("t")
        topic.append_many([Record(b"k", b"v%d" % number) for number in range(3)])
        made.broker.topics.refresh()
        yield made


def read(server: SecureServer, listener: str, **given: str) -> list[bytes]:
    """The values of the topic; names of options have underscores for dots."""
    options = {name.replace("_", "."): value for name, value in given.items()}
    if listener != "SASL_PLAINTEXT":
        options.setdefault("ssl.ca.location", server.file("authority"))
    address = {"bootstrap.servers": server.address(listener), "topic": "t"}
    asked = parse_options({**address, **options})
    assert asked.server is not None
    try:
        return [row["value"] for row in read_rows(learn_tier(asked), SourceFilters())]
    finally:
        open_client(asked.server).close()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_a_client_logs_in_by_its_password(
    server: SecureServer, listener: str, mechanism: str
) -> None:
    login = {"sasl_mechanism": mechanism, "sasl_username": ADMIN}
    given = {"security_protocol": listener, **login}
    assert read(server, listener, **given, sasl_password=PASSWORD) == [b"v0", b"v1", b"v2"]
    with pytest.raises(StoreDenied, match="refuses the login"):
        read(server, listener, **given, sasl_password="wrong")


def test_a_client_shows_a_certificate(server: SecureServer) -> None:
    own = {"ssl_certificate_location": server.file(ADMIN)}
    assert len(read(server, "MUTUAL", security_protocol="SSL", **own)) == 3


def test_a_server_of_another_authority_is_refused(server: SecureServer, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    other.write_text(Authority().pem)
    with pytest.raises(StoreDenied, match=r"set ssl\.ca\.location"):
        read(server, "SSL", security_protocol="SSL", ssl_ca_location=str(other))
    with pytest.raises(InvalidRequest, match="cannot be used"):
        read(server, "SSL", security_protocol="SSL", ssl_ca_location=str(tmp_path / "none"))


def test_a_client_without_rights_is_told_so(server: SecureServer) -> None:
    login = {"sasl_mechanism": "PLAIN", "sasl_username": "alice", "sasl_password": "wonderland"}
    with pytest.raises(StoreDenied, match="TOPIC_AUTHORIZATION_FAILED"):
        read(server, "SASL_PLAINTEXT", security_protocol="SASL_PLAINTEXT", **login)


@pytest.mark.parametrize("listener", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_a_client_without_tls_or_a_login_is_told_so_at_once(
    server: SecureServer, listener: str
) -> None:
    began = monotonic()
    with pytest.raises(Unavailable, match=r"may require TLS or SASL: set security\.protocol"):
        read(server, listener, request_timeout_ms="30000")
    assert monotonic() - began < 5
