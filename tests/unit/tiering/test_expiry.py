"""Expiry over both tiers: what goes, in which order of steps, and what a failure leaves."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.log_bench import make_batch
from tests.support.remote_builder import make_segment
from tests.support.tiered_topic import MINUTE, PARTITION, TieredTopic
from varve.cleaning.removals.removal import Reason
from varve.cleaning.retention.rules import RetentionLimits, RetentionScope, due_now
from varve.commit_log import Log, LogSettings
from varve.foundation.errors import Fenced, StoreUnavailable, Unavailable
from varve.object_store import Buffer, MemoryObjectStore, ObjectInfo
from varve.testing import FaultKind
from varve.tiering import tier
from varve.tiering.evidence import read_remote_removals
from varve.tiering.expiry import describe_segment, total_retention_scope
from varve.tiering.manifest.segment import RemoteSegment, SegmentState
from varve.tiering.manifest.store import ObjectManifestStore
from varve.tiering.partition_lease import hold_lease


@pytest.fixture
def orders() -> Iterator[TieredTopic]:
    """Cold segments at 0, 2, 4, 6; those at 0 and 2 are in the cold tier alone."""
    topic = TieredTopic({"local.retention.ms": -2})
    topic.fill(2, 2, 2, 2)
    topic.copy()
    topic.move(4)
    yield topic
    topic.close()


def test_the_log_start_rises_over_both_tiers_and_objects_go_with_the_manifests_that_name_them(
    orders: TieredTopic,
) -> None:
    orders.alter(retention_ms=MINUTE * 3 + 1)
    expiry = orders.expire().expiry
    assert [one.segment.base_offset for one in expiry.expired] == [0]
    assert (orders.log.log_start_offset, orders.manifest().log_start_offset) == (2, 2)
    states = [one.state for one in orders.remote()]
    assert states[0] is SegmentState.DELETE_STARTED
    kept = orders.object_keys(orders.tiered.path.segment_folder)
    assert orders.offsets() == list(range(2, 8))
    orders.kit.advance(milliseconds=MINUTE - 1)
    assert orders.expire().expiry.removed_count == 0
    orders.kit.advance(milliseconds=1)
    assert orders.expire().expiry.removed_count == 1
    assert len(orders.object_keys(orders.tiered.path.segment_folder)) < len(kept)
    assert [one.base_offset for one in orders.remote()] == [2, 4, 6]


@pytest.mark.parametrize("local_ms", [-2, 5_000])
def test_an_idle_topic_rolls_copies_and_expires_its_last_records(local_ms: int) -> None:
    """Whatever keeps the local disk: segment.ms of these topics is years."""
    orders = TieredTopic({"retention.ms": 10_000, "local.retention.ms": local_ms})
    orders.topic.append(key="a", value=b"a", timestamp_ms=orders.kit.now_ms)
    for _ in range(2):
        orders.kit.advance(minutes=1)
        orders.tier._cleaner.retention.run_once(orders.kit.now_ms)
        orders.copy()
        orders.expire()
    assert orders.log.log_start_offset == 1
    assert orders.offsets() == []
    orders.close()


def test_size_is_that_of_both_tiers_each_record_once(orders: TieredTopic) -> None:
    sizes = [one.size for one in orders.remote()]
    orders.fill(2)
    active = orders.log.view.closed[-1].size
    orders.tiered.load()
    facts = total_retention_scope(orders.tiered, orders.manifest())
    assert facts.total_bytes == sum(sizes) + active
    orders.alter(retention_bytes=sum(sizes[1:]) + active)
    orders.expire()
    assert orders.log.log_start_offset == 2
    orders.expire()
    assert orders.log.log_start_offset == 2


def test_what_the_log_no_longer_has_counts_for_no_limit() -> None:
    """A log that was cut holds other records where the cold tier has those of the epoch before."""
    topic = TieredTopic()
    topic.fill(2, 2, 2, 2)
    topic.copy()
    sizes = [one.size for one in topic.remote()]
    topic.log.truncate_to(4)
    topic.log.append(make_batch(), leader_epoch=1)
    topic.tiered.load()
    assert topic.tiered.copied_offset == 4
    facts = total_retention_scope(topic.tiered, topic.manifest())
    assert facts.total_bytes == sum(sizes[:2]) + topic.log.view.active.size
    topic.alter(retention_bytes=facts.total_bytes)
    topic.expire()
    assert topic.log.log_start_offset == 0
    topic.close()


@pytest.mark.parametrize("step", range(1, 9))
def test_the_reason_of_an_expiry_is_on_record_whatever_fails(
    orders: TieredTopic, step: int
) -> None:
    orders.alter(retention_ms=MINUTE * 3 + 1)
    orders.objects.go_down(from_step=orders.requests() + step)
    with contextlib.suppress(Unavailable):
        orders.expire()
    orders.objects.come_up()
    orders.kit.advance(minutes=1)
    orders.expire()
    removals = [one.balance for one in read_remote_removals(orders.bucket, orders.tiered.manifests)]
    assert orders.remote_bases() == [4, 6]
    assert {one.base_offset for balance in removals for one in balance.inputs} == {0, 2}
    assert {reason for balance in removals for reason in balance.records} == {Reason.EXPIRED_TIME}


def test_what_a_job_announced_stays_while_the_job_renews_its_lease() -> None:
    topic = TieredTopic()
    topic.fill(2)
    topic.copy()
    output = replace(topic.remote()[0], id="output", state=SegmentState.COPY_STARTED)
    topic.tiered.commit(lambda manifest: manifest.announce(output), topic.kit.now_ms)
    topic.alter(remote_log_copy_disable=True)
    path, clock = topic.tiered.path, topic.kit.clock
    with hold_lease(topic.bucket, path, "compact-1", clock=clock, takes_over=False) as lease:
        topic.kit.advance(days=1)
        lease.renew()
        assert topic.expire().expiry.removed_count == 0
    assert topic.expire().expiry.removed_count == 1


def test_a_segment_that_a_job_finishes_just_before_its_removal_stays() -> None:
    """Nothing is copied any more, and the job's announcement looked abandoned."""
    bucket = _RacingStore()
    topic = TieredTopic(bucket=bucket)
    topic.fill(2, 2)
    topic.copy()
    manifests = topic.tiered.manifests
    first = topic.remote()[0]
    output = replace(first, id="output", state=SegmentState.COPY_STARTED)
    for part in output.parts:
        data = bucket.get(topic.tiered.path.part_key(first, part.name))
        bucket.put(topic.tiered.path.part_key(output, part.name), data)
    topic.tiered.commit(lambda manifest: manifest.announce(output), topic.kit.now_ms)
    topic.alter(remote_log_copy_disable=True)
    topic.kit.advance(days=1)

    def finish() -> None:
        now_ms = topic.kit.now_ms
        finished = replace(output, state=SegmentState.COPY_FINISHED, at_ms=now_ms)
        manifests.commit(
            lambda one: one.start_delete([first.id], at_ms=now_ms).finish(finished),
            leader_epoch=None,
            writer="job",
            now_ms=now_ms,
        )

    bucket.before_create = finish
    topic.expire()
    assert bucket.before_create is None, "the job came between"
    assert topic.remote_bases() == [0, 2]
    topic.move(4)
    assert topic.offsets() == [0, 1, 2, 3]
    topic.close()


