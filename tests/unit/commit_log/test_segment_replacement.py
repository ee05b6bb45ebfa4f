"""Each row of the table of what a crash may leave of a swap, and what becomes of it; and splits."""

import pytest

from tests.support.log_bench import (
    BROKEN,
    DIRECTORY,
    Bench,
    FaultyBench,
    make_batch,
    offsets_in,
    read_all,
)
from varve.commit_log.names import log_name
from varve.commit_log.segment_replacement import finish_or_undo_swaps, split_segment
from varve.foundation.errors import Corrupt

KINDS = (".log", ".index", ".timeindex")


def batches(*offsets: int, value: bytes = b"new") -> bytes:
    return b"".join(make_batch(base_offset=offset, value=value) for offset in offsets)


def put(bench: Bench, offset: int, state: str, data: bytes, kinds: tuple[str, ...] = KINDS) -> None:
    for kind in kinds:
        bench.write(offset, kind + state, data if kind == ".log" else b"")


@pytest.fixture
def old(bench: Bench) -> Bench:
    """Three closed segments of two records and an active one, not open."""
    bench.open()
    bench.fill(2, 2, 2, 1, value=b"old")
    bench.log.close()
    return bench


def values(bench: Bench) -> dict[str, bytes]:
    return {name: bench.fs.read(f"{DIRECTORY}/{name}") for name in bench.names(".log")}


def states(bench: Bench) -> list[str]:
    return bench.names(".cleaned", ".swap", ".deleted")


def test_writing_cleaned_files_leaves_the_old_log(old: Bench) -> None:
    before = values(old)
    put(old, 0, ".cleaned", batches(0, 3)[:50])
    old.open(clean=True)
    assert states(old) == []
    assert values(old) == before


def test_while_cleaned_files_remain_the_swaps_above_them_are_not_committed(old: Bench) -> None:
    before = values(old)
    put(old, 0, ".cleaned", batches(0))
    put(old, 2, ".swap", batches(3))
    old.open(clean=True)
    assert states(old) == []
    assert values(old) == before


def test_a_swap_below_every_cleaned_file_is_committed(old: Bench) -> None:
    put(old, 0, ".swap", batches(1))
    put(old, 4, ".cleaned", batches(5))
    old.open(clean=True)
    assert states(old) == []
    assert old.read_file(0) == batches(1)
    assert b"old" in old.read_file(4)


def test_a_complete_swap_set_replaces_every_plain_file_of_its_range(old: Bench) -> None:
    put(old, 0, ".swap", batches(1))
    put(old, 3, ".swap", batches(3, 5))
    old.open(clean=True)
    assert old.names(".log") == [log_name(0), log_name(3), log_name(6)]
    assert (old.read_file(0), old.read_file(3)) == (batches(1), batches(3, 5))
    assert read_all(old.log) == [1, 3, 5, 6]


def test_snapshots_in_the_range_go_too(old: Bench) -> None:
    put(old, 0, ".swap", batches(5))
    names = old.fs.names(DIRECTORY)
    assert log_name(2, ".snapshot") in names
    finish_or_undo_swaps(old.fs, DIRECTORY, names)
    assert old.names(".snapshot") == [log_name(6, ".snapshot"), log_name(7, ".snapshot")]


def test_the_range_ends_before_the_swaps_next_offset(old: Bench) -> None:
    put(old, 0, ".swap", batches(3))
    finish_or_undo_swaps(old.fs, DIRECTORY, old.fs.names(DIRECTORY))
    assert old.names(".log") == [log_name(0), log_name(4), log_name(6)]


def test_an_empty_swap_behind_another_marks_how_far_the_range_reaches(old: Bench) -> None:
    put(old, 0, ".swap", batches(1))
    put(old, 4, ".swap", b"", kinds=(".log",))
    old.open(clean=True)
    assert states(old) == []
    assert old.names(".log") == [log_name(0), log_name(6)]
    assert read_all(old.log) == [1, 6]


def test_an_empty_swap_alone_replaces_the_segment_it_names(old: Bench) -> None:
    put(old, 2, ".swap", b"")
    old.open(clean=True)
    assert old.names(".log") == [log_name(base) for base in (0, 2, 4, 6)]
    assert read_all(old.log) == [0, 1, 4, 5, 6]


def test_a_mark_that_is_not_committed_counts_for_nothing(old: Bench) -> None:
    before = values(old)
    put(old, 0, ".cleaned", batches(1), kinds=(".keys",))
    put(old, 0, ".swap", batches(1))
    put(old, 4, ".swap", b"", kinds=(".log",))
    old.open(clean=True)
    assert states(old) == []
    assert values(old) == before


def test_a_key_index_is_swapped_with_its_segment(old: Bench) -> None:
    old.write(0, ".keys", b"of the old one")
    old.write(2, ".keys", b"of the old one")
    put(old, 0, ".swap", batches(1, 3))
    old.write(0, ".keys.swap", b"of the new one")
    old.open(clean=True)
    assert old.names(".keys") == [log_name(0, ".keys")]
    assert old.read_file(0, ".keys") == b"of the new one"


def test_old_segments_partly_marked_deleted_are_finished(old: Bench) -> None:
    for kind in KINDS:
        old.fs.rename(old.path(0, kind), old.path(0, kind) + ".deleted")
    put(old, 0, ".swap", batches(1, 3, 5))
    old.open(clean=True)
    assert states(old) == []
    assert old.names(".log") == [log_name(0), log_name(6)]
    assert read_all(old.log) == [1, 3, 5, 6]


