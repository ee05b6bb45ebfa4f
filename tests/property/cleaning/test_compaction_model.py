"""A cleaned log equals a naive model, whatever was written and whatever happened meanwhile: G4, G5.

Keys few and many, null keys, tombstones, transactions, idempotent producers, all codecs, segments
of any size, lags, restarts and crashes; with `min.stale.ratio` 0 the log is compared batch by batch
with what Apache Kafka's rules leave, above it with what they promise.
"""

import random

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.support.cleaning_bench import RETENTION_MS, CleaningBench, compacted
from tests.support.cleaning_checks import (
    Foretold,
    check_exact,
    check_mixture,
    check_promised,
    check_promises,
    foretell,
)
from tests.support.rounds import IS_LONG
from varve.cleaning.settings import CleanerSettings
from varve.commit_log import LogSettings
from varve.records import Codec, Record
from varve.testing.faulty_disk import CrashMode

_keys = st.one_of(
    st.sampled_from([b"", b"a", b"b", b"c"]),
    st.integers(0, 40).map(lambda number: b"key-%d" % number),
    st.binary(max_size=20),
)
_values = st.none() | st.binary(max_size=60)
_headers = st.lists(st.tuples(st.text(max_size=3), _values), max_size=2).map(tuple)
_codecs = st.sampled_from(list(Codec))
_producers = st.integers(1, 4)
# Keys, values and headers of a batch with the ages of its records; the clock tells their times.
_contents = st.lists(
    st.tuples(_keys, _values, _headers, st.integers(0, 50)), min_size=1, max_size=8
)
_settings = st.builds(
    compacted,
    cleanup_policy=st.sampled_from([("compact",), ("compact", "delete")]),
    segment_bytes=st.sampled_from([400, 900, 2500, 1 << 20]),
    segment_index_bytes=st.sampled_from([24, 1000]),
    index_interval_bytes=st.sampled_from([0, 150, 4096]),
    min_compaction_lag_ms=st.sampled_from([0, 0, 200]),
    delete_retention_ms=st.sampled_from([0, 300, RETENTION_MS]),
    message_timestamp_type=st.sampled_from(["CreateTime", "CreateTime", "LogAppendTime"]),
    min_stale_ratio=st.sampled_from([0.0, 0.0, 0.1, 0.5]),
)
_cleaner_settings = st.builds(
    CleanerSettings,
    log_cleaner_dedupe_buffer_size=st.sampled_from([80_000, 128 << 20]),
)

Content = tuple[bytes, bytes | None, tuple[tuple[str, bytes | None], ...], int]


