"""When the records of a segment came, across rolls, restarts, cuts and swaps."""

import threading
from pathlib import Path

import pytest

from tests.support.cleaned_segment import write_cleaned
from tests.support.log_bench import (
    DIRECTORY,
    NO_ROOM,
    NOW_MS,
    Bench,
    FaultyBench,
    make_batch,
)
from varve.commit_log import Log
from varve.commit_log.append_times import ENTRY_BYTES, AppendSpan, AppendTimes, decode_append_times
from varve.commit_log.names import APPEND_TIMES_FILE
from varve.disk import MemoryFileSystem, RealFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import DiskFull, Unavailable

PATH = f"{DIRECTORY}/{APPEND_TIMES_FILE}"
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "formats" / "directory.md"


def spans(log: Log) -> list[tuple[int, int]]:
    """First and last append of every segment, from the beginning of the test on."""
    found = [log.appended_ms(segment) for segment in log.view]
    return [(first_ms - NOW_MS, last_ms - NOW_MS) for first_ms, last_ms in found]


def fill(bench: Bench, *segments: tuple[int, ...]) -> Log:
    """Appends at the given times, old and future records alike, one segment after the other."""
    for number, times in enumerate(segments):
        if number:
            bench.log.roll()
        for time in times:
            bench.clock.advance(NOW_MS + time - bench.clock.now_ms())
            bench.log.append(make_batch(time=(-1) ** time * 10_000_000))
    return bench.log


def test_the_clock_counts_whatever_the_records_say(bench: Bench) -> None:
    bench.open()
    fill(bench, (3, 10), (11, 12, 40), (50,))
    assert spans(bench.log) == [(3, 10), (11, 40), (50, 50)]


def test_times_outlive_a_restart_and_a_crash(bench: Bench) -> None:
    bench.open()
    fill(bench, (3, 10), (11, 40))
    for open_again in (bench.reopen, bench.crash):
        bench.clock.advance(1000)
        open_again()
        assert spans(bench.log) == [(3, 10), (11, 40)]


def test_a_last_entry_that_a_crash_took_is_made_up_for_by_the_data_file(bench: Bench) -> None:
    bench.open()
    fill(bench, (3, 10), (11,))
    with bench.fs.open_writable(PATH) as file:
        kept = [
            entry for entry in decode_append_times(bench.fs.read(PATH)) if entry[1][1] < NOW_MS + 10
        ]
        file.truncate(len(kept) * ENTRY_BYTES)
    bench.clock.advance(1000)
    bench.crash()
    assert spans(bench.log)[0] == (3, 10)


def test_without_an_entry_the_data_file_tells(bench: Bench) -> None:
    bench.open()
    fill(bench, (3, 10), (11, 40), (50,))
    bench.log.close()
    bench.fs.remove(PATH)
    bench.open(clean=True)
    assert spans(bench.log) == [(10, 10), (40, 40), (50, 50)]


def test_a_data_file_changed_in_the_future_counts_as_now(bench: Bench) -> None:
    bench.open()
    fill(bench, (3,))
    bench.log.abandon()
    bench.fs.set_modified_ms(bench.path(0, ".log"), NOW_MS + 10**9)
    bench.clock.advance(4)
    bench.open()
    assert spans(bench.log) == [(3, 7)]


def test_a_segment_that_has_left_the_log_has_no_times(bench: Bench) -> None:
    bench.open()
    fill(bench, (1,), (2,))
    (gone,) = bench.log.drop_segments_before(1, now_ms=NOW_MS)
    with pytest.raises(Unavailable, match="is no longer in the log"):
        bench.log.appended_ms(gone)


def test_what_a_cut_leaves_keeps_its_times(bench: Bench) -> None:
    bench.open()
    fill(bench, (1, 2), (3, 4))
    bench.log.truncate_to(1)
    assert spans(bench.log) == [(1, 2)]
    fill(bench, (9,))
    assert spans(bench.log) == [(1, 9)]


def test_a_base_offset_that_comes_again_has_new_times(bench: Bench) -> None:
    bench.open()
    fill(bench, (1, 2), (3, 4))
    bench.log.truncate_to(2)
    bench.log.roll()
    fill(bench, (90,))
    assert spans(bench.log) == [(1, 2), (90, 90)]
    bench.log.reset_at(0)
    fill(bench, (95,))
    assert spans(bench.log) == [(95, 95)]
    bench.crash()
    assert spans(bench.log) == [(95, 95)]


def test_a_swap_spans_the_times_of_the_old_segments(bench: Bench) -> None:
    bench.open()
    fill(bench, (1, 5), (6, 7), (8,))
    size = write_cleaned(bench.fs, DIRECTORY, 0, [make_batch(base_offset=3)])
    bench.log.replace_segments(bench.log.view.closed, base_offset=0, size=size, has_txn_index=False)
    assert spans(bench.log) == [(1, 7), (8, 8)]
    bench.crash(recovery_point=5)
    assert spans(bench.log) == [(1, 7), (8, 8)]