def test_some_swaps_renamed_and_some_not_are_finished(old: Bench) -> None:
    for offset in (0, 2, 4):
        for kind in KINDS:
            old.fs.rename(old.path(offset, kind), old.path(offset, kind) + ".deleted")
    put(old, 0, "", batches(1))
    put(old, 3, ".swap", batches(3, 5))
    old.open(clean=True)
    assert states(old) == []
    assert read_all(old.log) == [1, 3, 5, 6]


def test_index_swaps_alone_are_just_renamed(old: Bench) -> None:
    index = old.read_file(2, ".timeindex")
    old.fs.rename(old.path(2, ".timeindex"), old.path(2, ".timeindex.swap"))
    old.open(clean=True)
    assert states(old) == []
    assert old.read_file(2, ".timeindex") == index
    assert read_all(old.log) == list(range(7))


def test_after_the_swap_only_deleted_files_go(old: Bench) -> None:
    before = values(old)
    put(old, 1, ".deleted", batches(1))
    old.open(clean=True)
    assert states(old) == []
    assert values(old) == before


def test_every_deleted_file_goes_but_those_of_metadata_snapshots(old: Bench) -> None:
    names = ("other.deleted", "00000000000000000007-0000000001.checkpoint.deleted")
    for name in names:
        old.fs.open_writable(f"{DIRECTORY}/{name}").close()
    old.open(clean=True)
    assert not old.fs.exists(f"{DIRECTORY}/{names[0]}")
    assert old.fs.exists(f"{DIRECTORY}/{names[1]}")


def test_foreign_files_are_left_alone(old: Bench) -> None:
    for name in ("notes.txt", "12.log", "abc.swap", "00000000000000000001.log.bak"):
        old.fs.open_writable(f"{DIRECTORY}/{name}").close()
    before = old.fs.names(DIRECTORY)
    assert not finish_or_undo_swaps(old.fs, DIRECTORY, before)
    assert old.fs.names(DIRECTORY) == before


def test_an_empty_swap_replaces_the_segment_of_its_name(old: Bench) -> None:
    put(old, 2, ".swap", b"", kinds=(".log",))
    finish_or_undo_swaps(old.fs, DIRECTORY, old.fs.names(DIRECTORY))
    assert old.read_file(2) == b""
    assert log_name(2, ".index") not in old.names()


def test_a_swap_that_cannot_be_read_changes_nothing_plain(old: Bench) -> None:
    before = values(old)
    put(old, 0, ".swap", b"\x7f" * 100)
    with pytest.raises(Corrupt, match="swap"):
        old.open(clean=True)
    assert values(old) == before


def test_resolving_may_be_cut_at_any_step_and_repeated(faulty: FaultyBench) -> None:
    faulty.open()
    faulty.fill(2, 2, 2, 1, value=b"old")
    faulty.log.close()
    put(faulty, 0, ".swap", batches(1))
    put(faulty, 3, ".swap", batches(3, 5))
    for after in range(40):
        faulty.fs.fail_at(faulty.fs.steps + 1 + after, BROKEN)
        try:
            finish_or_undo_swaps(faulty.fs, DIRECTORY, faulty.fs.names(DIRECTORY))
        except OSError:
            faulty.fs.mend()
            continue
        break
    faulty.fs.mend()
    faulty.open(clean=True)
    assert read_all(faulty.log) == [1, 3, 5, 6]


# A segment whose offsets outgrew 32 bits becomes several


FAR = 2**31


def overflowing(bench: Bench) -> Bench:
    bench.fs.make_directory(DIRECTORY)
    offsets = (0, 1, FAR - 1, FAR, FAR + 5, 3 * FAR)
    bench.write(0, ".log", b"".join(make_batch(base_offset=offset) for offset in offsets))
    return bench


def test_each_part_begins_at_its_first_batch_and_holds_what_fits(bench: Bench) -> None:
    overflowing(bench)
    assert split_segment(bench.fs, DIRECTORY, 0) == [0, FAR, 3 * FAR]
    assert bench.names() == [log_name(0), log_name(FAR), log_name(3 * FAR)]
    assert offsets_in(bench.read_file(0)) == [0, 1, FAR - 1]
    assert offsets_in(bench.read_file(FAR)) == [FAR, FAR + 5]


def test_loading_splits_what_overflows(bench: Bench) -> None:
    overflowing(bench)
    log = bench.open()
    assert [segment.base_offset for segment in log.view] == [0, FAR, 3 * FAR]
    assert read_all(log) == [0, 1, FAR - 1, FAR, FAR + 5, 3 * FAR]
    assert any("splitting" in message for message in log.recovered)


def test_old_indexes_do_not_outlive_the_split(bench: Bench) -> None:
    overflowing(bench)
    for kind in (".index", ".timeindex"):
        bench.write(0, kind, b"\x01" * 24)
    split_segment(bench.fs, DIRECTORY, 0)
    assert bench.names(".index", ".timeindex") == []


def test_a_first_part_without_a_batch_stays_as_an_empty_segment(bench: Bench) -> None:
    bench.fs.make_directory(DIRECTORY)
    bench.write(0, ".log", make_batch(base_offset=FAR))
    assert split_segment(bench.fs, DIRECTORY, 0) == [0, FAR]
    assert (bench.read_file(0), offsets_in(bench.read_file(FAR))) == (b"", [FAR])
