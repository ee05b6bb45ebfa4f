"""Offsets, duplicates, transactions and what a refused append leaves: nothing."""

import pytest

from tests.support.log_bench import (
    BROKEN,
    NO_ROOM,
    Bench,
    FaultyBench,
    make_batch,
    read_all,
    split_batches,
)
from varve.commit_log import AppendOrigin, LogAppendResult
from varve.commit_log.producer_state import ProducerAppendInfo, ProducerStateManager
from varve.commit_log.transaction_index import AbortedTransaction, TransactionIndex
from varve.foundation.errors import (
    Closed,
    Corrupt,
    DirectoryOffline,
    DiskFull,
    Fenced,
    InvalidRequest,
    LogPoisoned,
    RecordTooLarge,
    UnexpectedOffset,
    UnsupportedFormat,
)

SIZE = len(make_batch())


def produce(bench: Bench, sequence: int, count: int = 1, *, epoch: int = 0) -> LogAppendResult:
    return bench.log.append(
        make_batch(count, producer_id=1, producer_epoch=epoch, base_sequence=sequence)
    )


def in_transaction(bench: Bench, producer: int, sequence: int = 0, count: int = 1) -> int:
    return bench.log.append(
        make_batch(
            count,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )
    ).base_offset


# Offsets


def test_stored_batches_carry_offset_and_epoch_and_keep_their_crc(bench: Bench) -> None:
    bench.open()
    bench.log.append(make_batch(2), leader_epoch=3)
    bench.log.append(make_batch(2), leader_epoch=4)
    batches = split_batches(bench.read_file(0))
    headers = [batch.header for batch in batches]
    assert [(h.base_offset, h.partition_leader_epoch) for h in headers] == [(0, 3), (2, 4)]
    assert all(batch.is_valid_crc() for batch in batches)


def test_an_append_without_an_epoch_goes_on_with_the_latest(bench: Bench) -> None:
    bench.open()
    bench.log.append(make_batch(), leader_epoch=3)
    bench.log.append(make_batch())
    assert split_batches(bench.read_file(0))[1].header.partition_leader_epoch == 3


def test_an_older_leader_is_fenced(bench: Bench) -> None:
    bench.open()
    bench.log.append(make_batch(), leader_epoch=3)
    with pytest.raises(Fenced, match="epoch 2"):
        bench.log.append(make_batch(), leader_epoch=2)
    assert bench.log.end_offset == 1


def test_epochs_are_on_disk_with_their_first_batch(bench: Bench) -> None:
    bench.open()
    bench.log.append(make_batch(2), leader_epoch=3)
    bench.log.append(make_batch(), leader_epoch=3)
    bench.log.append(make_batch(), leader_epoch=7)
    text = bench.fs.read("data/topic-0/leader-epoch-checkpoint")
    assert text == b"0\n2\n3 0\n7 3\n"
    assert bench.log.end_offset_for_epoch(3) == (3, 3)


def test_an_append_larger_than_segment_bytes_is_refused(bench: Bench) -> None:
    bench.set(segment_bytes=SIZE - 1).open()
    with pytest.raises(RecordTooLarge, match=r"segment\.bytes"):
        bench.log.append(make_batch())
    assert bench.log.end_offset == 0


# Replication


@pytest.mark.parametrize("data", [b"", make_batch()[:-1]])
def test_a_follower_append_without_a_whole_batch_does_nothing(bench: Bench, data: bytes) -> None:
    bench.open()
    assert bench.log.append_replicated(data) is None
    assert bench.log.end_offset == 0


def test_a_follower_drops_bytes_after_the_last_whole_batch(bench: Bench) -> None:
    bench.open()
    bench.log.append_replicated(make_batch(base_offset=0) + make_batch(base_offset=1)[:-1])
    assert bench.log.end_offset == 1
    assert bench.log.size == SIZE


def test_a_follower_refuses_offsets_that_do_not_ascend(bench: Bench) -> None:
    bench.open()
    with pytest.raises(UnexpectedOffset, match="ascend"):
        bench.log.append_replicated(make_batch(base_offset=4) + make_batch(base_offset=4))
    assert bench.log.end_offset == 0


