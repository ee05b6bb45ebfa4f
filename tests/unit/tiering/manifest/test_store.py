"""Commits, races, fencing, time travel and lookup."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.remote_builder import HOME, copy, delete, make_segment, open_manifest
from varve.foundation.errors import (
    Corrupt,
    InvalidRequest,
    NotFound,
    ObjectExists,
    ObjectNotFound,
    Unavailable,
)
from varve.object_store import Buffer, MemoryObjectStore, ObjectInfo
from varve.tiering.manifest.commit import ManifestEdit, RetryLimits
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.segment import LOG_PART, SegmentState
from varve.tiering.manifest.store import ObjectManifestStore
from varve.tiering.manifest.versions import HINT_INTERVAL


@pytest.fixture
def objects() -> MemoryObjectStore:
    return MemoryObjectStore()


@pytest.fixture
def store(objects: MemoryObjectStore) -> ObjectManifestStore:
    return open_manifest(objects, 1)


def commit(store: ObjectManifestStore, change: ManifestEdit) -> Manifest:
    return store.commit(change, leader_epoch=0, writer="copier", now_ms=0)


def count_versions(objects: MemoryObjectStore) -> int:
    return sum(HOME.find_version(key) is not None for key in keys(objects, HOME.manifest_folder))


def keys(objects: MemoryObjectStore, folder: str) -> list[str]:
    return [entry.key for entry in objects.list(folder)]


def test_an_announcement_is_repeated_harmlessly_even_from_within_a_page(
    store: ObjectManifestStore,
) -> None:

    def announce_all(manifest: Manifest) -> Manifest:
        for number in range(12):
            manifest = manifest.announce(make_segment(number))
        return manifest

    first = commit(store, announce_all)
    assert first.pages
    assert commit(store, announce_all) == first


def test_a_segment_in_a_page_does_not_go_back_to_being_announced(
    store: ObjectManifestStore,
) -> None:
    for number in range(12):
        copied = copy(store, number)
    with pytest.raises(InvalidRequest, match="copy_finished cannot be followed by copy_started"):
        commit(store, lambda m: m.announce(make_segment(1)))
    assert store.load() == copied


def test_what_an_old_manifest_refuses_is_decided_on_the_newest(
    objects: MemoryObjectStore,
) -> None:
    first, second = open_manifest(objects, 1), open_manifest(objects, 2)
    first.load()
    commit(second, lambda m: m.announce(make_segment(0)))
    finished = make_segment(0, SegmentState.COPY_FINISHED)
    manifest = commit(first, lambda m: m.finish(finished))
    assert manifest.segments == (finished,)


def test_an_overlap_that_is_gone_meanwhile_does_not_stand_in_the_way(
    objects: MemoryObjectStore,
) -> None:
    first, second = open_manifest(objects, 1), open_manifest(objects, 2)
    copy(first, 0)
    other = make_segment(0, id="other")
    commit(first, lambda m: m.announce(other))
    commit(second, lambda m: m.start_delete(["segment-0"], at_ms=0))
    finished = replace(other, state=SegmentState.COPY_FINISHED)
    manifest = commit(first, lambda m: m.finish(finished))
    assert first.find(manifest, 50) == finished


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: replace(m, log_start_offset=0), "log start offset"),
        (lambda m: replace(m, cleaned_up_to=0), "cleaned-up-to"),
        (lambda m: replace(m, segments=()), "cannot be followed by gone"),
        (lambda m: replace(m, pages=()), "leave the pages"),
        (lambda m: replace(m, segments=m.segments * 2), "twice"),
        (lambda m: replace(m, path=replace(HOME, partition=9)), "orders-9"),
        (lambda m: m.finish(make_segment(90, SegmentState.COPY_FINISHED)), "state none"),
        (lambda m: m.announce(make_segment(9, SegmentState.COPY_FINISHED)), "announced"),
        (lambda m: m.finish(make_segment(9)), "finish it"),
        (lambda m: m.start_delete(["segment-0"], at_ms=0), "unfold"),
    ],
)
def test_a_change_that_would_lose_something_is_refused(
    change: object, message: str, objects: MemoryObjectStore, store: ObjectManifestStore
) -> None:
    for number in range(5):
        copy(store, number)
    before = commit(store, lambda m: m.raise_log_start(7).raise_cleaned_up_to(7))
    assert before.pages
    with pytest.raises(InvalidRequest, match=message):
        commit(store, change)  # type: ignore[arg-type]  # a lambda in a table
    assert open_manifest(objects, 2).load() == before


def test_two_readable_segments_must_not_overlap(store: ObjectManifestStore) -> None:
    for number in range(8):
        copy(store, number)
    other = make_segment(1, id="other")
    commit(store, lambda m: m.announce(other))
    finished = replace(other, state=SegmentState.COPY_FINISHED)

    def finish(manifest: Manifest) -> Manifest:
        return store.unfold(manifest, start_offset=100, end_offset=200).finish(finished)

    with pytest.raises(InvalidRequest, match="both be readable at offset 100"):
        commit(store, finish)
    swapped = commit(store, lambda m: finish(m).start_delete(["segment-1"], at_ms=3))
    assert store.find(swapped, 150) == finished
    assert [one.id for one in store.pending(swapped)] == ["segment-1"]


def test_time_travel_by_version_and_by_time(store: ObjectManifestStore) -> None:
    history = [Manifest(path=HOME)]
    for number in range(10):
        store.commit(
            lambda m, n=number: m.raise_log_start(n + 1),  # type: ignore[misc]  # a default binds it
            leader_epoch=0,
            writer="w",
            now_ms=100 * number,
        )
        history.append(store.load())
    for version in range(1, 11):
        assert store.at(version=version) == history[version]
    assert store.at(time_ms=-1) == history[0]
    assert store.at(time_ms=0) == history[1]
    assert store.at(time_ms=499) == history[5]
    assert store.at(time_ms=10_000) == history[10]
    store.retire_versions(now_ms=900, retention_ms=401)
    with pytest.raises(NotFound, match="5 to 10"):
        store.at(version=4)
    assert store.at(time_ms=499) == history[5]
    with pytest.raises(NotFound, match="no longer retained"):
        store.at(time_ms=399)
    with pytest.raises(InvalidRequest, match="either"):
        store.at()
    with pytest.raises(InvalidRequest, match="either"):
        store.at(version=1, time_ms=1)


def test_retirement_waits_for_the_grace_of_pages(objects: MemoryObjectStore) -> None:
    store = open_manifest(objects, 1, grace_ms=1_000)
    for number in range(8):
        copy(store, number, now_ms=0)
    delete(store, 0, now_ms=10)
    store.retire_versions(now_ms=500, retention_ms=100)
    oldest = store.at(version=16)
    assert [one.base_offset for one in store.segments(oldest)] == [100 * n for n in range(8)]
    store.retire_versions(now_ms=1_010, retention_ms=100)
    assert count_versions(objects) == 1


def test_a_reader_of_a_retired_version_is_told_to_load_again(
    objects: MemoryObjectStore,
) -> None:
    writer, reader = open_manifest(objects, 1), open_manifest(objects, 2)
    for number in range(8):
        copy(writer, number)
    held = reader.load()
    delete(writer, 0, now_ms=1)
    writer.retire_versions(now_ms=10, retention_ms=0)
    with pytest.raises(ObjectNotFound, match="load the newest"):
        reader.find(held, 50)


def test_a_writer_that_slept_past_retention_does_not_fork_the_chain(
    objects: MemoryObjectStore,
) -> None:
    sleeper, other = open_manifest(objects, 1), open_manifest(objects, 2)
    copy(sleeper, 0)
    for number in range(1, 9):
        copy(other, number)
    other.retire_versions(now_ms=10, retention_ms=0)
    manifest = copy(sleeper, 9)
    assert manifest.version == 20
    seen = open_manifest(objects, 3)
    assert [one.base_offset for one in seen.segments(seen.load())] == [
        100 * number for number in range(10)
    ]
    assert [HOME.find_version(key) for key in keys(objects, HOME.manifest_folder)] == [
        18,
        19,
        20,
        None,
    ]


def test_a_writer_that_slept_while_the_partition_was_removed_leaves_no_version(
    objects: MemoryObjectStore,
) -> None:
    sleeper = open_manifest(objects, 1)
    objects.put(HOME.part_key(make_segment(0), LOG_PART), b"log")
    copy(sleeper, 0)
    objects.delete(keys(objects, ""))
    with pytest.raises(Corrupt, match="another program removed it"):
        copy(sleeper, 1)
    assert keys(objects, HOME.manifest_folder) == []


def test_a_version_whose_predecessor_was_retired_at_once_stays(objects: MemoryObjectStore) -> None:
    writer = open_manifest(objects, 1)
    objects.put(HOME.part_key(make_segment(0), LOG_PART), b"log")
    base = copy(writer, 0)
    objects.delete([HOME.manifest_key(base.version)])
    assert copy(writer, 1).version == base.version + 2


def test_a_version_below_a_hole_is_left_over_and_swept(
    objects: MemoryObjectStore, store: ObjectManifestStore
) -> None:
    for number in range(3):
        copy(store, number)
    left_over = objects.get(HOME.manifest_key(2))
    store.retire_versions(now_ms=10, retention_ms=0)
    objects.put(HOME.manifest_key(2), left_over)
    with pytest.raises(NotFound):
        store.at(version=2)
    store.retire_versions(now_ms=10, retention_ms=0)
    assert count_versions(objects) == 1
    assert store.load().version == 6


@pytest.mark.parametrize("hint", [b"", b"rubbish", b"999999", b"-3", b"1", b"9" * 40])
def test_a_wrong_hint_does_no_harm(hint: bytes, objects: MemoryObjectStore) -> None:
    for number in range(10):
        copy(open_manifest(objects, number), number)
    objects.put(HOME.hint_key, hint)
    assert open_manifest(objects, 99).load().version == 20


def test_opening_reads_the_newest_manifest_alone(
    objects: MemoryObjectStore, store: ObjectManifestStore
) -> None:
    for number in range(40):
        copy(store, number)
    for entry in list(objects.list(HOME.page_folder)):
        objects.delete([entry.key])
    manifest = open_manifest(objects, 2).load()
    assert manifest.segment_count == manifest.readable_count == 40


def test_a_manifest_that_vanished_is_not_taken_for_empty(
    objects: MemoryObjectStore, store: ObjectManifestStore
) -> None:
    copy(store, 0)
    objects.delete(keys(objects, HOME.manifest_folder))
    with pytest.raises(Corrupt, match="another program removed it"):
        store.load()


def test_a_manifest_of_another_partition_is_refused(objects: MemoryObjectStore) -> None:
    copy(open_manifest(objects, 1), 0)
    objects.put(HOME.manifest_key(5), objects.get(HOME.manifest_key(2)))
    with pytest.raises(Corrupt, match="was moved"):
        open_manifest(objects, 2).load()


def test_a_writer_that_never_comes_first_gives_up(objects: MemoryObjectStore) -> None:
    store = open_manifest(objects, 1, retry=RetryLimits(attempts=3))
    rival = open_manifest(objects, 2)
    steps = iter(range(1, 100))

    def change(manifest: Manifest) -> Manifest:
        copy(rival, next(steps))
        return manifest.announce(make_segment(0))

    with pytest.raises(Unavailable, match=r"after 3 attempts; others were always first; nothing"):
        commit(store, change)


def test_segments_of_one_base_offset_may_stand_in_two_pages(store: ObjectManifestStore) -> None:
    numbers = [0, 1, *[2] * 8, 3, 4, 5, 6, 7, 8]
    expected = [make_segment(number, id=f"copy-{n:02}") for n, number in enumerate(numbers)]
    for segment in expected:
        store.commit(
            lambda m, s=segment: m.announce(s),  # type: ignore[misc]  # a default binds it
            leader_epoch=0,
            writer="copier",
            now_ms=0,
        )
    for place in (1, 4, 7, 10, 3, 9):
        expected[place] = replace(expected[place], state=SegmentState.DELETE_STARTED)
        store.commit(
            lambda m, s=expected[place]: m.update(s),  # type: ignore[misc]  # a default binds it
            leader_epoch=0,
            writer="expiry",
            now_ms=0,
        )
        assert list(store.segments(store.load())) == expected


# A store whose list is empty although its objects can be read: never taken for an empty tier


class LyingStore(MemoryObjectStore):
    """Lists nothing while `is_lying`."""

    is_lying = False

    def list(self, prefix: str, *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        return iter(()) if self.is_lying else super().list(prefix, start_after=start_after)


def _make() -> LyingStore:
    objects = LyingStore()
    store = open_manifest(objects, 1)
    for number in range(HINT_INTERVAL):
        copy(store, number)
    return objects


def test_an_empty_list_beside_a_version_that_is_there_is_refused() -> None:
    objects = _make()
    objects.is_lying = True
    with pytest.raises(Unavailable, match=r"shows no version, but version 32 is there"):
        open_manifest(objects, 2).load()
    objects.is_lying = False
    assert open_manifest(objects, 3).load().version == 2 * HINT_INTERVAL


def test_a_hint_without_any_version_is_an_empty_tier() -> None:
    objects = _make()
    objects.delete([info.key for info in objects.list("") if info.key != HOME.hint_key])
    assert open_manifest(objects, 2).load().version == 0


# A store that refuses to create what is not there: waited for, and given up in the end


class RefusingStore(MemoryObjectStore):
    """Says so many times that an object exists which does not."""

    def __init__(self, refusals: int) -> None:
        super().__init__()
        self.refusals = refusals

    def create(self, key: str, data: Buffer) -> ObjectInfo:
        if self.refusals > 0:
            self.refusals -= 1
            raise ObjectExists(f"memory: create {key!r} failed: it exists")
        return super().create(key, data)


def _open(objects: RefusingStore, waits: list[float]) -> ObjectManifestStore:
    retry = RetryLimits(attempts=10)
    return ObjectManifestStore(
        objects, HOME, random=random.Random(1), wait=waits.append, retry=retry
    )


def _announce(store: ObjectManifestStore) -> int:
    segment = make_segment(0)
    done = store.commit(lambda m: m.announce(segment), leader_epoch=0, writer="copier", now_ms=0)
    return done.version


def test_a_commit_waits_until_the_store_lets_it_create() -> None:
    waits: list[float] = []
    assert _announce(_open(RefusingStore(4), waits)) == 1
    assert len(waits) == 4


def test_a_commit_that_is_always_refused_is_given_up() -> None:
    objects = RefusingStore(10_000)
    waits: list[float] = []
    with pytest.raises(Unavailable, match=r"given up after 10 attempts.*does not let copier"):
        _announce(_open(objects, waits))
    assert objects.refusals == 10_000 - 10
    assert list(objects.list("")) == []
