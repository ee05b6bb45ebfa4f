"""Every object is accounted for, damage is found, and a sweep takes only what nobody needs."""

import random
from dataclasses import replace

import pytest

from tests.support.copied_log import (
    HOME,
    CopiedLog,
    copy_log,
    describe,
    make_log,
    make_parts,
    open_manifests,
    upload,
)
from tests.support.log_bench import NOW_MS
from varve.foundation.clock import ManualClock
from varve.object_store import MemoryObjectStore
from varve.object_store.metering import S3_STANDARD
from varve.tiering.fsck import SETTLE_MS, FsckOptions, FsckReport, ObjectClass, fsck
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.segment import RemoteSegment, SegmentState
from varve.tiering.manifest.versions import HINT_INTERVAL

LATER_MS = NOW_MS + 10 * SETTLE_MS


@pytest.fixture
def objects() -> MemoryObjectStore:
    return MemoryObjectStore(clock=ManualClock(NOW_MS))


@pytest.fixture
def remote(objects: MemoryObjectStore) -> CopiedLog:
    return copy_log(objects, make_log(8))


def run(objects: MemoryObjectStore, now_ms: int = LATER_MS, **options: object) -> FsckReport:
    return fsck(
        objects,
        HOME.cluster,
        now_ms=_newest_ms(objects) + (now_ms - NOW_MS),
        options=FsckOptions(**options),  # type: ignore[arg-type]  # by name, as the tests say
        random=random.Random(77),
        wait=lambda _: None,
        prices=S3_STANDARD,
    )


def _newest_ms(objects: MemoryObjectStore) -> int:
    """The store stamps objects by a clock of its own."""
    return max((entry.modified_ms for entry in objects.list("")), default=0)


def count(report: FsckReport, kind: ObjectClass) -> int:
    return report.total.objects[kind]


def keys(objects: MemoryObjectStore) -> set[str]:
    return {entry.key for entry in objects.list("")}


def announce(objects: MemoryObjectStore, remote: CopiedLog) -> RemoteSegment:
    """A copy that was cut short after its first object."""
    last = remote.segments[-1]
    start, end = last.end_offset + 1, remote.log.end_offset
    data = {"log": b"abc", "epochs": b"0\n1\n0 0\n"}
    segment = replace(
        describe(remote.bench, start, end, data), id="cut-short", parts=make_parts(data)
    )
    upload(objects, open_manifests(objects, 3), segment, data, only=["log"])
    return segment


def start_delete(
    objects: MemoryObjectStore, segment: RemoteSegment, *, until_ms: int | None = None
) -> None:
    manifests = open_manifests(objects, 4)

    def change(manifest: Manifest) -> Manifest:
        start, end = segment.base_offset, segment.base_offset + 1
        near = manifests.unfold(manifest, start_offset=start, end_offset=end)
        return near.start_delete([segment.id], at_ms=NOW_MS, replaced_until_ms=until_ms)

    manifests.commit(change, leader_epoch=9, writer="expiry", now_ms=NOW_MS)


def test_objects_and_bytes_of_all_classes_add_up_to_the_store(
    objects: MemoryObjectStore, remote: CopiedLog
) -> None:
    announce(objects, remote)
    objects.put(f"{HOME.prefix}note.txt", b"mine")
    objects.put(f"{HOME.cluster}/readme", b"mine too")
    objects.put(f"{HOME.segment_folder}{0:020}-nobody/log", b"lost")
    objects.put(HOME.evidence_key("job-1"), b"{}")
    report = run(objects)
    listed = list(objects.list(""))
    assert sum(report.total.objects.values()) == len(listed)
    assert sum(report.total.bytes.values()) == sum(entry.size for entry in listed)
    assert count(report, ObjectClass.PENDING) == 1
    assert count(report, ObjectClass.FOREIGN) == 2
    assert count(report, ObjectClass.ORPHAN) == 1
    assert count(report, ObjectClass.RETAINED) > 0
    assert report.damage == []
    assert not report.is_clean
    assert report.cost_per_month(ObjectClass.LIVE) > 0


