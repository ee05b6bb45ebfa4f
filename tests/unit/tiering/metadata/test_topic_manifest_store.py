"""What only the store over __remote_log_metadata promises: its events, its rules, its topic."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import UUID

import pytest

from tests.support.metadata_bench import SETTINGS, MetadataBench, make_id, make_segment
from tests.support.remote_builder import HOME
from tests.support.remote_builder import make_segment as make_plain
from tests.support.tier_history import TierHistory
from varve.commit_log.directory_files import decode_topic_id, encode_topic_id
from varve.foundation.errors import Corrupt, InvalidRequest
from varve.object_store import MemoryObjectStore
from varve.records import Record, build_batch
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import RemoteSegment, SegmentState
from varve.tiering.metadata.events import (
    Event,
    RemoteState,
    SegmentEvent,
    SegmentUpdate,
    TopicIdPartition,
    encode_event,
)
from varve.tiering.metadata.topic import (
    MetadataTopic,
    PartitionReplay,
    StoredCommit,
    choose_partition,
)
from varve.tiering.metadata.topic_manifest_store import (
    TopicManifestStore,
    plan_events,
)

STARTED, FINISHED, DELETING = SegmentState
NAMED = TopicIdPartition(HOME.topic, decode_topic_id(HOME.topic_id), HOME.partition)


@pytest.fixture
def bench() -> MetadataBench:
    return MetadataBench(partition_count=1)


def commit(
    store: TopicManifestStore, change: Callable[[Manifest], Manifest], *, now_ms: int = 0
) -> Manifest:
    return store.commit(change, leader_epoch=0, writer="copier", now_ms=now_ms)


def copy(store: TopicManifestStore, number: int) -> Manifest:
    commit(store, lambda m: m.announce(make_segment(number)))
    return commit(store, lambda m: m.finish(make_segment(number, FINISHED)))


def states(events: list[Event]) -> list[tuple[str, int]]:
    return [(type(event).__name__, int(event.state)) for event in events]


def append(bench: MetadataBench, *events: Event) -> None:
    append_values(bench, *map(encode_event, events))


def append_values(bench: MetadataBench, *values: bytes) -> None:
    records = [Record(None, value, timestamp=1) for value in values]
    bench.open_log(0).append(build_batch(records))


def test_the_life_of_a_segment_is_told_in_the_events_of_kafka(bench: MetadataBench) -> None:
    store = bench.store(HOME)
    copy(store, 4)
    commit(store, lambda m: m.start_delete([make_id(4)], at_ms=60))
    commit(store, lambda m: m.forget([make_id(4)]), now_ms=70)
    events = bench.events()
    assert states(events) == [
        ("SegmentEvent", 0),
        ("SegmentUpdate", 1),
        ("SegmentUpdate", 2),
        ("SegmentUpdate", 3),
    ]
    first, last = events[0], events[-1]
    assert isinstance(first, SegmentEvent)
    assert isinstance(last, SegmentUpdate)
    assert first.segment == last.segment
    assert (first.segment.path, str(first.segment.id)) == (NAMED, make_id(4))
    assert first.broker_id == 7
    assert (first.start_offset, first.end_offset, first.size) == (400, 499, 1_000)
    assert first.is_txn_index_empty
    assert last.at_ms == 70


def test_what_no_segment_can_carry_comes_and_goes_as_one(bench: MetadataBench) -> None:
    store = bench.store(HOME)
    raised = commit(store, lambda m: m.raise_log_start(9))
    assert states(bench.events()) == [
        ("SegmentEvent", 0),
        ("SegmentUpdate", 2),
        ("SegmentUpdate", 3),
    ]
    assert (raised.version, raised.segments, raised.log_start_offset) == (3, (), 9)


@pytest.mark.parametrize("seed", range(8))
def test_at_every_cut_of_a_commit_nothing_readable_is_missing(seed: int) -> None:
    """A reader of single events, as a broker is, may see any beginning of them."""
    history = TierHistory(random.Random(seed))
    base = Manifest(path=HOME)
    replay: list[StoredCommit] = []
    for _ in range(40):
        for change in history.draw(base.segments):
            changed = change(base)
            if changed == base:
                continue
            events = plan_events(NAMED, base, changed, broker_id=7, at_ms=history.now_ms)
            stored = [(event, "event") for event in events]
            for cut in range(1, len(stored)):
                check_cut(replay, stored[:cut], base, changed)
            replay.append(StoredCommit("", "", stored))
            base = fold(replay, ()).manifest(HOME)
            assert base.segments == changed.segments
            assert base.log_start_offset == changed.log_start_offset
            assert base.cleaned_up_to == changed.cleaned_up_to


def fold(commits: list[StoredCommit], last: Sequence[tuple[Event, str]]) -> PartitionReplay:
    replay = PartitionReplay()
    for one in [*commits, StoredCommit("", "", last)]:
        replay.apply(one)
    return replay


def check_cut(
    commits: list[StoredCommit],
    some: Sequence[tuple[Event, str]],
    base: Manifest,
    changed: Manifest,
) -> None:
    replay = fold(commits, some)
    now = [one for one in replay._segments.values() if one.is_readable]
    for segment in base.segments:
        if segment.is_readable:
            for offset in (segment.base_offset, segment.end_offset):
                stays = any(_reads(one, offset) for one in changed.segments)
                assert not stays or any(_reads(one, offset) for one in now)
    assert replay._note.log_start_offset == changed.log_start_offset
    assert replay._note.cleaned_up_to == base.cleaned_up_to


def _reads(segment: RemoteSegment, offset: int) -> bool:
    return segment.is_readable and segment.base_offset <= offset <= segment.end_offset


def test_a_commit_in_between_by_another_user_of_the_log_is_not_lost(bench: MetadataBench) -> None:
    """A second MetadataTopic knows nothing of the first one's lock, only what the log says."""
    other = MetadataTopic(bench, partition_count=1)  # type: ignore[arg-type]  # needs `get` alone
    rivals = [TopicManifestStore(other, MemoryObjectStore(), HOME)]

    def change(manifest: Manifest) -> Manifest:
        if rivals:
            copy(rivals.pop(), 0)
        return manifest.announce(make_segment(1))

    committed = commit(bench.store(HOME), change)
    assert [one.base_offset for one in committed.segments] == [0, 100]
    assert committed.version == 3


