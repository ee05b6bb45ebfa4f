"""Readers beside many swaps see batches of one generation, and every offset that is kept (G6)."""

import threading
from collections.abc import Callable
from functools import partial

import pytest

from tests.crash.bench import PARTITION, TOPIC_ID
from tests.support.cleaned_segment import write_cleaned
from tests.support.lab import open_logs
from varve.commit_log import Isolation, Log, LogSettings, Segment
from varve.disk import FileSystem, MemoryFileSystem, RealFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Unavailable
from varve.records import Batch, Record, build_batch

CLOCK = ManualClock()
SWAP_COUNT = 60
BATCHES = 24
SEGMENT_BATCHES = 6
SETTINGS = LogSettings(index_interval_bytes=100, file_delete_delay_ms=0)


def _batch(generation: int, number: int, *, is_sent: bool = False) -> bytes:
    """Tells its generation in every record; sizes and values differ from one to the next."""
    size = 20 + (generation * 7 + number) % 50
    records = [
        Record(b"%d" % generation, bytes([generation % 251]) * size, timestamp=1_000 + generation)
        for _ in range(2)
    ]
    return build_batch(records, base_offset=0 if is_sent else 2 * number, leader_epoch=0)


def _fill(fs: FileSystem, path: str) -> Log:
    store = open_logs(fs, CLOCK, SETTINGS, paths=[path])
    log = store.create(PARTITION, TOPIC_ID)
    for number in range(BATCHES):
        if number and number % SEGMENT_BATCHES == 0:
            log.roll()
        log.append(_batch(0, number, is_sent=True))
    log.roll()
    log.append(_batch(0, BATCHES, is_sent=True))
    return log


def _generations(data: memoryview) -> set[bytes]:
    found, rest = set(), bytes(data)
    while rest:
        size = int.from_bytes(rest[8:12], "big") + 12
        batch = Batch(rest[:size])
        assert batch.is_valid_crc()
        found |= {record.key or b"" for record in batch.records()}
        rest = rest[size:]
    return found


def _swap_all(fs: FileSystem, log: Log, generation: int) -> None:
    """All closed segments by one that holds the same offsets in other bytes."""
    old: list[Segment] = list(log.view.closed)
    base = old[0].base_offset
    batches = [_batch(generation, number) for number in range(base // 2, BATCHES)]
    size = write_cleaned(fs, log.directory, base, batches)
    new = log.replace_segments(old, base_offset=base, size=size, has_txn_index=False)
    assert new is not None
    assert list(log.view.closed) == [new]


def _read_round(log: Log, isolation: Isolation) -> None:
    offset = 0
    while offset < 2 * BATCHES:
        try:
            fetched = log.read(start_offset=offset, max_bytes=1200, isolation=isolation)
        except Unavailable:
            continue
        assert fetched.next_offset > offset
        first = int.from_bytes(fetched.data[:8], "big")
        assert first <= offset < fetched.next_offset
        assert len(_generations(fetched.data)) == 1
        offset = fetched.next_offset


def _ask_times(log: Log) -> None:
    try:
        newest = log.find_max_timestamp()
        found = log.find_offset_by_time(1_000)
    except Unavailable:
        return
    assert newest is not None
    assert newest.offset % 2 == 0
    assert found is not None
    assert found.offset == 0


@pytest.mark.parametrize("kind", ["memory", "real"])
def test_g6_a_read_during_swaps_returns_batches_of_one_generation(
    kind: str, tmp_path: object, rounds_factor: int
) -> None:
    fs: FileSystem = MemoryFileSystem(CLOCK) if kind == "memory" else RealFileSystem()
    log = _fill(fs, "/d" if kind == "memory" else f"{tmp_path}/d")
    # Without a rest they would read the same again and again while the disk syncs.
    rest_seconds = 0 if kind == "memory" else 0.001
    done = threading.Event()
    failures: list[BaseException] = []

    def until_done(work: Callable[[], None]) -> None:
        try:
            while not done.wait(rest_seconds):
                work()
        except BaseException as error:
            failures.append(error)

    readers = [
        partial(_read_round, log, Isolation.READ_UNCOMMITTED),
        partial(_read_round, log, Isolation.READ_COMMITTED),
        partial(_ask_times, log),
    ]
    threads = [threading.Thread(target=until_done, args=(work,)) for work in readers]
    for thread in threads:
        thread.start()
    try:
        for generation in range(1, SWAP_COUNT * rounds_factor + 1):
            _swap_all(fs, log, generation)
            log.append(_batch(0, 0, is_sent=True))
            log.maintain(CLOCK.now_ms())
    finally:
        done.set()
        for thread in threads:
            thread.join(60)
    if failures:
        raise failures[0]
    assert log.read(start_offset=0).data[:61] == _batch(generation, 0)[:61]
