"""A key is looked up among damage and changes: no answer is better than a wrong one."""

import pytest

from tests.support.cleaning_bench import DIRECTORY, PARTITION, CleaningBench, compacted
from tests.support.log_model import split_batches
from varve.commit_log.names import LOG, log_name
from varve.foundation.errors import StoreError


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize(
    "position",
    [pytest.param(8, id="length"), pytest.param(16, id="magic"), pytest.param(66, id="key")],
)
def test_a_batch_that_cannot_be_read_may_hold_the_key(is_closed: bool, position: int) -> None:
    bench = CleaningBench(compacted())
    bench.put("k", "old")
    bench.put("k", "new")
    bench.put("other", "1")
    if is_closed:
        bench.roll()
        bench.put("tail", "1")
    path = f"{DIRECTORY}/{log_name(0, LOG)}"
    first = len(split_batches(bench.disk.read(path))[0])
    with bench.disk.open_writable(path) as file:
        file.write_at(first + position, b"\x7b")
    lock = bench.cleaner._get_cleaner(PARTITION).is_busy
    for is_taken in (False, True):
        if is_taken:
            lock.acquire()
        with pytest.raises(StoreError):
            bench.cleaner.find_key(PARTITION, b"k", bench.now_ms)
