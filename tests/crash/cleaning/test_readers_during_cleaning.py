"""Readers that go through a log while it is cleaned again and again lose nothing: G2, G4, G6."""

import random
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.cleaning_bench import CleaningBench, compacted
from tests.support.cleaning_model import ModelBatch
from tests.support.log_model import split_batches
from tests.support.memory_directory import memory_directory
from varve.commit_log import Isolation
from varve.disk import FileSystem, MemoryFileSystem, RealFileSystem
from varve.foundation.clock import ManualClock
from varve.records import Codec, Record, build_batch

KEY_COUNT = 25
CLEANING_COUNT = 8
PASS_COUNT = 24
# Beyond this size the writer waits for the cleaner and the readers.
LOG_BYTES = 30_000


@pytest.fixture(params=["memory", "real"])
def bench(request: pytest.FixtureRequest) -> Iterator[CleaningBench]:
    """Real files are where a sync takes no time, in which all but the cleaner would go on."""
    clock = ManualClock()
    is_real = request.param == "real"
    disk: FileSystem = RealFileSystem() if is_real else MemoryFileSystem(clock)
    settings = compacted(segment_bytes=4000, file_delete_delay_ms=0)
    with memory_directory() as made:
        path = str(made / "d") if is_real else "/d"
        yield CleaningBench(settings, clock=clock, disk=disk, path=path)


class Crowd:
    """Threads that work until enough is done, one of them fails, or it takes far too long."""

    def __init__(self, is_enough: Callable[[], bool]) -> None:
        self._is_enough = is_enough
        self._deadline = time.monotonic() + 120
        self._failures: list[BaseException] = []

    def is_on(self) -> bool:
        assert time.monotonic() < self._deadline
        return not self._failures and not self._is_enough()

    def run(self, *workers: Callable[[], None]) -> None:
        threads = [threading.Thread(target=self._guarded, args=(work,)) for work in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(150)
            assert not thread.is_alive()
        if self._failures:
            raise self._failures[0]

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._failures.append(error)


class Writer:
    """Appends numbered versions of few keys; every ninth is a tombstone."""

    def __init__(self, bench: CleaningBench) -> None:
        self._bench = bench
        self._random = random.Random(5)
        self.newest: dict[bytes, int] = {}
        self.version = 0

    def write(self) -> None:
        log = self._bench.log
        records = [self._record() for _ in range(self._random.randint(1, 6))]
        codec = self._random.choice([Codec.NONE, Codec.NONE, Codec.LZ4])
        log.append(build_batch(records, codec=codec))
        for record in records:
            assert record.key is not None
            self.newest[record.key] = _version(record)
        if self._random.random() < 0.1:
            log.roll()

    def _record(self) -> Record:
        self.version += 1
        key = b"key-%d" % self._random.randrange(KEY_COUNT)
        value = None if self.version % 9 == 0 else b"v" * 30
        return Record(key, value, (("version", b"%d" % self.version),), self._bench.now_ms)


def _version(record: Record) -> int:
    (_, version) = record.headers[0]
    assert version is not None
    return int(version)


def _read_through(bench: CleaningBench, isolation: Isolation, max_bytes: int) -> dict[bytes, int]:
    """One pass from the log start until it has caught up: the version of each key's last record.

    It must not stop before: what was cleaned away may be superseded by the newest record only.
    """
    found: dict[bytes, int] = {}
    offset = last = bench.log.log_start_offset
    last -= 1
    while offset < (end := bench.log.end_offset):
        fetched = bench.log.read(start_offset=offset, max_bytes=max_bytes, isolation=isolation)
        if not len(fetched.data):
            is_committed = isolation is Isolation.READ_COMMITTED
            shown = fetched.last_stable_offset if is_committed else fetched.high_watermark
            # An append under way has moved the end, and not yet what may be read.
            assert isolation is not Isolation.LOG_END
            assert shown <= offset, f"nothing to read at {offset}, though {shown} may be, of {end}"
            continue
        for data in split_batches(fetched.data):
            batch = ModelBatch.of(data)
            assert batch.base_offset > last, "a batch came twice or went back"
            last = batch.last_offset
            for record in batch.records:
                assert record.key is not None
                assert _version(record) > found.get(record.key, 0)
                found[record.key] = _version(record)
        assert fetched.next_offset == last + 1
        offset = fetched.next_offset
    return found


@pytest.mark.parametrize("max_bytes", [200, 1 << 20], ids=["small reads", "large reads"])
def test_g4_g6_a_reader_never_misses_the_latest_value_of_a_key(
    bench: CleaningBench, max_bytes: int, rounds_factor: int
) -> None:
    writer = Writer(bench)
    passes: list[int] = []
    cleanings: list[int] = []
    rests = threading.Event()
    factor = min(rounds_factor, 20)
    crowd = Crowd(
        lambda: len(cleanings) >= CLEANING_COUNT * factor and len(passes) >= PASS_COUNT * factor
    )

    def write() -> None:
        while crowd.is_on():
            writer.write()
            if bench.log.size > LOG_BYTES:
                rests.wait(0.005)

    def clean() -> None:
        while crowd.is_on():
            report = bench.clean()
            if report.segments_rewritten:
                cleanings.append(report.segments_rewritten)
            bench.store.run_once(bench.now_ms)

    def read(isolation: Isolation) -> None:
        while crowd.is_on():
            known = dict(writer.newest)
            found = _read_through(bench, isolation, max_bytes)
            for key, version in known.items():
                assert found.get(key, 0) >= version, f"{key!r} lost version {version}"
            passes.append(len(found))
            rests.wait(0.002)  # or the cleaner, which goes to the disk, would not get its turn

    crowd.run(
        write,
        clean,
        lambda: read(Isolation.READ_UNCOMMITTED),
        lambda: read(Isolation.READ_COMMITTED),
    )
    found = _read_through(bench, Isolation.LOG_END, 1 << 20)
    assert found == writer.newest


def test_g6_a_fetch_in_hand_stays_as_it_was_while_its_segment_is_replaced(
    bench: CleaningBench,
) -> None:
    writer = Writer(bench)
    for _ in range(60):
        writer.write()
    bench.roll()
    before = bench.log.read(start_offset=0, max_bytes=1 << 20)
    copy = bytes(before.data)
    view = list(bench.log.view)
    bench.clean()
    assert bytes(before.data) == copy
    assert bench.log.view.closed[0] not in view
    assert _read_through(bench, Isolation.LOG_END, 300) == writer.newest
