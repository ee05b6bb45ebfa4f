"""The judges of the processor and of the Spark job agree, record by record.

Where docs/how-to/deduplicate.md says so: copies are in one partition, and nothing is late.
"""

import random

import pytest

from tests.support.dedup_bench import DedupBench as SparkBench
from tests.support.dedup_model import Arrival as SparkArrival
from tests.support.window_dedup import NOW_MS, Arrival, DedupBench, make_rules

COUNT = 300
START = 1_000_000


@pytest.mark.parametrize("refresh", [False, True])
@pytest.mark.parametrize(("before", "after"), [(50, 50), (90, 10), (40, 0), (0, 70), (0, 0)])
def test_both_find_the_same_duplicates(before: int, after: int, refresh: bool) -> None:
    source = random.Random(f"{before} {after} {refresh}")
    lateness = 4_000
    job = SparkBench(before=before, after=after, lateness=lateness, refresh=refresh)
    own = DedupBench(make_rules(before=before, after=after, lateness=lateness, refresh=refresh))
    offset = 0
    while offset < COUNT:
        rows = []
        for number in range(offset, min(COUNT, offset + source.randrange(1, 60))):
            name = source.choice([None, *(b"id %d" % one * (1 + one % 3 * 9) for one in range(12))])
            rows.append((number, name, START + number * 8 + source.randrange(-900, 900)))
        offset += len(rows)
        theirs = job.batch([SparkArrival(0, *row) for row in rows], NOW_MS)
        ours = own.chunk([Arrival(*row) for row in rows])
        assert [one.verdict.name for one in ours] == [theirs[0, row[0]].name for row in rows]
    own.close()
