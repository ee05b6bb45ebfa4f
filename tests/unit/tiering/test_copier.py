"""Which segments are copied, in which order, and what happens to what was begun."""

import errno
import os
from dataclasses import replace
from typing import Any

import pytest

from tests.support.cleaning_bench import PARTITION
from tests.support.copied_log import CopiedLog, copy_log, make_log, open_manifests
from tests.support.log_bench import make_batch
from tests.support.tier_bench import TierBench, tiered
from tests.support.tiered_topic import TieredTopic
from varve.cleaning.remote_tier import NoRemoteTier
from varve.commit_log.names import INDEX, KEYS, SNAPSHOT, TIME_INDEX, TXN_INDEX, log_name
from varve.disk import write_file
from varve.foundation.errors import InvalidRequest
from varve.object_store import MemoryObjectStore
from varve.records import Record
from varve.testing import FaultKind, ObjectStep
from varve.tiering import copier
from varve.tiering.history_check import LocalPart, find_holes, find_lost
from varve.tiering.manifest.segment import SegmentState
from varve.tiering.manifest.store import ObjectManifestStore
from varve.tiering.settings import TierSettings
from varve.tiering.tier import observe_tiers


@pytest.fixture
def bench() -> TierBench:
    return TierBench()


def test_closed_segments_are_copied_in_order_and_the_active_one_stays(bench: TierBench) -> None:
    bench.fill(3, 2, 4)
    bench.hot.put("a", "active")
    report = bench.copy()
    assert report.error is None
    assert [segment.base_offset for segment in report.segments] == [0, 3, 5]
    assert report.copied_offset == 9
    assert {part.name for part in report.segments[0].parts} == {
        "log",
        "index",
        "timeindex",
        "snapshot",
        "epochs",
        "keys",
    }
    bench.check()
    assert bench.copy().segments == ()


@pytest.mark.parametrize("kind", [INDEX, TIME_INDEX])
@pytest.mark.parametrize("fault", ["shifted", "beyond", "missing"])
def test_an_index_that_its_batches_do_not_confirm_is_rebuilt_before_it_is_copied(
    kind: str, fault: str
) -> None:
    bench = TierBench(settings=tiered(index_interval_bytes=1))
    for number in range(6):
        bench.hot.put(f"key-{number}", "value")
        bench.hot.clock.advance(1_000)
    bench.hot.roll()
    segment = bench.hot.log.view.closed[0]
    path, name = segment.path(kind), kind.removeprefix(".")
    true, entry_bytes = bench.hot.disk.read(path), 8 if kind == INDEX else 12
    assert len(true) > entry_bytes
    _break_index(bench, path, true, fault)
    bench.reopen()
    assert bench.copier.copy(PARTITION, bench.hot.now_ms).error is None
    (copied,) = bench.readable()
    uploaded = bench.bucket.get(bench.home.part_key(copied, name))
    assert _entries(uploaded, entry_bytes) <= _entries(true, entry_bytes)


@pytest.mark.parametrize("wrong", ["lacks its end", "names a later batch"])
def test_a_time_index_without_the_largest_timestamp_is_rebuilt_before_it_is_copied(
    wrong: str,
) -> None:
    """Searches by time would pass over such a copy, and it would expire early."""
    bench = TierBench(settings=tiered(index_interval_bytes=1))
    start_ms = bench.hot.now_ms
    for age_ms in (5_000, 4_900, 4_800, 0, 4_000, 3_000):
        bench.hot.append([Record(b"key", b"value", timestamp=start_ms - age_ms)])
    bench.hot.roll()
    path = bench.hot.log.view.closed[0].path(TIME_INDEX)
    true = bench.hot.disk.read(path)
    assert len(true) > 12
    later = (start_ms - 4_000).to_bytes(8, "big") + (4).to_bytes(4, "big")
    bench.hot.disk.remove(path)
    with bench.hot.disk.open_writable(path) as file:
        file.write_at(0, true[:12] if wrong == "lacks its end" else true[:12] + later)
    bench.reopen()
    assert bench.copier.copy(PARTITION, bench.hot.now_ms).error is None
    (copied,) = bench.readable()
    assert bench.bucket.get(bench.home.part_key(copied, "timeindex"))[-12:] == true[-12:]


def _entries(data: bytes, size: int) -> set[bytes]:
    assert len(data) % size == 0
    return {data[start : start + size] for start in range(0, len(data), size)}


def _break_index(bench: TierBench, path: str, true: bytes, fault: str) -> None:
    """The last field of the last entry, a position or an offset, is made wrong."""
    if fault == "missing":
        bench.hot.disk.remove(path)
        return
    last = int.from_bytes(true[-4:], "big")
    wrong = last - 1 if fault == "shifted" else last + (1 << 20)
    with bench.hot.disk.open_writable(path) as file:
        file.write_at(len(true) - 4, wrong.to_bytes(4, "big"))


