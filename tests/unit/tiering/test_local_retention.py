"""What may leave the local disk, and the proof that the cold tier has it."""

from collections.abc import Iterator

import pytest

from tests.support.log_bench import make_batch
from tests.support.tiered_topic import MINUTE, PARTITION, TieredTopic, with_crc
from varve.cleaning.removals.removal import RemovalKind
from varve.cleaning.retention.retention import LogRetention
from varve.foundation.errors import Corrupt, StoreUnavailable
from varve.tiering import tier as tier_module
from varve.tiering.manifest.manifest import Manifest


@pytest.fixture
def orders() -> Iterator[TieredTopic]:
    """Segments at 0, 2, 4 are copied, the active one at 6 is empty; nothing has left yet."""
    topic = TieredTopic({"local.retention.ms": MINUTE * 10})
    topic.fill(2, 2, 2)
    topic.copy()
    yield topic
    topic.close()


def test_copied_segments_leave_when_they_are_old_and_every_record_is_still_read(
    orders: TieredTopic,
) -> None:
    orders.kit.advance(minutes=8)
    moved = orders.expire().moved
    assert [one.base_offset for one in moved.segments] == [0]
    assert "local.retention.ms=600000" in moved.segments[0].rule
    orders.kit.advance(minutes=10)
    orders.expire()
    assert orders.bases() == [6]
    assert orders.log.log_start_offset == 0
    assert orders.offsets() == list(range(6))


def test_they_leave_by_size_until_the_local_part_fits(orders: TieredTopic) -> None:
    size = orders.log.view.closed[0].size
    orders.alter(local_retention_ms=-1, local_retention_bytes=2 * size)
    orders.expire()
    assert orders.bases() == [2, 4, 6]
    assert orders.offsets() == list(range(6))


def test_what_is_not_copied_stays_however_old_it_is(orders: TieredTopic) -> None:
    orders.fill(2)
    orders.kit.advance(days=1)
    orders.expire()
    assert orders.bases() == [6, 8]
    with orders.down(), pytest.raises(StoreUnavailable):
        orders.tiered.load()


def test_what_left_is_on_record_as_moved(orders: TieredTopic) -> None:
    orders.kit.advance(days=1)
    orders.expire()
    evidence = orders.tier._cleaner.removals.get(orders.log)
    (entry,) = evidence.read()
    assert entry.removal.kind is RemovalKind.EVICTION
    assert [one.base_offset for one in entry.removal.inputs] == [0, 2, 4]
    orders.kit.check()


def test_without_limits_nothing_leaves_and_the_store_is_not_asked(orders: TieredTopic) -> None:
    orders.alter(local_retention_ms=-1)
    orders.expire()
    orders.kit.advance(minutes=1)
    before = orders.requests()
    orders.expire()
    assert orders.requests() == before
    assert orders.bases() == [0, 2, 4, 6]


def test_nothing_leaves_while_copying_is_switched_off(orders: TieredTopic) -> None:
    orders.alter(remote_log_copy_disable=True, local_retention_ms=-2)
    orders.kit.advance(days=9)
    orders.expire()
    assert orders.bases() == [0, 2, 4, 6]


def test_nothing_leaves_while_the_store_is_down(orders: TieredTopic) -> None:
    orders.expire()
    orders.kit.advance(minutes=9)
    with orders.down(), pytest.raises(StoreUnavailable):
        orders.expire()
    assert orders.bases() == [0, 2, 4, 6]
    orders.expire()
    assert orders.bases() == [4, 6]


def test_a_hole_in_the_tier_keeps_the_local_segments(orders: TieredTopic) -> None:
    orders.expire()
    orders.lose(2)
    orders.kit.advance(days=1)
    with pytest.raises(Corrupt, match="offsets 2 to 3 are in no segment of the remote tier"):
        orders.expire()
    assert orders.bases() == [0, 2, 4, 6]


def test_a_lost_end_of_the_tier_keeps_what_it_held(orders: TieredTopic) -> None:
    orders.expire()
    orders.lose(4)
    orders.kit.advance(days=1)
    removals = orders.tier._cleaner.removals.get(orders.log)
    retention = LogRetention(orders.log, removals)
    assert retention.plan_eviction(6, orders.kit.now_ms).segments
    orders.expire()
    assert orders.bases() == [4, 6]
    orders.copy()
    orders.expire()
    assert orders.bases() == [6]
    assert orders.offsets() == list(range(6))


def test_a_local_segment_that_differs_from_its_copy_stays(orders: TieredTopic) -> None:
    first = orders.remote()[0]

    def change(manifest: Manifest) -> Manifest:
        return manifest.update(with_crc(first, 7))

    orders.tiered.commit(change, orders.kit.now_ms)
    orders.kit.advance(days=1)
    with pytest.raises(Corrupt, match=r"local segment 0 of \d+ bytes differs from segment"):
        orders.expire()
    assert orders.bases() == [0, 2, 4, 6]
    assert PARTITION not in orders.tier.failures
    orders.tier.expire_once(orders.kit.now_ms)
    assert "local segment 0" in orders.kit.store.health().tier[PARTITION]


def test_a_log_that_was_cut_and_written_anew_keeps_what_the_tier_does_not_have(
    orders: TieredTopic,
) -> None:
    """The cold tier holds other records at these offsets: of the epoch before the cut."""
    orders.expire()
    orders.log.truncate_to(3)
    orders.log.append(make_batch(value=b"another history"), leader_epoch=1)
    orders.log.roll()
    for _ in range(4):
        orders.log.append(make_batch(value=b"another history"), leader_epoch=1)
    orders.log.roll()
    orders.kit.advance(days=1)
    orders.tier.expire_once(orders.kit.now_ms)
    assert orders.log.local_start_offset <= 2
    assert orders.topic.partition(0).offsets().end == 8


def test_much_leaves_in_steps_that_a_stop_can_come_between(
    orders: TieredTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier_module, "STEP_BYTES", 1)
    orders.kit.advance(days=1)
    moved = orders.expire().moved
    assert [one.base_offset for one in moved.segments] == [0, 2, 4]
    evidence = orders.tier._cleaner.removals.get(orders.log)
    assert len(evidence.read()) == 3
    assert orders.offsets() == list(range(6))


def test_what_compaction_has_gone_over_is_not_compared(orders: TieredTopic) -> None:
    """It may change a segment and not its size, as by the time a tombstone may go."""
    first = orders.remote()[0]
    orders.tiered.commit(lambda one: one.update(with_crc(first, 7)), orders.kit.now_ms)
    orders.tiered.directory.write_cleaner_offset(PARTITION, 2)
    orders.kit.advance(days=1)
    orders.expire()
    assert orders.bases() == [6]
