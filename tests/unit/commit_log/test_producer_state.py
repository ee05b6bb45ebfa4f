"""Producer state refuses what Kafka refuses and recognises what it has seen."""

import logging

import pytest

from varve.commit_log.producer_snapshots import encode_snapshot, load_snapshot
from varve.commit_log.producer_state import (
    AppendOrigin,
    BatchSummary,
    CompletedTransaction,
    Marker,
    ProducerAppendInfo,
    ProducerStateManager,
)
from varve.commit_log.transaction_index import TransactionIndex
from varve.foundation.errors import (
    CoordinatorFenced,
    InvalidProducerEpoch,
    InvalidTransactionState,
    OutOfOrderSequence,
    StoreError,
)

INT_MAX = 2**31 - 1
ALL = [AppendOrigin.CLIENT, AppendOrigin.COORDINATOR, AppendOrigin.REPLICATION]


def data(
    sequence: int = 0,
    *,
    offset: int = 0,
    count: int = 1,
    producer: int = 1,
    epoch: int = 0,
    time: int = 100,
    transactional: bool = False,
) -> BatchSummary:
    return BatchSummary(
        base_offset=offset,
        last_offset=offset + count - 1,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        last_sequence=-1 if sequence < 0 else (sequence + count - 1) % (INT_MAX + 1),
        max_timestamp=time,
        is_transactional=transactional,
        is_control=False,
    )


def marker(
    *,
    offset: int,
    committed: bool = True,
    producer: int = 1,
    epoch: int = 0,
    coordinator: int = 0,
    time: int = 100,
) -> BatchSummary:
    return BatchSummary(
        base_offset=offset,
        last_offset=offset,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=-1,
        last_sequence=-1,
        max_timestamp=time,
        is_transactional=True,
        is_control=True,
        marker=Marker(committed=committed, coordinator_epoch=coordinator),
    )


def append(
    states: ProducerStateManager, *batches: BatchSummary, origin: AppendOrigin = AppendOrigin.CLIENT
) -> ProducerAppendInfo:
    plan = states.check_and_plan(batches, origin)
    states.apply(plan, None)
    return plan


def end(states: ProducerStateManager, *batches: BatchSummary) -> ProducerAppendInfo:
    return append(states, *batches, origin=AppendOrigin.COORDINATOR)


@pytest.fixture
def states() -> ProducerStateManager:
    return ProducerStateManager("orders-0")


def refused(states: ProducerStateManager, batch: BatchSummary, error: type[StoreError]) -> str:
    before = (dict(states.entries), states.first_unstable_offset)
    origin = AppendOrigin.COORDINATOR if batch.is_control else AppendOrigin.CLIENT
    with pytest.raises(error) as caught:
        states.check_and_plan([batch], origin)
    assert (dict(states.entries), states.first_unstable_offset) == before
    return str(caught.value)


# Sequences


def test_unknown_producer_may_begin_anywhere(states: ProducerStateManager) -> None:
    append(states, data(77, count=3))
    assert states.entries[1].last_sequence == 79
    append(states, data(80, offset=3))


@pytest.mark.parametrize("sequence", [0, 2, 4, 5, INT_MAX])
def test_gap_or_step_back_is_out_of_order(states: ProducerStateManager, sequence: int) -> None:
    append(states, data(0, count=3))
    message = refused(states, data(sequence, offset=3, count=2), OutOfOrderSequence)
    assert f"sequence {sequence}, expected 3" in message
    assert "orders-0" in message


def test_sequences_wrap_to_zero(states: ProducerStateManager) -> None:
    append(states, data(INT_MAX))
    refused(states, data(1, offset=1), OutOfOrderSequence)
    append(states, data(0, offset=1))


def test_batch_across_the_wrap_is_one_batch(states: ProducerStateManager) -> None:
    batch = data(INT_MAX - 1, count=5)
    append(states, batch)
    assert states.entries[1].last_sequence == 2
    assert states.entries[1].batches[0].first_sequence == INT_MAX - 1
    assert append(states, batch).duplicate is not None


