"""A log under any sequence of operations equals a plain list of batches: G1, G2, G3.

Appends of every kind, rolls, reads, truncation, deletion, swaps, retention, clean restarts, kills
and power losses.
After a kill all is there; after a power loss a prefix that holds everything known to be durable.
"""

import random
from itertools import cycle
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.cleaned_segment import other_generation, write_cleaned
from tests.support.log_model import LogModel, StoredBatch, check_equals, read_all, split_batches
from tests.support.rounds import IS_LONG
from varve.commit_log import Isolation, Log, LogManager, LogSettings, TopicPartition
from varve.foundation.clock import ManualClock
from varve.foundation.errors import (
    InvalidTransactionState,
    OffsetOutOfRange,
    OutOfOrderSequence,
    UnexpectedOffset,
)
from varve.records import (
    Codec,
    Record,
    build_batch,
    edit_batch,
    end_transaction_marker,
)
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem

PARTITION = TopicPartition("orders", 0)
TOPIC_ID = UUID("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0")
NOW_MS = 1_700_000_000_000

_bytes_or_none = st.none() | st.binary(max_size=40)
_records = st.lists(
    st.builds(
        Record,
        key=_bytes_or_none,
        value=_bytes_or_none,
        headers=st.lists(st.tuples(st.text(max_size=4), _bytes_or_none), max_size=2).map(tuple),
        timestamp=st.integers(NOW_MS - 50, NOW_MS + 50),
    ),
    min_size=1,
    max_size=5,
)
_codecs = st.sampled_from(list(Codec))
_settings = st.builds(
    LogSettings,
    segment_bytes=st.sampled_from([700, 1500, 1 << 20]),
    segment_index_bytes=st.sampled_from([12, 36, 1000]),
    index_interval_bytes=st.sampled_from([0, 150, 4096]),
    segment_ms=st.sampled_from([30, 1_000_000]),
    segment_jitter_ms=st.sampled_from([0, 20]),
    flush=st.sampled_from(["interval", "ack"]),
    flush_messages=st.sampled_from([7, 2**63 - 1]),
    file_delete_delay_ms=st.just(1000),
    preallocate=st.booleans(),
)