def test_what_belongs_to_an_open_transaction_waits(bench: TierBench) -> None:
    bench.fill(2)
    bench.hot.put("a", "1", producer_id=5, transactional=True)
    bench.hot.roll()
    assert bench.copy().copied_offset == 2
    bench.hot.end_transaction(5, committed=False)
    bench.hot.roll()
    report = bench.copy()
    assert report.copied_offset == 4
    assert report.segments[-1].has_aborted
    bench.check()


def test_a_topic_is_switched_off_and_on_again_and_goes_on_where_it_was(bench: TierBench) -> None:
    bench.fill(2)
    bench.copy()
    for off in ({"remote_storage_enable": False}, {"remote_log_copy_disable": True}):
        bench.reopen(**off)
        bench.fill(2)
        assert bench.copier.run_once(bench.hot.now_ms) == []
        with pytest.raises(InvalidRequest, match=r"remote\.storage\.enable=true"):
            bench.copier.copy(PARTITION, bench.hot.now_ms)
        bench.reopen(remote_storage_enable=True, remote_log_copy_disable=False)
    bench.copy()
    assert bench.copied_offset() == 6
    bench.check()


def test_topics_that_are_not_compacted_have_no_key_index() -> None:
    bench = TierBench(settings=tiered(cleanup_policy=("delete",)))
    bench.fill(3)
    (segment,) = bench.copy().segments
    assert segment.find_part("keys") is None
    assert segment.record_count == 3
    bench.check()


def test_a_missing_producer_snapshot_is_made_anew(bench: TierBench) -> None:
    bench.hot.put("a", "1", producer_id=7)
    bench.hot.roll()
    (expected,) = [one["snapshot"] for one in bench.local_files().values()]
    bench.hot.log.flush()
    bench.hot.disk.remove(f"{bench.hot.log.directory}/{1:020}.snapshot")
    (segment,) = bench.copy().segments
    assert bench.bucket.get(bench.home.part_key(segment, "snapshot")) == expected


def test_a_copy_whose_objects_are_all_there_is_finished_without_an_upload(bench: TierBench) -> None:
    bench.fill(3)
    steps = _count_steps(bench)
    uploads = [step.number for step in steps if step.operation == "put"]
    last_part = max(n for n in uploads if "/segment/" in steps[n - 1].key)
    bench = TierBench()
    bench.fill(3)
    bench.objects.go_down(from_step=last_part + 1)
    local = bench.local_files()
    assert bench.copy().error is not None
    assert [one.state for one in bench.segments()] == [SegmentState.COPY_STARTED]
    bench.connect()
    report = bench.copy()
    bench.note(local)
    assert report.resumed_count == 1
    assert not any(s.operation == "put" and "/segment/" in s.key for s in bench.objects.trace)
    bench.check()


def test_an_unfinished_copy_is_taken_back_and_begun_under_another_id(bench: TierBench) -> None:
    bench.fill(3)
    first = next(s.number for s in _count_steps(bench) if s.key.endswith("/timeindex"))
    bench = TierBench()
    bench.fill(3)
    bench.objects.fail_at(first, FaultKind.ERROR_BEFORE)
    bench.copy()
    (begun,) = bench.segments()
    report = bench.copy()
    assert report.removed_count == 1
    assert [one.id for one in bench.segments()] != [begun.id]
    bench.check()


def test_a_segment_joined_across_the_copied_offset_takes_the_place_of_what_it_holds() -> None:
    settings = TierSettings(varve_tier_grace_ms=1_000, varve_tier_manifest_retention_ms=0)
    bench = TierBench(tier_settings=settings)
    bench.fill(4)
    bench.copy()
    bench.fill(3, 2)
    bench.hot.cleaner.remote = NoRemoteTier()
    bench.hot.clean()
    assert [one.base_offset for one in bench.hot.log.view.closed] == [0]
    bench.copy()
    assert [one.state for one in bench.segments()].count(SegmentState.DELETE_STARTED) == 1
    bench.check()
    bench.hot.advance(1_000)
    assert bench.copy().removed_count == 1
    assert len(bench.segments()) == 1
    bench.check()


def test_a_log_that_lost_what_was_copied_does_not_replace_the_good_copy(bench: TierBench) -> None:
    bench.fill(3, 3)
    bench.copy()
    bench.hot.log.truncate_to(3)
    report = bench.copy()
    assert report.error is not None
    assert "varve tier restore" in report.error
    assert [one.end_offset for one in bench.readable()] == [2, 5]


