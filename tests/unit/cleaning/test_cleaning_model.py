"""The naive model of cleaning says what the rules say, and leaves what a real broker left."""

from dataclasses import replace

import pytest

from tests.conformance.tools.golden_reader import GOLDENS
from tests.support.cleaning_model import ModelBatch, Outcome, Run, Shell, clean
from tests.support.log_model import split_batches
from varve.cleaning.removals.removal import Reason
from varve.commit_log.transaction_index import AbortedTransaction
from varve.records import Codec, Record, TimestampType, build_batch, end_transaction_marker

NOW_MS = 1_700_000_000_000
RETENTION_MS = 1000


def _batch(
    base_offset: int, *pairs: tuple[bytes | None, bytes | None], **fields: int
) -> ModelBatch:
    records = [
        Record(key, value, timestamp=NOW_MS - 100 + at) for at, (key, value) in enumerate(pairs)
    ]
    return ModelBatch.of(build_batch(records, base_offset=base_offset, **fields))  # type: ignore[arg-type]  # codec is an int too


def _marker(offset: int, producer_id: int, *, committed: bool, epoch: int = 0) -> ModelBatch:
    return ModelBatch.of(
        end_transaction_marker(
            committed=committed,
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=0,
            timestamp=NOW_MS,
            base_offset=offset,
        )
    )


def _run(
    batches: list[ModelBatch], *, now_ms: int = NOW_MS, end: int = 1000, **given: object
) -> Run:
    run = Run(
        batches=batches,
        aborted=(),
        producers={},
        first_uncleanable_offset=end,
        now_ms=now_ms,
        delete_retention_ms=RETENTION_MS,
    )
    return replace(run, **given)  # type: ignore[arg-type]  # whatever fields a test names


def _offsets(outcome: Outcome) -> list[list[int]]:
    return [[record.offset for record in batch.records] for batch in outcome.batches]


def test_the_latest_record_of_a_key_survives_and_keeps_its_offset() -> None:
    outcome = clean(_run([_batch(0, (b"a", b"1"), (b"b", b"1")), _batch(2, (b"a", b"2"))]))
    assert _offsets(outcome) == [[1], [2]]
    first = outcome.batches[0]
    assert (first.base_offset, first.last_offset) == (0, 1)
    assert first.base_timestamp == first.max_timestamp == NOW_MS - 99
    assert outcome.records == {Reason.KEPT: 2, Reason.SUPERSEDED: 1}


def test_a_record_without_key_goes_and_an_empty_key_is_a_key() -> None:
    outcome = clean(_run([_batch(0, (None, b"1"), (b"", b"1"), (b"", b"2"))]))
    assert _offsets(outcome) == [[2]]
    assert outcome.records[Reason.NO_KEY] == 1


def test_a_tombstone_is_stamped_first_and_goes_when_its_horizon_has_come() -> None:
    batches = [_batch(0, (b"a", b"1"), (b"b", b"1")), _batch(2, (b"a", None), (b"c", b"1"))]
    first = clean(_run(batches))
    assert _offsets(first) == [[1], [2, 3]]
    assert first.batches[1].delete_horizon_ms == NOW_MS + RETENTION_MS
    assert [record.timestamp for record in first.batches[1].records] == [NOW_MS - 100, NOW_MS - 99]
    early = clean(_run(first.batches, now_ms=NOW_MS + RETENTION_MS - 1))
    assert early.batches == first.batches
    late = clean(_run(first.batches, now_ms=NOW_MS + RETENTION_MS))
    assert _offsets(late) == [[1], [3]]
    assert late.batches[1].delete_horizon_ms == NOW_MS + RETENTION_MS
    assert late.records[Reason.TOMBSTONE_EXPIRED] == 1
    for batch in late.batches:
        assert ModelBatch.of(batch.encoded()) == batch


