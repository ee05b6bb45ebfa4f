"""Every ManifestStore keeps the same promises, wherever it keeps what it is told."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest

from tests.support.metadata_bench import MetadataBench, make_id, make_segment
from tests.support.remote_builder import HOME, open_manifest
from varve.foundation.errors import Fenced, InvalidRequest
from varve.object_store import MemoryObjectStore
from varve.tiering.manifest.manifest import NO_EPOCH, Manifest
from varve.tiering.manifest.segment import ObjectPart, RemoteSegment, SegmentState
from varve.tiering.manifest.store import ManifestStore

STARTED, FINISHED, DELETING = SegmentState
PARTS = ("log", "index", "timeindex", "txnindex", "snapshot", "epochs", "keys")


@dataclass
class Place:
    """Where manifests are kept; each call of `open` is another user of them."""

    open: Callable[[], ManifestStore]
    restart: Callable[[], None]


def object_place() -> Place:
    objects = MemoryObjectStore()
    seeds = iter(range(1_000_000))

    def open() -> ManifestStore:
        return open_manifest(objects, next(seeds))

    return Place(open, lambda: None)


def topic_place() -> Place:
    bench = MetadataBench()

    def restart() -> None:
        bench.reopen()

    return Place(lambda: bench.store(HOME), restart)


@pytest.fixture(params=[object_place, topic_place], ids=["object", "topic"])
def place(request: pytest.FixtureRequest) -> Place:
    make: Callable[[], Place] = request.param
    return make()


@pytest.fixture
def store(place: Place) -> Iterator[ManifestStore]:
    """A store; what it holds at the end must be what others find there."""
    store = place.open()
    yield store
    before = store.load()
    segments = list(store.segments(before))
    place.restart()
    again = place.open()
    assert again.load() == before
    assert list(again.segments(again.load())) == segments


def rich_segment(state: SegmentState) -> RemoteSegment:
    """One that has something to say in every field."""
    return replace(
        make_segment(7, state),
        size=987_654_321,
        record_count=91,
        max_timestamp=1_700_000_000_123,
        append_ms=(1_700_000_100_000, 1_700_000_200_000),
        epochs=((3, 700), (5, 750)),
        parts=tuple(ObjectPart(name, 9 + n, 0xFFFF0000 + n) for n, name in enumerate(PARTS)),
        has_aborted=True,
        at_ms=1_700_000_300_000,
        key_count=55,
        stale_bytes=4_000,
        delete_horizon_ms=1_700_090_000_000,
        replaced_until_ms=1_700_080_000_000,
        undecided_from=744,
    )


def commit(
    store: ManifestStore,
    change: Callable[[Manifest], Manifest],
    *,
    epoch: int | None = 0,
    now_ms: int = 0,
) -> Manifest:
    return store.commit(change, leader_epoch=epoch, writer="copier", now_ms=now_ms)


def near(store: ManifestStore, manifest: Manifest, number: int) -> Manifest:
    return store.unfold(manifest, start_offset=100 * number, end_offset=100 * number + 100)


def announce(store: ManifestStore, number: int, *, now_ms: int = 0) -> Manifest:
    return commit(store, lambda m: m.announce(make_segment(number)), now_ms=now_ms)


def copy(store: ManifestStore, number: int, *, now_ms: int = 0) -> Manifest:
    announce(store, number, now_ms=now_ms)
    finished = make_segment(number, FINISHED)
    return commit(store, lambda m: near(store, m, number).finish(finished), now_ms=now_ms)


def delete(store: ManifestStore, number: int, *, now_ms: int = 0) -> Manifest:
    id = make_id(number)
    commit(store, lambda m: near(store, m, number).start_delete([id], at_ms=now_ms), now_ms=now_ms)
    return commit(store, lambda m: near(store, m, number).forget([id]), now_ms=now_ms)


def test_what_nobody_committed_is_empty(store: ManifestStore) -> None:
    manifest = store.load()
    assert manifest == Manifest(path=HOME)
    assert (manifest.version, manifest.leader_epoch, manifest.highest_offset) == (0, NO_EPOCH, -1)
    assert store.find(manifest, 0) is None
    assert store.find_by_time(manifest, 0) is None


def test_a_commit_is_seen_by_everybody(place: Place, store: ManifestStore) -> None:
    other = place.open()
    assert other.load().version == 0
    committed = copy(store, 0, now_ms=5)
    assert other.load() == committed == store.load()
    assert (committed.version, committed.writer, committed.at_ms) == (2, "copier", 5)
    assert (committed.leader_epoch, committed.highest_offset) == (0, 99)
    assert (committed.log_bytes, committed.stored_bytes) == (1_000, 1_080)


def test_commits_are_chained(store: ManifestStore) -> None:
    first = announce(store, 0)
    second = announce(store, 1)
    assert first.previous_commit_id == ""
    assert second.previous_commit_id == first.commit_id != second.commit_id
    assert second.version > first.version


def put_objects(store: ManifestStore, segment: RemoteSegment) -> list[str]:
    keys = [store.path.part_key(segment, part.name) for part in segment.parts]
    for key in keys:
        store.objects.put(key, b"data")
    return keys


def remove(
    store: ManifestStore, *segments: RemoteSegment, only_unreadable: bool = True
) -> list[RemoteSegment]:
    return store.remove(
        segments, leader_epoch=0, writer="copier", now_ms=7, only_unreadable=only_unreadable
    )


def test_a_removed_segment_is_neither_listed_nor_stored(store: ManifestStore) -> None:
    announce(store, 0)
    copy(store, 1)
    started, finished = store.segments(store.load())
    keys = put_objects(store, started) + put_objects(store, finished)
    assert keys
    assert remove(store, started, finished, only_unreadable=False) == [started, finished]
    assert list(store.segments(store.load())) == []
    assert [one.key for one in store.objects.list(store.path.segment_folder)] == []
    assert remove(store, started, finished) == []


def test_a_segment_that_became_readable_since_it_was_listed_is_not_removed(
    store: ManifestStore,
) -> None:
    announce(store, 0)
    announce(store, 1)
    listed = list(store.segments(store.load()))
    keys = put_objects(store, listed[0])
    put_objects(store, listed[1])
    commit(store, lambda m: near(store, m, 0).finish(make_segment(0, FINISHED)))
    assert remove(store, *listed) == [listed[1]]
    assert [one.id for one in store.segments(store.load()) if one.is_readable] == [listed[0].id]
    assert [one.key for one in store.objects.list(store.path.segment_folder)] == sorted(keys)


@pytest.mark.parametrize("state", SegmentState)
def test_all_that_is_said_of_a_segment_is_kept(store: ManifestStore, state: SegmentState) -> None:
    commit(store, lambda m: m.announce(replace(rich_segment(STARTED), replaced_until_ms=None)))
    if state is not STARTED:
        commit(store, lambda m: m.update(rich_segment(state)), now_ms=9)
    found = next(store.segments(store.load()))
    kept = replace(rich_segment(STARTED), replaced_until_ms=None)
    assert found == (kept if state is STARTED else rich_segment(state))


def test_a_segment_may_be_told_of_again_in_its_state(store: ManifestStore) -> None:
    copy(store, 0)
    counted = replace(make_segment(0, FINISHED), key_count=12, stale_bytes=0)
    commit(store, lambda m: m.update(counted))
    assert next(store.segments(store.load())) == counted
    announce(store, 1)
    larger = replace(make_segment(1), size=2_000, at_ms=99)
    commit(store, lambda m: m.update(larger))
    assert store.load().find_segment(larger.id) == larger


def test_parts_of_any_name_in_any_order_are_kept(store: ManifestStore) -> None:
    names = ("keys", "log", "bloom", "index", "größe")
    parts = tuple(ObjectPart(name, n, n) for n, name in enumerate(names))
    segment = replace(make_segment(0), parts=parts)
    commit(store, lambda m: m.announce(segment))
    assert next(store.segments(store.load())).parts == parts


def test_a_change_that_changes_nothing_is_not_written(store: ManifestStore) -> None:
    copied = copy(store, 0, now_ms=3)
    again = commit(store, lambda m: m.finish(make_segment(0, FINISHED)), now_ms=9)
    assert again == copied == commit(store, lambda m: m, epoch=None, now_ms=10)


@pytest.mark.parametrize("has_segment", [False, True])
def test_a_lower_leader_epoch_is_fenced(store: ManifestStore, has_segment: bool) -> None:
    if has_segment:
        copy(store, 0)
    taken_over = commit(store, lambda m: m, epoch=4)
    assert taken_over.leader_epoch == 4
    with pytest.raises(Fenced, match=r"epoch 3, but copier wrote manifest version \d+ in 4"):
        commit(store, lambda m: m.announce(make_segment(1)), epoch=3)
    kept = commit(store, lambda m: m.announce(make_segment(1)), epoch=None)
    assert kept.leader_epoch == 4
    assert store.load() == kept


def test_time_does_not_go_back(store: ManifestStore) -> None:
    announce(store, 0, now_ms=50)
    assert announce(store, 1, now_ms=40).at_ms == 50
    assert announce(store, 2, now_ms=60).at_ms == 60


WRONG: dict[str, Callable[[Manifest], Manifest]] = {
    "finish unannounced": lambda m: m.update(make_segment(5, FINISHED)),
    "forget readable": lambda m: replace(m, segments=()),
    "lower log start": lambda m: replace(m, log_start_offset=1),
    "become another": lambda m: replace(m, path=replace(HOME, partition=9)),
    "list twice": lambda m: replace(m, segments=m.segments * 2),
    "move": lambda m: replace(m, segments=(make_segment(1, FINISHED, id=0),)),
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_a_change_that_breaks_a_rule_is_refused_and_leaves_nothing(
    store: ManifestStore, change: Callable[[Manifest], Manifest]
) -> None:
    copy(store, 0)
    before = commit(store, lambda m: m.raise_log_start(2))
    with pytest.raises(InvalidRequest):
        commit(store, change)
    assert store.load() == before


def test_two_readable_segments_of_one_offset_are_refused(store: ManifestStore) -> None:
    copy(store, 0)
    second = make_segment(0, id="second")
    before = commit(store, lambda m: m.announce(second))
    with pytest.raises(InvalidRequest, match="both be readable"):
        commit(store, lambda m: m.finish(replace(second, state=FINISHED)))
    assert store.load() == before


def test_an_error_in_a_change_leaves_nothing_and_the_next_commit_goes_on(
    store: ManifestStore,
) -> None:
    def fail(manifest: Manifest) -> Manifest:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        commit(store, fail)
    assert announce(store, 0).version == 1


def test_segments_are_found_by_offset_and_by_time_and_listed_in_order(
    store: ManifestStore,
) -> None:
    for number in range(30):
        copy(store, number)
    for number in (0, 1, 9, 20):
        delete(store, number)
    announce(store, 30)
    announce(store, 9)
    manifest = commit(store, lambda m: m.raise_log_start(250))
    there = [n for n in range(31) if n not in (0, 1, 20)]
    assert [one.base_offset for one in store.segments(manifest)] == [100 * n for n in there]
    assert [one.base_offset for one in store.segments(manifest, from_offset=2_799)] == [
        2_700, 2_800, 2_900, 3_000,
    ]  # fmt: skip
    assert [one.base_offset for one in store.pending(manifest)] == [900, 3_000]
    for number in range(32):
        found = store.find(manifest, 100 * number + 50)
        readable = number in there and number not in (9, 30)
        assert (found.base_offset if found else None) == (100 * number if readable else None)
    times = {0: 2, 20: 2, 21: 3, 90: 10, 195: 21, 290: 29, 291: None}
    for timestamp, expected in times.items():
        found = store.find_by_time(manifest, timestamp)
        assert (found.base_offset // 100 if found else None) == expected, timestamp
    assert (manifest.readable_count, manifest.segment_count) == (26, 28)


def test_retirement_leaves_the_newest_as_it_is(store: ManifestStore) -> None:
    for number in range(9):
        copy(store, number, now_ms=number)
    newest = delete(store, 4, now_ms=20)
    segments = list(store.segments(newest))
    store.retire_versions(now_ms=1_000, retention_ms=0)
    assert store.load() == newest
    assert list(store.segments(store.load())) == segments


def test_commits_of_many_threads_are_all_there(place: Place, store: ManifestStore) -> None:
    stores = [store, *(place.open() for _ in range(3))]

    def work(own: ManifestStore, first: int) -> None:
        for number in range(first, first + 6):
            copy(own, number)

    with ThreadPoolExecutor(len(stores)) as pool:
        list(pool.map(work, stores, range(0, 40, 10)))
    manifest = store.load()
    assert manifest.readable_count == 24
    assert manifest.version == 48
