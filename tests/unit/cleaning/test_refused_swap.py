"""Nothing is swapped in that does not add up, and a key index that lies is found out: G5."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.cleaning_bench import PARTITION, CleaningBench, compacted
from tests.support.cleaning_checks import check_promises
from varve.cleaning.key_index.key_index import ENTRY, HEADER_BYTES, KeyIndexHeader, Table
from varve.foundation.errors import Unbalanced
from varve.kernels.crc import crc32c
from varve.records import Record


@pytest.fixture
def bench() -> CleaningBench:
    """The first segment has one record that is superseded, and two that have to stay."""
    bench = CleaningBench(compacted(segment_bytes=300))
    keys = [b"old", b"new", b"other"]
    bench.append(Record(key, b"value", timestamp=bench.now_ms) for key in keys)
    bench.roll()
    bench.put("old", "later")
    bench.roll()
    bench.cleaner.build_indexes(bench.now_ms)
    return bench


def _forge(bench: CleaningBench, entries: Table) -> None:
    """Another key index in the place of the first segment's, found by the next start.

    Its checksums fit, so that only the balance can tell.
    """
    path = f"{bench.path}/{PARTITION}/{0:020d}.keys"
    data = bench.disk.read(path)
    header = KeyIndexHeader.decode(data[:HEADER_BYTES])
    sections = np.frombuffer(entries.tobytes() + data[header.batches_at :], np.uint8)
    forged = replace(header, sections_crc=crc32c(sections, 0, len(sections)))
    with bench.disk.open_writable(path) as file:
        file.write_at(0, forged.encode(), sections.tobytes())
    bench.reopen()


def _entries(bench: CleaningBench) -> Table:
    data = bench.disk.read(f"{bench.path}/{PARTITION}/{0:020d}.keys")
    count = KeyIndexHeader.decode(data[:HEADER_BYTES]).entry_count
    end = HEADER_BYTES + count * ENTRY.itemsize
    return np.frombuffer(data[HEADER_BYTES:end], ENTRY).copy()


@pytest.mark.parametrize("offset", [1, 2])
def test_g5_a_new_segment_that_misses_a_record_is_refused(
    bench: CleaningBench, offset: int
) -> None:
    """The index takes a record for the superseded one, which therefore would stay in its place."""
    entries = _entries(bench)
    entries["record"] = np.where(
        entries["record"] == 0, offset, np.where(entries["record"] == offset, 0, entries["record"])
    )
    _forge(bench, entries)
    stored = bench.read_all()
    with pytest.raises(Unbalanced, match="orders-0"):
        bench.clean()
    assert bench.read_all() == stored
    check_promises(bench)
    assert not [name for name in bench.names() if name.endswith((".cleaned", ".swap"))]


def test_g5_a_failed_balance_shows_in_the_health_and_nothing_dies(bench: CleaningBench) -> None:
    entries = _entries(bench)
    entries["record"] = (entries["record"] + 1) % 3
    _forge(bench, entries)
    stored = bench.read_all()
    assert bench.cleaner.run_once(bench.now_ms) == []
    (health,) = bench.cleaner.health()
    assert not health.is_healthy
    assert health.error is not None
    assert health.retry_ms is not None
    assert bench.read_all() == stored


def test_g4_the_index_that_lied_is_built_anew_for_the_next_run(bench: CleaningBench) -> None:
    entries = _entries(bench)
    entries["record"] = (entries["record"] + 1) % 3
    _forge(bench, entries)
    bench.cleaner.run_once(bench.now_ms)
    bench.clean()
    assert bench.offsets() == [1, 2, 3]
    assert bench.cleaner.health()[0].is_healthy