def test_the_work_of_a_job_is_pending(objects: MemoryObjectStore, remote: CopiedLog) -> None:
    objects.put(f"{HOME.work_folder}compact-1/0/000000", b"bits")
    report = run(objects)
    assert count(report, ObjectClass.PENDING) == 1
    assert count(report, ObjectClass.FOREIGN) == 0


def test_the_probe_of_an_interrupted_removal_is_swept(
    objects: MemoryObjectStore, remote: CopiedLog
) -> None:
    objects.put(HOME.removal_probe_key, b"")
    assert count(run(objects), ObjectClass.FOREIGN) == 0
    report = run(objects, sweep=True)
    assert count(report, ObjectClass.ORPHAN) == 1
    assert HOME.removal_probe_key not in keys(objects)
    assert run(objects).is_clean


def test_a_tier_without_leftovers_is_clean(objects: MemoryObjectStore, remote: CopiedLog) -> None:
    report = run(objects, deep=True)
    assert report.is_clean
    assert count(report, ObjectClass.ORPHAN) == count(report, ObjectClass.FOREIGN) == 0
    assert report.verified_bytes == sum(segment.stored_bytes for segment in remote.segments)


@pytest.mark.parametrize("damage", ["gone", "short", "changed"])
def test_damage_of_a_live_segment_is_named(
    objects: MemoryObjectStore, remote: CopiedLog, damage: str
) -> None:
    key = HOME.part_key(remote.segments[1], "log")
    data = objects.get(key)
    if damage == "gone":
        objects.delete([key])
    else:
        objects.put(key, data[:-1] if damage == "short" else b"x" + data[1:])
    shallow, deep = run(objects), run(objects, deep=True)
    assert [one.key for one in deep.damage] == [key]
    assert bool(shallow.damage) == (damage != "changed")
    assert not deep.is_clean


def test_a_sweep_removes_orphans_and_nothing_else(
    objects: MemoryObjectStore, remote: CopiedLog
) -> None:
    announce(objects, remote)
    objects.put(f"{HOME.prefix}note.txt", b"mine")
    before = keys(objects)
    orphans = {
        f"{HOME.segment_folder}{0:020}-nobody/log",
        f"{HOME.segment_folder}{0:020}-nobody/index",
        HOME.page_key(first_offset=0, id="nobody"),
    }
    for key in orphans:
        objects.put(key, b"lost")
    report = run(objects, sweep=True)
    assert {one.key for one in report.swept} == orphans
    assert report.orphans == []
    # The sweep of pages commits a version, so that nobody can name them any more.
    newest = open_manifests(objects, 6).load().version
    assert keys(objects) - before <= {HOME.manifest_key(newest), HOME.hint_key}
    assert before <= keys(objects)


def test_a_page_written_just_now_may_be_of_a_commit_under_way(
    objects: MemoryObjectStore, remote: CopiedLog
) -> None:
    objects.put(HOME.page_key(first_offset=0, id="fresh"), b"...")
    assert count(run(objects, NOW_MS), ObjectClass.PENDING) == 1
    assert count(run(objects), ObjectClass.ORPHAN) == 1


def test_what_a_deletion_left_goes_when_its_time_has_come(
    objects: MemoryObjectStore, remote: CopiedLog
) -> None:
    now_ms = _newest_ms(objects)
    start_delete(objects, remote.segments[0])
    start_delete(objects, remote.segments[1], until_ms=now_ms + 100 * SETTLE_MS)
    report = run(objects, sweep=True)
    assert report.is_clean
    assert {one.key for one in report.swept} == {
        HOME.part_key(remote.segments[0], part.name) for part in remote.segments[0].parts
    }
    assert HOME.part_key(remote.segments[1], "log") in keys(objects)


def test_nothing_of_a_partition_without_its_manifest_is_swept(
    objects: MemoryObjectStore, remote: CopiedLog
) -> None:
    objects.delete([key for key in keys(objects) if key.startswith(HOME.manifest_folder)])
    before = keys(objects)
    report = run(objects, sweep=True)
    assert "holds no version" in report.damage[0].message
    assert count(report, ObjectClass.ORPHAN) == 0
    assert keys(objects) == before


