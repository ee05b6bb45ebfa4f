"""A partition leaves the cold tier for good, wherever the removal is cut."""

from collections.abc import Iterator

import pytest

from tests.support.tiered_topic import PARTITION, TieredTopic
from varve.foundation.errors import Corrupt, Unavailable
from varve.testing import FaultKind, ObjectStep
from varve.tiering import partition


@pytest.fixture
def orders() -> Iterator[TieredTopic]:
    topic = TieredTopic()
    topic.fill(2, 2, 2)
    topic.copy()
    yield topic
    topic.close()


def remove(orders: TieredTopic) -> int:
    return orders.tier.remove(PARTITION, orders.kit.now_ms)


def test_others_keep_theirs(orders: TieredTopic) -> None:
    store = orders.kit.store
    other = store.create_topic("other", settings={"remote.storage.enable": True})
    other.append(value=b"1")
    other.partition(0).log.roll()
    orders.tier.copy_once(orders.kit.now_ms)
    kept = [key for key in orders.object_keys() if "/other." in key]
    remove(orders)
    assert orders.object_keys() == kept


def test_many_segments_go_in_bounded_commits(
    orders: TieredTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "_SEGMENTS_MAX", 2)
    assert remove(orders) == 3
    assert orders.object_keys() == []


def test_segments_are_unreadable_before_their_objects_go_and_the_newest_manifest_goes_last(
    orders: TieredTopic,
) -> None:
    begin = orders.requests()
    remove(orders)
    steps: list[ObjectStep] = list(orders.objects.trace)[begin:]
    writes = [step for step in steps if step.operation in ("create", "put", "delete")]
    manifest = orders.tier.partitions.get(PARTITION).path.manifest_folder
    assert writes[0].operation == "create"
    assert writes[0].key.startswith(manifest)
    assert writes[-1].operation == "delete"
    assert writes[-1].key.startswith(manifest)


@pytest.mark.parametrize("kind", [FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER])
def test_a_removal_that_fails_anywhere_is_finished_by_the_next(kind: FaultKind) -> None:
    failed = 0
    for step in range(1, 16):
        topic = TieredTopic()
        topic.fill(1, 1)
        topic.copy()
        topic.objects.fail_at(topic.requests() + step, kind)
        try:
            remove(topic)
        except Unavailable:
            failed += 1
            remove(topic)
        assert topic.object_keys() == []
        topic.close()
    assert failed


def test_nothing_is_copied_or_expired_of_what_leaves(orders: TieredTopic) -> None:
    orders.fill(2)
    with orders.down(), pytest.raises(Unavailable):
        remove(orders)
    assert orders.tier.copy_once(orders.kit.now_ms) == []
    report = orders.tier.copy(PARTITION, orders.kit.now_ms)
    assert report.error is not None
    assert "leaving the remote tier" in report.error
    assert orders.expire().expiry.expired == ()
    orders.tier.partitions.end_leaving(orders.log)
    orders.copy()
    assert orders.remote_bases() == [0, 2, 4, 6]


def test_a_copy_under_way_ends_at_its_next_chunk(orders: TieredTopic) -> None:
    orders.fill(2)
    partitions = orders.tier.partitions
    report = orders.tier.copy(
        PARTITION, orders.kit.now_ms, progress=lambda _: partitions.begin_leaving(orders.log)
    )
    assert report.error is not None
    assert "leaving the remote tier" in report.error
    assert report.segments == ()


def test_who_waited_for_the_removal_finds_no_damage(orders: TieredTopic) -> None:
    """Its manifest is gone, which for a partition in the tier would be a loss."""
    stale = orders.tiered
    remove(orders)
    assert orders.tier.partitions.is_leaving(stale.log)
    orders.tier.expire_once(orders.kit.now_ms)
    orders.tier.copy_once(orders.kit.now_ms)
    assert orders.tier.failures == {}
    assert orders.tier.copier.failures() == {}
    assert orders.object_keys() == []


def test_cleaning_waits_for_the_removal_and_finds_no_damage(orders: TieredTopic) -> None:
    orders.move(2)
    remove(orders)
    with pytest.raises(Unavailable, match="is being removed from the remote tier"):
        orders.tier.partitions.bounds(PARTITION)
    orders.tier.partitions.end_leaving(orders.log)
    with pytest.raises(Corrupt, match="the remote tier has no segment"):
        orders.tier.partitions.bounds(PARTITION)


def test_who_waited_while_it_left_and_came_back_begins_again(
    orders: TieredTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = orders.tiered
    remove(orders)
    orders.tier.partitions.end_leaving(orders.log)
    fresh = orders.tiered
    assert fresh is not stale
    with monkeypatch.context() as patched:
        patched.setattr(orders.tier.partitions, "get", lambda partition: stale)
        report = orders.tier.copy(PARTITION, orders.kit.now_ms)
        assert report.error is not None
        assert "leaving the remote tier" in report.error
        assert orders.expire().expiry.expired == ()
    assert orders.tier.copier.failures() == {}
    orders.tier.copy_once(orders.kit.now_ms)
    assert orders.remote_bases() == [0, 2, 4]
