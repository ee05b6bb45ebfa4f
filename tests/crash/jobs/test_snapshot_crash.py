"""A snapshot is killed at every request, or beset by others: there is a whole one or none: G3."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.crash_images import distinct_buckets, named, record
from tests.support.rounds import IS_LONG
from tests.support.snapshot_topic import SMALL, Rows, SnapshotTopic, rows_of
from tests.support.source_topic import SourceTopic
from tests.support.store_access import StoreAccess
from tests.support.task_runners import InterferingRunner
from varve.foundation.errors import StoreError, Unavailable
from varve.jobs.derived_outputs import ErasedRows
from varve.jobs.snapshot.erase import count_in_store, erase_from_store
from varve.jobs.snapshot.store import Snapshot, SnapshotStore, named_files
from varve.jobs.tier.bucket import find_cluster, find_topic
from varve.object_store import MemoryObjectStore, ObjectStore
from varve.testing import FaultKind, FaultyObjectStore

STRIDE = 1 if IS_LONG else 9
"""Between the requests that fail in a run of their own; a long run takes every one."""
SETTINGS = replace(SMALL, grace_ms=-(1 << 60), buckets=2, keep=2)
"""All leftovers are swept, however young."""


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SnapshotTopic]:
    topic = SourceTopic(
        Path(tmp_path_factory.mktemp("topic")), cleanup_policy="compact", index_interval_bytes=64
    )
    for number in range(24):
        topic.put((f"k{number % 9}", None if number % 8 == 5 else f"value {number}"))
        if number in (7, 15):
            topic.roll()
            topic.copy()
    kit = SnapshotTopic(topic, settings=SETTINGS)
    kit.take(at=9)
    kit.take(at=14)
    yield kit
    topic.close()


def prepare(kit: SnapshotTopic) -> MemoryObjectStore:
    """A place with snapshots at offsets 9 and 14."""
    store = MemoryObjectStore()
    for entry in kit.store.list(""):
        store.put(entry.key, kit.store.get(entry.key))
    return store


def states(store: ObjectStore) -> dict[int, Rows]:
    """What every snapshot of the place holds; each must be whole."""
    place = SnapshotStore(store)
    return {one.snapshot: rows_of(Snapshot("", store, one)) for one in place.documents()}


def check(kit: SnapshotTopic, store: ObjectStore) -> None:
    """Every snapshot is the state at its offset; a run then ends with the newest, swept."""
    for one in SnapshotStore(store).documents():
        assert states(store)[one.snapshot] == kit.model(at=one.resume_offsets[0])
    kit.take(store=store)
    place = SnapshotStore(store)
    assert rows_of(Snapshot("", store, place.get())) == kit.model()
    assert {entry.key for entry in place.files()} == named_files(place.documents())
    assert not list(store.list("work/"))


def test_a_kill_at_any_request_leaves_whole_snapshots(kit: SnapshotTopic) -> None:
    objects = FaultyObjectStore(prepare(kit))
    points = record(lambda: kit.take(store=objects), lambda: None, objects=objects)
    for point in distinct_buckets(points):
        with named(point):
            check(kit, point.objects())


@pytest.mark.parametrize("kind", [FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER])
def test_a_failed_request_fails_the_run_or_nothing(kit: SnapshotTopic, kind: FaultKind) -> None:
    counted = FaultyObjectStore(prepare(kit))
    kit.take(store=counted)
    for step in range(1, counted.steps + 1, STRIDE):
        store = prepare(kit)
        faulty = FaultyObjectStore(store)
        faulty.fail_at(step, kind)
        with suppress(StoreError):
            kit.take(store=faulty)
        check(kit, store)


WANTED = ErasedRows(frozenset({b"k1"}), {0: np.array([2, 11], np.int64)})


def take_another(kit: SnapshotTopic, store: ObjectStore) -> None:
    kit.take(at=20, store=store, settings=replace(SMALL, buckets=2))


def remove_previous(kit: SnapshotTopic, store: ObjectStore) -> None:
    store.delete(["snapshot/" + "2".zfill(20) + ".json"])


def erase(kit: SnapshotTopic, store: ObjectStore) -> None:
    erase_from_store(StoreAccess(store), "id", WANTED)


def put_receipt(kit: SnapshotTopic, store: ObjectStore) -> None:
    """As an erasure ends, whose work was done before the files were written."""
    address = kit.topic.options().address
    assert address is not None
    folder = f"{find_cluster(address)}/orders.{find_topic(address, 'orders').topic_id}"
    address.objects().put(f"{folder}/receipt/one.json", b"{}")


@pytest.mark.parametrize(
    ("act", "count"), [(take_another, 3), (erase, 2), (remove_previous, 1), (put_receipt, 2)]
)
def test_of_two_at_once_the_later_changes_nothing_and_says_so(
    kit: SnapshotTopic, act: Callable[[SnapshotTopic, ObjectStore], None], count: int
) -> None:
    """The other acts once the files are written, before the document is."""
    store = prepare(kit)
    with pytest.raises(Unavailable, match="again"):
        kit.take(store=store, runner=InterferingRunner(lambda: act(kit, store), stage="write"))
    assert len(states(store)) == count


def test_an_erasure_killed_at_any_request_is_done_by_the_next(kit: SnapshotTopic) -> None:
    objects = FaultyObjectStore(prepare(kit))
    points = record(
        lambda: erase_from_store(StoreAccess(objects), "id", WANTED), lambda: None, objects=objects
    )
    for point in distinct_buckets(points):
        with named(point):
            _check_erasure_goes_on(kit, point.objects())


def _check_erasure_goes_on(kit: SnapshotTopic, store: ObjectStore) -> None:
    states(store)
    erase_from_store(StoreAccess(store), "id", WANTED)
    assert count_in_store(StoreAccess(store), WANTED) == 0
    for one in SnapshotStore(store).documents():
        expected = {
            place: row
            for place, row in kit.model(at=one.resume_offsets[0]).items()
            if place[1] != b"k1" and row[0] not in (2, 11)
        }
        assert states(store)[one.snapshot] == expected