def test_a_damaged_manifest_is_damage_and_stops_the_sweep(
    objects: MemoryObjectStore, remote: CopiedLog
) -> None:
    newest = open_manifests(objects, 6).load().version
    objects.put(HOME.manifest_key(newest), b'{"format":1')
    objects.put(f"{HOME.segment_folder}{0:020}-nobody/log", b"lost")
    before = keys(objects)
    report = run(objects, sweep=True)
    assert len(report.damage) == 1
    assert keys(objects) == before


def test_a_version_that_the_hint_knows_and_that_is_gone_is_damage_and_stops_the_sweep(
    objects: MemoryObjectStore, remote: CopiedLog
) -> None:
    manifests = open_manifests(objects)
    while manifests.load().version % HINT_INTERVAL:
        manifests.commit(_touch, leader_epoch=None, writer="test", now_ms=NOW_MS)
    newest = manifests.load().version
    assert run(objects).is_clean
    objects.delete([HOME.manifest_key(newest)])
    before = keys(objects)
    report = run(objects, sweep=True)
    (damage,) = report.damage
    assert f"version {newest} existed, and {newest - 1} is the newest" in damage.message
    assert not report.is_clean
    assert keys(objects) == before


def test_whole_segments_that_no_version_names_behind_the_end_tell_of_lost_versions(
    objects: MemoryObjectStore, remote: CopiedLog
) -> None:
    last = remote.segments[-1]
    manifests = open_manifests(objects)
    lost = [
        version
        for version in range(1, manifests.load().version + 1)
        if any(one.id == last.id for one in manifests.at(version=version).segments)
    ]
    objects.delete([HOME.manifest_key(version) for version in lost])
    objects.delete([HOME.hint_key])
    before = keys(objects)
    report = run(objects, sweep=True)
    (damage,) = report.damage
    assert f"whole segments from offset {last.base_offset} on" in damage.message
    assert keys(objects) == before


def test_half_a_segment_behind_the_end_is_an_orphan(
    objects: MemoryObjectStore, remote: CopiedLog
) -> None:
    key = f"{HOME.segment_folder}{remote.segments[-1].end_offset + 1:020}-nobody/log"
    objects.put(key, b"lost")
    report = run(objects, sweep=True)
    assert report.damage == []
    assert [one.key for one in report.swept] == [key]


def _touch(manifest: Manifest) -> Manifest:
    return replace(manifest, log_start_offset=manifest.log_start_offset ^ 1)


def test_versions_go_only_when_a_retention_is_given(
    objects: MemoryObjectStore, remote: CopiedLog
) -> None:
    assert run(objects, sweep=True).swept == []
    report = run(objects, sweep=True, retention_ms=0)
    assert {one.kind for one in report.swept} == {ObjectClass.RETAINED}
    after = run(objects)
    assert after.is_clean
    assert count(after, ObjectClass.RETAINED) == 0


def test_a_segment_that_older_versions_name_is_retained(
    objects: MemoryObjectStore, remote: CopiedLog
) -> None:
    segment = remote.segments[0]
    start_delete(objects, segment)
    manifests = open_manifests(objects, 8)
    manifests.commit(
        lambda m: manifests.unfold(m, start_offset=0, end_offset=1).forget([segment.id]),
        leader_epoch=9,
        writer="expiry",
        now_ms=NOW_MS,
    )
    assert run(objects, sweep=True).is_clean
    assert HOME.part_key(segment, "log") in keys(objects)
    run(objects, sweep=True, retention_ms=0)
    assert {one.reason for one in run(objects, sweep=True).swept} == {
        "of a segment that no version names"
    }
    assert segment.state is SegmentState.COPY_FINISHED


def test_notes_of_outputs_receipts_and_leases_are_live(
    objects: MemoryObjectStore, remote: CopiedLog
) -> None:
    before = count(run(objects), ObjectClass.LIVE)
    topic = f"{HOME.cluster}/{HOME.topic}.{HOME.topic_id}"
    for key in (f"{topic}/output/a.json", f"{topic}/receipt/b.html", HOME.lease_key):
        objects.put(key, b"{}")
    report = run(objects, sweep=True)
    assert count(report, ObjectClass.LIVE) == before + 3
    assert report.is_clean
    objects.put(f"{topic}/else/a.json", b"{}")
    assert count(run(objects), ObjectClass.FOREIGN) == 1