def test_the_shell_of_a_producers_last_batch_stays_and_so_does_the_last_batch_of_the_run() -> None:
    batches = [
        _batch(0, (b"a", b"1"), producer_id=1, producer_epoch=0, base_sequence=7),
        _batch(1, (b"a", b"1"), producer_id=2, producer_epoch=0, base_sequence=0),
        _batch(2, (b"a", b"1")),
        _batch(3, (None, b"x"), codec=Codec.ZSTD),
    ]
    known = {1: Shell(0, 0), 2: Shell(0, 9)}
    outcome = clean(_run(batches, end=4, producers=known))
    assert [batch.base_offset for batch in outcome.batches] == [0, 2, 3]
    shell, _, last = outcome.batches
    assert (shell.records, shell.base_sequence, shell.base_timestamp) == ((), 7, -1)
    assert shell.max_timestamp == NOW_MS - 100
    assert (last.records, last.codec) == ((), Codec.NONE)
    assert ModelBatch.of(shell.encoded()) == shell


def test_an_aborted_transaction_goes_at_once_and_its_marker_two_cleanings_later() -> None:
    aborted = AbortedTransaction(1, 1, 2, 3)
    batches = [
        _batch(0, (b"a", b"1")),
        _batch(1, (b"a", b"2"), producer_id=1, producer_epoch=0, base_sequence=0, transactional=1),
        _marker(2, 1, committed=False),
    ]
    first = clean(_run(batches, aborted=[aborted]))
    assert _offsets(first) == [[0], [2]]
    assert first.aborted == [aborted]
    assert first.batches[1].delete_horizon_ms is None
    second = clean(_run(first.batches, aborted=first.aborted))
    assert second.aborted == []
    assert second.batches[1].delete_horizon_ms == NOW_MS + RETENTION_MS
    third = clean(_run(second.batches, now_ms=NOW_MS + RETENTION_MS))
    assert _offsets(third) == [[0]]
    assert third.records[Reason.MARKER_EXPIRED] == 1


def test_a_commit_marker_is_needed_while_a_shell_of_its_transaction_stands() -> None:
    batches = [
        _batch(0, (b"a", b"1"), producer_id=1, producer_epoch=0, base_sequence=0, transactional=1),
        _marker(1, 1, committed=True),
        _batch(2, (b"a", b"2")),
    ]
    kept = clean(_run(batches, producers={1: Shell(0, 0)}))
    assert _offsets(kept) == [[], [1], [2]]
    again = clean(_run(kept.batches, producers={1: Shell(0, 0)}))
    assert again.batches == kept.batches
    expired = clean(_run(kept.batches))
    assert _offsets(expired) == [[1], [2]]
    assert expired.batches[0].delete_horizon_ms is None
    later = clean(_run(expired.batches, producers={1: Shell(0, None)}))
    assert later.batches[0].delete_horizon_ms == NOW_MS + RETENTION_MS
    shell = clean(_run(later.batches, now_ms=2 * NOW_MS, producers={1: Shell(0, None)}))
    assert _offsets(shell) == [[], [2]]
    assert shell.batches[0].delete_horizon_ms is None


def test_append_time_is_kept_when_a_batch_shrinks() -> None:
    data = build_batch(
        [Record(b"a", b"1", timestamp=5), Record(b"b", b"1", timestamp=6)],
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        log_append_time=NOW_MS,
    )
    outcome = clean(_run([ModelBatch.of(data), _batch(2, (b"b", b"2"))]))
    assert outcome.batches[0].max_timestamp == NOW_MS
    assert [record.timestamp for record in outcome.batches[0].records] == [NOW_MS]


TXN = {"producer_id": 6, "transactional": 1}