def test_partitions_that_share_a_log_do_not_see_each_other(bench: MetadataBench) -> None:
    others = [RemotePath("prod", f"t{n}", encode_topic_id(UUID(int=n)), n) for n in range(1, 5)]
    stores = [bench.store(home) for home in others]
    for number in range(3):
        for store in stores[: number + 1]:
            copy(store, number)
    bench.reopen()
    counts = [bench.store(home).load().readable_count for home in others]
    assert counts == [3, 2, 1, 0]


def test_a_segment_id_must_be_a_uuid(bench: MetadataBench) -> None:
    with pytest.raises(InvalidRequest, match="use a UUID"):
        commit(bench.store(HOME), lambda m: m.announce(make_plain(1)))
    assert bench.events() == []


def test_what_exceeds_the_limit_of_custom_metadata_is_refused() -> None:
    bench = MetadataBench(custom_bytes_max=20)
    with pytest.raises(
        InvalidRequest, match=r"remote\.log\.metadata\.custom\.metadata\.max\.bytes"
    ):
        copy(bench.store(HOME), 0)
    assert bench.events() == []


def test_a_commit_too_large_for_a_batch_is_refused_whole() -> None:
    bench = MetadataBench(settings=replace(SETTINGS, max_message_bytes=1_000))

    def announce_many(manifest: Manifest) -> Manifest:
        for number in range(20):
            manifest = manifest.announce(make_segment(number))
        return manifest

    with pytest.raises(InvalidRequest, match="20 events"):
        commit(bench.store(HOME), announce_many)
    assert bench.store(HOME).load().version == 0


