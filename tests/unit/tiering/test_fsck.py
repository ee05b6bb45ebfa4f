"""Every object is accounted for, damage is found, and a sweep takes only what nobody needs."""

import random
from dataclasses import replace

import pytest

from tests.support.copied_log import (
    HOME,
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


class Tier:
    """A bucket with the copies of a log, and what a check of it says."""

    def __init__(self) -> None:
        self.objects = MemoryObjectStore(clock=ManualClock(NOW_MS))
        self.remote = copy_log(self.objects, make_log(8))

    def run(self, now_ms: int = LATER_MS, **options: object) -> FsckReport:
        return fsck(
            self.objects,
            HOME.cluster,
            now_ms=self.newest_ms() + (now_ms - NOW_MS),
            options=FsckOptions(**options),  # type: ignore[arg-type]  # by name, as the tests say
            random=random.Random(77),
            wait=lambda _: None,
            prices=S3_STANDARD,
        )

    def count(self, kind: ObjectClass) -> int:
        return self.run().total.objects[kind]

    def newest_ms(self) -> int:
        """The store stamps objects by a clock of its own."""
        return max(entry.modified_ms for entry in self.objects.list(""))

    def object_keys(self) -> set[str]:
        return {entry.key for entry in self.objects.list("")}

    def announce(self) -> None:
        """A copy that was cut short after its first object."""
        last = self.remote.segments[-1]
        data = {"log": b"abc", "epochs": b"0\n1\n0 0\n"}
        described = describe(
            self.remote.bench, last.end_offset + 1, self.remote.log.end_offset, data
        )
        segment = replace(described, id="cut-short", parts=make_parts(data))
        upload(self.objects, open_manifests(self.objects, 3), segment, data, only=["log"])

    def start_delete(self, segment: RemoteSegment, *, until_ms: int | None = None) -> None:
        manifests = open_manifests(self.objects, 4)

        def change(manifest: Manifest) -> Manifest:
            start, end = segment.base_offset, segment.base_offset + 1
            near = manifests.unfold(manifest, start_offset=start, end_offset=end)
            return near.start_delete([segment.id], at_ms=NOW_MS, replaced_until_ms=until_ms)

        manifests.commit(change, leader_epoch=9, writer="expiry", now_ms=NOW_MS)


@pytest.fixture
def tier() -> Tier:
    return Tier()


def test_objects_and_bytes_of_all_classes_add_up_to_the_store(tier: Tier) -> None:
    tier.announce()
    tier.objects.put(f"{HOME.prefix}note.txt", b"mine")
    tier.objects.put(f"{HOME.cluster}/readme", b"mine too")
    tier.objects.put(f"{HOME.segment_folder}{0:020}-nobody/log", b"lost")
    tier.objects.put(HOME.evidence_key("job-1"), b"{}")
    report = tier.run()
    listed = list(tier.objects.list(""))
    assert sum(report.total.objects.values()) == len(listed)
    assert sum(report.total.bytes.values()) == sum(entry.size for entry in listed)
    assert report.total.objects[ObjectClass.PENDING] == 1
    assert report.total.objects[ObjectClass.FOREIGN] == 2
    assert report.total.objects[ObjectClass.ORPHAN] == 1
    assert report.total.objects[ObjectClass.RETAINED] > 0
    assert report.damage == []
    assert not report.is_clean
    assert report.cost_per_month(ObjectClass.LIVE) > 0


TOPIC_KEYS = f"{HOME.cluster}/{HOME.topic}.{HOME.topic_id}"


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        (f"{HOME.work_folder}compact-1/0/000000", ObjectClass.PENDING),
        (f"{TOPIC_KEYS}/output/a.json", ObjectClass.LIVE),
        (f"{TOPIC_KEYS}/receipt/b.html", ObjectClass.LIVE),
        (HOME.lease_key, ObjectClass.LIVE),
        (HOME.removal_probe_key, ObjectClass.ORPHAN),
        (f"{TOPIC_KEYS}/else/a.json", ObjectClass.FOREIGN),
    ],
)
def test_an_object_beside_the_segments_is_known_by_its_key(
    tier: Tier, key: str, kind: ObjectClass
) -> None:
    before = tier.count(kind)
    tier.objects.put(key, b"{}")
    assert tier.count(kind) == before + 1
    swept = [one.key for one in tier.run(sweep=True).swept]
    assert swept == ([key] if kind is ObjectClass.ORPHAN else [])


def test_a_tier_without_leftovers_is_clean(tier: Tier) -> None:
    report = tier.run(deep=True)
    assert report.is_clean
    assert (
        report.total.objects[ObjectClass.ORPHAN] == report.total.objects[ObjectClass.FOREIGN] == 0
    )
    assert report.verified_bytes == sum(segment.stored_bytes for segment in tier.remote.segments)


@pytest.mark.parametrize("damage", ["gone", "short", "changed"])
def test_damage_of_a_live_segment_is_named(tier: Tier, damage: str) -> None:
    key = HOME.part_key(tier.remote.segments[1], "log")
    data = tier.objects.get(key)
    if damage == "gone":
        tier.objects.delete([key])
    else:
        tier.objects.put(key, data[:-1] if damage == "short" else b"x" + data[1:])
    shallow, deep = tier.run(), tier.run(deep=True)
    assert [one.key for one in deep.damage] == [key]
    assert bool(shallow.damage) == (damage != "changed")
    assert not deep.is_clean


