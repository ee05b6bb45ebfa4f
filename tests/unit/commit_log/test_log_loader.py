"""Loading a partition, sentence by sentence."""

import pytest

from tests.support.log_bench import (
    BROKEN,
    DIRECTORY,
    NOW_MS,
    Bench,
    FaultyBench,
    make_batch,
    offsets_in,
    read_all,
)
from varve.commit_log import Isolation
from varve.commit_log.names import log_name
from varve.commit_log.transaction_index import AbortedTransaction
from varve.foundation.errors import PolicyViolation

SIZE = len(make_batch())
EPOCHS = f"{DIRECTORY}/leader-epoch-checkpoint"


def closed(bench: Bench, *segments: int) -> Bench:
    bench.open()
    bench.fill(*segments)
    bench.log.close()
    return bench


def bases(bench: Bench) -> list[int]:
    return [segment.base_offset for segment in bench.log.view]


def break_byte(bench: Bench, offset: int, position: int) -> None:
    data = bytearray(bench.read_file(offset))
    data[position] ^= 0xFF
    bench.write(offset, ".log", bytes(data))


def test_an_empty_directory_becomes_an_empty_log(bench: Bench) -> None:
    log = bench.open()
    assert (log.log_start_offset, log.end_offset, log.high_watermark) == (0, 0, 0)
    assert bench.names() == [log_name(0)]


def test_an_empty_directory_begins_at_the_checkpointed_log_start(bench: Bench) -> None:
    log = bench.open(log_start_offset=42)
    assert (log.log_start_offset, log.end_offset) == (42, 42)
    assert bench.names(".log") == [log_name(42)]


def test_an_unreadable_file_is_an_io_error(faulty: FaultyBench) -> None:
    closed(faulty, 1)
    faulty.fs.fail_under(faulty.path(0, ".log"), BROKEN)
    with pytest.raises(OSError, match="Input/output"):
        faulty.open()


# Segments and indexes


@pytest.mark.parametrize("kind", [".index", ".timeindex", ".txnindex"])
def test_an_index_without_its_data_is_removed(bench: Bench, kind: str) -> None:
    closed(bench, 2)
    bench.write(7, kind, bytes(8))
    bench.open(clean=True)
    assert log_name(7, kind) not in bench.names()
    assert bases(bench) == [0]


def test_a_missing_offset_index_is_rebuilt_even_after_a_clean_stop(bench: Bench) -> None:
    bench.set(index_interval_bytes=0)
    closed(bench, 4, 1)
    expected = bench.read_file(0, ".index")
    bench.fs.remove(bench.path(0, ".index"))
    bench.open(clean=True)
    assert bench.read_file(0, ".index") == expected
    assert read_all(bench.log) == list(range(5))


def test_a_missing_time_index_is_made_empty_and_nothing_is_rebuilt(bench: Bench) -> None:
    closed(bench, 4, 1)
    index = bench.read_file(0, ".index")
    bench.fs.remove(bench.path(0, ".timeindex"))
    bench.open(clean=True)
    assert bench.read_file(0, ".timeindex") == b""
    assert bench.read_file(0, ".index") == index


