"""Append, roll, copy, clean, crash and reopen in any order, over a disk and a store that fail: G3.

What the manifest says is readable equals what the log held when it was copied; offsets below the
copied one are in exactly one readable segment; no object is there that no manifest names.
"""

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.tier_bench import TierBench
from varve.cleaning.remote_tier import NoRemoteTier
from varve.foundation.errors import PowerLoss, StoreUnavailable
from varve.testing import FaultKind, ObjectFaultPlan
from varve.testing.faulty_disk import CrashMode

RATES = {
    FaultKind.ERROR_BEFORE: 0.04,
    FaultKind.ERROR_AFTER: 0.04,
    FaultKind.REPEATED: 0.03,
    FaultKind.PARTIAL: 0.03,
}

appends = st.tuples(st.just("append"), st.integers(1, 4), st.integers(0, 5))
rolls = st.tuples(st.just("roll"), st.just(0), st.just(0))
copies = st.tuples(st.just("copy"), st.just(0), st.just(0))
cleans = st.tuples(st.just("clean"), st.integers(0, 1), st.just(0))
crashes = st.tuples(st.just("crash"), st.integers(0, 2), st.integers(0, 40))
cuts = st.tuples(st.just("cut"), st.integers(0, 1), st.integers(1, 40))
reopens = st.tuples(st.just("reopen"), st.just(0), st.just(0))
steps = st.one_of(appends, appends, rolls, copies, copies, cleans, crashes, cuts, reopens)


def new_plan(bench: TierBench, seed: int) -> ObjectFaultPlan:
    """Faults by chance, others for every process."""
    return ObjectFaultPlan(seed=seed + bench.starts, rates=RATES)


def do(bench: TierBench, step: tuple[str, int, int], seed: int) -> None:
    match step:
        case ("append", count, first):
            for number in range(first, first + count):
                bench.hot.put(f"key-{number}", f"value-{bench.hot.log.end_offset}")
        case ("roll", _, _):
            bench.hot.roll()
        case ("copy", _, _):
            bench.copy()
        case ("clean", is_blind, _):
            if is_blind:
                bench.hot.cleaner.remote = NoRemoteTier()
            with contextlib.suppress(StoreUnavailable):
                bench.hot.clean()
        case ("crash", mode, seed):
            bench.crash(list(CrashMode)[mode], seed)
            bench.connect(new_plan(bench, seed))
        case ("cut", is_disk, after):
            cut_copy(bench, bool(is_disk), after)
            bench.connect(new_plan(bench, seed))
        case _:
            bench.reopen()
            bench.connect(new_plan(bench, seed))


def cut_copy(bench: TierBench, is_disk: bool, after: int) -> None:
    """A copy in which the power goes."""
    if is_disk:
        bench.hot.faulty.crash_at(bench.hot.faulty.steps + after)
    else:
        bench.objects.crash_at(bench.objects.steps + after)
    local = bench.local_files()
    with contextlib.suppress(PowerLoss):
        bench.copier.copy(bench.hot.log.topic_partition, bench.hot.now_ms)
    bench.crash(CrashMode.RANDOM, seed=after)
    bench.note(local)


@settings(max_examples=40)
@given(st.lists(steps, max_size=25), st.integers(0, 1 << 16))
def test_what_is_readable_is_what_the_log_held(
    sequence: list[tuple[str, int, int]], seed: int
) -> None:
    bench = TierBench()
    bench.connect(new_plan(bench, seed))
    for step in sequence:
        do(bench, step, seed)
        check(bench)
    bench.connect()
    bench.hot.roll()
    assert bench.copy().error is None
    check(bench)
    assert bench.copied_offset() == bench.hot.log.end_offset


def check(bench: TierBench) -> None:
    """Checked through the bucket itself, whatever the copier's way to it does."""
    objects, copier, cleaner = bench.objects, bench.copier, bench.hot.cleaner
    bench.connect()
    bench.check()
    bench.objects, bench.copier, bench.hot.cleaner = objects, copier, cleaner
