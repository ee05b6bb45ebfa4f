"""Readers never block the appender and see whole prefixes (G2, G6); commits share syncs (G1)."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise

from tests.crash.bench import PARTITION, TOPIC_ID, make_batch
from tests.support.lab import open_logs
from tests.support.log_model import read_all, split_batches
from varve.commit_log import Isolation, Log, LogManager, LogSettings
from varve.disk import Buffer, File, FileSystem, MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import OffsetOutOfRange, Unavailable

CLOCK = ManualClock()
APPEND_COUNT = 200


class WatchedFile:
    """A file whose reads and syncs can be held up and counted."""

    def __init__(self, inner: File, watch: "WatchedFileSystem") -> None:
        self._inner = inner
        self._watch = watch
        self.path = inner.path

    def write_at(self, position: int, *buffers: Buffer) -> None:
        self._inner.write_at(position, *buffers)

    def read_at(self, position: int, size: int) -> bytes:
        self._watch.before_read()
        return self._inner.read_at(position, size)

    def read_into(self, position: int, buffer: memoryview) -> int:
        self._watch.before_read()
        return self._inner.read_into(position, buffer)

    def size(self) -> int:
        return self._inner.size()

    def truncate(self, size: int) -> None:
        self._inner.truncate(size)

    def sync(self) -> None:
        self._watch.before_sync()
        self._inner.sync()

    def close(self) -> None:
        self._inner.close()

    def __enter__(self) -> "WatchedFile":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class WatchedFileSystem(MemoryFileSystem):
    """Calls hooks before reads and syncs of its files."""

    def __init__(self) -> None:
        super().__init__(CLOCK)
        self.before_read: Callable[[], None] = lambda: None
        self.before_sync: Callable[[], None] = lambda: None

    def open(self, path: str) -> File:  # type: ignore[override]  # a wrapper, not the plain handle
        return WatchedFile(super().open(path), self)

    def open_writable(self, path: str) -> File:  # type: ignore[override]  # as above
        return WatchedFile(super().open_writable(path), self)


def _open(fs: FileSystem, settings: LogSettings) -> tuple[LogManager, Log]:
    store = open_logs(fs, CLOCK, settings)
    return store, store.create(PARTITION, TOPIC_ID)


def _run_all(workers: list[Callable[[], None]]) -> None:
    """Runs the workers at once and raises what any of them raised."""
    with ThreadPoolExecutor(len(workers)) as pool:
        for running in [pool.submit(work) for work in workers]:
            running.result(60)


def test_g2_g6_concurrent_readers_see_whole_prefixes() -> None:
    _, log = _open(MemoryFileSystem(CLOCK), LogSettings(segment_bytes=3000))
    begin, done = threading.Barrier(4), threading.Event()

    def append() -> None:
        begin.wait(30)
        for number in range(1, APPEND_COUNT + 1):
            log.append(make_batch(number, count=number % 4 + 1))
            if number % 50 == 0:
                log.roll()
        done.set()

    def read(isolation: Isolation) -> None:
        begin.wait(30)
        offset = 0
        while not done.is_set():
            fetched = log.read(start_offset=offset, max_bytes=2000, isolation=isolation)
            for batch in split_batches(fetched.data):
                assert int.from_bytes(batch[:8], "big") == offset
                offset += int.from_bytes(batch[57:61], "big")
            assert fetched.next_offset == offset <= log.end_offset
            if offset > 2000:
                offset = 0

    isolations = [Isolation.READ_UNCOMMITTED, Isolation.READ_COMMITTED, Isolation.LOG_END]
    _run_all([append, *(partial(read, isolation) for isolation in isolations)])
    stored = read_all(log, max_bytes=1 << 20)
    assert sum(int.from_bytes(batch[57:61], "big") for batch in stored) == log.end_offset


def test_g6_readers_beside_a_truncating_log_get_whole_batches_or_a_named_error() -> None:
    _, log = _open(MemoryFileSystem(CLOCK), LogSettings(segment_bytes=3000))
    begin, done = threading.Barrier(3), threading.Event()

    def append_and_cut() -> None:
        begin.wait(30)
        for number in range(1, APPEND_COUNT + 1):
            log.append(make_batch(number, count=number % 4 + 1))
            if number % 40 == 0:
                log.truncate_to(max(0, log.end_offset - number % 70))
        done.set()

    def read() -> None:
        begin.wait(30)
        offset = 0
        while not done.is_set():
            try:
                fetched = log.read(start_offset=offset, max_bytes=2000)
            except (OffsetOutOfRange, Unavailable):
                offset = 0
                continue
            batches = split_batches(fetched.data)
            for before, after in pairwise(batches):
                last = int.from_bytes(before[:8], "big") + int.from_bytes(before[23:27], "big")
                assert int.from_bytes(after[:8], "big") > last
            offset = fetched.next_offset if batches else 0

    _run_all([append_and_cut, read, read])


def test_g6_a_reader_in_a_slow_read_does_not_stop_appends() -> None:
    fs = WatchedFileSystem()
    _, log = _open(fs, LogSettings(segment_bytes=2000))
    for number in range(5):
        log.append(make_batch(number))
    reading, may_go_on = threading.Event(), threading.Event()
    reader_id: list[int] = []

    def hold_the_reader() -> None:
        if threading.get_ident() in reader_id:
            reading.set()
            assert may_go_on.wait(30)

    fs.before_read = hold_the_reader
    seen: list[int] = []

    def read() -> None:
        reader_id.append(threading.get_ident())
        fetched = log.read(start_offset=0, max_bytes=200)
        seen.append(fetched.next_offset)

    def append() -> None:
        assert reading.wait(30)
        for number in range(5, 40):
            log.append(make_batch(number))
        log.flush()
        may_go_on.set()

    _run_all([read, append])
    assert log.end_offset == 80
    assert len(log.view) > 3
    assert seen == [2]


def test_g1_appends_that_wait_for_the_disk_share_its_syncs() -> None:
    """Each acknowledged append is synced, but many by one call."""
    fs = WatchedFileSystem()
    _, log = _open(fs, LogSettings(flush="ack"))
    log.append(make_batch(0))
    syncs: list[int] = []
    in_sync, others_wait = threading.Event(), threading.Event()

    def slow_sync() -> None:
        syncs.append(log.end_offset)
        if len(syncs) == 1:
            in_sync.set()
            assert others_wait.wait(30)

    fs.before_sync = slow_sync
    thread_count = 16

    def first() -> None:
        log.append(make_batch(1))

    def other(number: int) -> None:
        assert in_sync.wait(30)
        log.append(make_batch(number))
        assert log.recovery_point >= 2 * 3

    def release() -> None:
        assert in_sync.wait(30)
        deadline = time.monotonic() + 20
        while log.end_offset < 2 * (thread_count + 2) and time.monotonic() < deadline:
            threading.Event().wait(0.002)
        others_wait.set()

    workers = [partial(other, number) for number in range(2, thread_count + 2)]
    _run_all([first, release, *workers])
    assert log.end_offset == 2 * (thread_count + 2)
    assert log.recovery_point == log.end_offset == log.high_watermark
    assert len(syncs) == 2