class _RacingStore(MemoryObjectStore):
    """Another writer commits a manifest right before ours is created."""

    before_create: Callable[[], None] | None = None

    def create(self, key: str, data: Buffer) -> ObjectInfo:
        race, self.before_create = self.before_create, None
        if race is not None:
            race()
        return super().create(key, data)


def test_objects_stay_as_long_as_a_manifest_version_that_names_them(orders: TieredTopic) -> None:
    """So `varve tier restore --at` finds every object within the promised time."""
    orders.alter(retention_ms=MINUTE * 3 + 1)
    manifests = orders.tiered.manifests
    before_ms = orders.kit.now_ms
    orders.kit.advance(milliseconds=1)
    orders.expire()
    orders.kit.advance(milliseconds=MINUTE - 2)
    orders.expire()
    assert isinstance(manifests, ObjectManifestStore)
    old = manifests.at(time_ms=before_ms)
    readable = [one for one in manifests.segments(old) if one.is_readable]
    assert readable[0].base_offset == 0
    for segment in readable:
        for part in segment.parts:
            key = orders.tiered.path.part_key(segment, part.name)
            assert orders.bucket.head(key).size == part.size


def test_an_idle_partition_asks_the_store_for_nothing(orders: TieredTopic) -> None:
    orders.expire()
    before = orders.requests()
    for _ in range(19):
        orders.kit.advance(seconds=30)
        orders.expire()
    assert orders.requests() == before
    orders.kit.advance(seconds=30)
    orders.expire()
    assert orders.requests() - before <= 3


def test_the_log_start_is_raised_before_anything_becomes_unreadable(orders: TieredTopic) -> None:
    orders.alter(retention_ms=MINUTE * 3 + 1)
    orders.expire()
    orders.kit.advance(minutes=1)
    orders.objects.go_down(from_step=orders.requests() + 3)
    with pytest.raises(Unavailable):
        orders.expire()
    orders.objects.come_up()
    assert orders.log.log_start_offset == 4
    assert orders.remote_bases() == [2, 4, 6]
    orders.kit.crash_now()
    orders.kit.reopen()
    assert orders.log.log_start_offset == 4
    orders.expire()
    assert orders.remote_bases() == [4, 6]


def test_another_leader_is_not_overruled(orders: TieredTopic) -> None:
    manifests = orders.tiered.manifests
    manifests.commit(lambda one: one, leader_epoch=9, writer="other", now_ms=orders.kit.now_ms)
    orders.alter(retention_ms=MINUTE * 3 + 1)
    with pytest.raises(Fenced):
        orders.expire()
    assert orders.remote_bases() == [0, 2, 4, 6]