def test_a_log_cut_by_a_new_leader_is_copied_from_where_the_epochs_part() -> None:
    bench = TierBench(settings=tiered(cleanup_policy=("delete",)))
    bench.fill(3, 3)
    bench.copy()
    bench.hot.log.truncate_to(3)
    (data, *_) = [bench.hot.log.read(start_offset=0, max_bytes=1).data]
    for _ in range(5):
        bench.hot.log.append(bytes(data), leader_epoch=4)
    bench.hot.roll()
    local = bench.local_files()
    report = bench.copy()
    bench.note(local)
    assert report.error is None
    assert [(one.base_offset, one.end_offset) for one in bench.readable()] == [(0, 2), (3, 7)]


@pytest.mark.parametrize("kind", [INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT])
@pytest.mark.parametrize("damage", ["missing", "empty", "of another segment"])
def test_a_copy_has_the_right_derived_files_whatever_is_on_the_disk(kind: str, damage: str) -> None:
    if (kind, damage) == (INDEX, "empty"):
        return  # a valid index: with fewer entries a read takes longer
    settings = tiered(cleanup_policy=("delete",), index_interval_bytes=1)
    bench = TierBench(settings=settings)
    for sequence in range(3):
        fields: dict[str, Any] = {"producer_id": 1, "producer_epoch": 0, "transactional": True}
        batch = make_batch(2, base_sequence=2 * sequence, time=sequence, **fields)
        bench.hot.log.append(batch)
        bench.hot.log.append(make_batch(time=sequence + 10))
        bench.hot.log.end_transaction(producer_id=1, producer_epoch=0, committed=False)
        bench.hot.roll()
    local, directory = bench.local_files(), bench.hot.log.directory
    bench.hot.store.close()
    first, second = (f"{directory}/{log_name(base, kind)}" for base in (4, 8))
    other = bench.hot.disk.read(second)
    bench.hot.disk.remove(first)
    if damage != "missing":
        write_file(bench.hot.disk, first, b"" if damage == "empty" else other, sync=False)
    bench.hot.open()
    bench.connect()
    report = bench.copier.copy(PARTITION, bench.hot.now_ms)
    assert report.error is None, report.error
    bench.note(local)
    bench.check()


def append_in_epoch(bench: TierBench, epoch: int, count: int) -> None:
    data = bytes(bench.hot.log.read(start_offset=0, max_bytes=1).data)
    for _ in range(count):
        bench.hot.log.append(data, leader_epoch=epoch)


def test_a_tier_with_another_history_ends_where_its_own_epochs_do() -> None:
    """The tier left epoch 0 at offset 3 for an epoch that the log never had; the log went on."""
    bench = TierBench(settings=tiered(cleanup_policy=("delete",)))
    bench.hot.put("a", "1")
    append_in_epoch(bench, 0, 2)
    append_in_epoch(bench, 2, 5)
    bench.hot.roll()
    bench.copy()
    bench.hot.log.truncate_to(3)
    bench.hot.log.leader_epochs.truncate_from_end(3)
    append_in_epoch(bench, 0, 3)
    append_in_epoch(bench, 3, 1)
    bench.hot.roll()
    tiered_partition = bench.partitions.get(PARTITION)
    tiered_partition.load()
    assert tiered_partition.copied_offset == 3


def test_copying_goes_on_after_a_cut_inside_a_copied_segment_and_a_roll_there() -> None:
    bench = TierBench(settings=tiered(cleanup_policy=("delete",)))
    bench.fill(6)
    bench.copy()
    bench.hot.log.truncate_to(3)
    bench.hot.log.roll()
    append_in_epoch(bench, 4, 5)
    bench.hot.roll()
    local = bench.local_files()
    for _ in range(2):
        report = bench.copy()
        assert report.error is None, report.error
    bench.note(local)
    assert [(one.base_offset, one.end_offset) for one in bench.readable()] == [(0, 2), (3, 7)]


@pytest.mark.parametrize("position", [0, 75])
def test_a_damaged_segment_is_not_copied_and_waits_longer_each_time(position: int) -> None:
    bench = TierBench(settings=tiered(cleanup_policy=("delete",)))
    bench.fill(3, 3)
    path = bench.hot.log.view.closed[0].path(".log")
    with bench.hot.disk.open_writable(path) as file:
        file.write_at(position, b"\xff")
    (report,) = bench.copier.run_once(bench.hot.now_ms)
    assert report.error is not None
    assert bench.segments() == []
    assert bench.copier.run_once(bench.hot.now_ms + 999) == []
    assert len(bench.copier.run_once(bench.hot.now_ms + 1_000)) == 1
    assert bench.copier.run_once(bench.hot.now_ms + 2_999) == []


