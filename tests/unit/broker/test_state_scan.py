"""All records of a log are told in order, with the offsets and the producers of their batches."""

from collections.abc import Iterator

import pytest

import varve
from varve.broker.state_topic import scan_records
from varve.commit_log import AppendOrigin, Log
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Corrupt
from varve.kernels.batch_layout import CONTROL_BIT as CONTROL
from varve.kernels.batch_layout import TRANSACTIONAL_BIT as TRANSACTIONAL
from varve.records import Codec, Record, build_batch, end_transaction_marker

Told = tuple[int, bytes | None, bytes | None]


@pytest.fixture
def log() -> Iterator[Log]:
    clock = ManualClock()
    with varve.open("data", fs=MemoryFileSystem(clock), clock=clock, maintain=False) as store:
        yield store.create_topic("states").partition(0).log


def _append(log: Log, *keys: bytes | None, codec: Codec = Codec.NONE) -> None:
    records = [Record(key, key and b"of " + key, timestamp=1) for key in keys]
    log.append(build_batch(records, codec=codec), origin=AppendOrigin.COORDINATOR)


def _told(log: Log) -> list[Told]:
    return [(offset, key, value) for offset, _, _, key, value in scan_records(log, [])]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_batches_of_one_and_of_several_are_told_in_order(log: Log, codec: Codec) -> None:
    _append(log, b"a")
    _append(log, b"b", b"", codec=codec)
    _append(log, None)
    assert _told(log) == [
        (0, b"a", b"of a"),
        (1, b"b", b"of b"),
        (2, b"", b""),
        (3, None, None),
    ]


def test_more_batches_than_are_parsed_at_once(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("varve.records.committed._ROWS_MAX", 3)
    for key in b"abcdefghij":
        _append(log, bytes([key]))
    assert b"".join(key or b"" for _, key, _ in _told(log)) == b"abcdefghij"


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_what_stands_before_the_beginning_of_the_log_is_not_told(log: Log, codec: Codec) -> None:
    _append(log, b"a", b"b", b"c", codec=codec)
    _append(log, b"d")
    log.delete_records(2)
    assert _told(log) == [(2, b"c", b"of c"), (3, b"d", b"of d")]


def test_each_record_has_the_producer_and_the_attributes_of_its_batch(log: Log) -> None:
    _append(log, b"a")
    records = [Record(b"b", b"", timestamp=1), Record(b"c", b"", timestamp=1)]
    log.append(
        build_batch(records, producer_id=7, producer_epoch=0, transactional=True),
        origin=AppendOrigin.COORDINATOR,
    )
    marker = end_transaction_marker(
        committed=True, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp=1
    )
    log.append(marker, origin=AppendOrigin.COORDINATOR)
    scanned = list(scan_records(log, []))
    assert [producer_id for _, producer_id, _, _, _ in scanned] == [-1, 7, 7, 7]
    kinds = [attributes & (CONTROL | TRANSACTIONAL) for _, _, attributes, _, _ in scanned]
    assert kinds == [0, TRANSACTIONAL, TRANSACTIONAL, CONTROL | TRANSACTIONAL]


@pytest.mark.parametrize("damaged", [0, 1, 2])
@pytest.mark.parametrize("byte", [-1, 20], ids=["value", "header"])
def test_a_damaged_batch_is_left_out(log: Log, damaged: int, byte: int) -> None:
    ends = [0]
    for key in (b"a", b"b", b"c"):
        _append(log, key)
        ends.append(log.size)
    position = ends[damaged + 1 if byte < 0 else damaged] + byte
    segment = f"{log.directory}/{0:020}.log"
    fs = log.segments.fs
    content = bytearray(fs.read(segment))
    content[position] ^= 1
    with fs.open_writable(segment) as file:
        file.write_at(0, bytes(content))
    errors: list[Corrupt] = []
    keys = [key for _, _, _, key, _ in scan_records(log, errors)]
    assert keys == [key for number, key in enumerate((b"a", b"b", b"c")) if number != damaged]
    assert len(errors) == 1