def test_a_sweep_removes_orphans_and_nothing_else(tier: Tier) -> None:
    tier.announce()
    tier.objects.put(f"{HOME.prefix}note.txt", b"mine")
    before = tier.object_keys()
    orphans = {
        f"{HOME.segment_folder}{0:020}-nobody/log",
        f"{HOME.segment_folder}{0:020}-nobody/index",
        HOME.page_key(first_offset=0, id="nobody"),
    }
    for key in orphans:
        tier.objects.put(key, b"lost")
    report = tier.run(sweep=True)
    assert {one.key for one in report.swept} == orphans
    assert report.orphans == []
    # The sweep of pages commits a version, so that nobody can name them any more.
    newest = open_manifests(tier.objects, 6).load().version
    assert tier.object_keys() - before <= {HOME.manifest_key(newest), HOME.hint_key}
    assert before <= tier.object_keys()


def test_a_page_written_just_now_may_be_of_a_commit_under_way(tier: Tier) -> None:
    tier.objects.put(HOME.page_key(first_offset=0, id="fresh"), b"...")
    assert tier.run(NOW_MS).total.objects[ObjectClass.PENDING] == 1
    assert tier.count(ObjectClass.ORPHAN) == 1


def test_what_a_deletion_left_goes_when_its_time_has_come(tier: Tier) -> None:
    now_ms = tier.newest_ms()
    tier.start_delete(tier.remote.segments[0])
    tier.start_delete(tier.remote.segments[1], until_ms=now_ms + 100 * SETTLE_MS)
    report = tier.run(sweep=True)
    assert report.is_clean
    assert {one.key for one in report.swept} == {
        HOME.part_key(tier.remote.segments[0], part.name) for part in tier.remote.segments[0].parts
    }
    assert HOME.part_key(tier.remote.segments[1], "log") in tier.object_keys()


def test_nothing_of_a_partition_without_its_manifest_is_swept(tier: Tier) -> None:
    tier.objects.delete([key for key in tier.object_keys() if key.startswith(HOME.manifest_folder)])
    before = tier.object_keys()
    report = tier.run(sweep=True)
    assert "holds no version" in report.damage[0].message
    assert report.total.objects[ObjectClass.ORPHAN] == 0
    assert tier.object_keys() == before


def test_a_damaged_manifest_is_damage_and_stops_the_sweep(tier: Tier) -> None:
    newest = open_manifests(tier.objects, 6).load().version
    tier.objects.put(HOME.manifest_key(newest), b'{"format":1')
    tier.objects.put(f"{HOME.segment_folder}{0:020}-nobody/log", b"lost")
    before = tier.object_keys()
    report = tier.run(sweep=True)
    assert len(report.damage) == 1
    assert tier.object_keys() == before


def test_a_version_that_the_hint_knows_and_that_is_gone_is_damage_and_stops_the_sweep(
    tier: Tier,
) -> None:
    manifests = open_manifests(tier.objects)
    while manifests.load().version % HINT_INTERVAL:
        manifests.commit(_touch, leader_epoch=None, writer="test", now_ms=NOW_MS)
    newest = manifests.load().version
    assert tier.run().is_clean
    tier.objects.delete([HOME.manifest_key(newest)])
    before = tier.object_keys()
    report = tier.run(sweep=True)
    (damage,) = report.damage
    assert f"version {newest} existed, and {newest - 1} is the newest" in damage.message
    assert not report.is_clean
    assert tier.object_keys() == before


def test_whole_segments_that_no_version_names_behind_the_end_tell_of_lost_versions(
    tier: Tier,
) -> None:
    last = tier.remote.segments[-1]
    manifests = open_manifests(tier.objects)
    lost = [
        version
        for version in range(1, manifests.load().version + 1)
        if any(one.id == last.id for one in manifests.at(version=version).segments)
    ]
    tier.objects.delete([HOME.manifest_key(version) for version in lost])
    tier.objects.delete([HOME.hint_key])
    before = tier.object_keys()
    report = tier.run(sweep=True)
    (damage,) = report.damage
    assert f"whole segments from offset {last.base_offset} on" in damage.message
    assert tier.object_keys() == before


def test_half_a_segment_behind_the_end_is_an_orphan(tier: Tier) -> None:
    key = f"{HOME.segment_folder}{tier.remote.segments[-1].end_offset + 1:020}-nobody/log"
    tier.objects.put(key, b"lost")
    report = tier.run(sweep=True)
    assert report.damage == []
    assert [one.key for one in report.swept] == [key]


def _touch(manifest: Manifest) -> Manifest:
    return replace(manifest, log_start_offset=manifest.log_start_offset ^ 1)


def test_versions_go_only_when_a_retention_is_given(tier: Tier) -> None:
    assert tier.run(sweep=True).swept == []
    report = tier.run(sweep=True, retention_ms=0)
    assert {one.kind for one in report.swept} == {ObjectClass.RETAINED}
    after = tier.run()
    assert after.is_clean
    assert after.total.objects[ObjectClass.RETAINED] == 0


def test_a_segment_that_older_versions_name_is_retained(tier: Tier) -> None:
    segment = tier.remote.segments[0]
    tier.start_delete(segment)
    manifests = open_manifests(tier.objects, 8)
    manifests.commit(
        lambda m: manifests.unfold(m, start_offset=0, end_offset=1).forget([segment.id]),
        leader_epoch=9,
        writer="expiry",
        now_ms=NOW_MS,
    )
    assert tier.run(sweep=True).is_clean
    assert HOME.part_key(segment, "log") in tier.object_keys()
    tier.run(sweep=True, retention_ms=0)
    assert {one.reason for one in tier.run(sweep=True).swept} == {
        "of a segment that no version names"
    }
    assert segment.state is SegmentState.COPY_FINISHED
