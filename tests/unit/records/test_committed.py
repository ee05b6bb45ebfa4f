"""Every reader of committed records sees whole, valid, committed batches and nothing else."""

import tracemalloc

import numpy as np
import pytest

from varve.foundation.errors import Corrupt, UnsupportedFormat
from varve.records import (
    Batch,
    Codec,
    CommittedBatches,
    Producer,
    Record,
    build_batch,
    edit_batch,
    empty_batch,
    end_transaction_marker,
)
from varve.records.committed import PART_BYTES_MAX


class LogData:
    """Batches one behind the other, with consecutive offsets."""

    def __init__(self, codec: Codec = Codec.NONE, base_offset: int = 0) -> None:
        self.data = b""
        self.next_offset = base_offset
        self.sizes: list[int] = []
        self._codec = codec

    def append(self, *values: bytes, producer_id: int = -1, in_transaction: bool = True) -> int:
        """The values, in a transaction if a producer is named; returns the base offset."""
        records = [Record(None, value, timestamp=1) for value in values]
        batch = build_batch(records, codec=self._codec)
        if producer_id >= 0:
            producer = Producer(producer_id, 0)
            batch = bytes(edit_batch(batch, producer=producer, transactional=in_transaction))
        return self._append(batch, len(values))

    def end(self, producer_id: int, *, committed: bool) -> int:
        marker = end_transaction_marker(
            committed=committed,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=1,
        )
        return self._append(marker, 1)

    def append_encoded(self, batch: bytes, offset_count: int) -> int:
        return self._append(batch, offset_count)

    def _append(self, batch: bytes, offset_count: int) -> int:
        base_offset = self.next_offset
        self.data += bytes(edit_batch(batch, base_offset=base_offset, leader_epoch=0))
        self.sizes.append(len(batch))
        self.next_offset += offset_count
        return base_offset


def _values(batches: CommittedBatches) -> list[bytes | None]:
    """The values, which the batches and the table of all records must agree on."""
    by_batch = [record.value for batch in batches for record in batch.records()]
    assert by_batch == [record.value for part in batches.columns() for record in part.records()]
    return by_batch


@pytest.fixture(params=list(Codec))
def log(request: pytest.FixtureRequest) -> LogData:
    return LogData(request.param)


def test_all_records_are_returned_in_order_with_their_offsets(log: LogData) -> None:
    log.append(b"a", b"b")
    log.append(b"c")
    batches = CommittedBatches(log.data, where="t-0")
    assert _values(batches) == [b"a", b"b", b"c"]
    assert next(batches.columns()).offsets.tolist() == [0, 1, 2]
    assert (batches.next_offset, batches.end_offset, len(batches)) == (3, 3, 2)
    assert batches.size == len(log.data)
    assert [bytes(batch.data) for batch in batches.batches] == [
        log.data[: log.sizes[0]],
        log.data[log.sizes[0] :],
    ]


def test_aborted_transactions_are_left_out_and_those_around_them_stay(log: LogData) -> None:
    log.append(b"plain")
    first = log.append(b"aborted-1", producer_id=1)
    log.append(b"aborted-2", producer_id=1)
    log.append(b"committed", producer_id=2)
    log.append(b"between")
    log.end(1, committed=False)
    log.end(2, committed=True)
    log.append(b"later", producer_id=1)
    log.end(1, committed=True)
    batches = CommittedBatches(log.data, [(1, first)])
    assert _values(batches) == [b"plain", b"committed", b"between", b"later"]
    assert batches.next_offset == log.next_offset


def test_each_aborted_transaction_of_a_producer_ends_at_its_own_marker(log: LogData) -> None:
    first = log.append(b"aborted-1", producer_id=1)
    log.end(1, committed=False)
    log.append(b"committed", producer_id=1)
    log.end(1, committed=True)
    second = log.append(b"aborted-2", producer_id=1)
    log.end(1, committed=False)
    # A fetch response need not list them in order.
    assert _values(CommittedBatches(log.data, [(1, second), (1, first)])) == [b"committed"]


def test_an_aborted_transaction_may_begin_before_and_end_after_the_data(log: LogData) -> None:
    log.next_offset = 10
    log.append(b"aborted", producer_id=1)
    log.append(b"committed", producer_id=2)
    assert _values(CommittedBatches(log.data, [(1, 4)])) == [b"committed"]