def test_five_latest_batches_are_recognised(states: ProducerStateManager) -> None:
    batches = [data(n * 2, offset=n * 2, count=2, time=n) for n in range(6)]
    for batch in batches:
        append(states, batch)
    for n, batch in enumerate(batches[1:], start=1):
        duplicate = append(states, batch).duplicate
        assert duplicate is not None
        assert (duplicate.first_offset, duplicate.last_offset) == (n * 2, n * 2 + 1)
        assert duplicate.timestamp == n
    refused(states, batches[0], OutOfOrderSequence)
    assert len(states.entries[1].batches) == 5


def test_part_of_a_batch_is_no_duplicate(states: ProducerStateManager) -> None:
    append(states, data(0, count=4))
    refused(states, data(0, count=3), OutOfOrderSequence)
    refused(states, data(1, count=3), OutOfOrderSequence)


def test_duplicate_changes_nothing(states: ProducerStateManager) -> None:
    append(states, data(0, time=5))
    before = dict(states.entries)
    plan = append(states, data(0, offset=9, time=50))
    assert plan.duplicate == before[1].batches[0]
    assert states.entries == before


def test_replicated_duplicate_is_appended(states: ProducerStateManager) -> None:
    append(states, data(0))
    plan = append(states, data(0, offset=1), origin=AppendOrigin.REPLICATION)
    assert plan.duplicate is None
    assert len(states.entries[1].batches) == 2


@pytest.mark.parametrize("origin", [AppendOrigin.COORDINATOR, AppendOrigin.REPLICATION])
def test_only_clients_sequences_are_checked(
    states: ProducerStateManager, origin: AppendOrigin
) -> None:
    append(states, data(0), origin=origin)
    append(states, data(50, offset=1), origin=origin)
    append(states, data(-1, offset=2), origin=origin)
    assert states.entries[1].last_sequence == -1


# Epochs


def test_new_epoch_begins_at_zero_and_forgets_batches(states: ProducerStateManager) -> None:
    append(states, data(0), data(1, offset=1))
    message = refused(states, data(2, epoch=1, offset=2), OutOfOrderSequence)
    assert "expected 0" in message
    append(states, data(0, epoch=1, offset=2))
    assert len(states.entries[1].batches) == 1
    assert states.entries[1].epoch == 1


@pytest.mark.parametrize("origin", [AppendOrigin.CLIENT, AppendOrigin.COORDINATOR])
def test_older_epoch_is_fenced(states: ProducerStateManager, origin: AppendOrigin) -> None:
    append(states, data(0, epoch=3))
    with pytest.raises(InvalidProducerEpoch, match="epoch 2, the current one is 3"):
        states.check_and_plan([data(1, epoch=2, offset=1)], origin)


def test_replicated_older_epoch_is_logged_and_taken(
    states: ProducerStateManager, caplog: pytest.LogCaptureFixture
) -> None:
    append(states, data(0, epoch=3))
    with caplog.at_level(logging.WARNING):
        append(states, data(9, epoch=2, offset=1), origin=AppendOrigin.REPLICATION)
    assert states.entries[1].epoch == 2
    [record] = caplog.records
    assert record.getMessage() == "producer epoch went back"
    assert record.__dict__["current"] == 3


def test_marker_with_a_new_epoch_lets_the_next_batch_begin_at_zero_only(
    states: ProducerStateManager,
) -> None:
    append(states, data(5, count=2))
    end(states, marker(offset=2, epoch=1))
    assert states.entries[1].batches == ()
    refused(states, data(7, offset=3, epoch=1), OutOfOrderSequence)
    append(states, data(0, offset=3, epoch=1))


# Several batches in one append


def test_batches_of_one_append_are_checked_one_after_another(states: ProducerStateManager) -> None:
    append(states, data(0), data(1, offset=1))
    with pytest.raises(OutOfOrderSequence):
        states.check_and_plan([data(2, offset=2), data(4, offset=3)], AppendOrigin.CLIENT)
    assert states.entries[1].last_sequence == 1
    append(states, data(2, offset=2), data(3, offset=3))
    assert states.entries[1].last_sequence == 3


def test_producer_unknown_at_the_start_may_skip_within_the_append(
    states: ProducerStateManager,
) -> None:
    append(states, data(7), data(50, offset=1))
    assert states.entries[1].last_sequence == 50


def test_batches_without_a_producer_leave_no_trace(states: ProducerStateManager) -> None:
    append(states, data(-1, producer=-1))
    assert not states.entries


# Transactions


