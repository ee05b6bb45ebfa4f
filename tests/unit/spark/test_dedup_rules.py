"""The rules of docs/how-to/deduplicate-with-spark.md, one by one."""

from dataclasses import replace

import pytest

from tests.support.dedup_bench import DedupBench
from tests.support.dedup_model import Arrival
from varve.dedup.rules import (
    Counts,
    IdKind,
    IdSource,
    LatePolicy,
    NullPolicy,
    Route,
    Verdict,
    parse_id_source,
    parse_late_policy,
    route,
)
from varve.foundation.errors import Corrupt, InvalidRequest
from varve.spark.deduplication.deduplicate import IdSetCache
from varve.spark.deduplication.settings import (
    FILE,
    SPARK_METADATA_FILE,
    CheckpointSpec,
    DedupBatch,
    DedupResult,
    DedupSettings,
    DedupSpec,
    bind_checkpoint,
    decode_spec,
    read_counts,
)

KEPT, DUPLICATE, LATE = Verdict.KEPT, Verdict.DUPLICATE, Verdict.LATE
FUTURE, NO_ID = Verdict.FUTURE, Verdict.NO_ID
NOW = 1_000_000


def judge(
    *times: int | None,
    before: int = 10,
    after: int = 10,
    refresh: bool = False,
    ids: tuple[bytes | None, ...] = (),
) -> list[Verdict]:
    """Records of one id and partition in one batch."""
    bench = DedupBench(before=before, after=after, lateness=1_000, refresh=refresh)
    arrivals = [
        Arrival(0, offset, ids[offset] if ids else b"x", time) for offset, time in enumerate(times)
    ]
    found = bench.batch(arrivals, NOW)
    return [found[0, offset] for offset in range(len(times))]


def test_both_edges_of_the_window_belong_to_it() -> None:
    assert judge(100, 110) == [KEPT, DUPLICATE]
    assert judge(100, 111) == [KEPT, KEPT]
    assert judge(100, 90) == [KEPT, DUPLICATE]
    assert judge(100, 89) == [KEPT, KEPT]


def test_before_looks_back_and_after_looks_ahead() -> None:
    assert judge(100, 105, before=5, after=0) == [KEPT, DUPLICATE]
    assert judge(100, 99, before=5, after=0) == [KEPT, KEPT]
    assert judge(100, 99, before=0, after=1) == [KEPT, DUPLICATE]
    assert judge(100, 101, before=0, after=1) == [KEPT, KEPT]
    assert judge(100, 100, before=0, after=0) == [KEPT, DUPLICATE]


def test_the_window_is_measured_from_the_copy_that_was_kept() -> None:
    assert judge(100, 110, 120) == [KEPT, DUPLICATE, KEPT]


def test_with_refresh_every_copy_begins_it_anew() -> None:
    assert judge(100, 110, 120, 131, refresh=True) == [KEPT, DUPLICATE, DUPLICATE, KEPT]


def test_the_first_that_is_read_wins_not_the_earliest() -> None:
    assert judge(105, 100) == [KEPT, DUPLICATE]


def test_all_kept_copies_count_not_only_the_latest() -> None:
    assert judge(100, 111, 105) == [KEPT, KEPT, DUPLICATE]


def test_records_without_id_are_never_merged() -> None:
    assert judge(1, 1, ids=(None, None)) == [NO_ID, NO_ID]


def test_ids_that_differ_in_length_or_zeros_are_different() -> None:
    ids = (b"", b"\0", b"\0\0", b"sixteen bytes!!!", b"sixteen bytes!!!\0", b"sixteen bytes!!")
    assert judge(*[5] * 6, ids=ids) == [KEPT] * 6
    assert judge(*[5] * 4, ids=(b"a" * 40, b"a" * 41, b"a" * 40, b"")) == [
        KEPT,
        KEPT,
        DUPLICATE,
        KEPT,
    ]


def test_late_is_before_the_watermark_of_earlier_batches() -> None:
    bench = DedupBench(before=10, after=10, lateness=50)
    bench.batch([Arrival(0, 0, b"x", 1_000), Arrival(0, 1, b"old", 3)], NOW)
    found = bench.batch([Arrival(0, 2, b"y", 950), Arrival(0, 3, b"z", 949)], NOW)
    assert found == {(0, 2): KEPT, (0, 3): LATE}


def test_a_record_at_the_watermark_sees_its_whole_window() -> None:
    bench = DedupBench(before=10, after=10, lateness=50)
    bench.batch([Arrival(0, 0, b"x", 940)], NOW)
    bench.batch([Arrival(0, 1, b"y", 1_000)], NOW)
    bench.batch([Arrival(0, 2, b"y", 1_001)], NOW)
    assert bench.batch([Arrival(0, 3, b"x", 951)], NOW) == {(0, 3): KEPT}
    bench = DedupBench(before=10, after=10, lateness=50)
    bench.batch([Arrival(0, 0, b"x", 940)], NOW)
    bench.batch([Arrival(0, 1, b"y", 1_000)], NOW)
    assert bench.batch([Arrival(0, 2, b"x", 950)], NOW) == {(0, 2): DUPLICATE}


def test_late_and_future_records_are_not_remembered() -> None:
    bench = DedupBench(before=10, after=10, lateness=50)
    bench.batch([Arrival(0, 0, b"x", 1_000)], NOW)
    late = [Arrival(0, 1, b"z", 1), Arrival(0, 2, b"z", 1), Arrival(0, 3, b"f", 9_000_000)]
    assert list(bench.batch(late, NOW).values()).count(LATE) == 2
    assert bench.watermark == 950
    assert bench.batch([Arrival(0, 4, b"f", 9_000_000)], 9_000_000) == {(0, 4): KEPT}