def test_the_status_tells_what_is_hot_remote_and_behind(bench: TierBench) -> None:
    bench.fill(3)
    bench.copy()
    bench.fill(2, 2)
    status = observe_tiers(bench.partitions.get(PARTITION))
    assert (status.local_segments, status.remote_segments, status.lag_segments) == (4, 1, 2)
    assert status.copied_offset == 3
    assert status.remote_bytes is not None
    assert status.lag_bytes is not None
    assert status.local_bytes == status.remote_bytes + status.lag_bytes
    assert status.stored_bytes is not None
    assert status.stored_bytes > status.remote_bytes


def _count_steps(bench: TierBench) -> list[ObjectStep]:
    bench.copy()
    return bench.objects.trace


def test_a_long_backlog_lets_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = TieredTopic()
    topic.fill(1, 1, 1, 1)
    size = topic.log.view.closed[0].size
    other = topic.kit.store.create_topic("other", settings={"remote.storage.enable": True})
    other.append(value=b"1")
    other.partition(0).log.roll()
    monkeypatch.setattr(copier, "ROUND_BYTES_MAX", 2 * size)
    reports = topic.tier.copy_once(topic.kit.now_ms)
    copied = [(one.partition.topic, len(one.segments)) for one in reports]
    assert copied == [("orders", 2), ("other", 1), ("orders", 2), ("orders", 0)]
    topic.close()


def test_versions_of_the_manifest_are_not_listed_with_every_copy() -> None:
    topic = TieredTopic()
    topic.fill(1)
    topic.copy()
    begin = topic.requests()
    for _ in range(5):
        topic.fill(1)
        topic.copy()
    lists = [step for step in list(topic.objects.trace)[begin:] if step.operation == "list"]
    topic.fill(1)
    topic.kit.advance(hours=1)
    topic.copy()
    later = [step for step in list(topic.objects.trace)[begin:] if step.operation == "list"]
    assert len(later) - len(lists) > len(lists) / 5
    topic.close()


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EISDIR])
def test_a_key_index_that_cannot_be_read_fails_the_copy_and_not_the_directory(
    code: int, bench: TierBench
) -> None:
    bench.fill(4, 4)
    segment, following = bench.hot.log.view.closed[0], bench.hot.log.view.closed[1]
    bench.hot.cleaner.ensure_keys(PARTITION, segment, following.base_offset, bench.hot.now_ms)
    bench.hot.faulty.fail_under(segment.path(KEYS), OSError(code, os.strerror(code)))
    report = bench.copier.copy(PARTITION, bench.hot.now_ms)
    assert report.error is not None
    assert ".keys" in report.error
    assert bench.hot.directory.failure is None
    bench.hot.put("more", "records")
    bench.hot.faulty.mend()
    assert bench.copy().error is None
    bench.check()


# Whether the two tiers of a partition join without a hole


@pytest.fixture
def tiers() -> tuple[ObjectManifestStore, CopiedLog, LocalPart]:
    """A log of which all that is copied is in object storage alone."""
    objects = MemoryObjectStore()
    remote = copy_log(objects, make_log(3))
    end = remote.segments[-1].end_offset + 1
    local = LocalPart(
        log_start_offset=remote.segments[0].base_offset,
        local_start_offset=end,
        end_offset=max(end, remote.log.end_offset),
        epochs=remote.log.epochs,
    )
    return open_manifests(objects), remote, local


def test_what_is_in_neither_tier_is_a_hole(
    tiers: tuple[ObjectManifestStore, CopiedLog, LocalPart],
) -> None:
    manifests, remote, local = tiers
    manifest, first, middle = manifests.load(), remote.segments[0], remote.segments[1]
    end = local.local_start_offset
    gone = manifest.start_delete([middle.id], at_ms=1)
    for known, changes, expected in (
        (manifest, {}, []),
        (manifest, {"local_start_offset": middle.base_offset}, []),
        (manifest, {"log_start_offset": None}, []),
        (manifest, {"local_start_offset": end + 5, "end_offset": end + 9}, [(end, end + 5)]),
        (gone, {}, [(first.end_offset + 1, middle.end_offset + 1)]),
        (gone, {"local_start_offset": middle.base_offset}, []),
    ):
        part = replace(local, **changes)
        assert find_holes(manifests, known, part) == expected, changes


def test_a_local_log_that_ends_before_its_copies_has_lost_its_tail(
    tiers: tuple[ObjectManifestStore, CopiedLog, LocalPart],
) -> None:
    manifests, _, local = tiers
    cut = local.local_start_offset - 1
    assert find_lost(manifests, manifests.load(), local) is None
    lost = find_lost(manifests, manifests.load(), replace(local, end_offset=cut))
    assert lost == (cut, local.local_start_offset)
