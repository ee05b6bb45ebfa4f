"""Ten updates over five keys with one tombstone, cleaned and cleaned again: G4.

offset  0   1   2   3   4   5   6   7   8   9
key     a   b   a   c   a   b   c   d   e   b
value   1   1   2   1   3   2   2   1   1   -
"""

import pytest

from tests.support.cleaning_bench import RETENTION_MS, CleaningBench
from tests.support.cleaning_checks import check_promises
from varve.cleaning.removals.removal import Reason
from varve.records import Codec, Record

UPDATES = [
    ("a", "1"),
    ("b", "1"),
    ("a", "2"),
    ("c", "1"),
    ("a", "3"),
    ("b", "2"),
    ("c", "2"),
    ("d", "1"),
    ("e", "1"),
    ("b", None),
]


@pytest.fixture
def bench() -> CleaningBench:
    return CleaningBench()


@pytest.fixture(params=[1, 3, 10], ids=lambda count: f"batches of {count}")
def batch_count(request: pytest.FixtureRequest) -> int:
    count: int = request.param
    return count


def _write(
    bench: CleaningBench, batch_count: int, codec: Codec = Codec.NONE, *, rolls: bool = False
) -> None:
    for start in range(0, len(UPDATES), batch_count):
        records = [
            Record(key.encode(), None if value is None else value.encode(), timestamp=bench.now_ms)
            for key, value in UPDATES[start : start + batch_count]
        ]
        bench.append(records, codec=codec)
        if rolls:
            bench.roll()
    bench.roll()


@pytest.mark.parametrize("rolls", [False, True], ids=["one segment", "many segments"])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_g4_five_records_are_left_and_four_after_the_horizon(
    batch_count: int, codec: Codec, rolls: bool, bench: CleaningBench
) -> None:
    _write(bench, batch_count, codec, rolls=rolls)
    first = bench.clean()
    assert bench.offsets() == [4, 6, 7, 8, 9]
    assert first.records[Reason.SUPERSEDED] == 5
    bench.advance(RETENTION_MS - 1)
    bench.clean()
    assert bench.offsets() == [4, 6, 7, 8, 9]
    bench.advance(1)
    last = bench.clean()
    assert bench.offsets() == [4, 6, 7, 8]
    assert last.records[Reason.TOMBSTONE_EXPIRED] == 1
    assert {key: record.value for key, record in bench.state().items()} == {
        b"a": b"3",
        b"c": b"2",
        b"d": b"1",
        b"e": b"1",
    }
    check_promises(bench)