def test_the_facts_of_an_announced_segment_may_be_corrected_until_it_is_finished(
    bench: MetadataBench,
) -> None:
    store = bench.store(HOME)
    commit(store, lambda m: m.announce(make_segment(0)))
    larger = replace(make_segment(0, FINISHED), size=5_000)
    assert commit(store, lambda m: m.finish(larger)).segments == (larger,)
    assert states(bench.events()) == [
        ("SegmentEvent", 0),
        ("SegmentEvent", 0),
        ("SegmentUpdate", 1),
    ]
    with pytest.raises(InvalidRequest, match="under another id"):
        commit(store, lambda m: m.update(replace(larger, size=6_000)))


def test_events_of_another_plugin_are_refused_by_name(bench: MetadataBench) -> None:
    store = bench.store(HOME)
    copy(store, 0)
    event = bench.events()[0]
    assert isinstance(event, SegmentEvent)
    append(bench, replace(event, custom=b"\0\1"))
    with pytest.raises(InvalidRequest, match="another plugin"):
        store.load()
    with pytest.raises(InvalidRequest, match="another plugin"):
        copy(store, 1)
    other = bench.store(replace(HOME, partition=4))
    assert copy(other, 0).version == 2


def test_a_repeated_event_changes_nothing(bench: MetadataBench) -> None:
    store = bench.store(HOME)
    copied = copy(store, 0)
    append(bench, *bench.events())
    assert store.load() == copied
    assert copy(store, 1).version == 4


def test_a_missing_event_is_noticed(bench: MetadataBench) -> None:
    store = bench.store(HOME)
    copy(store, 0)
    copy(store, 1)
    events = bench.events()
    other = MetadataBench(partition_count=1)
    append(other, *events[:2], *events[3:])
    with pytest.raises(Corrupt, match="event 4 of its partition follows event 2"):
        other.store(HOME).load()


def test_events_that_change_no_segment_are_passed_over(bench: MetadataBench) -> None:
    store = bench.store(HOME)
    copied = copy(store, 0)
    name, id = HOME.topic.encode(), decode_topic_id(HOME.topic_id).bytes
    partition = bytes([len(name) + 1, *name, *id, 0, 0, 0, HOME.partition, 0])
    append_values(bench, bytes([1, 2, 0, *partition, 0, 0, 0, 1, *bytes(8), 0, 0]))
    assert store.load() == copied


def test_a_state_that_cannot_follow_is_dropped_as_kafka_does(bench: MetadataBench) -> None:
    store = bench.store(HOME)
    copy(store, 0)
    commit(store, lambda m: m.start_delete([make_id(0)], at_ms=5))
    deleting = bench.events()[2]
    assert isinstance(deleting, SegmentUpdate)
    replay = PartitionReplay()
    for number, event in enumerate(bench.events()):
        replay.apply(StoredCommit(str(number), "", [(event, "event")]))
    back = replace(deleting, state=RemoteState.COPY_FINISHED)
    assert back.custom is not None
    numbered = back.custom[:3] + bytes([4]) + back.custom[4:]
    replay.apply(StoredCommit("4", "", [(replace(back, custom=numbered), "event")]))
    manifest = replay.manifest(HOME)
    assert (manifest.version, manifest.segments[0].state) == (4, DELETING)


def test_a_damaged_batch_is_corrupt(bench: MetadataBench) -> None:
    store = bench.store(HOME)
    copy(store, 0)
    path = f"data/__remote_log_metadata-0/{0:020}.log"
    with bench.fs.open_writable(path) as file:
        file.write_at(200, b"\xff\xff")
    log = bench.open_log(0)
    fresh = MetadataBench(fs=bench.fs, partition_count=1, logs={})
    fresh.open_log = lambda number: log  # type: ignore[method-assign]  # as found, not recovered
    fresh.reopen()
    with pytest.raises(Corrupt, match="checksum"):
        fresh.store(HOME).load()


def test_a_partition_is_chosen_for_good() -> None:
    """The numbers are those of Kafka's partitioner."""
    homes = [TopicIdPartition("t", UUID(int=(n << 64) + 7 * n), n) for n in range(6)]
    assert [choose_partition(home, 50) for home in homes] == [6, 6, 15, 30, 44, 16]
