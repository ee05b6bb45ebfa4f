"""Replaying a table of batches at once, with its shortcuts, equals replaying them one by one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from varve.commit_log.producer_snapshots import replay_batches
from varve.commit_log.producer_state import ProducerStateManager
from varve.commit_log.segment_reader import BatchTable
from varve.commit_log.transaction_index import TransactionIndex
from varve.kernels.batch_scan import batch_table, scan_batches
from varve.records import Record, build_batch, end_transaction_marker

# Mostly data of few producers: a shortcut shows where more than five batches follow each other.
KINDS = ["transactional"] * 8 + ["plain"] * 4 + ["commit", "abort", "anonymous"]

BATCHES = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.integers(0, 1),
        st.sampled_from([0] * 9 + [1]),
        st.integers(1, 3),
    ),
    max_size=60,
)


def stored(steps: list[tuple[str, int, int, int]]) -> bytes:
    """The steps as batches with ascending offsets; sequences count on per producer."""
    batches, offset, sequences = [], 0, dict.fromkeys(range(4), 0)
    for kind, producer_id, epoch, count in steps:
        if kind in ("commit", "abort"):
            batches.append(
                end_transaction_marker(
                    committed=kind == "commit",
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    coordinator_epoch=0,
                    timestamp=offset,
                    base_offset=offset,
                )
            )
            offset += 1
            continue
        records = [Record(key=b"k", value=b"v", timestamp=offset)] * count
        is_owned = kind != "anonymous"
        batches.append(
            build_batch(
                records,
                base_offset=offset,
                transactional=kind == "transactional",
                producer_id=producer_id if is_owned else -1,
                producer_epoch=epoch if is_owned else -1,
                base_sequence=sequences[producer_id] if is_owned else -1,
            )
        )
        sequences[producer_id] += count if is_owned else 0
        offset += count
    return b"".join(batches)


def table_of(data: bytes) -> BatchTable:
    rows = batch_table(64)
    count, end, _ = scan_batches(np.frombuffer(data, np.uint8), 0, len(data), True, rows)
    return BatchTable(rows[:count], memoryview(data), 0, end)


@given(steps=BATCHES)
def test_replay_of_a_table_equals_replay_of_its_rows(
    steps: list[tuple[str, int, int, int]],
) -> None:
    table = table_of(stored(steps))
    at_once, one_by_one = ProducerStateManager(), ProducerStateManager()
    aborted_at_once, aborted_one_by_one = TransactionIndex(0), TransactionIndex(0)
    replay_batches(table, at_once, aborted_at_once, where="log")
    for row in range(len(table.rows)):
        single = BatchTable(table.rows[row : row + 1], table.buffer, 0, table.end)
        replay_batches(single, one_by_one, aborted_one_by_one, where="log")
    assert at_once.entries == one_by_one.entries
    assert at_once.ongoing == one_by_one.ongoing
    assert list(aborted_at_once.entries()) == list(aborted_one_by_one.entries())
