"""What an open log holds in memory is compared with its files after every kind of operation."""

import pytest

from tests.check_builder import ORDERS, TOPIC_ID, fill, flip, open_directory, write_file
from tests.support.check_open_log import check_log
from varve.commit_log import Log, LogDirectory
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.records import Record, build_batch, edit_batch


class OpenStore:
    """A store with one filled log."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.fs = MemoryFileSystem(self.clock)
        self.directory: LogDirectory = open_directory(self.fs, self.clock)
        self.log: Log = self.directory.create(ORDERS, TOPIC_ID)
        fill(self.log, self.clock)

    def rules(self) -> set[str]:
        return {finding.rule for finding in check_log(self.log)}

    def path(self, name: str) -> str:
        return f"{self.log.directory}/{name}"


@pytest.fixture
def store() -> OpenStore:
    return OpenStore()


def test_a_log_holds_its_invariants_through_its_life(store: OpenStore) -> None:
    log = store.log
    assert check_log(log) == []
    log.roll()
    log.flush()
    assert check_log(log) == []
    log.truncate_to(40)
    assert check_log(log) == []
    fill(log, store.clock, leader_epoch=4)
    assert check_log(log) == []
    log.delete_records(60)
    assert check_log(log) == []
    log.reset_at(500)
    assert check_log(log) == []
    fill(log, store.clock, leader_epoch=9)
    assert check_log(log) == []


def test_an_empty_log_holds_its_invariants(store: OpenStore) -> None:
    store.log.reset_at(0)
    assert check_log(store.log) == []


def test_a_log_that_was_killed_and_opened_again_holds_its_invariants(store: OpenStore) -> None:
    store.directory.abandon()
    again = open_directory(store.fs, store.clock)
    assert check_log(again.logs[ORDERS]) == []


def test_appends_of_several_batches_are_indexed_early_never_late(store: OpenStore) -> None:
    log = store.log
    for _ in range(20):
        base = log.end_offset
        batches = b"".join(
            edit_batch(
                build_batch([Record(b"k", b"v" * 60, timestamp=store.clock.now_ms())]),
                base_offset=base + number,
                leader_epoch=3,
            )
            for number in range(4)
        )
        log.append_replicated(batches)
    assert check_log(log) == []


def test_offsets_in_memory_must_be_in_order(store: OpenStore) -> None:
    store.log.high_watermark = store.log.end_offset + 1
    assert store.rules() == {"offset-order"}
    store.log.high_watermark = store.log.end_offset
    store.log.recovery_point = store.log.end_offset + 1
    assert store.rules() == {"offset-order"}


def test_producers_in_memory_must_be_those_of_the_batches(store: OpenStore) -> None:
    entries = store.log.producers.entries
    entries[5] = entries[5]._replace(epoch=7)
    assert store.rules() == {"producer-state"}
    del entries[5]
    assert store.rules() == {"producer-state"}


def test_epochs_in_memory_must_be_those_of_the_batches_and_of_the_file(store: OpenStore) -> None:
    store.log.leader_epochs.assign(1, 20)
    assert store.rules() == {"epochs-untrue", "epochs-file"}


def test_a_file_that_changed_under_an_open_log_is_named(store: OpenStore) -> None:
    active = store.log.view.active
    flip(store.fs, active.path(".log"), 80)
    assert "batch-crc" in store.rules()


def test_a_closed_segment_that_grew_or_shrank_is_named(store: OpenStore) -> None:
    first = store.log.view.closed[0]
    write_file(store.fs, first.path(".log"), store.fs.read(first.path(".log")) + b"\0")
    assert store.rules() == {"segment-size"}


def test_files_the_log_does_not_know_are_named(store: OpenStore) -> None:
    write_file(store.fs, store.path(f"{3:020d}.log"), b"")
    write_file(store.fs, store.path(f"{3:020d}.snapshot"), b"")
    write_file(store.fs, store.path(f"{4:020d}.index"), b"")
    write_file(store.fs, store.path(f"{3:020d}.log.swap"), b"")
    assert store.rules() == {"view-files", "snapshot-files", "orphan-index", "leftover-swap"}


def test_the_active_segment_must_end_where_its_batches_do(store: OpenStore) -> None:
    active = store.log.view.active
    next_offset, size = active.extent
    active.extent = (next_offset - 1, size)
    store.log.high_watermark -= 1
    assert "active-extent" in store.rules()
