"""Kinds of compacted partitions, each to be cleaned over several rounds at several times."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from tests.conformance.tools.cleaner import CleanerOptions
from tests.conformance.tools.cleaning_pair import CleaningPair, PairSettings
from tests.conformance.tools.cleaning_script import CleaningScript, Round, Shape
from tests.conformance.tools.stored_batches import StoredPartition
from varve.cleaning.settings import CleanerSettings
from varve.records import Codec

DAY_MS: Final = 86_400_000
NEVER_MS: Final = str(2**62)
START_MS: Final = 1_700_000_000_000
STEPS_MS: Final = (0, 600, 2_000, DAY_MS // 2, 2 * DAY_MS)

SHELL: Final = "a batch kept without its records"
HORIZON: Final = "a tombstone with a delete horizon"
TOMBSTONE_GONE: Final = "a tombstone past its horizon"
MARKER_HORIZON: Final = "a marker with a delete horizon"
MARKER_GONE: Final = "a marker past its horizon"
ABORTED_LISTED: Final = "an aborted transaction that is still listed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kind: its records, the topic's settings, and what its rounds must have shown."""

    shape: Shape = field(default_factory=Shape)
    configs: Mapping[str, str] = field(default_factory=dict)
    expected: tuple[str, ...] = ()
    io_buffer_bytes: int = 512 << 10
    cleaner: CleanerSettings = field(default_factory=CleanerSettings)
    raises_log_start: bool = False

    def settings(self, **overrides: str) -> PairSettings:
        configs = {
            "internal.segment.bytes": "4000",
            "index.interval.bytes": "200",
            "segment.index.bytes": "4096",
            "segment.ms": NEVER_MS,
            "cleanup.policy": "compact",
            "delete.retention.ms": "1000",
            **self.configs,
            **overrides,
        }
        options = CleanerOptions(
            dedupe_buffer_bytes=1 << 20,
            io_buffer_bytes=self.io_buffer_bytes,
            producer_expiration_ms=DAY_MS,
        )
        return PairSettings(
            configs=configs,
            options=options,
            cleaner=self.cleaner,
            producer_expiration_ms=DAY_MS,
        )


TOMBSTONES: Final = (HORIZON, TOMBSTONE_GONE)
MARKERS: Final = (SHELL, MARKER_HORIZON, MARKER_GONE, ABORTED_LISTED)
LARGE: Final = {"internal.segment.bytes": "150000"}
# Little memory: varve plans more than one range of key hashes.
SPARING: Final = CleanerSettings(log_cleaner_dedupe_buffer_size=73_000)
CASES: Final[Mapping[str, Case]] = {
    "uncompressed": Case(expected=(*TOMBSTONES, *MARKERS)),
    "gzip": Case(shape=Shape(codecs=(Codec.GZIP,)), expected=TOMBSTONES),
    "snappy": Case(shape=Shape(codecs=(Codec.SNAPPY,)), expected=TOMBSTONES),
    "lz4": Case(shape=Shape(codecs=(Codec.LZ4,)), expected=TOMBSTONES),
    "zstd": Case(shape=Shape(codecs=(Codec.ZSTD,)), expected=TOMBSTONES),
    "mixed codecs": Case(shape=Shape(codecs=tuple(Codec), key_count=40), expected=MARKERS),
    "mostly tombstones": Case(shape=Shape(tombstones=0.7, key_count=30), expected=TOMBSTONES),
    "tombstones kept for a day": Case(configs={"delete.retention.ms": str(DAY_MS)}),
    "tombstones not kept": Case(configs={"delete.retention.ms": "0"}, expected=TOMBSTONES),
    "no producers": Case(shape=Shape(plain=1.0, key_count=60)),
    "idempotent producers": Case(shape=Shape(plain=0.0, transactions=0.0), expected=(SHELL,)),
    "transactions": Case(shape=Shape(plain=0.1, transactions=1.0), expected=MARKERS),
    "one record per batch": Case(shape=Shape(batch_records_max=1, plain=0.2), expected=MARKERS),
    "keyless records": Case(shape=Shape(keyless=0.2)),
    "many small segments": Case(shape=Shape(rolls=0.3)),
    "large batches": Case(
        shape=Shape(value_bytes_max=3_000, batch_records_max=40, codecs=(Codec.NONE, Codec.ZSTD)),
        configs=LARGE,
        io_buffer_bytes=2_000,
    ),
    "more keys than memory": Case(
        shape=Shape(key_count=20_000, batch_records_max=250, value_bytes_max=12, rolls=0.1),
        configs=LARGE,
        cleaner=SPARING,
        expected=(HORIZON,),
    ),
    "log append time": Case(
        configs={"message.timestamp.type": "LogAppendTime"}, expected=TOMBSTONES
    ),
    "undated records": Case(shape=Shape(undated=0.6, future=0.05), expected=TOMBSTONES),
    "compaction lag": Case(configs={"min.compaction.lag.ms": "1000"}, expected=(HORIZON,)),
    "raised log start": Case(configs={"cleanup.policy": "compact,delete"}, raises_log_start=True),
}


@dataclass(frozen=True, slots=True)
class Turn:
    """One round of a partition's life: what is appended, and when it is cleaned then."""

    steps: Round
    now_ms: int


def draw_turns(case: Case, chance: random.Random, count: int) -> Iterator[Turn]:
    """The first round is the largest, and alone in having keyless records.

    A transaction that stays open is carried into the next round.
    """
    script = CleaningScript(chance, case.shape)
    now_ms = START_MS
    steps_ms = [STEPS_MS[number % len(STEPS_MS)] for number in range(count)]
    chance.shuffle(steps_ms)
    for number in range(count):
        size = 60 if number == 0 else chance.choice([1, 10, 30])
        stays_open = chance.random() < 0.5
        yield Turn(script.next_round(size, now_ms, stays_open=stays_open), now_ms)
        script.shape = replace(case.shape, keyless=0.0)
        now_ms += steps_ms[number]


def sightings(before: StoredPartition, after: StoredPartition) -> set[str]:
    """Which of the rarer outcomes of a cleaning these two show."""
    found = set()
    for batch in after.batches.values():
        header = batch.header
        if header.records_count == 0:
            found.add(SHELL)
        if header.has_delete_horizon:
            found.add(MARKER_HORIZON if header.is_control else HORIZON)
    keys = {record.key for record in after.records()}
    for offset, batch in before.batches.items():
        if not batch.header.has_delete_horizon:
            continue
        if batch.header.is_control:
            found |= {MARKER_GONE} if offset not in after.batches else set()
        elif any(record.value is None and record.key not in keys for record in batch.records):
            found.add(TOMBSTONE_GONE)
    if after.aborted:
        found.add(ABORTED_LISTED)
    return found


def live(
    pair: CleaningPair,
    case: Case,
    chance: random.Random,
    count: int,
    *,
    begin: PairSettings | None = None,
    append: Callable[[Round, int], None] | None = None,
) -> Iterator[tuple[int, int]]:
    """Appends a round, by default to both sides, and gives its number and time to clean at.

    The first round may be written under other settings, as `begin` says.
    """
    for number, turn in enumerate(draw_turns(case, chance, count)):
        if number == 0:
            pair.begin(turn.steps, turn.now_ms, begin)
        else:
            (append or pair.append)(turn.steps, turn.now_ms)
        yield number, turn.now_ms