def test_a_record_without_a_time_is_late() -> None:
    assert judge(None) == [LATE]


def test_within_a_batch_partition_and_offset_are_the_order() -> None:
    bench = DedupBench(before=10, after=10, lateness=50)
    found = bench.batch([Arrival(1, 0, b"x", 1), Arrival(0, 7, b"x", 2)], NOW)
    assert found == {(0, 7): KEPT, (1, 0): DUPLICATE}


def test_policies_choose_what_goes_on_and_what_goes_aside() -> None:
    import numpy as np

    verdicts = np.array([KEPT, DUPLICATE, LATE, FUTURE, NO_ID], np.uint8)
    output, side, drop = Route.OUTPUT, Route.SIDE, Route.DROP
    forward = DedupSettings(by=parse_id_source("key"), before_ms=1, after_ms=1, lateness_ms=1)
    assert route(verdicts, forward).tolist() == [output, drop, output, output, output]
    with_side_topic = replace(
        forward, late=LatePolicy.SIDE, side_topic="late", null=NullPolicy.DROP
    )
    assert route(verdicts, with_side_topic).tolist() == [output, drop, side, side, drop]


def test_ids_and_policies_are_read_as_they_are_written() -> None:
    assert parse_id_source("key") == IdSource(IdKind.KEY)
    assert str(parse_id_source("header:a:b")) == "header:a:b"
    assert parse_late_policy("side:late") == (LatePolicy.SIDE, "late")
    assert parse_late_policy("drop") == (LatePolicy.DROP, None)
    for text in ("", "value", "key:x", "field", "header:", "field:it's"):
        with pytest.raises(InvalidRequest, match="is not an id source"):
            parse_id_source(text)
    for text in ("", "side", "side:", "drop:", "drop:x", "late"):
        with pytest.raises(InvalidRequest, match="not a policy for late records"):
            parse_late_policy(text)


def test_settings_out_of_bounds_are_refused() -> None:
    by = IdSource(IdKind.KEY)
    with pytest.raises(InvalidRequest, match="before_ms is -1"):
        DedupSettings(by=by, before_ms=-1, after_ms=0, lateness_ms=0)
    with pytest.raises(InvalidRequest, match="side topic"):
        DedupSettings(by=by, before_ms=1, after_ms=0, lateness_ms=0, late=LatePolicy.SIDE)
    with pytest.raises(InvalidRequest, match="1 to 256"):
        DedupSettings(by=by, before_ms=1, after_ms=0, lateness_ms=0, state_partitions=257)


class MemoryFiles(dict[str, bytes]):
    def find(self, name: str) -> bytes | None:
        return self.get(name)

    def put(self, name: str, data: bytes) -> None:
        self[name] = data


def freeze_in(
    files: MemoryFiles, *, before_ms: int = 5, partitions: int | None = None
) -> CheckpointSpec:
    meaning = DedupSpec(
        topic="t",
        topic_id="id",
        output="out",
        by="key",
        before_ms=before_ms,
        after_ms=5,
        is_refreshing=False,
    )
    return bind_checkpoint(
        files,
        meaning,
        where="ck",
        partitions=partitions,
        draw_secret=lambda: (1, 2),
        draw_keys=lambda: [4, 9],
    )


def test_a_checkpoint_keeps_its_meaning_secret_and_partitions() -> None:
    files = MemoryFiles()
    first = freeze_in(files)
    assert freeze_in(files, partitions=2) == first
    assert (first.bucket_keys, first.sink_id) == ((4, 9), "dedup-0000000000000003")
    with pytest.raises(InvalidRequest, match=r"before_ms=5.*cannot continue with 6"):
        freeze_in(files, before_ms=6)
    with pytest.raises(InvalidRequest, match="has 2 partitions of state"):
        freeze_in(files, partitions=3)
    for broken in (b"", b"{}", b'{"format": 2}', files[FILE].replace(b'"by"', b'"bye"')):
        with pytest.raises(Corrupt, match="new checkpoint"):
            decode_spec(broken, "ck/x")
    with pytest.raises(InvalidRequest, match="another query"):
        freeze_in(MemoryFiles({SPARK_METADATA_FILE: b""}))


def test_counts_add_up_and_are_told() -> None:
    counts = read_counts({"kept": 3, "duplicates": 1, "late": None, "future": None, "no_id": 2})
    batch = DedupBatch(batch_id=0, counts=counts, watermark_ms=5, duration_ms=7)
    result = DedupResult(topic="t", output="o").add(batch).add(batch)
    assert result.counts == Counts(kept=6, duplicates=2, no_id=4)
    assert result.to_json()["records"] == 12
    assert result.to_json()["batches"][0]["kept"] == 3


def test_a_full_cache_lets_the_least_used_window_go() -> None:
    bench = DedupBench(before=1, after=1, lateness=1)
    cache = IdSetCache(40_000)
    windows = [cache.take(bench.reach, bucket) for bucket in range(2)]
    for bucket, window in enumerate(windows):
        cache.give(bench.reach, bucket, window)
    assert cache.take(bench.reach, 1) is windows[1]
    assert cache.take(bench.reach, 0) is not windows[0]
