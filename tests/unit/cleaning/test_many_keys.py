"""More keys than the planning memory holds: one run still finds the latest of each. G4."""

import pytest

from tests.support.cleaning_bench import CleaningBench, compacted
from tests.support.cleaning_checks import check_exact, foretell
from varve.cleaning.settings import CleanerSettings
from varve.records import Codec, Record

KEY_COUNT = 9000


@pytest.mark.parametrize("buffer_bytes", [80_000, 300_000, 128 << 20])
def test_g4_memory_does_not_bound_the_number_of_keys(buffer_bytes: int) -> None:
    bench = CleaningBench(
        compacted(segment_bytes=60_000),
        cleaner_settings=CleanerSettings(log_cleaner_dedupe_buffer_size=buffer_bytes),
    )
    for start in range(0, 2 * KEY_COUNT, 1000):
        # Every key twice, the second time in another order and every tenth as a tombstone.
        records = [
            Record(
                b"key-%d" % (number * 7 % KEY_COUNT),
                None if number > KEY_COUNT and number % 10 == 0 else b"value %d" % number,
                timestamp=bench.now_ms,
            )
            for number in range(start, start + 1000)
        ]
        bench.append(records, codec=Codec.ZSTD if start % 3000 == 0 else Codec.NONE)
    bench.roll()
    assert len(bench.log.view) > 4
    foretold = foretell(bench)
    check_exact(bench, foretold, bench.clean())
    assert len(bench.offsets()) == KEY_COUNT
