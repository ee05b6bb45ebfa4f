"""A damaged segment is held with a reason, and everything else goes on: G4, G5, G7.

The second of four segments is damaged. It holds an old value of a key that is deleted later on, so
the tombstone must stay as long as the segment cannot be cleaned.
"""

import contextlib
from collections.abc import Callable

import numpy as np
import pytest

from tests.support.cleaning_bench import PARTITION, RETENTION_MS, CleaningBench, compacted
from tests.support.cleaning_checks import check_exact, check_promises, foretell
from varve.cleaning.key_index.key_index import ENTRY, HEADER_BYTES
from varve.cleaning.key_index.segment_indexes import HeldSegment
from varve.foundation.errors import StoreError
from varve.records import Record
from varve.testing.faulty_disk import CrashMode

FILLER = "x" * 60
TOMBSTONE = 6
DAMAGED = 2
PAIRS = [(b"gone", None), (b"alive", b"value")]
# Far behind any back-off.
LATER_MS = 30 * 86_400_000


@pytest.fixture
def bench() -> CleaningBench:
    bench = CleaningBench(compacted(segment_bytes=400, min_cleanable_dirty_ratio=0.01))
    _write(bench, [("a", "1")], [("b", "1")])
    _write(bench, [("c", "1"), ("gone", "an old value")], [("e", "1")])
    _write(bench, [("a", "2"), ("gone", None)])
    _write(bench, [("b", "2")], [("d", "1")])
    return bench


def _write(bench: CleaningBench, *batches: list[tuple[str, str | None]]) -> None:
    """A segment with these batches."""
    for batch in batches:
        bench.append(
            Record(
                key.encode(),
                None if value is None else (value + FILLER).encode(),
                timestamp=bench.now_ms,
            )
            for key, value in batch
        )
    bench.roll()


def _path(bench: CleaningBench, kind: str = "log") -> str:
    return f"{bench.path}/{PARTITION}/{DAMAGED:020d}.{kind}"


def _flip(bench: CleaningBench, position: int, kind: str = "log") -> None:
    with bench.disk.open_writable(_path(bench, kind)) as file:
        position %= file.size()
        (byte,) = file.read_at(position, 1)
        file.write_at(position, bytes([byte ^ 0x40]))


def _offsets_beside(bench: CleaningBench) -> list[int]:
    """The offsets of all records but those of the damaged segment."""
    view = list(bench.log.view)
    ends = [*(one.base_offset for one in view[1:]), bench.log.end_offset]
    return [
        record.offset
        for segment, end in zip(view, ends, strict=True)
        if segment.base_offset != DAMAGED
        for batch in bench._content(segment.base_offset, end, segment.size).batches
        for record in batch.records
    ]


def _the_hold(bench: CleaningBench) -> HeldSegment:
    (health,) = bench.cleaner.health()
    assert not health.is_healthy
    (hold,) = health.holds
    return hold


@pytest.mark.parametrize("position", [30, 100, -5], ids=["header", "first batch", "last batch"])
def test_g4_a_damaged_segment_is_held_and_the_others_are_cleaned(
    bench: CleaningBench, position: int
) -> None:
    size = bench.log.view.closed[1].size
    _flip(bench, position)
    (hold,) = bench.clean().holds
    assert hold == _the_hold(bench)
    assert (hold.base_offset, hold.bytes_held, hold.attempts) == (DAMAGED, size, 1)
    assert f"{DAMAGED:020d}.log" in hold.reason
    assert hold.since_ms == bench.now_ms
    assert hold.retry_ms > bench.now_ms
    assert _offsets_beside(bench) == [5, TOMBSTONE, 7, 8]


@pytest.mark.parametrize("is_indexed", [False, True], ids=["indexing", "copying"])
def test_g4_who_holds_a_segment_names_a_copy_and_what_a_repair_would_cost(
    bench: CleaningBench, is_indexed: bool
) -> None:
    if is_indexed:
        bench.cleaner.build_indexes(bench.now_ms)
    _flip(bench, 100)
    report = bench.clean()
    told = [report.holds[0].reason, *([report.note] if is_indexed else [])]
    with pytest.raises(StoreError) as caught:
        bench.cleaner.find_key(PARTITION, b"nobody", bench.now_ms)
    for text in [*told, str(caught.value)]:
        assert "is held: cleaning skips it and everything else goes on" in text
        assert "restore this file from a copy" in text
        assert "cut the log at that batch and drop what follows" in text
        assert "--repair" not in text


def test_g4_no_tombstone_behind_a_held_segment_expires(bench: CleaningBench) -> None:
    _flip(bench, 100)
    for _ in range(4):
        bench.clean()
        assert TOMBSTONE in _offsets_beside(bench)
        bench.advance(RETENTION_MS)