def test_a_follower_refuses_a_wrong_crc_in_any_batch(bench: Bench) -> None:
    bench.open()
    broken = bytearray(make_batch(base_offset=1))
    broken[-1] ^= 1
    with pytest.raises(Corrupt, match="nothing was appended"):
        bench.log.append_replicated(make_batch(base_offset=0) + broken)
    assert bench.log.end_offset == 0


def test_a_follower_refuses_old_formats(bench: Bench) -> None:
    bench.open()
    old = bytearray(make_batch())
    old[16] = 1
    with pytest.raises(UnsupportedFormat):
        bench.log.append_replicated(bytes(old))


def test_max_message_bytes_does_not_bind_followers(bench: Bench) -> None:
    bench.set(max_message_bytes=10).open()
    bench.log.append_replicated(make_batch(base_offset=0))
    assert bench.log.end_offset == 1


# Producers


def test_a_duplicate_is_answered_with_its_append_time(bench: Bench) -> None:
    bench.set(message_timestamp_type="LogAppendTime").open()
    first = produce(bench, 0)
    bench.clock.advance(5000)
    assert produce(bench, 0).timestamp == first.timestamp


def test_a_duplicate_rolls_nothing(bench: Bench) -> None:
    bench.set(segment_bytes=SIZE).open()
    produce(bench, 0)
    produce(bench, 0)
    assert len(bench.log.view) == 1


def test_a_coordinators_batches_have_no_sequence_check(bench: Bench) -> None:
    bench.open()
    for sequence in (5, 3):
        bench.log.append(
            make_batch(producer_id=1, producer_epoch=0, base_sequence=sequence),
            origin=AppendOrigin.COORDINATOR,
        )
    assert bench.log.end_offset == 2


def test_silent_producers_are_forgotten(bench: Bench) -> None:
    bench.open(producer_expiration_ms=1000)
    produce(bench, 0)
    assert bench.log.expire_producers(bench.clock.now_ms() + 999) == 0
    assert bench.log.expire_producers(bench.clock.now_ms() + 1000) == 1
    assert produce(bench, 9).base_offset == 1


# Last stable offset


def test_with_followers_a_transaction_is_unstable_until_its_marker_is_replicated(
    bench: Bench,
) -> None:
    bench.is_alone = False
    bench.open()
    in_transaction(bench, 1)
    bench.log.end_transaction(producer_id=1, producer_epoch=0, committed=True)
    assert (bench.log.high_watermark, bench.log.last_stable_offset) == (0, 0)
    bench.log.advance_high_watermark(1)
    assert (bench.log.high_watermark, bench.log.last_stable_offset) == (1, 0)
    bench.log.advance_high_watermark(2)
    assert bench.log.last_stable_offset == 2


def test_the_high_watermark_stops_at_the_log_end_and_never_falls(bench: Bench) -> None:
    bench.is_alone = False
    bench.open()
    bench.fill(3)
    assert bench.log.advance_high_watermark(10) == 3
    assert bench.log.advance_high_watermark(1) == 3


def test_the_last_stable_offset_never_lies_below_the_log_start(bench: Bench) -> None:
    bench.open()
    in_transaction(bench, 1)
    bench.fill(3)
    bench.log.delete_records(2)
    assert bench.log.last_stable_offset == 2


