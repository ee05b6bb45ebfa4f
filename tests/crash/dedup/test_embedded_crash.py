"""A deduplication in a store is killed at every step of the disk: exactly once all the same: G3."""

import errno
import os
import random
from contextlib import suppress
from functools import partial
from itertools import islice

import pytest

from tests.support.crash_images import crash_images, named, record
from tests.support.dedup_cases import (
    OUTPUT,
    SIDE,
    SOURCE,
    append,
    committed,
    draw_records,
    model_of,
    rules_of,
)
from tests.support.dedup_contract import ContractBench
from tests.support.rounds import IS_LONG
from varve.disk import PowerLoss
from varve.embedded import Store
from varve.foundation.errors import StoreError
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem

STRIDE = 1 if IS_LONG else 17
RULES = rules_of()
COUNT = 48


class Scene:
    """An input on disk, of which nothing is taken yet; every trial begins with a copy of it."""

    def __init__(self) -> None:
        self.records = draw_records(random.Random(21), COUNT)
        self.model = model_of(RULES, self.records)
        bench = ContractBench(RULES)
        append(bench.input, 0, self.records, step=4)
        bench.input.flush()
        bench.store.close()
        self._fs = bench.fs

    def begin(self) -> FaultyFileSystem:
        return self._fs.after_crash(CrashMode.KEEP_ALL)

    def open(self, fs: FaultyFileSystem) -> Store:
        return ContractBench(RULES, fs=fs).store

    def run(self, fs: FaultyFileSystem) -> None:
        """A start, all that is there, and an end."""
        store = ContractBench.run_on(fs, RULES, chunk_bytes=1_400, checkpoint_entries=12).store
        try:
            store.close()
        finally:
            store.abandon()

    def check_prefix(self, fs: FaultyFileSystem) -> None:
        """Readers of committed records see nothing twice and nothing out of order."""
        with self.open(fs) as store:
            for topic, expected in ((OUTPUT, self.model.output), (SIDE, self.model.side)):
                if topic in {one.name for one in store.topics()}:
                    seen = committed(store, topic)
                    assert seen == expected[: len(seen)]

    def check_whole(self, fs: FaultyFileSystem) -> None:
        self.run(fs)
        bench = ContractBench(RULES, fs=fs)
        bench.check(self.records)
        bench.store.close()


@pytest.fixture(scope="module")
def scene() -> Scene:
    return Scene()


@pytest.fixture(scope="module")
def step_count(scene: Scene) -> int:
    trial = scene.begin()
    scene.run(trial)
    assert trial.steps > 200
    return trial.steps


def test_a_crash_at_any_step_loses_and_repeats_nothing(scene: Scene) -> None:
    disk = scene.begin()
    points = record(lambda: scene.run(disk), lambda: None, disk=disk)
    for image in islice(crash_images(points), 0, None, STRIDE):
        with named(image):
            scene.check_prefix(image.disk.after_crash(CrashMode.KEEP_ALL))
            scene.check_whole(image.disk)


@pytest.mark.parametrize("mode", list(CrashMode))
def test_a_start_may_be_cut_as_well(scene: Scene, step_count: int, mode: CrashMode) -> None:
    source = random.Random(str(mode))
    for seed in range(60 if IS_LONG else 3):
        fs = scene.begin()
        for _ in range(4):
            fs.crash_at(fs.steps + source.randrange(1, step_count + 1))
            with suppress(PowerLoss):
                scene.run(fs)
            fs = fs.after_crash(source.choice([mode, CrashMode.KEEP_ALL]), seed=seed)
        scene.check_prefix(fs.after_crash(CrashMode.KEEP_ALL))
        scene.check_whole(fs)


def test_no_position_outlives_the_records_before_it(scene: Scene) -> None:
    """An input that is not synced may lose records, but none that were taken through."""

    def append_and_run(fs: FaultyFileSystem) -> None:
        store = scene.open(fs)
        append(store.topic(SOURCE), 0, more, step=4)
        store.abandon()
        scene.run(fs)

    def check(fs: FaultyFileSystem) -> None:
        with scene.open(fs) as store:
            kept = store.topic(SOURCE).partition(0).log.end_offset
            # What comes next gets the offsets that were lost.
            append(store.topic(SOURCE), 0, last)
        scene.run(fs)
        bench = ContractBench(RULES, fs=fs)
        bench.check([*scene.records, *more[: kept - COUNT], *last])
        bench.store.close()

    more = draw_records(random.Random(22), 24, first=COUNT)
    last = draw_records(random.Random(23), 40, first=COUNT + 24)
    disk = scene.begin()
    points = record(lambda: append_and_run(disk), lambda: None, disk=disk)
    images = crash_images(points, _power_losses)
    for image in islice(images, 0, None, 1 if IS_LONG else 23):
        with named(image):
            check(image.disk)


def _power_losses(step: int) -> list[tuple[CrashMode, int]]:
    return [(CrashMode.LOSE_UNSYNCED, step), (CrashMode.RANDOM, step)]


def test_a_decision_that_was_read_before_it_was_synced_is_not_taken_back(scene: Scene) -> None:
    """Killed before the sync of a decision, and the power fails in the start that follows."""
    trial = scene.begin()
    scene.run(trial)
    path = f"/d/{OUTPUT}-dedup-progress-0/"
    steps = [step for step in trial.trace if step.path.startswith(path)]
    written = [step for step in steps if step.operation == "write" and step.path.endswith(".log")]
    # A start writes its fence; then each commit writes its progress, and its decision at the end.
    decisions = {step.number + 1 for step in written[2::2]}
    run = scene.begin()
    points = record(lambda: scene.run(run), lambda: None, disk=run)
    for killed in crash_images(
        [point for point in points[:-1] if point.step in decisions],
        lambda step: [(CrashMode.KEEP_ALL, 0)],
        crashes_again=True,
    ):
        start = killed.disk.after_crash(CrashMode.KEEP_ALL)
        starting = record(partial(scene.run, start), lambda: None, disk=start)
        images = crash_images(starting, lambda step: [(CrashMode.LOSE_UNSYNCED, 0)])
        for image in islice(images, 0, None, 1 if IS_LONG else 5):
            with named(killed), named(image):
                scene.check_prefix(image.disk.after_crash(CrashMode.KEEP_ALL))
                scene.check_whole(image.disk)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_an_io_error_at_any_step_is_named_and_the_next_run_goes_on(
    scene: Scene, step_count: int, number: int
) -> None:
    for step in range(1, step_count + 1, STRIDE * 2 - 1):
        fs = scene.begin()
        fs.fail_at(step, OSError(number, os.strerror(number)))
        with suppress(StoreError):
            scene.run(fs)
        after = fs.after_crash(CrashMode.KEEP_ALL)
        try:
            scene.check_prefix(after.after_crash(CrashMode.KEEP_ALL))
            scene.check_whole(after)
        except (AssertionError, StoreError) as error:
            raise AssertionError(f"after a failure at\n{fs.describe_trace(3)}") from error