class CleaningMachine(RuleBasedStateMachine):
    """Drives one compacted log; every cleaning is compared with what was foretold."""

    bench: CleaningBench

    @initialize(log_settings=_settings, cleaner_settings=_cleaner_settings)
    def start(self, log_settings: LogSettings, cleaner_settings: CleanerSettings) -> None:
        self.bench = CleaningBench(log_settings, cleaner_settings=cleaner_settings)
        self.first_cleaned_ms: dict[int, int] = {}

    def _records(self, contents: list[Content]) -> list[Record]:
        now_ms = self.bench.now_ms
        return [
            Record(key, value, headers, timestamp=now_ms - age)
            for key, value, headers, age in contents
        ]

    @rule(contents=_contents, codec=_codecs, rolls=st.booleans())
    def append(self, contents: list[Content], codec: Codec, rolls: bool) -> None:
        self.bench.append(self._records(contents), codec=codec)
        if rolls:
            self.bench.roll()

    @rule(contents=_contents, codec=_codecs, producer_id=_producers, transactional=st.booleans())
    def append_of_producer(
        self, contents: list[Content], codec: Codec, producer_id: int, transactional: bool
    ) -> None:
        self.bench.append(
            self._records(contents),
            codec=codec,
            producer_id=producer_id,
            transactional=transactional,
        )

    @rule(producer_id=_producers, committed=st.booleans(), bumps=st.booleans())
    def end_transaction(self, producer_id: int, committed: bool, bumps: bool) -> None:
        self._end(producer_id, committed, bumps=bumps)

    @rule(contents=_contents, codec=_codecs, seed=st.integers(0, 255))
    def append_without_keys(self, contents: list[Content], codec: Codec, seed: int) -> None:
        records = [
            Record(None, record.value, record.headers, record.timestamp)
            if seed >> at & 1
            else record
            for at, record in enumerate(self._records(contents))
        ]
        self.bench.append_without_keys(records, codec=codec)

    @rule(seed=st.integers(0, 10_000))
    def write_a_segment(self, seed: int) -> None:
        """Many batches of every kind over few keys, so that there is something to clean."""
        source = random.Random(seed)
        for _ in range(source.randint(2, 8)):
            producer_id = source.choice([-1, -1, 1, 2, 3])
            if producer_id > 0 and source.random() < 0.3:
                self._end(producer_id, source.random() < 0.5, bumps=source.random() < 0.2)
                continue
            contents: list[Content] = [
                (
                    b"key-%d" % source.randrange(12),
                    None if source.random() < 0.2 else source.randbytes(source.randrange(30)),
                    (("h", b"1"),) if source.random() < 0.1 else (),
                    source.randrange(50),
                )
                for _ in range(source.randint(1, 4))
            ]
            self.bench.append(
                self._records(contents),
                codec=source.choice(list(Codec)),
                producer_id=producer_id,
                transactional=producer_id > 0 and source.random() < 0.5,
            )
        self.bench.roll()

    @rule(committed=st.booleans())
    def end_all_transactions(self, committed: bool) -> None:
        for one in self.bench.log.producers.ongoing:
            self._end(one.producer_id, committed)

    def _end(self, producer_id: int, committed: bool, *, bumps: bool = False) -> None:
        self.bench.end_transaction(producer_id, committed=committed, bumps=bumps)

    @rule()
    def roll(self) -> None:
        self.bench.roll()

    @rule(milliseconds=st.sampled_from([1, 150, 400, RETENTION_MS]))
    def let_time_pass(self, milliseconds: int) -> None:
        self.bench.advance(milliseconds)
        self.bench.store.run_once(self.bench.now_ms)

    @rule()
    def forget_producers(self) -> None:
        self.bench.forget_producers()

    @precondition(lambda self: "delete" in self.bench.settings.cleanup_policy)
    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        log = self.bench.log
        start = log.log_start_offset
        log.delete_records(start + int(share * (log.last_stable_offset - start)))

    @rule()
    def reopen(self) -> None:
        self.bench.reopen()
        check_promises(self.bench)

    @rule(mode=st.sampled_from(list(CrashMode)), seed=st.integers(0, 99))
    def crash(self, mode: CrashMode, seed: int) -> None:
        self.bench.crash(mode, seed)
        check_promises(self.bench)

    @rule(rolls=st.booleans(), ends=st.booleans())
    def clean(self, rolls: bool, ends: bool) -> None:
        if ends:
            for one in self.bench.log.producers.ongoing:
                self._end(one.producer_id, True)
        if rolls:
            self.bench.roll()
        foretold = foretell(self.bench)
        self._cleaned(foretold)

    @rule(steps=st.integers(1, 120), mode=st.sampled_from(list(CrashMode)), seed=st.integers(0, 99))
    def crash_while_cleaning(self, steps: int, mode: CrashMode, seed: int) -> None:
        self.bench.roll()
        self.bench.log.flush()
        foretold = foretell(self.bench)
        with self.bench.power_fails_after(steps):
            self.bench.clean()
        self._note_cleaned(foretold)
        self.bench.crash(mode, seed)
        check_mixture(self.bench.batches(), foretold)
        check_promises(self.bench)

    def _cleaned(self, foretold: Foretold) -> None:
        report = self.bench.clean()
        self._note_cleaned(foretold)
        if self.bench.settings.min_stale_ratio == 0:
            check_exact(self.bench, foretold, report)
        else:
            check_promised(self.bench, foretold, report)
        self._check_tombstones()

    def _note_cleaned(self, foretold: Foretold) -> None:
        for batch in foretold.run.batches:
            self.first_cleaned_ms.setdefault(batch.base_offset, foretold.run.now_ms)

    def _check_tombstones(self) -> None:
        """The latest tombstone of a key stays for `delete.retention.ms` after it was cleaned."""
        bench = self.bench
        left = {record.offset for batch in bench.batches() for record in batch.records}
        records = bench.history.committed_records(bench.log.last_stable_offset)
        newest = {record.key: record for record in records if record.key is not None}
        for batch in bench.history.batches:
            for record in batch.records:
                is_latest = record.key is not None and newest.get(record.key) == record
                if not is_latest or record.value is not None or record.offset in left:
                    continue
                cleaned_ms = self.first_cleaned_ms[batch.base_offset]
                assert bench.now_ms >= cleaned_ms + bench.settings.delete_retention_ms


TestCleaningMachine = CleaningMachine.TestCase
TestCleaningMachine.settings = settings(
    max_examples=2000 if IS_LONG else 30,
    stateful_step_count=60 if IS_LONG else 25,
    deadline=None,
    phases=set(Phase) - {Phase.explain},  # it traces every line, and a clean runs many
)