def test_a_transaction_that_begins_after_the_data_hides_nothing(log: LogData) -> None:
    log.append(b"committed", producer_id=1)
    assert _values(CommittedBatches(log.data, [(1, 9)])) == [b"committed"]


def test_a_producer_without_a_transaction_is_never_left_out(log: LogData) -> None:
    first = log.append(b"idempotent", producer_id=1, in_transaction=False)
    assert _values(CommittedBatches(log.data, [(1, first)])) == [b"idempotent"]


def test_without_aborted_transactions_all_but_control_batches_are_returned(log: LogData) -> None:
    log.append(b"aborted", producer_id=1)
    log.end(1, committed=False)
    batches = CommittedBatches(log.data)
    assert _values(batches) == [b"aborted"]
    assert batches.next_offset == 2


def test_a_read_of_nothing_but_markers_moves_on(log: LogData) -> None:
    log.end(1, committed=True)
    batches = CommittedBatches(log.data)
    assert _values(batches) == []
    assert (batches.next_offset, len(batches)) == (1, 0)


def test_records_before_the_start_are_left_out(log: LogData) -> None:
    log.append(b"a")
    log.append(b"b", b"c", b"d")
    log.append(b"e")
    batches = CommittedBatches(log.data, start_offset=2)
    assert next(batches.columns()).offsets.tolist() == [2, 3, 4]
    assert [batch.header.base_offset for batch in batches] == [1, 4]


def test_columns_are_those_of_the_range(log: LogData) -> None:
    log.append(b"a", b"b")
    log.append(b"c", b"d")
    batches = CommittedBatches(log.data)
    assert [record.value for record in next(batches.columns(start=1, end=3)).records()] == [
        b"b",
        b"c",
    ]


def test_the_rows_of_each_batch_are_told_apart(log: LogData) -> None:
    log.append(b"a", b"b", b"c")
    log.append(b"hidden", producer_id=1)
    log.append(b"d", b"e")
    batches = CommittedBatches(log.data, [(1, 3)], start_offset=1)
    _, columns, ends = batches.first_part()
    assert ends.tolist() == [2, 4]
    assert [record.value for record in columns.records()] == [b"b", b"c", b"d", b"e"]
    assert ends.dtype == np.int64


def test_a_batch_that_was_cut_off_is_left_for_the_next_fetch(log: LogData) -> None:
    log.append(b"a")
    log.append(b"b")
    for size in range(log.sizes[0], len(log.data)):
        batches = CommittedBatches(memoryview(log.data)[:size])
        assert _values(batches) == [b"a"]
        assert batches.next_offset == 1


def test_no_data_leaves_the_position_where_it_was() -> None:
    batches = CommittedBatches(b"", start_offset=7)
    assert (len(batches), batches.next_offset, batches.end_offset) == (0, 7, 7)
    assert [len(columns) for columns in batches.columns()] == [0]
    assert batches.first_part().batches is batches


def test_the_end_of_the_partition_is_kept_beside_the_position(log: LogData) -> None:
    log.append(b"a")
    batches = CommittedBatches(log.data, end_offset=90)
    assert (batches.next_offset, batches.end_offset) == (1, 90)


def test_a_batch_without_records_is_left_out_and_passed(log: LogData) -> None:
    log.append(b"a")
    log.append_encoded(
        empty_batch(Batch(build_batch([Record(None, b"x", timestamp=1)] * 3)).header), 3
    )
    log.append(b"b")
    batches = CommittedBatches(log.data)
    assert _values(batches) == [b"a", b"b"]
    assert batches.next_offset == 5


def test_batches_before_a_wrong_crc_are_returned_and_it_is_named(log: LogData) -> None:
    log.append(b"a")
    log.append(b"b")
    log.append(b"c")
    broken = bytearray(log.data)
    broken[log.sizes[0] + log.sizes[1] - 1] ^= 1
    batches = CommittedBatches(broken, where="orders-0")
    seen = iter(batches)
    assert next(seen).header.base_offset == 0
    with pytest.raises(Corrupt, match=r"orders-0.*offset 1.*CRC.*varve check"):
        next(seen)
    with pytest.raises(Corrupt, match="offset 1"):
        next(batches.columns())
    with pytest.raises(Corrupt, match="offset 1"):
        _ = batches.next_offset


