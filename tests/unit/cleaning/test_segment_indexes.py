"""The key indexes of a log are used only while they are whole and judge as the log does."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.cleaning_bench import DIRECTORY, PARTITION, CleaningBench, compacted
from varve.cleaning.key_index.key_index import HEADER_BYTES, KeyIndexHeader
from varve.commit_log.names import KEYS, LOG, log_name
from varve.kernels.crc import crc32c
from varve.records import Record


def _fill(bench: CleaningBench, rounds: int = 3) -> None:
    """Segments of the same five keys, each superseding the one before."""
    for number in range(rounds):
        for key in range(5):
            bench.put(f"key-{key}", f"value-{number}")
        bench.put(f"own-{number}", "")
        bench.roll()
    bench.put("tail", "")


def _path(base_offset: int, kind: str) -> str:
    return f"{DIRECTORY}/{log_name(base_offset, kind)}"


def _overwrite(bench: CleaningBench, path: str, position: int, data: bytes) -> None:
    with bench.disk.open_writable(path) as file:
        file.write_at(position, data)


def _forge(bench: CleaningBench, base_offset: int, position: int, data: bytes) -> None:
    """Changes a key index behind its header, and its checksums with it."""
    path = _path(base_offset, KEYS)
    content = bytearray(bench.disk.read(path))
    content[position : position + len(data)] = data
    sections = np.frombuffer(bytes(content[HEADER_BYTES:]), np.uint8)
    header = KeyIndexHeader.decode(bytes(content[:HEADER_BYTES]))
    crc = int(crc32c(sections, 0, sections.size))
    content[:HEADER_BYTES] = replace(header, sections_crc=crc).encode()
    _overwrite(bench, path, 0, bytes(content))


def _run_until_clean(bench: CleaningBench) -> None:
    """Two attempts must do: one that finds the fault, one behind its back-off that mends it."""
    bench.cleaner.run_once(bench.now_ms)
    bench.advance(60_000)
    bench.cleaner.run_once(bench.now_ms)
    assert bench.directory.cleaner_offset(PARTITION) == 18
    assert len(bench.offsets()) == 9
    assert bench.state() == bench.true_state()
    (health,) = bench.cleaner.health()
    assert health.is_healthy


def test_data_that_rots_under_a_whole_index_is_held_and_the_rest_goes_on() -> None:
    bench = CleaningBench(compacted(min_cleanable_dirty_ratio=0.0))
    _fill(bench)
    bench.cleaner.build_indexes(bench.now_ms)
    data = bench.disk.read(_path(6, LOG))
    _overwrite(bench, _path(6, LOG), len(data) - 1, bytes([data[-1] ^ 0xFF]))
    bench.cleaner.run_once(bench.now_ms)
    (report,) = bench.cleaner.run_once(bench.now_ms)
    (hold,) = report.holds
    assert (hold.base_offset, hold.attempts) == (6, 1)
    assert bench.directory.cleaner_offset(PARTITION) == 18
    assert bench.cleaner.run_once(bench.now_ms) == []
    bench.advance(60_000)
    assert bench.cleaner.run_once(bench.now_ms) == []
    assert [hold.attempts for hold in bench.cleaner.health()[0].holds] == [2]
    _overwrite(bench, _path(6, LOG), 0, data)
    bench.advance(120_000)
    (healed,) = bench.cleaner.run_once(bench.now_ms)
    assert healed.holds == ()
    assert len(bench.offsets()) == 9


@pytest.mark.parametrize(
    "position",
    [pytest.param(20, id="header"), pytest.param(HEADER_BYTES + 3, id="entries")],
)
def test_an_index_that_rots_while_it_is_in_use_is_built_anew(position: int) -> None:
    bench = CleaningBench(compacted(min_cleanable_dirty_ratio=0.0))
    _fill(bench)
    bench.cleaner.build_indexes(bench.now_ms)
    _overwrite(bench, _path(6, KEYS), position, b"\xff\xfe\xfd")
    _run_until_clean(bench)


@pytest.mark.parametrize(
    ("offset", "data"),
    [
        pytest.param(0, b"\x00\x01\x02\x03", id="hash"),
        pytest.param(20, b"\xff\xff\xff\xff", id="record"),
        pytest.param(24, b"\xff\xff\xff\xff", id="size"),
        pytest.param(6 * 32, b"\xff\xff\xff\x7f", id="batch position"),
        pytest.param(6 * 32 + 4, b"\x00\x00\x00\x00", id="batch size"),
        pytest.param(6 * 32 + 16, b"\xff\xff\xff\xff", id="batch count"),
        pytest.param(6 * 32 + 16, b"\x00\x00\x00\x00", id="no records"),
    ],
)
def test_an_index_that_lies_under_a_right_checksum_is_built_anew(offset: int, data: bytes) -> None:
    bench = CleaningBench(compacted(min_cleanable_dirty_ratio=0.0))
    _fill(bench)
    bench.cleaner.build_indexes(bench.now_ms)
    _forge(bench, 6, HEADER_BYTES + offset, data)
    bench.reopen()
    _run_until_clean(bench)


@pytest.mark.parametrize("was_committed", [True, False])
@pytest.mark.parametrize("reopens", [True, False])
def test_a_transaction_decided_anew_after_a_truncation_is_judged_anew(
    was_committed: bool, reopens: bool
) -> None:
    bench = CleaningBench(compacted())
    bench.put("k", "before")
    bench.append([Record(b"k", b"within")], producer_id=7, transactional=True)
    bench.roll()
    marker = bench.end_transaction(7, committed=was_committed)
    bench.put("y", "1")
    bench.roll()
    assert bench.cleaner.build_indexes(bench.now_ms) == 2
    bench.log.truncate_to(marker)
    bench.history.truncate_to(marker)
    bench.history.end_offset = marker
    bench.end_transaction(7, committed=not was_committed)
    bench.put("y", "2")
    bench.roll()
    if reopens:
        bench.reopen()
    expected = b"before" if was_committed else b"within"
    found = bench.cleaner.find_key(PARTITION, b"k", bench.now_ms)
    assert found is not None
    assert found.value == expected
    bench.clean()
    assert bench.state()[b"k"].value == expected
    assert bench.state() == bench.true_state()


def test_segments_that_left_the_log_are_forgotten() -> None:
    bench = CleaningBench(compacted(cleanup_policy=("compact", "delete"), retention_ms=-1))
    _fill(bench)
    bench.cleaner.build_indexes(bench.now_ms)
    bench.log.drop_segments_before(12, now_ms=bench.now_ms)
    bench.cleaner.build_indexes(bench.now_ms)
    verified = bench.cleaner._get_cleaner(PARTITION).indexes._verified
    assert [segment.base_offset for segment in verified] == [12]