def test_transaction_opens_at_its_first_batch(states: ProducerStateManager) -> None:
    append(states, data(0, offset=10, transactional=True))
    append(states, data(1, offset=11, transactional=True))
    assert states.entries[1].transaction_first_offset == 10
    assert states.first_unstable_offset == 10


@pytest.mark.parametrize("committed", [True, False])
def test_marker_completes_the_transaction(states: ProducerStateManager, committed: bool) -> None:
    append(states, data(0, offset=10, transactional=True))
    plan = end(states, marker(offset=12, committed=committed, coordinator=4, time=900))
    assert plan.completed == [CompletedTransaction(1, 10, 12, not committed)]
    entry = states.entries[1]
    assert entry.transaction_first_offset is None
    assert (entry.coordinator_epoch, entry.last_timestamp) == (4, 900)
    assert len(entry.batches) == 1


def test_marker_without_a_transaction_completes_nothing(states: ProducerStateManager) -> None:
    assert end(states, marker(offset=3, coordinator=2)).completed == []
    assert states.entries[1].coordinator_epoch == 2
    assert states.first_unstable_offset is None


def test_plain_batch_within_a_transaction_is_refused(states: ProducerStateManager) -> None:
    append(states, data(0, transactional=True))
    message = refused(states, data(1, offset=1), InvalidTransactionState)
    assert "since offset 0" in message


def test_replicated_plain_batch_within_a_transaction_is_logged_and_taken(
    states: ProducerStateManager, caplog: pytest.LogCaptureFixture
) -> None:
    append(states, data(0, transactional=True))
    with caplog.at_level(logging.WARNING):
        append(states, data(1, offset=1), origin=AppendOrigin.REPLICATION)
    assert caplog.messages == ["non-transactional batch within a transaction"]
    assert states.entries[1].transaction_first_offset == 0


def test_older_coordinator_is_fenced(states: ProducerStateManager) -> None:
    end(states, marker(offset=0, coordinator=5))
    assert "epoch 4" in refused(states, marker(offset=1, coordinator=4), CoordinatorFenced)
    end(states, marker(offset=1, coordinator=5))


def test_replicated_older_coordinator_is_logged_and_taken(
    states: ProducerStateManager, caplog: pytest.LogCaptureFixture
) -> None:
    end(states, marker(offset=0, coordinator=5))
    with caplog.at_level(logging.WARNING):
        append(states, marker(offset=1, coordinator=4), origin=AppendOrigin.REPLICATION)
    assert caplog.messages == ["coordinator epoch went back"]
    assert states.entries[1].coordinator_epoch == 4


@pytest.mark.parametrize("origin", ALL)
def test_emptied_marker_is_passed_over(states: ProducerStateManager, origin: AppendOrigin) -> None:
    append(states, data(0, epoch=5, transactional=True))
    before = dict(states.entries)
    emptied = BatchSummary(5, 5, 1, 0, -1, -1, 10, True, True, None)
    append(states, emptied, origin=origin)
    assert states.entries == before
    assert states.first_unstable_offset == 0


def test_several_transactions_in_one_replicated_append(states: ProducerStateManager) -> None:
    plan = append(
        states,
        data(0, offset=0, transactional=True),
        marker(offset=1, committed=False),
        data(1, offset=2, transactional=True),
        marker(offset=3),
        data(2, offset=4, transactional=True),
        origin=AppendOrigin.REPLICATION,
    )
    assert plan.completed == [
        CompletedTransaction(1, 0, 1, True),
        CompletedTransaction(1, 2, 3, False),
    ]
    assert [open.first_offset for open in states.ongoing] == [4]
    states.advance_high_watermark(5)
    assert states.first_unstable_offset == 4


# Last stable offset


def test_aborted_entry_names_the_earliest_other_open_transaction(
    states: ProducerStateManager,
) -> None:
    append(states, data(0, offset=5, producer=1, transactional=True))
    append(states, data(0, offset=6, producer=2, transactional=True))
    index = TransactionIndex(0)
    for offset, producer in ((7, 1), (8, 2)):
        aborting = marker(offset=offset, producer=producer, committed=False)
        states.apply(states.check_and_plan([aborting], AppendOrigin.COORDINATOR), index)
    assert [aborted.last_stable_offset for aborted in index.entries()] == [6, 9]