def test_a_full_disk_refuses_the_first_append_to_a_segment(faulty: FaultyBench) -> None:
    faulty.open()
    fill(faulty, (1,))
    faulty.log.roll()
    faulty.fail_next(NO_ROOM)
    with pytest.raises(DiskFull):
        faulty.log.append(make_batch())
    assert faulty.log.end_offset == 1
    faulty.log.append(make_batch())


# The file


@pytest.fixture
def fs() -> MemoryFileSystem:
    fs = MemoryFileSystem(ManualClock())
    fs.make_directory(DIRECTORY)
    return fs


def test_the_latest_entry_of_a_base_offset_counts(fs: MemoryFileSystem) -> None:
    times = AppendTimes(fs, DIRECTORY)
    times.write(0, AppendSpan(1, 1))
    times.write(7, AppendSpan(5, 5))
    times.write(0, AppendSpan(1, 4))
    times.sync()
    found = AppendTimes.load(fs, DIRECTORY, [0, 7])
    assert (found.find(0), found.find(7), found.find(8)) == ((1, 4), (5, 5), None)
    assert len(fs.read(PATH)) == 3 * ENTRY_BYTES


@pytest.mark.parametrize("torn", [1, 20, 31])
def test_a_torn_entry_is_passed_over_and_overwritten(fs: MemoryFileSystem, torn: int) -> None:
    times = AppendTimes(fs, DIRECTORY)
    times.write(0, AppendSpan(1, 2))
    times.write(7, AppendSpan(5, 6))
    with fs.open_writable(PATH) as file:
        file.truncate(ENTRY_BYTES + torn)
    found = AppendTimes.load(fs, DIRECTORY, [0, 7])
    assert (found.find(0), found.find(7)) == ((1, 2), None)
    found.write(7, AppendSpan(8, 9))
    assert AppendTimes.load(fs, DIRECTORY, [0, 7]).find(7) == (8, 9)


def test_an_entry_that_breaks_its_crc_is_passed_over(fs: MemoryFileSystem) -> None:
    times = AppendTimes(fs, DIRECTORY)
    for base in (0, 7, 9):
        times.write(base, AppendSpan(base, base))
    data = bytearray(fs.read(PATH))
    data[ENTRY_BYTES + 3] ^= 1
    assert [base for base, _ in decode_append_times(bytes(data))] == [0, 9]


def test_the_file_is_rewritten_when_most_of_it_is_about_others(fs: MemoryFileSystem) -> None:
    times = AppendTimes(fs, DIRECTORY)
    for base in range(70):
        times.write(base, AppendSpan(1, base))
    found = AppendTimes.load(fs, DIRECTORY, [69])
    assert found.find(69) == (1, 69)
    assert len(fs.read(PATH)) == ENTRY_BYTES


def test_entries_beyond_the_log_are_removed_when_it_is_opened(fs: MemoryFileSystem) -> None:
    times = AppendTimes(fs, DIRECTORY)
    for base in (0, 5, 9):
        times.write(base, AppendSpan(base, base))
    AppendTimes.load(fs, DIRECTORY, [0, 5])
    assert [base for base, _ in decode_append_times(fs.read(PATH))] == [0, 5]


def test_the_example_of_the_format_page_is_what_is_written(fs: MemoryFileSystem) -> None:
    page = PAGE.read_text()
    lines = page.split("`varve-append-times`, 32 bytes", 1)[1].split("```")[1].splitlines()[1:]
    example = bytes.fromhex("".join(line.partition(";")[0] for line in lines))
    AppendTimes(fs, DIRECTORY).write(4200, AppendSpan(1_700_000_000_000, 1_700_000_012_345))
    assert fs.read(PATH) == example


def test_entries_of_threads_that_write_together_are_all_kept(tmp_path: Path) -> None:
    """A roll and a swap may write at the same time: no entry takes the place of another."""
    fs, directory = RealFileSystem(), str(tmp_path)
    times = AppendTimes(fs, directory)
    start = threading.Barrier(4)

    def write(number: int) -> None:
        start.wait()
        for base in range(number, 400, 4):
            times.write(base, AppendSpan(base, base + 1))
            times.sync()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    known = AppendTimes.load(fs, directory, range(400))
    assert [known.find(base) for base in range(400)] == [
        AppendSpan(base, base + 1) for base in range(400)
    ]


def test_the_file_stays_bounded_while_the_log_is_open(bench: Bench) -> None:
    bench.open()
    for _ in range(200):
        bench.fill(1)
        bench.log.drop_segments_before(bench.log.end_offset, now_ms=NOW_MS)
    assert len(bench.fs.read(f"{DIRECTORY}/varve-append-times")) < 100 * ENTRY_BYTES