def test_an_old_message_format_is_named(log: LogData) -> None:
    log.append(b"a")
    old = bytearray(log.data)
    old[16] = 1
    with pytest.raises(UnsupportedFormat, match="message format 1"):
        list(CommittedBatches(old))


def test_a_record_count_that_cannot_be_is_corrupt() -> None:
    data = bytearray(build_batch([Record(None, b"a", timestamp=1)]))
    data[57:61] = (2**31 - 1).to_bytes(4, "big")
    with pytest.raises(Corrupt, match="2147483647 records"):
        next(CommittedBatches(edit_batch(data, base_sequence=5)).columns())


def test_an_unknown_codec_is_corrupt() -> None:
    data = bytearray(build_batch([Record(None, b"a", timestamp=1)]))
    data[22] |= 7
    batches = CommittedBatches(edit_batch(data, base_sequence=5))
    with pytest.raises(Corrupt, match="codec number 7"):
        next(batches.columns())


def test_many_small_batches_are_all_seen() -> None:
    batch = build_batch([Record(None, b"v", timestamp=1)])
    count = 5000
    data = b"".join(
        bytes(edit_batch(batch, base_offset=offset, leader_epoch=0)) for offset in range(count)
    )
    batches = CommittedBatches(data)
    assert len(batches) == count
    assert next(batches.columns()).offsets.tolist() == list(range(count))
    assert batches.next_offset == count


def test_the_last_header_is_that_of_the_last_whole_batch_even_of_a_marker(log: LogData) -> None:
    assert CommittedBatches(log.data).last_header is None
    log.append(b"a", producer_id=7)
    marker = log.end(7, committed=True)
    header = CommittedBatches(log.data).last_header
    assert header is not None
    assert (header.base_offset, header.is_control) == (marker, True)
    cut = CommittedBatches(log.data[:-1]).last_header
    assert cut is not None
    assert cut.base_offset == 0


def test_the_first_batches_end_with_the_one_that_reaches_the_limit(log: LogData) -> None:
    log.append(b"a", b"b")
    log.append(b"c", b"d", producer_id=7)
    log.end(7, committed=True)
    log.append(b"e")
    batches = CommittedBatches(log.data)
    first = batches.first_batches(max_records=3)
    assert _values(first) == [b"a", b"b", b"c", b"d"]
    assert (first.next_offset, len(first), len(first.first_part().columns)) == (4, 2, 4)
    assert _values(batches.first_batches(max_records=1)) == [b"a", b"b"]
    assert batches.first_batches(max_records=5) is batches
    assert batches.first_batches(max_records=100) is batches
    empty = CommittedBatches(b"")
    assert empty.first_batches(max_records=1) is empty


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_batches_that_unpack_to_much_are_read_in_bounded_parts(codec: Codec) -> None:
    log, size = LogData(codec), PART_BYTES_MAX // 4
    for _ in range(12):
        log.append(bytes(size), b"last")
    batches = CommittedBatches(log.data)
    offsets: list[int] = []
    tracemalloc.start()
    try:
        for columns in batches.columns():
            assert len(columns.payload) <= PART_BYTES_MAX
            offsets += columns.offsets.tolist()
        part = batches.first_part()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert offsets == list(range(24))
    assert peak < 5 * PART_BYTES_MAX
    assert (len(part.batches), part.batches.next_offset, part.ends.tolist()) == (3, 6, [2, 4, 6])


def test_a_part_is_bounded_by_the_rows_of_its_records_too() -> None:
    log, count = LogData(), 300_000
    for _ in range(4):
        log.append(*[b""] * count)
    sizes = [len(columns) for columns in CommittedBatches(log.data).columns()]
    assert sum(sizes) == 4 * count
    assert len(sizes) > 1


def test_a_batch_larger_than_a_part_is_one() -> None:
    log = LogData(Codec.ZSTD)
    log.append(b"a")
    log.append(bytes(PART_BYTES_MAX + 1))
    log.append(b"b")
    assert [len(columns) for columns in CommittedBatches(log.data).columns()] == [1, 1, 1]