class LogMachine(RuleBasedStateMachine):
    """Drives one log and its model; every check compares the two."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(NOW_MS)
        self.disk = FaultyFileSystem(self.clock)
        self.model = LogModel()
        self.durable_end = 0

    @initialize(log_settings=_settings)
    def start(self, log_settings: LogSettings) -> None:
        self.settings = log_settings
        self._open().create(PARTITION, TOPIC_ID)

    def _open(self) -> LogManager:
        self.store = LogManager(
            ["/d"],
            fs=self.disk,
            clock=self.clock,
            random=random.Random(3),
            topic_settings=lambda topic: self.settings,
        ).open()
        return self.store

    @property
    def log(self) -> Log:
        return self.store.get(PARTITION)

    def _appended(self, batch: bytes, base_offset: int) -> None:
        assert base_offset == self.model.end_offset
        self.model.append(bytes(edit_batch(batch, base_offset=base_offset, leader_epoch=0)))
        self._note_durable()

    def _note_durable(self) -> None:
        if self.settings.syncs_every_append:
            assert self.log.recovery_point == self.model.end_offset
        self.durable_end = max(self.durable_end, self.log.recovery_point)

    @rule(records=_records, codec=_codecs)
    def append(self, records: list[Record], codec: Codec) -> None:
        batch = build_batch(records, codec=codec)
        self._appended(batch, self.log.append(batch).base_offset)

    @rule(producer_id=st.integers(1, 3), records=_records, codec=_codecs)
    def append_of_producer(self, producer_id: int, records: list[Record], codec: Codec) -> None:
        """The next batch goes in, the same again is recognised, a gap is refused."""
        known = self.model.producers().get(producer_id)
        sequence = self._next_sequence(producer_id)
        transactional = known is not None and known.transaction_first_offset is not None
        batch = self._batch(producer_id, records, sequence, codec, transactional)
        result = self.log.append(batch)
        assert not result.is_duplicate
        self._appended(batch, result.base_offset)
        again = self.log.append(batch)
        assert again.is_duplicate
        assert again.base_offset == result.base_offset
        gap = self._batch(producer_id, records, sequence + 100, codec, transactional)
        self._refused(gap, OutOfOrderSequence)

    def _next_sequence(self, producer_id: int) -> int:
        """A log reopened after its records were deleted may know no more of a producer than a
        marker tells; the producer then begins anew.
        """
        known = self.model.producers().get(producer_id)
        entry = self.log.producers.entries.get(producer_id)
        if known is None or (entry and not entry.batches and self.model.is_deleted(producer_id)):
            return 0
        return known.last_sequence + 1

    def _batch(
        self,
        producer_id: int,
        records: list[Record],
        sequence: int,
        codec: Codec,
        transactional: bool,
    ) -> bytes:
        return build_batch(
            records,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=transactional,
        )

    def _refused(self, batch: bytes, error: type[Exception]) -> None:
        try:
            self.log.append(batch)
        except error:
            return
        raise AssertionError(f"no {error.__name__}")

    @rule(producer_id=st.integers(1, 3), records=_records, codec=_codecs)
    def append_in_transaction(self, producer_id: int, records: list[Record], codec: Codec) -> None:
        sequence = self._next_sequence(producer_id)
        batch = self._batch(producer_id, records, sequence, codec, True)
        self._appended(batch, self.log.append(batch).base_offset)
        following = sequence + len(records)
        self._refused(
            self._batch(producer_id, records, following, codec, False), InvalidTransactionState
        )

    @rule(producer_id=st.integers(1, 3), committed=st.booleans())
    def end_transaction(self, producer_id: int, committed: bool) -> None:
        marker = end_transaction_marker(
            committed=committed,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=self.clock.now_ms(),
        )
        result = self.log.end_transaction(
            producer_id=producer_id, producer_epoch=0, committed=committed
        )
        self._appended(marker, result.base_offset)

    @rule(gaps=st.lists(st.integers(0, 9), min_size=1, max_size=3), records=_records)
    def append_replicated(self, gaps: list[int], records: list[Record]) -> None:
        plain = build_batch(records)
        batches = []
        offset = self.model.end_offset
        for gap in gaps:
            batches.append(bytes(edit_batch(plain, base_offset=offset + gap, leader_epoch=0)))
            offset += gap + len(records)
        data = b"".join(batches)
        if len(data) > self.settings.segment_bytes:
            return
        assert self.log.append_replicated(data + batches[0][:20]) is not None
        for batch in batches:
            self.model.append(batch)
        self._note_durable()
        try:
            self.log.append_replicated(batches[0])
        except UnexpectedOffset:
            return
        raise AssertionError("offsets went back")

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.durable_end = self.model.end_offset

    @rule(milliseconds=st.integers(0, 5000))
    def maintain(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)
        self.store.run_once(self.clock.now_ms())

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        offset = int(share * self.model.end_offset)
        assert self.log.truncate_to(offset) == (offset < self.model.end_offset)
        self.model.truncate_to(offset)
        self.durable_end = min(self.durable_end, offset)

    @rule(offset=st.integers(0, 400))
    def restart(self, offset: int) -> None:
        self.log.reset_at(offset)
        self.model.reset_at(offset)
        self.durable_end = offset

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        """Up to the last stable offset: what an open transaction loses below it, none can tell."""
        start = self.model.log_start_offset
        offset = start + int(share * (self.log.last_stable_offset - start))
        assert self.log.delete_records(offset) == offset
        self.model.log_start_offset = offset

    @precondition(lambda self: self.log.view.closed)
    @rule(
        first_share=st.floats(0, 0.99),
        count_share=st.floats(0, 1),
        kept=st.lists(st.booleans(), min_size=1, max_size=5),
    )
    def replace_segments(self, first_share: float, count_share: float, kept: list[bool]) -> None:
        """Other records under the same offsets; batches without a producer may vanish."""
        closed = self.log.view.closed
        first = int(first_share * len(closed))
        old = closed[first : first + 1 + int(count_share * (len(closed) - first))]
        base, end = old[0].base_offset, list(self.log.view)[first + len(old)].base_offset
        inside = [b for b in self.model.batches if base <= b.base_offset < end]
        stays = dict(zip((b.base_offset for b in inside), cycle(kept), strict=False))
        cleaned = [
            other_generation(b.data)
            for b in inside
            if b.header.has_producer_id or stays[b.base_offset]
        ]
        aborted = [one for segment in old for one in segment.txn_index().entries()]
        size = write_cleaned(self.disk, self.log.directory, base, cleaned, aborted=aborted)
        new = self.log.replace_segments(
            old, base_offset=base, size=size, has_txn_index=bool(aborted)
        )
        assert new is not None
        self.model.batches = [
            *(b for b in self.model.batches if b.base_offset < base),
            *(StoredBatch.of(data) for data in cleaned),
            *(b for b in self.model.batches if b.base_offset >= end),
        ]
        self.durable_end = max(self.durable_end, self.log.recovery_point)

    @rule(share=st.floats(0, 1))
    def drop_segments(self, share: float) -> None:
        """Only where no producer loses records: what is then known of it, none can tell."""
        bases = [*(segment.base_offset for segment in self.log.view), self.model.end_offset]
        offset = bases[int(share * (len(bases) - 1))]
        dropped = [b for b in self.model.batches if b.base_offset < offset]
        if offset > self.log.high_watermark or any(b.header.has_producer_id for b in dropped):
            return
        self.log.drop_segments_before(offset, now_ms=self.clock.now_ms())
        self.model.batches = self.model.batches[len(dropped) :]
        self.model.log_start_offset = max(self.model.log_start_offset, offset)

    @rule(
        share=st.floats(0, 1),
        max_bytes=st.sampled_from([1, 100, 500, 1 << 20]),
        isolation=st.sampled_from(list(Isolation)),
    )
    def read(self, share: float, max_bytes: int, isolation: Isolation) -> None:
        start = self.model.log_start_offset
        offset = start + int(share * (self.model.end_offset - start))
        is_committed = isolation is Isolation.READ_COMMITTED
        limit = self.log.last_stable_offset if is_committed else self.model.end_offset
        fetched = self.log.read(start_offset=offset, max_bytes=max_bytes, isolation=isolation)
        wanted = [
            b.data for b in self.model.batches if b.last_offset >= offset and b.last_offset < limit
        ]
        got = split_batches(fetched.data)
        assert got == wanted[: len(got)]
        assert bool(got) == bool(wanted)
        assert len(fetched.data) <= max_bytes or len(got) == 1

    @rule()
    def read_outside(self) -> None:
        for offset in (self.model.log_start_offset - 1, self.model.end_offset + 1):
            try:
                self.log.read(start_offset=offset)
            except OffsetOutOfRange:
                continue
            raise AssertionError(f"offset {offset} was read")

    @rule()
    def close_and_reopen(self) -> None:
        self.store.close()
        self._open()
        self.durable_end = self.model.end_offset
        self._take_end()

    @rule()
    def kill(self) -> None:
        self.disk = self.disk.after_crash(CrashMode.KEEP_ALL)
        self._open()
        self._take_end()

    def _take_end(self) -> None:
        """A truncation inside a batch or a gap is remembered only until the log is reopened."""
        assert self.model.kept_end(self.model.end_offset) <= self.log.end_offset
        assert self.log.end_offset <= self.model.end_offset
        self.model.end_offset = self.log.end_offset
        self._take_start()

    def _take_start(self) -> None:
        start = self.log.log_start_offset
        if start != self.model.log_start_offset:
            assert start == self.log.end_offset
            self.model.log_start_offset = start
        if self.log.size == 0 and len(self.log.view) == 1:
            self.model.batches = []

    @precondition(lambda self: self.model.batches)
    @rule(
        mode=st.sampled_from([CrashMode.LOSE_UNSYNCED, CrashMode.RANDOM]), seed=st.integers(0, 99)
    )
    def power_loss(self, mode: CrashMode, seed: int) -> None:
        self.disk = self.disk.after_crash(mode, seed)
        self._open()
        kept = read_all(self.log)
        assert kept == [batch.data for batch in self.model.visible()][: len(kept)]
        end = self.log.end_offset
        assert end >= self.model.kept_end(self.durable_end)
        self.model.batches = [b for b in self.model.batches if b.last_offset < end]
        self.model.end_offset = min(self.model.end_offset, end)
        self.durable_end = min(self.durable_end, end)
        self._take_end()

    @invariant()
    def the_log_equals_the_model(self) -> None:
        if hasattr(self, "store"):
            check_equals(self.log, self.model)


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(
    max_examples=3000 if IS_LONG else 25, stateful_step_count=100 if IS_LONG else 25, deadline=None
)