def test_a_transaction_opened_while_the_last_stable_offset_is_asked_stays_hidden(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.open()
    asked: list[int | None] = []

    def overtaken(producers: ProducerStateManager) -> int | None:
        asked.append(producers._first_unstable_offset)
        if len(asked) == 1:
            in_transaction(bench, 1)
        return asked[-1]

    monkeypatch.setattr(ProducerStateManager, "first_unstable_offset", property(overtaken))
    assert bench.log.last_stable_offset == 0
    assert asked == [None]


def test_a_transaction_is_open_before_the_high_watermark_passes_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.open()
    apply, seen = ProducerStateManager.apply, []

    def watched(
        producers: ProducerStateManager, plan: ProducerAppendInfo, index: TransactionIndex | None
    ) -> None:
        seen.append(bench.log.high_watermark)
        apply(producers, plan, index)

    monkeypatch.setattr(ProducerStateManager, "apply", watched)
    in_transaction(bench, 1)
    assert (seen, bench.log.high_watermark) == ([0], 1)


# Aborted transactions


def test_an_abort_is_indexed_in_the_segment_of_its_marker(bench: Bench) -> None:
    bench.open()
    in_transaction(bench, 1)
    bench.log.roll()
    bench.log.end_transaction(producer_id=1, producer_epoch=0, committed=False)
    bench.log.roll()
    assert bench.names(".txnindex") == ["00000000000000000001.txnindex"]
    assert bench.log.aborted_transactions() == [AbortedTransaction(1, 0, 1, 2)]


def test_a_followers_abort_is_indexed_too(bench: Bench) -> None:
    bench.open()
    in_transaction(bench, 1)
    bench.log.end_transaction(producer_id=1, producer_epoch=0, committed=False)
    data, expected = bench.read_file(0), bench.log.aborted_transactions()
    bench.log.reset_at(0)
    bench.log.append_replicated(data)
    assert bench.log.aborted_transactions() == expected


# What fails


def test_a_full_disk_refuses_the_append_and_the_log_goes_on(faulty: FaultyBench) -> None:
    log = faulty.open()
    faulty.fill(2)
    faulty.fail_next(NO_ROOM)
    with pytest.raises(DiskFull, match="nothing was changed"):
        log.append(make_batch())
    assert log.end_offset == 2
    assert log.append(make_batch()).base_offset == 2
    assert read_all(log) == [0, 1, 2]


def test_a_half_written_append_is_not_part_of_the_log(faulty: FaultyBench) -> None:
    log = faulty.open()
    faulty.fill(1)
    faulty.fs.fail_at(faulty.fs.steps + 1, NO_ROOM, after_bytes=SIZE // 2)
    with pytest.raises(DiskFull):
        log.append(make_batch())
    assert len(faulty.read_file(0)) == SIZE
    log.append(make_batch())
    assert read_all(log) == [0, 1]


def test_a_full_disk_in_a_roll_leaves_no_segment_behind(faulty: FaultyBench) -> None:
    faulty.set(preallocate=True, segment_bytes=3 * SIZE)
    log = faulty.open()
    faulty.fill(2)
    faulty.fs.full_at(faulty.fs.used_bytes() + 100)
    with pytest.raises(DiskFull):
        log.append(make_batch(5))
    assert faulty.names(".log") == ["00000000000000000000.log"]
    faulty.fs.full_at(None)
    log.append(make_batch())
    faulty.crash()
    assert read_all(faulty.log) == [0, 1, 2]


def test_a_refused_append_leaves_producers_as_they_were(faulty: FaultyBench) -> None:
    faulty.open()
    produce(faulty, 0)
    faulty.fail_next(NO_ROOM)
    with pytest.raises(DiskFull):
        produce(faulty, 1)
    assert produce(faulty, 1).base_offset == 1


def test_a_broken_disk_takes_the_log_down(faulty: FaultyBench) -> None:
    log = faulty.open()
    faulty.fill(1)
    faulty.fail_next(BROKEN)
    with pytest.raises(DirectoryOffline, match="reopen"):
        log.append(make_batch())
    with pytest.raises(DirectoryOffline):
        log.append(make_batch())
    with pytest.raises(DirectoryOffline):
        log.read(start_offset=0)


def test_append_after_a_failed_sync_is_refused_while_reads_go_on(faulty: FaultyBench) -> None:
    log = faulty.open()
    faulty.fill(2)
    faulty.fail_next(BROKEN)
    with pytest.raises(LogPoisoned, match="reopen"):
        log.flush()
    with pytest.raises(LogPoisoned):
        log.append(make_batch())
    with pytest.raises(LogPoisoned):
        log.flush()


def test_a_closed_log_refuses_everything(bench: Bench) -> None:
    log = bench.open()
    log.close()
    for act in (
        lambda: log.append(make_batch()),
        lambda: log.append_replicated(make_batch()),
        lambda: log.read(start_offset=0),
        log.roll,
        log.flush,
        lambda: log.truncate_to(0),
        lambda: log.reset_at(0),
        lambda: log.delete_records(0),
        lambda: log.find_offset_by_time(0),
        log.find_max_timestamp,
        log.close,
    ):
        with pytest.raises(Closed):
            act()


@pytest.mark.parametrize("epoch", [-1, 2**31])
def test_a_leader_epoch_that_the_batch_cannot_carry_is_refused(bench: Bench, epoch: int) -> None:
    bench.open()
    with pytest.raises(InvalidRequest, match="leader epoch"):
        bench.log.append(make_batch(), leader_epoch=epoch)
    assert bench.log.end_offset == 0