@pytest.mark.parametrize("is_restarted", [False, True], ids=["running", "restarted"])
def test_g4_a_segment_that_was_mended_is_cleaned(bench: CleaningBench, is_restarted: bool) -> None:
    _flip(bench, 100)
    bench.clean()
    first_attempt_ms = _the_hold(bench).since_ms
    bench.advance(LATER_MS)
    bench.clean()
    assert _the_hold(bench).attempts == 2
    assert _the_hold(bench).since_ms == first_attempt_ms
    _flip(bench, 100)
    if is_restarted:
        bench.crash(CrashMode.KEEP_ALL)
    bench.advance(LATER_MS)
    foretold = foretell(bench)
    report = bench.clean()
    check_exact(bench, foretold, report)
    assert bench.cleaner.health()[0].is_healthy
    assert sorted(bench.state()) == [b"a", b"b", b"c", b"d", b"e"]


@pytest.mark.parametrize("position", [30, 100, -5], ids=["header", "mixed batch", "kept batch"])
def test_g4_damage_that_came_after_the_index_was_built_is_found_before_it_is_copied(
    bench: CleaningBench, position: int
) -> None:
    """The run that meets it may leave the segments around it as well; the next cleans them."""
    bench.cleaner.build_indexes(bench.now_ms)
    assert bench.disk.exists(_path(bench, "keys"))
    _flip(bench, position)
    damaged = bench.disk.read(_path(bench))
    (hold,) = bench.clean().holds
    assert hold.base_offset == DAMAGED
    assert bench.disk.read(_path(bench)) == damaged
    bench.clean()
    assert _offsets_beside(bench) == [5, TOMBSTONE, 7, 8]


def test_g4_due_work_goes_on_beside_a_held_segment(bench: CleaningBench) -> None:
    _flip(bench, 100)
    bench.cleaner.run_once(bench.now_ms)
    assert _offsets_beside(bench) == [5, TOMBSTONE, 7, 8]
    for round in range(3):
        _write(bench, [("b", f"{round}")], [("d", f"{round}")])
        _write(bench, [("b", f"{round}")], [("d", f"{round}")])
        bench.advance(1)
        bench.cleaner.run_once(bench.now_ms)
    assert _offsets_beside(bench) == [5, TOMBSTONE, 19, 20]


Damage = Callable[[CleaningBench], None]


def _cut_keys(bench: CleaningBench) -> None:
    with bench.disk.open_writable(_path(bench, "keys")) as file:
        file.truncate(file.size() // 2)


def _remove_keys(bench: CleaningBench) -> None:
    bench.disk.remove(_path(bench, "keys"))


every_damage = pytest.mark.parametrize(
    "damage",
    [
        lambda bench: _flip(bench, 3, "keys"),
        lambda bench: _flip(bench, 60, "keys"),
        lambda bench: _flip(bench, 130, "keys"),
        lambda bench: _flip(bench, 150, "keys"),
        lambda bench: _flip(bench, -5, "keys"),
        _cut_keys,
        _remove_keys,
    ],
    ids=["magic", "header", "hash", "record", "batches", "cut", "removed"],
)


@every_damage
def test_g7_a_damaged_key_index_is_built_anew(bench: CleaningBench, damage: Damage) -> None:
    bench.cleaner.build_indexes(bench.now_ms)
    damage(bench)
    bench.reopen()
    foretold = foretell(bench)
    check_exact(bench, foretold, bench.clean())
    assert bench.cleaner.health()[0].is_healthy


@every_damage
def test_g7_damage_to_a_key_index_in_use_costs_one_run_at_most(
    bench: CleaningBench, damage: Damage
) -> None:
    bench.cleaner.build_indexes(bench.now_ms)
    damage(bench)
    stored = bench.read_all()
    with contextlib.suppress(StoreError):
        bench.clean()
        stored = bench.read_all()
    assert bench.read_all() == stored
    check_promises(bench)
    bench.clean()
    assert bench.offsets() == [2, 4, 5, TOMBSTONE, 7, 8]
    assert bench.cleaner.health()[0].is_healthy


def test_g4_a_key_index_that_takes_a_value_for_a_tombstone_costs_no_value() -> None:
    """Both stand in a batch whose horizon has passed; the index is damaged while it is in use."""
    bench = CleaningBench()
    bench.append(Record(key, value, timestamp=bench.now_ms) for key, value in PAIRS)
    bench.roll()
    bench.clean()
    path = f"{bench.path}/{PARTITION}/{0:020d}.keys"
    data = bench.disk.read(path)
    entries = np.frombuffer(data, ENTRY, len(PAIRS), HEADER_BYTES).copy()
    entries["flags"] = 1
    with bench.disk.open_writable(path) as file:
        file.write_at(HEADER_BYTES, entries.tobytes())
    bench.advance(RETENTION_MS)
    with contextlib.suppress(StoreError):
        bench.clean()
    bench.clean()
    assert bench.offsets() == [1]
    check_promises(bench)


def test_a_rewrite_that_would_outgrow_its_index_leaves_the_segment_as_it_is(
    bench: CleaningBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delete horizons make a segment near 2 GiB larger, and an index has positions of 31 bits."""
    before = {one.base_offset: one.size for one in bench.log.view.closed}
    monkeypatch.setattr("varve.cleaning.compaction.rewrite.INT_MAX", 100)
    (hold,) = bench.clean().holds
    assert "as it is" in hold.reason
    assert {one.base_offset: one.size for one in bench.log.view.closed} == before
    monkeypatch.undo()
    bench.advance(3_600_000)
    assert not bench.clean().holds
