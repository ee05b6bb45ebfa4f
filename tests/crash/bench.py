"""Runs a scenario on a disk that breaks at a chosen step, and judges what the next start finds.

A scenario prepares a log undisturbed, then acts; every step of the acting part is a place to break.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from hashlib import blake2b
from uuid import UUID

from tests.support.cleaned_segment import write_cleaned
from tests.support.crash_images import CrashPoint, record
from tests.support.lab import open_logs
from tests.support.log_model import LogModel, StoredBatch, check_equals, read_all
from varve.commit_log import Log, LogManager, LogSettings, Segment, TopicPartition
from varve.disk import PowerLoss
from varve.foundation.clock import ManualClock
from varve.foundation.errors import NotFound
from varve.records import Codec, Record, build_batch, edit_batch, end_transaction_marker
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem

PARTITION = TopicPartition("orders", 0)
TOPIC_ID = UUID("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0")
CLOCK = ManualClock()
INTERVAL = LogSettings(segment_bytes=900, index_interval_bytes=200, file_delete_delay_ms=1000)
ACK = LogSettings(
    segment_bytes=900, index_interval_bytes=200, file_delete_delay_ms=1000, flush="ack"
)
PROBE_PRODUCER = 77


def new_disk(seed: int = 0) -> FaultyFileSystem:
    return FaultyFileSystem(CLOCK, seed=seed)


def open_store(
    disk: FaultyFileSystem, settings: LogSettings, paths: tuple[str, ...] = ("/d/a",)
) -> LogManager:
    return open_logs(disk, CLOCK, settings, paths=paths)


@cache
def make_batch(
    number: int,
    *,
    count: int = 2,
    producer_id: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    value_bytes: int = 60,
) -> bytes:
    """A batch whose content is told by its number; every third is compressed."""
    records = [
        Record(
            key=None if (number + at) % 5 == 0 else b"key-%d" % at,
            value=random.Random(number * 100 + at).randbytes(value_bytes),
            headers=(("origin", b"crash"),) if at else (),
            timestamp=1_600_000_000_000 + (number * 7919 + at) % 1000,
        )
        for at in range(count)
    ]
    return build_batch(
        records,
        codec=Codec.LZ4 if number % 3 == 0 else Codec.NONE,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=base_sequence,
        transactional=transactional,
    )


@dataclass(frozen=True, slots=True)
class Swap:
    """A cleaned segment on the disk, the segments it replaces, and the log once it has."""

    old: list[Segment]
    size: int
    has_txn_index: bool
    outcome: LogModel


@dataclass(slots=True)
class Bench:
    """One store with one partition, and what it has acknowledged."""

    disk: FaultyFileSystem
    settings: LogSettings
    store: LogManager | None = None
    model: LogModel = field(default_factory=LogModel)
    outcome: LogModel | None = None
    """While an operation runs: the log if it completes."""
    durable_end: int = 0
    """Everything below was acknowledged as being on disk."""
    is_created: bool = False
    sent: int = 0
    swap: Swap | None = None

    @property
    def log(self) -> Log:
        assert self.store is not None
        return self.store.get(PARTITION)

    def open(self) -> None:
        self.store = open_store(self.disk, self.settings)

    def create(self) -> None:
        assert self.store is not None
        self.store.create(PARTITION, TOPIC_ID)
        self.is_created = True

    def start(self) -> None:
        self.open()
        self.create()

    def append(
        self,
        times: int = 1,
        *,
        producer_id: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
    ) -> None:
        for _ in range(times):
            self.sent += 1
            batch = make_batch(
                self.sent,
                producer_id=producer_id,
                base_sequence=base_sequence,
                transactional=transactional,
            )
            self._append(batch, partial(self.log.append, batch))

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        marker = end_transaction_marker(
            committed=committed,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=CLOCK.now_ms(),
        )
        self._append(
            marker,
            lambda: self.log.end_transaction(
                producer_id=producer_id, producer_epoch=0, committed=committed
            ),
        )

    def _append(self, batch: bytes, append: Callable[[], object]) -> None:
        outcome = self.model.copy()
        outcome.append(bytes(edit_batch(batch, base_offset=self.model.end_offset, leader_epoch=0)))
        self._run(append, outcome)
        if self.settings.syncs_every_append:
            self.durable_end = self.model.end_offset

    def _run(self, operation: Callable[[], object], outcome: LogModel) -> None:
        self.outcome = outcome
        operation()
        self.model, self.outcome = outcome, None

    def flush(self) -> None:
        self.log.flush()
        self.durable_end = self.model.end_offset

    def truncate_to(self, offset: int) -> None:
        outcome = self.model.copy()
        outcome.truncate_to(offset)
        self.durable_end = min(self.durable_end, offset)
        self._run(lambda: self.log.truncate_to(offset), outcome)

    def reset_at(self, offset: int) -> None:
        outcome = self.model.copy()
        outcome.reset_at(offset)
        self.durable_end = 0
        self._run(lambda: self.log.reset_at(offset), outcome)
        self.durable_end = offset

    def delete_records(self, offset: int) -> None:
        outcome = self.model.copy()
        outcome.log_start_offset = offset
        self._run(lambda: self.log.delete_records(offset), outcome)

    def write_cleaned(
        self, first: int, count: int, clean: Callable[[list[bytes]], list[bytes]]
    ) -> "Swap":
        """Writes what `clean` makes of some closed segments aside, ready to take their place."""
        old = list(self.log.view.closed[first : first + count])
        following = list(self.log.view)[first + count]
        base, end = old[0].base_offset, following.base_offset
        inside = [b.data for b in self.model.batches if base <= b.base_offset < end]
        cleaned = clean(inside)
        aborted = [one for segment in old for one in segment.txn_index().entries()]
        size = write_cleaned(self.disk, self.log.directory, base, cleaned, aborted=aborted)
        outcome = self.model.copy()
        outcome.batches = [
            *(b for b in self.model.batches if b.base_offset < base),
            *(StoredBatch.of(data) for data in cleaned),
            *(b for b in self.model.batches if b.base_offset >= end),
        ]
        return Swap(old, size, bool(aborted), outcome)

    def replace_segments(self, swap: "Swap") -> None:
        old = swap.old
        self._run(
            lambda: self.log.replace_segments(
                old,
                base_offset=old[0].base_offset,
                size=swap.size,
                has_txn_index=swap.has_txn_index,
            ),
            swap.outcome,
        )

    def drop_segments_before(self, offset: int) -> None:
        outcome = self.model.copy()
        outcome.log_start_offset = max(offset, self.model.log_start_offset)
        if offset == self.model.end_offset:
            outcome.reset_at(offset)
        self._run(lambda: self.log.drop_segments_before(offset, now_ms=CLOCK.now_ms()), outcome)

    def close(self) -> None:
        assert self.store is not None
        self.store.close()
        self.durable_end = self.model.end_offset

    def acknowledged(self) -> "Bench":
        """What was acknowledged by now, for a judge; models are replaced, never changed."""
        return replace(self, store=None, swap=None, sent=0)

    def kill(self, mode: CrashMode = CrashMode.KEEP_ALL, seed: int = 0) -> None:
        """The process or the machine ends between two operations; the disk is what is left."""
        self.disk = self.disk.after_crash(mode, seed)
        self.store = None


Phase = Callable[[Bench], None]


@dataclass(frozen=True, slots=True)
class Scenario:
    """What happens before and while the disk may break."""

    settings: LogSettings
    prepare: Phase
    act: Phase

    def run(self, *, break_at: Callable[[FaultyFileSystem], None] | None = None) -> Bench:
        """Runs both phases; `break_at` plans a fault once the first is over."""
        bench = Bench(new_disk(), self.settings)
        self.prepare(bench)
        if break_at is not None:
            break_at(bench.disk)
        self.act(bench)
        return bench

    def prepared(self) -> Bench:
        bench = Bench(new_disk(), self.settings)
        self.prepare(bench)
        return bench

    def steps(self) -> range:
        """The steps of the acting phase."""
        first = self.prepared().disk.steps + 1
        return range(first, self.run().disk.steps + 1)

    def record(self) -> list[CrashPoint[Bench]]:
        """What a crash at each step of the acting phase leaves."""
        bench = self.prepared()
        return record(lambda: self.act(bench), bench.acknowledged, disk=bench.disk)

    def crash_at(self, step: int) -> Bench:
        """The bench as it was when the power went."""
        bench = self.prepared()
        bench.disk.crash_at(step)
        try:
            self.act(bench)
        except PowerLoss:
            return bench
        raise AssertionError(f"step {step} was never reached")


def crash_modes(step: int, random_count: int) -> Iterator[tuple[CrashMode, int]]:
    """All modes; the seeds differ from step to step, so that each looks elsewhere."""
    yield CrashMode.KEEP_ALL, 0
    yield CrashMode.LOSE_UNSYNCED, 0
    for seed in range(random_count):
        yield CrashMode.RANDOM, step * 1009 + seed


_continued: set[tuple[bytes, bool]] = set()
"""The recovered disks that were judged to the end, and whether with a close."""


def judge(
    bench: Bench,
    disk: FaultyFileSystem,
    mode: CrashMode,
    *,
    with_close: bool = True,
    check_opened: Callable[[FaultyFileSystem, Log], None] | None = None,
) -> None:
    """Opens what a crash left and checks it: G1, G2, G3; twice, and then it takes appends.

    Many images recover to the same files. What follows from these files alone is judged once.
    """
    store = open_store(disk, bench.settings)
    observed = observe(bench, store, mode)
    if check_opened is not None:
        assert observed is not None
        check_opened(disk, store.get(PARTITION))
    found = observed or LogModel()
    if not bench.is_created:
        store.create(PARTITION, TOPIC_ID)
    store.abandon()
    digest = _digest_recovered(disk, bench.settings, found)
    if not {(digest, True), (digest, with_close)} & _continued:
        _judge_recovered(disk, bench.settings, found, with_close=with_close)
        _continued.add((digest, with_close))


def _digest_recovered(disk: FaultyFileSystem, settings: LogSettings, found: LogModel) -> bytes:
    """Equal where opening again, on a disk that does not crash again, has the same to do."""
    batches = [batch.data for batch in found.batches]
    content = disk.describe_content(only_visible=True)
    all_of_it = (
        CLOCK.now_ms(),
        settings,
        batches,
        found.log_start_offset,
        found.end_offset,
        content,
    )
    return blake2b(repr(all_of_it).encode()).digest()


def _judge_recovered(
    disk: FaultyFileSystem, settings: LogSettings, found: LogModel, *, with_close: bool
) -> None:
    store = open_store(disk, settings)
    assert store.get(PARTITION).end_offset == found.end_offset
    assert read_all(store.get(PARTITION)) == [batch.data for batch in found.visible()]
    assert store.topic_id(PARTITION) == TOPIC_ID
    _check_goes_on(store.get(PARTITION), found)
    if not with_close:
        store.abandon()
        return
    store.close()
    store = open_store(disk, settings)
    log = store.get(PARTITION)
    assert read_all(log) == [batch.data for batch in found.visible()]
    assert log.aborted_transactions()[-1:] == found.aborted()[-1:]
    store.abandon()


def observe(bench: Bench, store: LogManager, mode: CrashMode) -> LogModel | None:
    """The recovered log as a model, checked against what was acknowledged; None: no partition."""
    try:
        log = store.get(PARTITION)
    except NotFound:
        assert not bench.is_created
        return None
    found = _explain(bench, log, mode)
    check_equals(log, found)
    return found


def _explain(bench: Bench, log: Log, mode: CrashMode) -> LogModel:
    """The prefix of the acknowledged batches, or of those plus the one in flight, that is there."""
    histories = [bench.model] + ([bench.outcome] if bench.outcome is not None else [])
    starts = {history.log_start_offset for history in histories}
    stored = read_all(log)
    kept_end = bench.durable_end if mode is not CrashMode.KEEP_ALL else bench.model.end_offset
    kept_end = min(history.kept_end(kept_end) for history in histories)
    assert log.log_start_offset in starts or log.log_start_offset == log.end_offset
    assert log.end_offset >= kept_end, f"lost {log.end_offset}..{kept_end}: {log.recovered}"
    if log.size == 0 and log.log_start_offset == log.end_offset:
        return LogModel([], log.log_start_offset, log.end_offset)
    for history in histories:
        prefix = [b for b in history.batches if b.last_offset < log.end_offset]
        visible = [b.data for b in prefix if b.last_offset >= log.log_start_offset]
        if visible == stored:
            return LogModel(prefix, log.log_start_offset, log.end_offset)
    raise AssertionError(f"no prefix explains offsets up to {log.end_offset}: {log.recovered}")


def _check_goes_on(log: Log, model: LogModel) -> None:
    """New appends follow the old ones, sequences continue, repeated batches are recognised."""
    for producer_id, known in model.producers().items():
        transactional = known.transaction_first_offset is not None
        batch = make_batch(
            1000 + producer_id,
            producer_id=producer_id,
            base_sequence=known.last_sequence + 1,
            transactional=transactional,
        )
        _append_and_compare(log, model, batch)
        assert log.append(batch).is_duplicate
    _append_and_compare(log, model, make_batch(2000))
    probe = make_batch(2001, producer_id=PROBE_PRODUCER, base_sequence=0, transactional=True)
    _append_and_compare(log, model, probe)
    log.end_transaction(producer_id=PROBE_PRODUCER, producer_epoch=0, committed=False)
    marker = log.read(start_offset=model.end_offset, max_bytes=1)
    model.append(bytes(marker.data))
    check_equals(log, model)


def _append_and_compare(log: Log, model: LogModel, batch: bytes) -> None:
    result = log.append(batch)
    assert result.base_offset == model.end_offset
    assert not result.is_duplicate
    model.append(bytes(edit_batch(batch, base_offset=model.end_offset, leader_epoch=0)))
