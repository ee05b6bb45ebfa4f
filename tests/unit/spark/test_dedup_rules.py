"""The rules of docs/how-to/deduplicate-with-spark.md, one by one."""

import pytest

from tests.support.dedup_bench import DedupBench
from tests.support.dedup_model import Arrival
from varve.dedup.rules import (
    Counts,
    IdKind,
    IdSource,
    LatePolicy,
    Verdict,
    parse_id_source,
    parse_late_policy,
)
from varve.foundation.errors import Corrupt, InvalidRequest
from varve.spark.deduplication.deduplicate import IdSetCache
from varve.spark.deduplication.functions import DedupBatch, DedupResult, DedupSettings
from varve.spark.deduplication.job import (
    FILE,
    SPARK_METADATA_FILE,
    CheckpointSpec,
    DedupSpec,
    bind_checkpoint,
    decode_spec,
    read_counts,
)

KEPT, DUPLICATE, LATE = Verdict.KEPT, Verdict.DUPLICATE, Verdict.LATE
FUTURE, NO_ID = Verdict.FUTURE, Verdict.NO_ID
NOW = 1_000_000


def test_late_and_future_records_are_not_remembered() -> None:
    bench = DedupBench(before=10, after=10, lateness=50)
    bench.batch([Arrival(0, 0, b"x", 1_000)], NOW)
    late = [Arrival(0, 1, b"z", 1), Arrival(0, 2, b"z", 1), Arrival(0, 3, b"f", 9_000_000)]
    assert list(bench.batch(late, NOW).values()).count(LATE) == 2
    assert bench.watermark == 950
    assert bench.batch([Arrival(0, 4, b"f", 9_000_000)], 9_000_000) == {(0, 4): KEPT}


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
        new_secret=(1, 2),
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
