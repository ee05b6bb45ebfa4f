"""Replaying stored batches leaves the same producers as appending them did."""

import random

import numpy as np
import pytest

from tests.support.log_bench import Bench, make_batch
from varve.commit_log import AppendOrigin
from varve.commit_log.producer_snapshots import decode_marker, replay_batches, summarize_row
from varve.commit_log.producer_state import Marker, ProducerStateManager
from varve.commit_log.segment_reader import BatchWalk
from varve.commit_log.transaction_index import TransactionIndex
from varve.kernels.batch_layout import BatchColumn
from varve.records import end_transaction_marker


@pytest.mark.parametrize("seed", range(8))
def test_replay_equals_append(bench: Bench, seed: int) -> None:
    source = random.Random(seed)
    bench.open()
    sequences = dict.fromkeys(range(4), 0)
    in_transaction: set[int] = set()
    for _ in range(120):
        producer = source.choice([-1, *sequences])
        if producer < 0:
            bench.fill(1)
        elif producer in in_transaction and source.random() < 0.4:
            in_transaction.discard(producer)
            bench.log.end_transaction(
                producer_id=producer, producer_epoch=0, committed=source.random() < 0.5
            )
        else:
            transactional = producer in in_transaction or source.random() < 0.3
            count = source.randint(1, 3)
            if transactional:
                in_transaction.add(producer)
            bench.log.append(
                make_batch(
                    count,
                    producer_id=producer,
                    producer_epoch=0,
                    base_sequence=sequences[producer],
                    transactional=transactional,
                )
            )
            sequences[producer] += count
    expected = bench.log.producers
    replayed, index = ProducerStateManager(), TransactionIndex(0)
    file = bench.log.view.active.file()
    for table in BatchWalk(file, start=0, end=bench.log.size, verify_crc=True):
        replay_batches(table, replayed, index, where="here")
    assert replayed.entries == expected.entries
    assert replayed.ongoing == expected.ongoing
    assert list(index.entries()) == bench.log.aborted_transactions()


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_is_decoded(committed: bool) -> None:
    batch = end_transaction_marker(
        committed=committed, producer_id=1, producer_epoch=0, coordinator_epoch=7, timestamp=5
    )
    assert decode_marker(memoryview(batch), "here") == Marker(committed, 7)


def test_an_emptied_marker_is_ignored(bench: Bench) -> None:
    bench.open()
    bench.log.append(
        make_batch(producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    )
    row = np.zeros(len(BatchColumn), np.int64)
    row[[BatchColumn.PRODUCER_ID, BatchColumn.ATTRIBUTES, BatchColumn.BASE_SEQUENCE]] = (
        1,
        0x30,
        -1,
    )
    row[[BatchColumn.BASE_OFFSET, BatchColumn.LAST_OFFSET]] = 1
    summary = summarize_row(row.tolist(), None, "here")
    plan = bench.log.producers.check_and_plan([summary], AppendOrigin.REPLICATION)
    assert (plan.entries, plan.completed) == ({}, [])
