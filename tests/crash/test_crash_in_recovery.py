"""A crash while a crash is being recovered from, and the leftovers that recovery resolves: G3, G6.

Opening may be cut at any of its steps; the next opening finds the same log.
"""

from collections.abc import Callable
from functools import partial

import pytest

from tests.crash.bench import ACK, INTERVAL, PARTITION, Bench, Scenario, judge, new_disk, open_store
from tests.crash.test_crash_at_every_step import SCENARIOS
from tests.support.crash_images import CrashPoint, crash_images, named, record
from tests.support.log_bench import FaultyBench, make_batch
from tests.support.log_model import LogModel, check_equals, read_all
from varve.commit_log import LogSettings
from varve.foundation.clock import ManualClock
from varve.records import Record, build_batch, edit_batch
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem

DIRECTORY = f"/d/a/{PARTITION}"
MODES = (CrashMode.KEEP_ALL, CrashMode.LOSE_UNSYNCED, CrashMode.RANDOM)


def _record_opening(disk: FaultyFileSystem, settings: LogSettings) -> list[CrashPoint[None]]:
    copy = disk.after_crash(CrashMode.KEEP_ALL)
    return record(lambda: open_store(copy, settings), lambda: None, disk=copy)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("append many kinds", INTERVAL),
        ("truncate across segments", INTERVAL),
        ("roll", ACK),
        ("close", ACK),
    ],
)
def test_g1_g3_recovery_may_be_cut_anywhere(
    name: str, settings: LogSettings, rounds_factor: int
) -> None:
    scenario = Scenario(settings, *SCENARIOS[name])
    points = scenario.record()[:-1]
    for point in points[:: max(1, len(points) // (2 * rounds_factor))]:
        assert point.disk is not None
        step, bench = point.step, point.state
        for first_mode in (CrashMode.KEEP_ALL, CrashMode.RANDOM):
            found = point.disk.after_crash(first_mode, step)
            opening = _record_opening(found, settings)[:-1]
            for image in crash_images(opening, partial(_mode_in_turn, step)):
                worse = image.mode if first_mode is CrashMode.KEEP_ALL else first_mode
                with named(point), named(image):
                    judge(bench, image.disk, worse, with_close=image.step % 4 == 0)


def _mode_in_turn(first: int, second: int) -> list[tuple[CrashMode, int]]:
    return [(MODES[(first + second) % 3], second)]


def _two_closed_segments(bench: Bench) -> None:
    bench.start()
    bench.append(4)
    bench.log.roll()
    bench.append(4)
    bench.log.roll()
    bench.append()
    bench.close()


def _replacement(model: LogModel) -> list[bytes]:
    """The first eight batches as compaction may leave them: some gone, offsets as they were."""
    return [batch.data for number, batch in enumerate(model.batches[:8]) if number % 3 != 1]


def _swap(disk: FaultyFileSystem, parts: dict[int, list[bytes]], old: list[int]) -> None:
    """The swap protocol of kafka-log.md §6.9 with data files and one index each."""

    def path(base: int, kind: str, state: str = "") -> str:
        return f"{DIRECTORY}/{base:020d}{kind}{state}"

    for base, batches in parts.items():
        for kind, data in ((".log", b"".join(batches)), (".index", b""), (".timeindex", b"")):
            with disk.open_writable(path(base, kind, ".cleaned")) as file:
                file.write_at(0, data)
                file.sync()
    disk.sync_directory(DIRECTORY)
    for base in sorted(parts, reverse=True):
        for kind in (".log", ".index", ".timeindex"):
            disk.rename(path(base, kind, ".cleaned"), path(base, kind, ".swap"))
    for base in old:
        for kind in (".log", ".index", ".timeindex"):
            disk.rename(path(base, kind), path(base, kind, ".deleted"))
    for base in sorted(parts):
        for kind in (".log", ".index", ".timeindex"):
            disk.rename(path(base, kind, ".swap"), path(base, kind))
    disk.sync_directory(DIRECTORY)


def _prepared_swap() -> tuple[Bench, dict[int, list[bytes]], list[int]]:
    bench = Bench(new_disk(), INTERVAL)
    _two_closed_segments(bench)
    bench.disk = bench.disk.after_crash(CrashMode.KEEP_ALL)
    kept = _replacement(bench.model)
    bases = sorted(int(name[:20]) for name in bench.disk.names(DIRECTORY) if name.endswith(".log"))
    half = len(kept) // 2
    second_base = int.from_bytes(kept[half][:8], "big")
    last_old = bench.model.batches[7].last_offset
    old = [base for base in bases if base <= last_old]
    return bench, {0: kept[:half], second_base: kept[half:]}, old


@pytest.mark.parametrize("mode", MODES)
def test_g3_g6_a_swap_cut_anywhere_leaves_the_old_or_the_new_segments(
    mode: CrashMode, rounds_factor: int
) -> None:
    bench, parts, old = _prepared_swap()
    points = record(lambda: _swap(bench.disk, parts, old), lambda: None, disk=bench.disk)
    before = bench.model.batches
    old_log = [batch.data for batch in before]
    new_log = _replacement(bench.model) + old_log[8:]
    outcomes = set()
    stride = 1 if rounds_factor > 1 else 3
    for first in crash_images(points, lambda step: [(mode, step)], crashes_again=True):
        opening = _record_opening(first.disk, INTERVAL)
        # The last point is that of an opening that is not cut.
        chosen = [opening[-1], *opening[first.step % stride : -1 : stride]]
        for image in crash_images(chosen, lambda step: [(mode, step)]):
            with named(first), named(image):
                store = open_store(image.disk, INTERVAL)
                stored = read_all(store.get(PARTITION))
                assert stored in (old_log, new_log)
                outcomes.add(stored == new_log)
                names = image.disk.names(DIRECTORY)
                assert not [n for n in names if n.endswith((".swap", ".cleaned", ".deleted"))]
                store.abandon()
    assert outcomes >= {False}


def _far_batches() -> list[bytes]:
    """Batches that no single segment's indexes can express."""
    offsets = [0, 5, 2**31 + 7, 2**31 + 9, 2**32 + 40]
    batch = build_batch([Record(key=b"k", value=b"v" * 50, timestamp=1_600_000_000_000)])
    return [bytes(edit_batch(batch, base_offset=offset, leader_epoch=0)) for offset in offsets]


def _write_overflowing(disk: FaultyFileSystem) -> None:
    disk.make_directory(DIRECTORY)
    with disk.open_writable(f"{DIRECTORY}/{0:020d}.log") as file:
        file.write_at(0, *_far_batches())
        file.sync()
    for path in (DIRECTORY, "/d/a", "/d", "/"):
        disk.sync_directory(path)


@pytest.mark.parametrize("mode", MODES)
def test_g3_a_segment_that_outgrew_its_indexes_is_split_whatever_happens(mode: CrashMode) -> None:
    disk = new_disk()
    _write_overflowing(disk)
    model = LogModel()
    for data in _far_batches():
        model.append(data)
    disk = disk.after_crash(CrashMode.KEEP_ALL)
    for image in crash_images(_record_opening(disk, INTERVAL), lambda step: [(mode, step)]):
        with named(image):
            store = open_store(image.disk, INTERVAL)
            check_equals(store.get(PARTITION), model)
            assert len(store.get(PARTITION).view) == 3
            store.close()


def test_g3_a_rebuild_of_indexes_that_is_cut_is_repeated() -> None:
    """Without the transaction index an aborted record would be read as committed."""
    clock = ManualClock()
    bench = FaultyBench(FaultyFileSystem(clock), clock)
    bench.open()
    bench.log.append(
        make_batch(producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    )
    bench.log.end_transaction(producer_id=1, producer_epoch=0, committed=False)
    bench.fill(0, 1)
    bench.log.close()
    for kind in (".index", ".timeindex", ".txnindex"):
        bench.fs.remove(bench.path(0, kind))
    bench.fs.sync_directory(bench.log.directory)
    points = record(lambda: bench.open(recovery_point=3), lambda: None, disk=bench.fs)
    for image in crash_images(points):
        with named(image):
            survivor = FaultyBench(image.disk, clock)
            aborted = survivor.open(recovery_point=3).aborted_transactions()
            assert [transaction.first_offset for transaction in aborted] == [0]


def _tear_base_offset(data: bytearray, at: int) -> None:
    data[at : at + 7] = bytes(7)


def _zero_magic(data: bytearray, at: int) -> None:
    data[at + 14 :] = bytes(len(data) - at - 14)


@pytest.mark.parametrize("tear", [_tear_base_offset, _zero_magic])
def test_g3_a_torn_batch_that_its_checksum_does_not_betray_is_cut(
    tear: Callable[[bytearray, int], None],
) -> None:
    """The checksum leaves out the base offset; without its magic a batch looks like an old one."""
    bench = Bench(new_disk(), LogSettings())
    bench.start()
    bench.reset_at(300)
    bench.append(4)
    bench.flush()
    disk = bench.disk.after_crash(CrashMode.LOSE_UNSYNCED)
    path = f"{DIRECTORY}/{300:020d}.log"
    data = bytearray(disk.read(path))
    position = sum(len(batch.data) for batch in bench.model.batches[:3])
    tear(data, position)
    with disk.open_writable(path) as file:
        file.write_at(0, data)
    store = open_store(disk, LogSettings())
    assert read_all(store.get(PARTITION)) == [batch.data for batch in bench.model.batches[:3]]
