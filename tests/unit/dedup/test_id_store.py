"""What is remembered of ids: on disk, after a start, in the changelog, and how it goes."""

import numpy as np
import pytest

from tests.support.window_dedup import (
    NOW_MS,
    SECRET,
    Arrival,
    DedupBench,
    Judged,
    find_kept,
    make_rules,
    to_arrivals,
    to_changelog,
)
from varve.dedup.id_store import IdStore
from varve.dedup.ids import decode_entries, encode_entries
from varve.dedup.judge import Judge
from varve.dedup.rules import DedupRules, Verdict
from varve.foundation.errors import Corrupt
from varve.records import Batch, Record, build_batch

MINUTE = 60_000
START = 1_000 * MINUTE
DUPLICATE, KEPT = Verdict.DUPLICATE, Verdict.KEPT


def make_long_rules(*, lateness: int = 10, refresh: bool = False) -> DedupRules:
    """Windows of ten minutes: each segment is one cell."""
    return make_rules(
        before=10 * MINUTE, after=10 * MINUTE, lateness=lateness * MINUTE, refresh=refresh
    )


def read_all(bench: DedupBench) -> dict[bytes, bytes]:
    """The entries of all segments."""
    names = [name for name in bench.file_system.names(bench.directory) if "ids." in name]
    result: dict[bytes, bytes] = {}
    bench.store.close()
    for name in names:
        database = bench.databases.open(f"{bench.directory}/{name}")
        result |= dict(database.scan(None, None, backward=False))
        database.close()
    bench.reopen()
    return result


def test_an_entry_is_the_id_and_the_least_and_largest_time() -> None:
    bench = DedupBench(make_long_rules())
    cell = bench.rules.cell_ms
    start = START // cell * cell
    bench.chunk([Arrival(5, b"id", start + 1)])
    key = b"id" + bytes(14) + bytes([2])
    first = (start + 1).to_bytes(8, "little") + (5).to_bytes(8, "little")
    assert read_all(bench) == {key: first}
    bench.chunk([Arrival(9, b"id", start + cell - 1)])
    last = (start + cell - 1).to_bytes(8, "little") + (9).to_bytes(8, "little")
    assert read_all(bench) == {key: first + last}


def test_where_cells_share_a_segment_the_key_has_the_cell() -> None:
    bench = DedupBench(make_rules())
    bench.chunk([Arrival(0, b"id", 3 * bench.rules.cell_ms)])
    assert list(read_all(bench)) == [b"id" + bytes(14) + bytes([2, 0, 0, 0, 3])]


def test_a_start_goes_on_from_the_checkpoint() -> None:
    bench = DedupBench(make_long_rules())
    bench.chunk([Arrival(0, b"x", START)])
    bench.checkpoint()
    bench.changelog[:] = [bench.changelog[0].take(np.arange(0))]
    bench.crash()
    assert (bench.store.changelog_offset, bench.store.stream_time_ms) == (1, START)
    assert bench.chunk([Arrival(1, b"x", START + 1)]) == [Judged(DUPLICATE, 0)]


@pytest.mark.parametrize("change", ["rules", "secret", "segment is gone", "meta is gone"])
def test_a_directory_that_does_not_fit_is_made_anew(change: str) -> None:
    bench = DedupBench(make_long_rules())
    bench.chunk([Arrival(0, b"x", START)])
    bench.checkpoint()
    bench.store.close()
    files, directory = bench.file_system, bench.directory
    if change == "segment is gone":
        name = next(name for name in files.names(directory) if name.startswith("ids."))
        files.remove_tree(f"{directory}/{name}")
    if change == "meta is gone":
        files.remove(f"{directory}/meta.json")
    store = IdStore.open(
        directory=directory,
        rules=make_long_rules(refresh=change == "rules"),
        secret=(1, 2) if change == "secret" else SECRET,
        databases=bench.databases,
        file_system=files,
    )
    assert store.changelog_offset is None
    assert find_kept(store, b"x", START) == []
    store.close()


def test_a_value_that_is_no_span_of_its_cell_is_corrupt() -> None:
    bench = DedupBench(make_long_rules())
    bench.chunk([Arrival(0, b"id", START)])
    bench.store.close()
    name = next(name for name in bench.file_system.names(bench.directory) if "ids." in name)
    key = b"id" + bytes(14) + bytes([2])
    for value in (b"", b"short", bytes(16), bytes(32), b"\xff" * 16):
        database = bench.databases.open(f"{bench.directory}/{name}")
        database.write([(key, value)])
        database.close()
        bench.changelog.clear()
        bench.reopen()
        with pytest.raises(Corrupt, match="not a span of its cell"):
            find_kept(bench.store, b"id", START)
        for few_count_max in (0, 1):
            with pytest.raises(Corrupt, match="not a span of its cell"):
                bench.judge([Arrival(1, b"id", START)], few_count_max=few_count_max)
        bench.store.close()