def test_a_store_that_is_down_is_not_asked_for_every_partition() -> None:
    topic = TieredTopic()
    for number in range(8):
        topic.kit.store.create_topic(f"more-{number}", settings={"remote.storage.enable": True})
    with topic.down():
        before = topic.requests()
        topic.tier.expire_once(topic.kit.now_ms)
        asked = topic.requests() - before
        assert len(topic.tier.failures) == 3
        topic.tier.expire_once(topic.kit.now_ms)
        assert len(topic.tier.failures) == 6
    topic.tier.expire_once(topic.kit.now_ms)
    assert topic.tier.failures == {}
    assert asked < 30
    topic.close()


def test_a_partition_that_is_being_copied_keeps_no_other_from_its_expiry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tier, "LOCK_TIMEOUT_S", 0.01)
    topic = TieredTopic()
    topic.kit.store.create_topic("other", settings={"remote.storage.enable": True})
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with topic.tiered.work:
            held.set()
            done.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    passes = topic.tier.expire_once(topic.kit.now_ms)
    assert [one.partition.topic for one in passes] == ["other"]
    assert topic.tier.failures == {}
    done.set()
    thread.join(10)
    assert len(topic.tier.expire_once(topic.kit.now_ms)) == 2
    topic.close()


def test_unfinished_copies_go_when_copying_is_switched_off(orders: TieredTopic) -> None:
    orders.fill(2)
    orders.objects.fail_at(orders.requests() + 5, FaultKind.ERROR_BEFORE)
    assert orders.tier.copy(PARTITION, orders.kit.now_ms).error is not None
    assert orders.remote()[-1].state is SegmentState.COPY_STARTED
    orders.tiered.load()
    orders.alter(remote_log_copy_disable=True, retention_ms=-1)
    # Within a day a job that compacts the cold tier may be writing it.
    assert orders.expire().expiry.removed_count == 0
    orders.kit.advance(days=1)
    assert orders.expire().expiry.removed_count == 1
    assert [one.base_offset for one in orders.remote()] == [0, 2, 4, 6]


def test_expiry_goes_on_while_copying_is_switched_off(orders: TieredTopic) -> None:
    orders.alter(remote_log_copy_disable=True, retention_ms=MINUTE * 3 + 1)
    orders.expire()
    assert orders.log.log_start_offset == 2
    with orders.down(), pytest.raises(StoreUnavailable):
        orders.log.read(start_offset=2)
    assert orders.offsets() == list(range(2, 8))


def test_local_retention_without_copies_takes_what_was_never_copied_and_raises_the_log_start(
    orders: TieredTopic,
) -> None:
    """Kafka: without copies the total limits rule the local disk, and the log start follows."""
    orders.alter(remote_log_copy_disable=True, retention_ms=MINUTE)
    orders.fill(2, 2)
    orders.kit.advance(minutes=5)
    orders.kit.run_background()
    orders.kit.run_background()
    assert orders.log.log_start_offset == 12
    assert orders.remote_bases() == []
    orders.alter(remote_log_copy_disable=False, retention_ms=-1)
    orders.fill(2)
    orders.copy()
    assert orders.remote_bases() == [12]
    orders.move(14)
    assert orders.offsets() == [12, 13]


# Which remote segments are due by the limits of both tiers


NOW_MS = 10_000
SEGMENTS = [make_segment(number, SegmentState.COPY_FINISHED) for number in range(5)]
"""Of 1000 bytes and 100 offsets each; number n has times up to 10 n, appended up to 10 n + 9."""


def expired(
    segments: list[RemoteSegment] = SEGMENTS, now_ms: int = NOW_MS, **given: Any
) -> list[tuple[int, Reason | None]]:
    log_start_offset = given.pop("log_start_offset", 0)
    end_offset = given.pop("end_offset", 600)
    given.setdefault("retention_ms", -1)
    log = cast(
        "Log", SimpleNamespace(epochs=((0, 0),), end_offset=end_offset, local_start_offset=0)
    )
    limits = RetentionLimits.total(LogSettings(**given))
    described = [describe_segment(one, log) for one in segments]
    found = due_now(described, RetentionScope(limits, 5_500, log_start_offset), now_ms)
    return [(one.segment.base_offset // 100, one.reason) for one in found]


def test_segments_of_another_history_are_passed_over() -> None:
    foreign = replace(SEGMENTS[1], epochs=((7, 100),))
    found = expired([SEGMENTS[0], foreign, *SEGMENTS[2:]], retention_bytes=3_500)
    assert found == [(0, Reason.EXPIRED_SIZE), (2, Reason.EXPIRED_SIZE)]
    assert expired([foreign], retention_ms=1) == []
    assert expired([foreign], log_start_offset=200) == [(1, Reason.BELOW_LOG_START)]


def test_what_the_log_does_not_reach_is_passed_over() -> None:
    assert expired(end_offset=450, retention_ms=1)[-1] == (3, Reason.EXPIRED_TIME)


def test_a_timestamp_far_in_the_future_does_not_keep_a_segment_for_ever() -> None:
    late = replace(SEGMENTS[0], max_timestamp=1 << 50)
    assert expired([late], now_ms=1 << 40, retention_ms=1_000) == [(0, Reason.EXPIRED_TIME)]
