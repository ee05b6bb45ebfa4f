"""An erasure is killed at every request and at every change of the disk, and run again: G3, G8."""

from dataclasses import replace
from itertools import islice

import pytest

from tests.support.crash_images import crash_images, distinct_buckets, named, record
from tests.support.erasure_bench import ErasureBench
from tests.support.rounds import IS_LONG
from tests.support.tiered_topic import TieredTopic
from varve.foundation.errors import StoreError
from varve.jobs.erase.local import LocalErasure
from varve.jobs.erase.request import ErasureRequest
from varve.jobs.erase.scan import Matcher
from varve.object_store import MemoryObjectStore
from varve.records import Codec
from varve.testing import FaultKind, FaultyObjectStore
from varve.testing.faulty_disk import CrashMode
from varve.tiering.manifest.segment import SegmentState

STRIDE = 1 if IS_LONG else 11
"""Between the steps at which a run is cut; a long run takes every one."""
ANN = {0, 3, 5}
"""Her offsets, the last of them in an aborted transaction."""


def prepare() -> ErasureBench:
    """Two segments of three with a match, one of them aborted."""
    made = ErasureBench(TieredTopic(topic_settings={"cleanup.policy": "compact"}))
    made.put("ann", "bob", codec=Codec.LZ4)
    made.roll()
    made.put("cy")
    made.roll()
    made.put("ann", "bob")
    made.put("ann", producer_id=7)
    made.end(7, committed=False)
    made.roll()
    made.copy()
    return made


def finish(bench: ErasureBench, old: set[int]) -> None:
    """The old or the new records are read, none half; the next run ends with the new, swept."""
    assert set(bench.records(remote=True)) in (old, old - ANN)
    receipts = [one for one in bench.topic.object_keys() if "/receipt/" in one]
    if receipts:
        assert set(bench.records(remote=True)) == old - ANN
    result = bench.erase("ann", id="same", hot=False)
    assert result.receipt is not None
    assert result.receipt["records"] == len(ANN), "what the first run did is told as well"
    assert set(bench.records(remote=True)) == old - ANN
    assert all(one.state is SegmentState.COPY_FINISHED for one in bench.topic.remote())
    named = {
        bench.home.part_key(one, part.name) for one in bench.topic.remote() for part in one.parts
    }
    assert set(bench.topic.object_keys(bench.home.segment_folder)) == named


def test_a_kill_at_any_request_leaves_old_or_new_and_a_second_run_completes() -> None:
    whole = prepare()
    old = set(whole.records(remote=True))
    objects = FaultyObjectStore(whole.topic.bucket)
    disk = whole.topic.disk
    points = record(
        lambda: whole.erase("ann", objects=objects, hot=False, id="same"),
        lambda: None,
        disk=disk,
        objects=objects,
    )
    assert points[-1].bucket != points[0].bucket
    for point in distinct_buckets(points):
        assert point.disk is not None
        with named(point):
            left = point.disk.after_crash(CrashMode.KEEP_ALL)
            finish(replace(whole, topic=whole.topic.on(point.objects(), left)), old)


@pytest.mark.parametrize("kind", [FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER])
def test_a_failed_request_fails_the_run_or_nothing(kind: FaultKind) -> None:
    whole = prepare()
    old = set(whole.records(remote=True))
    objects = FaultyObjectStore(whole.topic.bucket)
    whole.erase("ann", objects=objects, hot=False, id="same")
    for step in range(2, objects.steps + 1, 3 * STRIDE):
        bench = prepare()
        faulty = FaultyObjectStore(bench.topic.bucket)
        faulty.fail_at(step, kind)
        try:
            bench.erase("ann", objects=faulty, hot=False, id="same")
        except StoreError:
            assert not [one for one in bench.topic.object_keys() if "/receipt/" in one] or (
                kind is FaultKind.ERROR_AFTER
            )
        finish(bench, old)


def test_a_kill_at_any_change_of_the_disk_leaves_old_or_new() -> None:
    def erase(bench: ErasureBench) -> None:
        log = bench.topic.log
        erasure = LocalErasure(
            log,
            Matcher.of(bench.home.topic_id, [b"ann"]),
            ErasureRequest(
                topics=("orders",), id="same", keys=frozenset({b"ann"}), buffer_bytes=1 << 14
            ),
            fs=bench.fs,
            clock=bench.topic.kit.clock,
        )
        erasure.rewrite(erasure.search().matched)

    whole = prepare()
    old = set(whole.records(remote=False))
    points = record(lambda: erase(whole), lambda: None, disk=whole.topic.disk)
    for image in islice(crash_images(points), 0, None, STRIDE):
        with named(image):
            bucket = MemoryObjectStore()
            for entry in whole.topic.bucket.list(""):
                bucket.put(entry.key, whole.topic.bucket.get(entry.key))
            bench = replace(whole, topic=whole.topic.on(bucket, image.disk))
            left = set(bench.records(remote=False))
            assert old - ANN <= left <= old
            by_segment = [ANN & old & {0}, ANN & old & {3, 5}]
            assert all(part <= left or not part & left for part in by_segment), "half a segment"
            receipt = bench.erase("ann", id="same", remote=False).receipt
            assert receipt is not None
            assert receipt["records"] == len(ANN), "what the first run did is told as well"
            assert set(bench.records(remote=False)) == old - ANN
            names = bench.fs.names(bench.topic.log.directory)
            assert not [one for one in names if one.endswith((".deleted", ".cleaned", ".swap"))]
            bench.check()
