"""The log of transactions is read as it was written, whoever wrote it."""

from collections.abc import Iterator

import pytest

import varve
from varve.broker.state_topic import replay_log
from varve.broker.transactions.transaction import (
    Transaction,
    decode_transaction,
    encode_transaction,
)
from varve.commit_log import AppendOrigin, Log
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import MalformedMessage
from varve.records import Codec, Record, build_batch, end_transaction_marker


@pytest.fixture
def log() -> Iterator[Log]:
    clock = ManualClock()
    with varve.open("data", fs=MemoryFileSystem(clock), clock=clock, maintain=False) as store:
        yield store.create_topic("states", settings={"cleanup.policy": "compact"}).partition(0).log


def _of(number: int, epoch: int = 0) -> Transaction:
    return Transaction(
        transactional_id=f"id-{number}",
        producer_id=number,
        producer_epoch=epoch,
        timeout_ms=5,
        update_ms=7,
    )


def replay(log: Log) -> list[Transaction | None]:
    replayed = replay_log(log)
    return [decode_transaction(one.key, one.value or b"", "log") for one in replayed.live]


def _append(log: Log, *transactions: Transaction, codec: Codec = Codec.NONE) -> None:
    records = [encode_transaction(one) for one in transactions]
    log.append(build_batch(records, codec=codec), origin=AppendOrigin.COORDINATOR)


def test_of_each_id_the_last_record_counts(log: Log) -> None:
    for epoch in range(3):
        for number in range(4):
            _append(log, _of(number, epoch))
    _append(log, _of(1, 2).dead())
    assert replay(log) == [_of(0, 2), _of(2, 2), _of(3, 2)]


def test_more_batches_than_are_parsed_at_once(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("varve.records.committed._ROWS_MAX", 3)
    for number in range(10):
        _append(log, _of(number))
    assert replay(log) == [_of(number) for number in range(10)]


def test_batches_of_several_records_compressed_or_not(log: Log) -> None:
    _append(log, _of(1), _of(2), codec=Codec.GZIP)
    _append(log, _of(3), _of(2, 1))
    assert replay(log) == [_of(1), _of(3), _of(2, 1)]


def test_markers_are_passed(log: Log) -> None:
    _append(log, _of(1))
    marker = end_transaction_marker(
        committed=True, producer_id=5, producer_epoch=0, coordinator_epoch=0, timestamp=1
    )
    log.append(marker, origin=AppendOrigin.COORDINATOR)
    _append(log, _of(2))
    assert replay(log) == [_of(1), _of(2)]


def test_an_empty_log_knows_nothing(log: Log) -> None:
    assert replay(log) == []


def test_a_value_that_ends_early_is_not_passed_over(log: Log) -> None:
    record = encode_transaction(_of(1))
    assert record.value is not None
    log.append(
        build_batch([Record(record.key, record.value[:-4], timestamp=1)]),
        origin=AppendOrigin.COORDINATOR,
    )
    with pytest.raises(MalformedMessage, match="TransactionLogValue"):
        replay(log)
