"""Keys whose latest record is in object storage alone are found there."""

from collections.abc import Iterator

import pytest

from tests.support.remote_lookup_bench import RemoteLookupBench
from tests.support.tier_bench import tiered
from varve.cleaning.explain import explain_offset
from varve.cleaning.explanation import RecordState
from varve.cleaning.remote_tier import NoRemoteTier
from varve.foundation.errors import Corrupt, StoreUnavailable, Unavailable
from varve.records import Codec, Record, build_batch


@pytest.fixture(params=["compact", "delete"])
def bench(request: pytest.FixtureRequest) -> Iterator[RemoteLookupBench]:
    """With key indexes in the bucket, and without: then the segments are read."""
    bench = RemoteLookupBench(settings=tiered(cleanup_policy=(request.param,)))
    yield bench
    bench.pool.close()


@pytest.fixture
def indexed() -> Iterator[RemoteLookupBench]:
    bench = RemoteLookupBench()
    yield bench
    bench.pool.close()


def test_what_is_local_hides_the_tier(bench: RemoteLookupBench) -> None:
    for key in ("gone", "changed"):
        bench.hot.put(key, "cold")
    bench.hot.roll()
    bench.hot.put("gone", None)
    bench.hot.put("changed", "local")
    bench.hot.roll()
    bench.copy()
    bench.move(2)
    bench.objects.go_down()
    assert bench.find("gone") is not None
    assert bench.find_value("gone") is None
    assert bench.find_value("changed") == b"local"
    with pytest.raises(StoreUnavailable):
        bench.find("elsewhere")
    bench.objects.come_up()
    assert bench.find("elsewhere") is None


def test_aborted_records_do_not_count_wherever_their_marker_is(bench: RemoteLookupBench) -> None:
    bench.hot.put("a", "good")
    bench.hot.roll()
    bench.hot.put("a", "void", producer_id=7, transactional=True)
    bench.hot.put("b", "fine", producer_id=8, transactional=True)
    bench.hot.roll()
    bench.hot.end_transaction(7, committed=False)
    bench.hot.end_transaction(8, committed=True)
    # The marker is decided and not copied: it stands in the active segment.
    bench.copy()
    bench.move(3)
    assert bench.find_value("a") == b"good"
    assert bench.find_value("b") == b"fine"
    bench.hot.roll()
    bench.copy()
    bench.move(5)
    assert bench.find_value("a") == b"good"


def test_what_lies_before_the_log_start_is_gone(bench: RemoteLookupBench) -> None:
    for key in ("a", "b", "c"):
        bench.hot.put(key, "1")
    bench.hot.roll()
    bench.copy()
    bench.move(3)
    bench.hot.log.raise_log_start(1)
    assert bench.find("a") is None
    assert bench.find_value("b") == b"1"


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_large_segments_are_searched_by_a_few_requests(
    bench: RemoteLookupBench, codec: Codec
) -> None:
    for start in range(0, 12_000, 500):
        records = [
            Record(b"key-%d" % number, b"%d" % number * 4, timestamp=bench.hot.now_ms)
            for number in range(start, start + 500)
        ]
        bench.hot.log.append(build_batch(records, codec=codec))
    bench.hot.roll()
    bench.copy()
    bench.move(12_000)
    (segment,) = bench.readable()
    part = segment.find_part("keys")
    if part is not None:
        assert bench.find("never") is None
        assert sum(bench.observed) < part.size
        assert len(bench.observed) <= 3
    for number in (0, 1, 4_999, 11_999):
        assert bench.find_value(f"key-{number}") == b"%d" % number * 4
    assert bench.find("never") is None


def test_a_hole_in_the_tier_is_an_error_and_not_an_answer(indexed: RemoteLookupBench) -> None:
    indexed.fill(2, 2)
    indexed.copy()
    indexed.move(4)
    first = indexed.readable()[0]
    indexed.manifests().commit(
        lambda manifest: manifest.start_delete([first.id], at_ms=1),
        leader_epoch=None,
        writer="test",
        now_ms=1,
    )
    assert indexed.find_value("key-0") == b"value-2"
    with pytest.raises(Unavailable, match="offset 1 is in no segment of the remote tier"):
        indexed.find("never")


def test_a_damaged_key_index_is_passed_over_and_a_missing_object_is_named(
    indexed: RemoteLookupBench,
) -> None:
    indexed.fill(2)
    indexed.copy()
    indexed.move(2)
    (segment,) = indexed.readable()
    key = indexed.home.part_key(segment, "keys")
    data = indexed.bucket.get(key)
    indexed.bucket.put(key, b"\0" * 8 + data[8:])
    assert indexed.find_value("key-1") == b"value-1"
    indexed.connect()
    indexed.bucket.delete([key])
    with pytest.raises(Corrupt, match="names an object that is not there"):
        indexed.find("key-1")


def test_without_a_way_to_the_tier_nobody_claims_that_a_key_is_not_there(
    indexed: RemoteLookupBench,
) -> None:
    indexed.fill(2)
    indexed.copy()
    indexed.move(2)
    indexed.hot.cleaner.remote = NoRemoteTier()
    with pytest.raises(Unavailable, match=r"varve\.tier\.url"):
        indexed.find("key-1")


def test_an_explanation_tells_what_is_in_the_tier_alone(indexed: RemoteLookupBench) -> None:
    indexed.hot.put("a", None)
    indexed.hot.roll()
    indexed.copy()
    indexed.move(1)
    explained = explain_offset(indexed.hot.log, 0, indexed.hot.now_ms)
    assert (explained.state, explained.key) == (RecordState.REMOTE, b"a")
    assert (explained.is_tombstone, explained.segment) == (True, None)


def test_a_copied_segment_tells_what_is_superseded_in_itself() -> None:
    bench = RemoteLookupBench()
    for number in range(4):
        bench.hot.put("a", f"{number}" * 10)
    bench.hot.put("b", "1")
    bench.hot.roll()
    bench.hot.put("a", "2")
    bench.hot.roll()
    bench.copy()
    first, second = bench.readable()
    keys = bench.hot.cleaner.ensure_keys(
        bench.hot.log.topic_partition, bench.hot.log.view.closed[0], 5, bench.hot.now_ms
    )
    assert keys is not None
    assert first.stale_bytes is not None
    # Three of four records of one size, of all but a small fifth.
    assert 0.55 < first.stale_bytes / keys.header.record_bytes < 0.75
    assert second.stale_bytes == 0
    bench.pool.close()
