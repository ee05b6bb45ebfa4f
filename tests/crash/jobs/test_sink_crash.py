"""A commit of a sink is killed at every step of the file system, and its epoch retried: G1, G3."""

import errno
import os
from contextlib import suppress
from itertools import islice

import pytest

from tests.support.crash_images import crash_images, named, record
from tests.support.rounds import IS_LONG
from tests.support.sink_bench import TOPIC, Row, SinkBench
from varve.disk import PowerLoss
from varve.embedded.topic import partition_of
from varve.foundation.clock import ManualClock
from varve.foundation.errors import StoreError
from varve.jobs.sink.batch_builder import SinkTarget
from varve.jobs.sink.staging import StagedTask
from varve.object_store import MemoryObjectStore
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem

STRIDE = 1 if IS_LONG else 7
PARTITIONS = 3
EPOCHS = 3


def rows_of(epoch: int, task: int) -> list[Row]:
    """Rows that go to all partitions."""
    return [
        {"key": b"k%d" % number, "value": b"%d-%d-%d" % (epoch, task, number)}
        for number in range(9)
    ]


def stage(bench: SinkBench, target: SinkTarget, epoch: int) -> list[StagedTask]:
    return bench.stage([rows_of(epoch, task) for task in (0, 1)], target)


def expected(epochs: int) -> set[bytes]:
    pairs = [(epoch, task) for epoch in range(epochs) for task in (0, 1)]
    return {row["value"] for epoch, task in pairs for row in rows_of(epoch, task)}


def home_of(value: bytes) -> int:
    return partition_of(b"k" + value.split(b"-")[2], PARTITIONS)


class Scene:
    """A sink that has committed one epoch; every trial begins with a copy of its disk."""

    def __init__(self) -> None:
        clock = ManualClock()
        self._fs = FaultyFileSystem(clock)
        self.bench = SinkBench(self._fs, clock, MemoryObjectStore("memory:"))
        self.bench.create(partitions=PARTITIONS, segment_bytes=400)
        self.target = self.bench.target()
        self.staged = [stage(self.bench, self.target, epoch) for epoch in range(EPOCHS)]
        self.commit(0)

    def begin(self) -> FaultyFileSystem:
        self.bench.fs = fs = self._fs.after_crash(CrashMode.KEEP_ALL)
        return fs

    def commit(self, epoch: int) -> None:
        self.bench.commit(epoch, self.staged[epoch], self.target)


def check_whole(bench: SinkBench) -> None:
    """In each partition each epoch is seen as a whole or not at all."""
    seen = bench.committed()
    flat = [value for values in seen.values() for value in values]
    assert len(flat) == len(set(flat)), "a row is there twice"
    for number, values in seen.items():
        epochs = {value.split(b"-")[0] for value in values if value is not None}
        whole = [
            value
            for value in expected(EPOCHS)
            if value.split(b"-")[0] in epochs and home_of(value) == number
        ]
        assert sorted(whole) == sorted(value for value in values if value is not None)


def run_on(scene: Scene) -> None:
    """Retries the epoch that was cut and goes on to the last, as a restarted stream does."""
    for epoch in range(1, EPOCHS):
        scene.commit(epoch)
    with scene.bench.open() as store:
        seen: list[bytes | None] = []
        for partition in store.topic(TOPIC).partitions:
            assert partition.log.open_transactions() == []
            assert partition.log.last_stable_offset == partition.log.end_offset
            seen += [record.value for record in partition.read(isolation="read_committed")]
    assert len(seen) == len(set(seen))
    assert set(seen) == expected(EPOCHS)


def test_an_epoch_that_was_cut_anywhere_is_there_once_after_its_retry() -> None:
    scene = Scene()
    disk = scene.begin()
    points = record(lambda: scene.commit(1), lambda: None, disk=disk)
    assert len(points) > 100
    for image in islice(crash_images(points), 0, None, STRIDE):
        scene.bench.fs = image.disk
        with named(image):
            check_whole(scene.bench)
            run_on(scene)


@pytest.mark.parametrize("mode", list(CrashMode))
def test_a_retry_may_be_cut_as_well(mode: CrashMode) -> None:
    scene = Scene()
    trial = scene.begin()
    scene.commit(1)
    random = scene.bench.random
    for seed in range(100 if IS_LONG else 6):
        fs = scene.begin()
        for _ in range(3):
            fs.crash_at(fs.steps + random.randrange(1, trial.steps + 1))
            with suppress(PowerLoss):
                scene.commit(1)
            scene.bench.fs = fs = fs.after_crash(mode, seed=seed)
        check_whole(scene.bench)
        run_on(scene)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_an_io_error_at_any_step_is_named_and_the_retry_writes_once(number: int) -> None:
    scene = Scene()
    trial = scene.begin()
    scene.commit(1)
    for step in range(1, trial.steps + 1, 2 * STRIDE - 1):
        fs = scene.begin()
        fs.fail_at(step, OSError(number, os.strerror(number)))
        with suppress(StoreError):
            scene.commit(1)
        scene.bench.fs = fs.after_crash(CrashMode.KEEP_ALL)
        try:
            check_whole(scene.bench)
            run_on(scene)
        except (AssertionError, StoreError) as error:
            raise AssertionError(f"after a failure at\n{fs.describe_trace(3)}") from error
