"""Whatever happens to a file that is derived from the data, the log answers as the data say.

Every kind of derived file is removed, emptied, cut at each entry, torn, exchanged with that of
another segment, and has single bytes changed, before an open and while the log is open.
"""

from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.support.log_bench import DIRECTORY, NOW_MS, Bench, make_batch
from tests.support.log_model import LogModel, read_all, read_committed
from tests.support.rounds import IS_LONG
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock

EPOCHS: Final = "leader-epoch-checkpoint"
ENTRY_BYTES: Final = {".index": 8, ".timeindex": 12, ".txnindex": 34, ".snapshot": 46, EPOCHS: 4}
BASES: Final = (0, 9, 18)
FLIPS: Final = 200 if IS_LONG else 6
"""Bytes of a file that are changed, one at a time."""


def new_bench() -> Bench:
    clock = ManualClock(NOW_MS)
    return Bench(MemoryFileSystem(clock), clock).set(index_interval_bytes=1)


def fill(bench: Bench) -> LogModel:
    """Three closed segments and an active one: transactions across rolls, times up and down."""
    log, sequences = bench.open(), {1: 0, 2: 0}

    def append(producer_id: int, time: int, **fields: Any) -> None:
        if producer_id in sequences:
            fields |= {"producer_epoch": 0, "base_sequence": sequences[producer_id]}
            sequences[producer_id] += 2
        log.append(make_batch(2, time=time, producer_id=producer_id, **fields), leader_epoch=epoch)

    for epoch in range(4):
        append(1, 10 * epoch + 3, transactional=True)
        append(2, 10 * epoch + 1)
        log.end_transaction(producer_id=1, producer_epoch=0, committed=epoch == 1)
        append(1, 10 * epoch + 2 + epoch, transactional=True)
        append(-1, 10 * epoch + 2)
        if epoch < 3:
            log.roll()
    log.end_transaction(producer_id=1, producer_epoch=0, committed=True)
    model = LogModel()
    for data in read_all(log):
        model.append(data)
    return model


def damages(data: bytes, other: bytes, entry_bytes: int) -> Iterator[tuple[str, bytes | None]]:
    yield "missing", None
    for size in range(0, len(data), entry_bytes):
        yield f"cut at {size}", data[:size]
    yield "torn", data[:-1]
    yield "zeros", bytes(len(data))
    yield "of another segment", other
    for position in range(0, len(data), max(len(data) // FLIPS, 1)):
        changed = bytes([data[position] ^ (1 << position % 8)])
        yield f"changed at {position}", data[:position] + changed + data[position + 1 :]


def replace_file(bench: Bench, path: str, data: bytes | None) -> None:
    if bench.fs.exists(path):
        bench.fs.remove(path)
    if data is not None:
        with bench.fs.open_writable(path) as file:
            file.write_at(0, data)


def check(bench: Bench, model: LogModel, end_epoch: int = 3) -> None:
    log = bench.log
    assert read_all(log) == [batch.data for batch in model.batches]
    committed = model.committed_records(log.last_stable_offset)
    assert read_committed(log, start_offset=0) == committed
    assert log.aborted_transactions() == model.aborted()
    for timestamp in range(NOW_MS - 1, NOW_MS + 50, 3):
        assert log.find_offset_by_time(timestamp) == model.first_at_or_after(timestamp)
    assert log.find_max_timestamp() == model.newest()
    assert {entry.producer_id: entry.last_sequence for entry in log.producer_entries()} == {
        producer_id: one.last_sequence for producer_id, one in model.producers().items()
    }
    assert [entry.epoch for entry in log.epochs] == [0, 1, 2, end_epoch]


@pytest.mark.parametrize("kind", list(ENTRY_BYTES))
@pytest.mark.parametrize("clean", [True, False])
def test_a_log_answers_as_its_data_say_whatever_happened_to_a_derived_file(
    kind: str, clean: bool
) -> None:
    origin = new_bench()
    model = fill(origin)
    origin.log.close()
    names = [n for n in origin.fs.names(DIRECTORY) if n.endswith(kind)]
    files = {name: origin.fs.read(f"{DIRECTORY}/{name}") for name in names}
    assert files
    others = dict(zip(names, [*list(files.values())[1:], files[names[0]]], strict=True))
    for name, data in files.items():
        for damage, damaged in damages(data, others[name], ENTRY_BYTES[kind]):
            bench = new_bench()
            fill(bench)
            bench.log.close()
            replace_file(bench, f"{DIRECTORY}/{name}", damaged)
            try:
                bench.open(clean=clean, recovery_point=model.end_offset)
                check(bench, model)
                bench.log.maintain(NOW_MS)
                bench.reopen()
                check(bench, model)
            except Exception as error:
                raise AssertionError(f"{name} {damage}: {error!r:.300}") from error
