"""An input that lost its end and grew again is noticed: nothing is skipped in silence."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.dedup_contract import T, make_rules
from tests.support.topics_bench import ServerBench, StoreBench
from varve.dedup import Deduplicator
from varve.embedded import Store
from varve.foundation.errors import OffsetOutOfRange
from varve.kafka_client.address import ClusterAddress
from varve.records import Record, build_batch
from varve.topics import LogTruncated


@pytest.fixture
def server() -> Iterator[ServerBench]:
    bench = ServerBench()
    yield bench
    bench.close()


def _append(store: Store, *names: str) -> None:
    for name in names:
        record = Record(name.encode(), name.encode(), timestamp=T)
        store.topic("in").append_batch(build_batch([record]), 0)


def _run(place: Store | ClusterAddress, state: Path) -> None:
    with Deduplicator.open(place, "in", "out", make_rules(), state=str(state)) as dedup:
        dedup.run_once()


def test_a_store_that_was_truncated_and_grew_again_is_noticed(tmp_path: Path) -> None:
    bench = StoreBench()
    store = bench.virtual.store
    store.create_topic("in", partitions=1)
    _append(store, "a", "b", "c", "d")
    _run(store, tmp_path)
    store.topic("in").partition(0).log.truncate_to(2)
    with pytest.raises(OffsetOutOfRange, match=r"ends at offset 2.*another --name"):
        _run(store, tmp_path)
    _append(store, "x", "y", "z")
    with pytest.raises(LogTruncated, match=r"in-0: in front of offset 4 .* another --name"):
        _run(store, tmp_path)
    bench.close()


def test_a_server_that_lost_the_end_and_grew_again_is_noticed(
    server: ServerBench, tmp_path: Path
) -> None:
    server.cluster.find_or_create("in", partitions=1, settings={})
    store = server.kit.store
    _append(store, "a", "b")
    store.topic("in").flush()
    _append(store, "c", "d")
    _run(server.cluster.address, tmp_path)
    server.kit.restart(crash=True)
    store = server.kit.store
    assert store.topic("in").offsets().end == 2
    _append(store, "x", "y", "z")
    with pytest.raises(LogTruncated, match=r"in-0.*another --name"):
        _run(server.cluster.address, tmp_path)


def test_a_run_notices_that_the_server_lost_the_end(server: ServerBench, tmp_path: Path) -> None:
    server.cluster.find_or_create("in", partitions=1, settings={})
    _append(server.kit.store, "a", "b")
    server.kit.store.topic("in").flush()
    _append(server.kit.store, "c", "d")
    address, rules = server.cluster.address, make_rules()
    with Deduplicator.open(address, "in", "out", rules, state=str(tmp_path)) as dedup:
        dedup.run_once()
        server.kit.restart(crash=True)
        _append(server.kit.store, "x", "y", "z")
        with pytest.raises(LogTruncated, match="another --name"):
            dedup.run()


def test_ids_are_restored_when_the_changelog_lost_its_end_and_grew_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = StoreBench()
    store = bench.virtual.store
    store.create_topic("in", partitions=1)
    ends = []
    for names in (["a", "b"], ["c", "d"]):
        _append(store, *names)
        _run(store, tmp_path / "first")
        log = store.topic("out-dedup-changelog").partition(0).log
        ends.append(log.end_offset)
    log.truncate_to(ends[0])
    for number in range(4):
        _append(store, f"other{number}")
        _run(store, tmp_path / "second")
    assert log.end_offset > ends[1]
    assert "ids are restored" not in caplog.text
    _append(store, "a", "e")
    with caplog.at_level(logging.WARNING):
        _run(store, tmp_path / "first")
    assert "the changelog lost entries of the checkpoint" in caplog.text
    output = [record.value for record in store.topic("out").read(isolation="read_committed")]
    others = [b"other%d" % number for number in range(4)]
    assert output == [b"a", b"b", b"c", b"d", *others, b"e"]
    bench.close()