def _scenario(epochs: tuple[int, int]) -> list[ModelBatch]:
    """What the topic of the golden directories was written as, up to the active segment."""
    turns = [
        _batch(
            14 + 7 * turn,
            *((bytes([key]), b"turn %d" % turn) for key in b"abcdklm"),
            codec=Codec.ZSTD,
            producer_id=5,
            producer_epoch=0,
            base_sequence=7 * turn,
        )
        for turn in range(6)
    ]
    one = {"producer_id": 4, "producer_epoch": 0, "base_sequence": 0}
    bump = epochs[1] - epochs[0]
    return [
        _batch(0, *((bytes([key]), b"first") for key in b"abcdefgh"), **one),
        _batch(8, (b"i", b"no"), (b"j", b"no"), producer_epoch=0, base_sequence=0, **TXN),
        _marker(10, 6, committed=False, epoch=epochs[0]),
        _batch(
            11,
            *[(b"k", b"c"), (b"l", b"c")],
            producer_epoch=epochs[0],
            base_sequence=0 if bump else 2,
            **TXN,
        ),
        _marker(13, 6, committed=True, epoch=epochs[1]),
        *turns,
        _batch(
            56,
            *[(b"e", None), (b"f", None), (b"m", None)],
            codec=Codec.ZSTD,
            producer_id=5,
            producer_epoch=0,
            base_sequence=42,
        ),
    ]


def _golden(name: str) -> list[ModelBatch]:
    paths = sorted((GOLDENS / name / "data" / "compacted-0").glob("*.log"))
    batches = [ModelBatch.of(data) for path in paths for data in split_batches(path.read_bytes())]
    return [batch for batch in batches if batch.last_offset < 59]


def _shape(batches: list[ModelBatch], now_ms: int) -> list[tuple[object, ...]]:
    return [
        (
            batch.base_offset,
            batch.last_offset,
            batch.producer_id,
            batch.producer_epoch,
            batch.base_sequence,
            batch.codec,
            batch.is_transactional,
            batch.is_control,
            batch.delete_horizon_ms and batch.delete_horizon_ms - now_ms,
            [(record.offset, record.key, record.value is None) for record in batch.records],
        )
        for batch in batches
    ]


def _golden_now(batches: list[ModelBatch]) -> int:
    (horizon_ms,) = {batch.delete_horizon_ms for batch in batches if batch.delete_horizon_ms}
    return horizon_ms - 86_400_000


ABORTED = AbortedTransaction(6, 8, 10, 11)
ACTIVE = {4: Shell(0, 61), 5: Shell(0, 68)}


def test_one_cleaning_leaves_what_a_real_broker_left() -> None:
    """Transactions of protocol 2 bump the epoch: the producer's last batch is forgotten."""
    outcome = clean(
        _run(
            _scenario(epochs=(1, 2)),
            aborted=[ABORTED],
            producers={**ACTIVE, 6: Shell(2, None)},
            end=59,
            delete_retention_ms=86_400_000,
        )
    )
    golden = _golden("clean")
    assert _shape(outcome.batches, NOW_MS) == _shape(golden, _golden_now(golden))
    assert outcome.aborted == [ABORTED]


@pytest.mark.parametrize("first_end", [21, 28, 35, 42, 49])
def test_two_cleanings_leave_what_a_real_broker_left(first_end: int) -> None:
    """The first came before the tombstones; the second found the aborted transaction empty."""
    scenario = _scenario(epochs=(0, 0))
    known = {**ACTIVE, 6: Shell(0, 12)}
    first = clean(
        _run(
            [batch for batch in scenario if batch.last_offset < first_end],
            aborted=[ABORTED],
            producers=known,
            end=first_end,
        )
    )
    rest = [batch for batch in scenario if batch.last_offset >= first_end]
    second = clean(
        _run(
            first.batches + rest,
            aborted=first.aborted,
            producers=known,
            end=59,
            delete_retention_ms=86_400_000,
        )
    )
    golden = _golden("unclean")
    assert _shape(second.batches, NOW_MS) == _shape(golden, _golden_now(golden))
    assert second.aborted == []


@pytest.mark.parametrize("name", ["clean", "unclean"])
def test_what_a_real_broker_left_has_nothing_more_to_remove(name: str) -> None:
    golden = _golden(name)
    known = {**ACTIVE, 6: Shell(2, None) if name == "clean" else Shell(0, 12)}
    now_ms = _golden_now(golden)
    outcome = clean(_run(golden, now_ms=now_ms, end=59, producers=known))
    assert set(outcome.records) == {Reason.KEPT}
    assert [batch.records for batch in outcome.batches] == [batch.records for batch in golden]