def test_completed_transaction_stays_unstable_until_replicated(
    states: ProducerStateManager,
) -> None:
    append(states, data(0, offset=5, transactional=True))
    end(states, marker(offset=7))
    assert states.first_unstable_offset == 5
    states.advance_high_watermark(7)
    assert states.first_unstable_offset == 5
    states.advance_high_watermark(8)
    assert states.first_unstable_offset is None


def test_first_unstable_is_the_least_of_ongoing_and_unreplicated(
    states: ProducerStateManager,
) -> None:
    append(states, data(0, offset=5, producer=1, transactional=True))
    append(states, data(0, offset=6, producer=2, transactional=True))
    end(states, marker(offset=7, producer=2))
    assert states.first_unstable_offset == 5
    end(states, marker(offset=8, producer=1))
    states.advance_high_watermark(8)
    assert states.first_unstable_offset == 5
    append(states, data(1, offset=9, producer=1, transactional=True))
    states.advance_high_watermark(9)
    assert states.first_unstable_offset == 9


def test_completing_twice_is_harmless(states: ProducerStateManager) -> None:
    append(states, data(0, offset=5, transactional=True))
    plan = end(states, marker(offset=7))
    states.advance_high_watermark(8)
    states.apply(plan, None)
    assert states.first_unstable_offset is None


def test_raising_the_log_start_forgets_transactions_but_no_producers(
    states: ProducerStateManager,
) -> None:
    append(states, data(0, offset=5, transactional=True))
    end(states, marker(offset=7))
    states.raise_log_start(8)
    assert states.first_unstable_offset is None
    assert states.entries
    assert states.map_end_offset == 8
    states.raise_log_start(3)
    assert states.map_end_offset == 8


# Expiry


def test_silent_producers_expire_unless_a_transaction_is_open(states: ProducerStateManager) -> None:
    append(states, data(0, producer=1, time=100))
    append(states, data(0, producer=2, time=101, offset=1))
    append(states, data(0, producer=3, time=100, offset=2, transactional=True))
    assert states.expire(199, 100) == 0
    assert states.expire(200, 100) == 1
    assert set(states.entries) == {2, 3}


def test_clear_forgets_everything_but_the_map_end(states: ProducerStateManager) -> None:
    append(states, data(0, transactional=True))
    states.map_end_offset = 1
    states.clear()
    assert not states.entries
    assert states.first_unstable_offset is None
    assert states.map_end_offset == 1


# Snapshots


def test_snapshot_keeps_the_last_batch_and_the_open_transaction(
    states: ProducerStateManager,
) -> None:
    append(states, data(0, offset=10, count=3, transactional=True))
    append(states, data(3, offset=13, count=2, time=700, transactional=True))
    append(states, data(0, offset=15, producer=2))
    loaded = ProducerStateManager()
    load_snapshot(loaded, encode_snapshot(states), now_ms=0, expiration_ms=1000)
    assert loaded.entries[1] == states.entries[1]._replace(batches=states.entries[1].batches[-1:])
    assert loaded.entries[2] == states.entries[2]
    assert loaded.first_unstable_offset == 10
    assert append(loaded, data(3, offset=50, count=2, transactional=True)).duplicate is not None
    refused(loaded, data(0, offset=50, count=3, transactional=True), OutOfOrderSequence)
    end(loaded, marker(offset=16))
    loaded.advance_high_watermark(17)
    assert loaded.first_unstable_offset is None


def test_loading_drops_expired_producers_and_replaces_state(states: ProducerStateManager) -> None:
    append(states, data(0, producer=1, time=100))
    append(states, data(0, producer=2, time=500, offset=1))
    append(states, data(0, producer=3, time=100, offset=2, transactional=True))
    loaded = ProducerStateManager()
    append(loaded, data(0, producer=9, transactional=True))
    load_snapshot(loaded, encode_snapshot(states), now_ms=1100, expiration_ms=1000)
    assert set(loaded.entries) == {2, 3}
    assert loaded.first_unstable_offset == 2


def test_broken_snapshot_changes_nothing(states: ProducerStateManager) -> None:
    append(states, data(0, transactional=True))
    before = dict(states.entries)
    with pytest.raises(StoreError):
        load_snapshot(states, encode_snapshot(states)[:-1], where="x")
    assert states.entries == before
    assert states.first_unstable_offset == 0