def test_a_chunk_that_outruns_its_own_beginning_writes_what_is_live() -> None:
    bench = DedupBench(make_long_rules())
    rows = [Arrival(0, b"x", START), Arrival(1, b"x", START + 1), Arrival(2, b"x", 9 * START)]
    assert [item.verdict for item in bench.chunk(rows)] == [KEPT, DUPLICATE, KEPT]
    names = [name for name in bench.file_system.names(bench.directory) if "ids." in name]
    assert len(names) == 1


def test_news_fit_the_state_they_were_judged_by_and_no_other() -> None:
    bench = DedupBench(make_rules())
    chunk = to_arrivals([Arrival(0, b"x", 1)])
    result = Judge(bench.rules, bench.store).judge(chunk, NOW_MS, -1)
    bench.store.apply(result.new_ids, 1)
    with pytest.raises(AssertionError, match="another version"):
        bench.store.apply(result.new_ids, 1)


def test_entries_of_the_changelog_are_read_as_they_were_written() -> None:
    new_ids = to_arrivals([Arrival(7, b"id", 258), Arrival(8, b"longer than sixteen", 1)])
    columns = encode_entries(new_ids)
    assert columns.timestamps.tolist() == [258, 1]
    key = columns.keys.data[:29].tobytes()
    assert key == b"id" + bytes(14) + bytes([2]) + bytes([0, 0, 0, 0, 0, 0, 1, 2]) + bytes(4)
    assert columns.values.data[:8].tobytes() == bytes([0, 0, 0, 0, 0, 0, 0, 7])
    result = decode_entries(to_changelog(new_ids), "t-0")
    assert result.words.tolist() == new_ids.words.tolist()
    assert result.kinds.tolist() == new_ids.kinds.tolist()
    assert result.times.tolist() == new_ids.times.tolist()
    assert result.offsets.tolist() == new_ids.offsets.tolist()


GOOD_KEY = bytes(16) + bytes([2]) + (5).to_bytes(8, "big") + bytes(4)


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        (GOOD_KEY[:-1], bytes(8), "its key has 28 bytes, not 29"),
        (None, bytes(8), "its key has -1 bytes"),
        (GOOD_KEY, b"", "its value has 0 bytes, not 8"),
        (GOOD_KEY[:16] + bytes([18]) + GOOD_KEY[17:], bytes(8), "kind 18"),
        (GOOD_KEY[:17] + b"\xff" * 8 + bytes(4), bytes(8), "time -1"),
        (GOOD_KEY[:-1] + b"\1", bytes(8), "not a deduplication entry"),
        (GOOD_KEY, b"\xff" * 8, "offset -1"),
    ],
)
def test_records_that_are_no_entries_are_named_with_a_remedy(
    key: bytes | None, value: bytes | None, what: str
) -> None:
    records = [Record(GOOD_KEY, bytes(8)), Record(key, value)]
    columns = Batch(build_batch(records, base_offset=40)).columns()
    with pytest.raises(Corrupt, match=rf"^t-0, offset 41: .*{what}.* start again with .*--name$"):
        decode_entries(columns, "t-0")


def test_entries_may_come_again_and_in_any_order() -> None:
    bench = DedupBench(make_rules(refresh=True))
    bench.chunk([Arrival(offset, b"x", time) for offset, time in enumerate((50, 45, 58, 62, 30))])
    before = read_all(bench)
    (new_ids,) = bench.changelog
    bench.store.reset()
    for order in (np.arange(len(new_ids))[::-1], np.arange(len(new_ids))):
        for place in order:
            bench.store.restore(new_ids.take(np.array([place])))
    assert read_all(bench) == before


@pytest.mark.parametrize(("is_used", "warned_count"), [(False, 0), (True, 1)])
def test_another_secret_is_worth_a_word_where_there_were_ids(
    caplog: pytest.LogCaptureFixture, is_used: bool, warned_count: int
) -> None:
    bench = DedupBench(make_long_rules())
    if is_used:
        bench.chunk([Arrival(1, b"id", START)])
    bench.store.close()
    IdStore.open(
        directory=bench.directory,
        rules=bench.rules,
        secret=(SECRET[0], SECRET[1] + 1),
        databases=bench.databases,
        file_system=bench.file_system,
    ).close()
    assert len(caplog.records) == warned_count
