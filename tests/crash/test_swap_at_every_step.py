"""A crash or a failing call at every I/O step of a swap and of a drop: before or after, no third.

What is found is the old segments or the new one in their place, never parts of both, whatever the
new one keeps: all batches, none at the end, none at all.
"""

import errno
import os
from collections.abc import Callable

import pytest

from tests.crash.bench import (
    INTERVAL,
    PARTITION,
    Bench,
    Scenario,
    crash_modes,
    judge,
    observe,
    open_store,
)
from tests.support.check_open_log import check_log
from tests.support.cleaned_segment import other_generation
from tests.support.crash_images import crash_images, named
from tests.support.log_model import check_equals, read_all
from varve.commit_log import Log
from varve.foundation.errors import DirectoryOffline, DiskFull, LogPoisoned, StoreError, Unavailable
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem

Clean = Callable[[list[bytes]], list[bytes]]


def _all(batches: list[bytes]) -> list[bytes]:
    return [other_generation(batch) for batch in batches]


def _first_only(batches: list[bytes]) -> list[bytes]:
    """The new data ends within the first old segment: the others must go nevertheless."""
    return [other_generation(batches[0])]


def _last_only(batches: list[bytes]) -> list[bytes]:
    return [other_generation(batches[-1])]


def _none(batches: list[bytes]) -> list[bytes]:
    return []


def _plain(bench: Bench) -> None:
    bench.start()
    bench.append(14)


def _with_transactions(bench: Bench) -> None:
    bench.start()
    bench.append(2)
    bench.append(producer_id=5, base_sequence=0)
    bench.append(producer_id=6, base_sequence=0, transactional=True)
    bench.append(producer_id=5, base_sequence=2)
    bench.end_transaction(6, committed=False)
    bench.append(5)
    bench.append(producer_id=6, base_sequence=2, transactional=True)
    bench.append(2)


def _with_producer(bench: Bench) -> None:
    bench.start()
    for sequence in (0, 2):
        bench.append(5)
        bench.append(producer_id=5, base_sequence=sequence)
    bench.append()


def _prepare(fill: Callable[[Bench], None], count: int, clean: Clean) -> Callable[[Bench], None]:
    def prepare(bench: Bench) -> None:
        fill(bench)
        bench.swap = bench.write_cleaned(0, count, clean)

    return prepare


def _swap(bench: Bench) -> None:
    assert bench.swap is not None
    bench.replace_segments(bench.swap)


def _write_swap_and_append(bench: Bench) -> None:
    bench.replace_segments(bench.write_cleaned(0, 2, _all))
    bench.append()


def _swap_twice(bench: Bench) -> None:
    for _ in range(2):
        bench.replace_segments(bench.write_cleaned(0, 2, _first_only))


def _drop_some(bench: Bench) -> None:
    bench.drop_segments_before(bench.log.view.closed[2].base_offset)
    bench.append()


def _drop_all(bench: Bench) -> None:
    bench.drop_segments_before(bench.log.end_offset)
    bench.append()


SCENARIOS = {
    "swap three": (_prepare(_plain, 3, _all), _swap),
    "swap one": (_prepare(_plain, 1, _all), _swap),
    "swap with transactions": (_prepare(_with_transactions, 2, _all), _swap),
    "swap that keeps the first batch only": (_prepare(_plain, 3, _first_only), _swap),
    "swap that keeps the last batch only": (_prepare(_plain, 3, _last_only), _swap),
    "swap that keeps nothing": (_prepare(_plain, 3, _none), _swap),
    "swap of one that keeps nothing": (_prepare(_plain, 1, _none), _swap),
    "write, swap and append": (_plain, _write_swap_and_append),
    "swap what was swapped": (_plain, _swap_twice),
    "drop some": (_with_producer, _drop_some),
    "drop all": (_plain, _drop_all),
}


def _check_opened(disk: FaultyFileSystem, log: Log) -> None:
    """The directory holds plain files only, and the memory agrees with them."""
    names = disk.names(log.directory)
    assert not [name for name in names if name.endswith((".swap", ".cleaned", ".deleted"))]
    assert [str(finding) for finding in check_log(log)] == []


def _check_found(bench: Bench, disk: FaultyFileSystem, mode: CrashMode) -> None:
    """One of both logs."""
    store = open_store(disk, bench.settings)
    assert observe(bench, store, mode) is not None
    _check_opened(disk, store.get(PARTITION))
    store.abandon()


@pytest.mark.parametrize("name", SCENARIOS)
def test_g4_g6_a_crash_at_any_step_leaves_the_log_before_or_after(
    name: str, rounds_factor: int
) -> None:
    scenario = Scenario(INTERVAL, *SCENARIOS[name])
    for image in crash_images(scenario.record(), lambda step: crash_modes(step, rounds_factor)):
        with named(image):
            judge(image.state, image.disk, image.mode, check_opened=_check_opened)


FAILING = [(name, errno.EIO) for name in SCENARIOS] + [
    (name, errno.ENOSPC) for name in ("swap that keeps the first batch only", "drop all")
]


@pytest.mark.parametrize(("name", "code"), FAILING)
def test_g7_a_failing_call_leaves_the_log_in_use_or_takes_it_down(name: str, code: int) -> None:
    scenario = Scenario(INTERVAL, *SCENARIOS[name])
    for step in scenario.steps():
        bench = scenario.prepared()
        bench.disk.fail_at(step, OSError(code, os.strerror(code)))
        seen: StoreError | OSError | None = None
        try:
            scenario.act(bench)
        except (StoreError, OSError) as error:
            seen = error
        try:
            _check_failed(bench, seen)
            mode = (CrashMode.KEEP_ALL, CrashMode.LOSE_UNSYNCED)[step % 2]
            _check_found(bench, bench.disk.after_crash(mode), mode)
        except BaseException as error:
            error.add_note(f"failed at {bench.disk.trace[step - 1]}; the caller saw {seen!r}")
            raise


def _check_failed(bench: Bench, seen: StoreError | OSError | None) -> None:
    if seen is None:
        return
    assert bench.store is not None
    log = bench.store.directories[0].logs[PARTITION]
    if isinstance(seen, DirectoryOffline | LogPoisoned):
        with pytest.raises(StoreError):
            log.append(b"")
        return
    if isinstance(seen, OSError):  # of the bench's own writing
        return
    assert isinstance(seen, DiskFull | Unavailable)
    assert read_all(log) == [batch.data for batch in bench.model.visible()]
    check_equals(log, bench.model)
    bench.outcome = None
    bench.append()