@pytest.mark.parametrize("damage", [b"\x00" * 10, bytes(2) + b"\xff" * 32, b"\x00\x07" + bytes(32)])
def test_an_insane_transaction_index_is_rebuilt(bench: Bench, damage: bytes) -> None:
    bench.open()
    bench.fill(3)
    bench.log.append(
        make_batch(producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    )
    bench.log.end_transaction(producer_id=1, producer_epoch=0, committed=False)
    bench.log.roll()
    bench.fill(1)
    bench.log.close()
    written = bench.read_file(0, ".txnindex")
    bench.write(0, ".txnindex", damage)
    bench.open(clean=True)
    assert bench.log.aborted_transactions() == [AbortedTransaction(1, 3, 4, 5)]
    bench.log.close()
    assert bench.read_file(0, ".txnindex") == written


def test_offset_and_time_indexes_are_trusted_after_a_clean_stop(bench: Bench) -> None:
    closed(bench, 4, 1)
    bench.write(0, ".timeindex", b"\x01" * 24)
    bench.open(clean=True)
    assert bench.read_file(0, ".timeindex") == b"\x01" * 24


def test_an_index_that_points_past_the_data_is_rebuilt(bench: Bench) -> None:
    closed(bench, 2)
    bench.write(0, ".index", (1).to_bytes(4, "big") + (10_000).to_bytes(4, "big"))
    assert bench.open(clean=True).end_offset == 2
    assert read_all(bench.log) == [0, 1]


# Recovery


def test_a_clean_log_is_not_recovered(bench: Bench) -> None:
    closed(bench, 3, 3)
    break_byte(bench, 0, SIZE + 40)
    log = bench.open(clean=True)
    assert (log.end_offset, log.recovered) == (6, [])
    assert len(bench.read_file(0)) == 3 * SIZE


def test_recovery_begins_with_the_segment_of_the_recovery_point(bench: Bench) -> None:
    closed(bench, 3, 3, 3)
    break_byte(bench, 0, SIZE + 40)
    bench.open(recovery_point=4)
    assert bench.log.end_offset == 9
    bench.crash(recovery_point=3)
    assert bench.log.end_offset == 9
    bench.crash(recovery_point=2)
    assert bench.log.end_offset == 1


def test_the_last_segment_is_always_recovered(bench: Bench) -> None:
    closed(bench, 3, 3)
    break_byte(bench, 3, 2 * SIZE + 40)
    assert bench.open(recovery_point=6).end_offset == 5


def test_a_segment_that_lost_bytes_takes_all_later_ones_with_it(bench: Bench) -> None:
    closed(bench, 3, 3, 3)
    break_byte(bench, 3, SIZE + 40)
    log = bench.open()
    assert bases(bench) == [0, 3]
    assert read_all(log) == [0, 1, 2, 3]
    assert bench.names(".log") == [log_name(0), log_name(3)]
    assert bench.names(".deleted") == []
    assert max(int(name[:20]) for name in bench.names(".snapshot")) == 4
    assert any("dropped" in message for message in log.recovered)


def test_indexes_of_segments_not_known_to_be_flushed_are_rebuilt(bench: Bench) -> None:
    bench.set(index_interval_bytes=0)
    closed(bench, 3, 3)
    expected = {o: bench.read_file(o, ".index") for o in (0, 3)}
    for offset in expected:
        bench.write(offset, ".index", b"\x05" * 16)
    bench.open()
    assert {o: bench.read_file(o, ".index") for o in (0, 3)} == expected


# Offsets


def test_a_log_that_ends_before_its_log_start_begins_anew_there(bench: Bench) -> None:
    bench.open()
    bench.log.append(make_batch(producer_id=1, producer_epoch=0, base_sequence=0), leader_epoch=3)
    bench.fill(1, 1)
    bench.log.close()
    log = bench.open(clean=True, log_start_offset=10)
    assert bases(bench) == [10]
    assert (log.log_start_offset, log.end_offset) == (10, 10)
    assert bench.fs.read(EPOCHS) == b"0\n1\n3 10\n"
    assert bench.names(".snapshot") == []
    assert not log.producers.entries
    assert log.recovery_point == 0


def test_a_log_that_ends_at_its_log_start_is_kept(bench: Bench) -> None:
    closed(bench, 3)
    log = bench.open(clean=True, log_start_offset=3)
    assert (bases(bench), log.log_start_offset, log.end_offset) == ([0], 3, 3)


def test_the_recovery_point_after_a_clean_stop_is_the_log_end(bench: Bench) -> None:
    closed(bench, 3)
    assert bench.open(clean=True, recovery_point=1).recovery_point == 3


@pytest.mark.parametrize(("checkpoint", "expected"), [(0, 0), (2, 2), (99, 3)])
def test_the_recovery_point_after_a_crash_is_never_advanced(
    bench: Bench, checkpoint: int, expected: int
) -> None:
    closed(bench, 3)
    assert bench.open(recovery_point=checkpoint).recovery_point == expected


def test_the_last_segments_indexes_may_grow_again(bench: Bench) -> None:
    bench.set(index_interval_bytes=0, segment_index_bytes=120)
    closed(bench, 3)
    bench.open(clean=True)
    bench.fill(1)
    assert bases(bench) == [0]


def test_epochs_are_cut_to_the_log(bench: Bench) -> None:
    bench.open()
    for epoch in (1, 2, 3):
        bench.log.append(make_batch(2), leader_epoch=epoch)
    bench.log.close()
    with bench.fs.open_writable(EPOCHS) as file:
        file.write_at(0, b"0\n4\n1 0\n2 2\n3 4\n7 6\n")
    bench.open(clean=True, log_start_offset=3)
    assert bench.fs.read(EPOCHS) == b"0\n2\n2 3\n3 4\n"


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_that_lost_all_records_keeps_its_leader_epoch(bench: Bench, clean: bool) -> None:
    """A lower epoch would be fenced by the manifest of the log itself, and by clients."""
    bench.open()
    bench.log.append(make_batch(), leader_epoch=5)
    bench.log.roll()
    bench.log.drop_segments_before(1, now_ms=NOW_MS)
    bench.log.close()
    log = bench.open(clean=clean, log_start_offset=1)
    assert log.epochs == ((5, 1),)
    assert log.append(make_batch()).base_offset == 1
    assert log.epochs == ((5, 1),)


@pytest.mark.parametrize("damage", ["missing", "version", "empty", "earlier", "later"])
def test_a_lost_or_wrong_epoch_file_is_rebuilt(bench: Bench, damage: str) -> None:
    bench.open()
    for epoch in (1, 2, 3):
        bench.log.append(make_batch(2), leader_epoch=epoch)
        bench.log.roll()
    bench.log.close()
    data = bench.fs.read(EPOCHS)
    bench.fs.remove(EPOCHS)
    if damage != "missing":
        wrong = {"empty": b"", "earlier": b"0\n1\n1 0\n", "later": b"0\n2\n1 0\n7 2\n"}
        with bench.fs.open_writable(EPOCHS) as file:
            file.write_at(0, wrong.get(damage, b"9" + data[1:]))
    bench.open(clean=True)
    assert bench.fs.read(EPOCHS) == data


@pytest.mark.parametrize(("checkpoint", "expected"), [(0, 5), (5, 5), (7, 7)])
def test_the_log_start_is_the_later_of_checkpoint_and_first_segment(
    bench: Bench, checkpoint: int, expected: int
) -> None:
    bench.open()
    bench.log.reset_at(5)
    bench.fill(4)
    bench.log.close()
    assert bench.open(clean=True, log_start_offset=checkpoint).log_start_offset == expected


@pytest.mark.parametrize(("checkpoint", "expected"), [(0, 1), (3, 3), (9, 4)])
def test_the_high_watermark_is_the_checkpoints_within_the_log(
    bench: Bench, checkpoint: int, expected: int
) -> None:
    closed(bench, 4)
    bench.is_alone = False
    log = bench.open(clean=True, high_watermark=checkpoint, log_start_offset=1)
    assert log.high_watermark == expected


def test_a_log_without_followers_shows_all_it_holds(bench: Bench) -> None:
    closed(bench, 4)
    assert bench.open(clean=True, high_watermark=1).high_watermark == 4


def test_a_reopened_log_goes_on_where_it_ended(bench: Bench) -> None:
    bench.open()
    bench.fill(2, 2)
    for again in (bench.reopen, bench.crash, bench.reopen):
        end = bench.log.end_offset
        again()
        assert bench.log.append(make_batch()).base_offset == end
    assert read_all(bench.log) == list(range(7))


def test_an_open_transaction_survives_both_kinds_of_stop(bench: Bench) -> None:
    bench.open()
    bench.fill(1)
    bench.log.append(
        make_batch(producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    )
    for again in (bench.reopen, bench.crash):
        again()
        assert bench.log.last_stable_offset == 1
    bench.log.end_transaction(producer_id=1, producer_epoch=0, committed=False)
    for again in (bench.reopen, bench.crash):
        again()
        fetched = bench.log.read(start_offset=0, isolation=Isolation.READ_COMMITTED)
        assert [aborted.first_offset for aborted in fetched.aborted] == [1]
        assert offsets_in(fetched) == [0, 1, 2]


def test_an_empty_last_segment_inside_the_one_before_is_dropped(bench: Bench) -> None:
    bench.open()
    bench.fill(5)
    bench.write(3, ".log", b"")
    log = bench.crash()
    assert log.end_offset == 5
    assert bench.names(".log") == [log_name(0)]
    assert "00000000000000000003.log" in " ".join(log.recovered)


def test_a_key_index_without_its_segment_is_removed(bench: Bench) -> None:
    bench.open()
    bench.fill(2, 2, 1)
    bench.log.close()
    for offset in (0, 1, 2):
        bench.write(offset, ".keys", b"sidecar")
    bench.open(clean=True)
    assert bench.names(".keys") == [log_name(0, ".keys"), log_name(2, ".keys")]


def test_what_a_crash_left_of_a_key_index_is_removed(bench: Bench) -> None:
    bench.open()
    bench.fill(2, 1)
    bench.log.close()
    for kind in (".keys.tmp", ".keys.run", ".keys.cleaned.run"):
        bench.write(0, kind, b"half")
    bench.open(clean=True)
    assert [name for name in bench.names() if ".keys" in name] == []


def test_a_segment_that_grows_again_has_no_key_index(bench: Bench) -> None:
    bench.open()
    bench.fill(2, 2)
    bench.log.close()
    for offset in (0, 2):
        bench.write(offset, ".keys", b"sidecar")
    bench.open(clean=True)
    assert bench.names(".keys") == [log_name(0, ".keys")]


# Losses that must be announced


def test_a_cut_that_was_announced_is_made(bench: Bench) -> None:
    closed(bench, 3)
    break_byte(bench, 0, SIZE + 40)
    log = bench.open(allowed_losses={bench.path(0, ".log"): SIZE})
    assert read_all(log) == [0]


@pytest.mark.parametrize("position", [None, SIZE + 1])
def test_a_cut_beyond_what_was_announced_is_refused(bench: Bench, position: int | None) -> None:
    closed(bench, 3)
    break_byte(bench, 0, SIZE + 40)
    data = bench.read_file(0)
    losses = {} if position is None else {bench.path(0, ".log"): position}
    with pytest.raises(PolicyViolation, match=f"from position {SIZE}"):
        bench.open(allowed_losses=losses)
    assert bench.read_file(0) == data


def test_a_later_segment_that_was_not_announced_stays(bench: Bench) -> None:
    closed(bench, 3, 3)
    break_byte(bench, 0, SIZE + 40)
    names = bench.names(".log")
    with pytest.raises(PolicyViolation, match=r"003\.log"):
        bench.open(allowed_losses={bench.path(0, ".log"): SIZE})
    assert bench.names(".log") == names
    assert len(bench.read_file(0)) == 3 * SIZE


def test_zeros_may_be_cut_without_being_announced(bench: Bench) -> None:
    closed(bench, 2)
    bench.write(0, ".log", bench.read_file(0) + bytes(5))
    assert bench.open(allowed_losses={}).end_offset == 2
    assert len(bench.read_file(0)) == 2 * SIZE
