"""A segment whose offsets outgrew 32 bits becomes several."""

from tests.support.log_bench import DIRECTORY, Bench, make_batch, offsets_in, read_all
from varve.commit_log.names import log_name
from varve.commit_log.segment_replacement import split_segment

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
