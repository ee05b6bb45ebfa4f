"""Building a key index: what is refused, what is left aside, how it is paced."""

import numpy as np
import pytest

from tests.support.cleaning_bench import CleaningBench, compacted
from tests.support.cleaning_checks import check_exact, foretell
from tests.support.key_model import DIRECTORY, TOPIC_ID, check_index, model_of, write_segment
from varve.cleaning.compaction.rewrite import filter_compressed
from varve.cleaning.key_index.builder import KeyIndexBuilder, build_key_index
from varve.cleaning.key_index.key_index import open_key_index
from varve.cleaning.settings import CleanerSettings
from varve.cleaning.work_budget import WorkBudget
from varve.commit_log.names import KEYS, LOG, log_name
from varve.commit_log.segment import Segment
from varve.commit_log.segment_reader import BatchTable
from varve.commit_log.transaction_index import AbortedTransaction
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Corrupt, OffsetOverflow, UnsupportedFormat
from varve.kernels.batch_filter import KEEP_TIMESTAMP
from varve.kernels.batch_layout import ATTRIBUTES_AT, HEADER_BYTES, BatchColumn
from varve.kernels.batch_scan import batch_table, scan_batches
from varve.records import Codec, Record, build_batch, end_transaction_marker

RECORDS = [Record(b"%d" % number, b"v" * 20) for number in range(300)]
PAIR = RECORDS[:2]


@pytest.fixture
def fs() -> MemoryFileSystem:
    return MemoryFileSystem(ManualClock())


def _builder(
    fs: MemoryFileSystem, segment: Segment, buffer_bytes: int = 1 << 20
) -> KeyIndexBuilder:
    return KeyIndexBuilder(
        fs,
        segment.path(KEYS),
        base_offset=segment.base_offset,
        topic_id=TOPIC_ID,
        buffer_bytes=buffer_bytes,
        aborted=[],
    )


def _table(data: bytes, start: int = 0) -> BatchTable:
    """Batches as the rewriter hands them over: bytes it has just made."""
    rows = batch_table(1000)
    count, end, _ = scan_batches(np.frombuffer(data, np.uint8), 0, len(data), False, rows)
    assert end == len(data)
    rows[:count, BatchColumn.POSITION] += start
    return BatchTable(rows[:count], memoryview(data), start, start + len(data))


def _build(
    fs: MemoryFileSystem, batches: list[bytes], aborted: list[AbortedTransaction] | None = None
) -> None:
    segment = write_segment(fs, 10, batches)
    build_key_index(fs, segment, topic_id=TOPIC_ID, aborted=aborted or [])
    index = open_key_index(fs, segment, topic_id=TOPIC_ID)
    assert index is not None
    check_index(index, model_of(10, batches, aborted or []))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_one_batch_larger_than_the_buffer_goes_in_parts(fs: MemoryFileSystem, codec: Codec) -> None:
    batches = [build_batch(RECORDS, base_offset=10, codec=codec)]
    segment = write_segment(fs, 10, batches)
    build_key_index(fs, segment, topic_id=TOPIC_ID, aborted=[], buffer_bytes=64)
    index = open_key_index(fs, segment, topic_id=TOPIC_ID)
    assert index is not None
    check_index(index, model_of(10, batches))


def test_chunks_follow_each_other(fs: MemoryFileSystem) -> None:
    batches = [build_batch(PAIR, base_offset=at) for at in range(10, 30, 2)]
    segment = write_segment(fs, 10, batches)
    builder = _builder(fs, segment)
    builder.add(_table(b"".join(batches[:4])))
    builder.add(_table(b"".join(batches[4:]), start=builder.log_size))
    builder.finish(segment.size)
    index = open_key_index(fs, segment, topic_id=TOPIC_ID)
    assert index is not None
    check_index(index, model_of(10, batches))


def test_aborted_records_are_left_out_and_overlapping_ranges_do_no_harm(
    fs: MemoryFileSystem,
) -> None:
    batches = [
        build_batch(PAIR, base_offset=10 + 2 * at, producer_id=at % 2 + 1, transactional=True)
        for at in range(8)
    ]
    aborted = [
        AbortedTransaction(1, 10, 22, 10),
        AbortedTransaction(1, 14, 15, 14),
        AbortedTransaction(2, 24, 30, 24),
    ]
    _build(fs, batches, aborted)


def test_control_batches_no_broker_writes_are_read(fs: MemoryFileSystem) -> None:
    commit = Record(b"\0\0\0\1", b"\0\0\0\0\0\0")
    batches = [
        build_batch([commit, commit], base_offset=10, control=True),
        build_batch([commit], base_offset=12, control=True, codec=Codec.GZIP),
        build_batch([Record(b"\0\0\0\x09", b"")], base_offset=13, control=True),
    ]
    _build(fs, batches)


def test_a_negative_control_type_reads_as_unknown(fs: MemoryFileSystem) -> None:
    batch = build_batch([Record(b"\0\0\xff\xfe", b"")], base_offset=10, control=True)
    segment = write_segment(fs, 10, [batch])
    build_key_index(fs, segment, topic_id=TOPIC_ID, aborted=[])
    index = open_key_index(fs, segment, topic_id=TOPIC_ID)
    assert index is not None
    assert index.marks()["control"].tolist() == [2**15 - 1]


def test_a_control_record_without_a_type_is_corrupt(fs: MemoryFileSystem) -> None:
    batch = build_batch([Record(b"\0", b"")], base_offset=10, control=True)
    with pytest.raises(Corrupt, match="position 0: control record"):
        _build(fs, [batch])


@pytest.mark.parametrize(
    ("bases", "position", "problem"),
    [((9,), 0, "offset that repeats"), ((10, 11), 1, "repeats"), ((10, 9), 1, "repeats")],
)
def test_offsets_that_do_not_ascend_are_corrupt(
    fs: MemoryFileSystem, bases: tuple[int, ...], position: int, problem: str
) -> None:
    batches = [build_batch(PAIR, base_offset=base) for base in bases]
    at = position * len(batches[0])
    with pytest.raises(Corrupt, match=f"batch at position {at}: .*{problem}"):
        _build(fs, batches)


def test_offsets_beyond_32_bits_ask_for_a_split(fs: MemoryFileSystem) -> None:
    with pytest.raises(OffsetOverflow, match="split"):
        _build(fs, [build_batch(PAIR, base_offset=10 + 2**31 - 1)])


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("count", [-1, 1, 3, 2**31 - 1])
def test_a_count_that_the_records_belie_is_corrupt(
    fs: MemoryFileSystem, codec: Codec, count: int
) -> None:
    data = bytearray(build_batch(PAIR, base_offset=10, codec=codec, last_offset_delta=9))
    data[57:61] = count.to_bytes(4, "big", signed=True)
    segment = write_segment(fs, 10, [bytes(data)])
    with pytest.raises(Corrupt, match="batch at position 0"):
        _builder(fs, segment).add(_table(bytes(data)))


@pytest.mark.parametrize("codec", [1, 2, 3, 4, 5, 7])
def test_a_payload_that_does_not_decompress_is_corrupt(fs: MemoryFileSystem, codec: int) -> None:
    data = bytearray(build_batch(PAIR, base_offset=10))
    data[22] |= codec
    segment = write_segment(fs, 10, [bytes(data)])
    with pytest.raises(Corrupt, match="position 0"):
        _builder(fs, segment).add(_table(bytes(data)))


def test_a_gap_between_chunks_is_refused(fs: MemoryFileSystem) -> None:
    segment = write_segment(fs, 10, [])
    builder = _builder(fs, segment)
    batch = build_batch(PAIR, base_offset=10)
    with pytest.raises(Corrupt, match="gap"):
        builder.add(_table(batch, start=1))


def test_an_index_of_less_than_the_data_file_is_refused(fs: MemoryFileSystem) -> None:
    batch = build_batch(PAIR, base_offset=10)
    segment = write_segment(fs, 10, [batch, b"\0"])
    with pytest.raises(Corrupt, match="batches end at position"):
        build_key_index(fs, segment, topic_id=TOPIC_ID, aborted=[])
    assert fs.names(DIRECTORY) == [log_name(10, LOG)]


def test_a_wrong_crc_is_corrupt(fs: MemoryFileSystem) -> None:
    batches = [bytearray(build_batch(PAIR, base_offset=at)) for at in (10, 12)]
    batches[1][-1] ^= 1
    with pytest.raises(Corrupt, match="CRC"):
        _build(fs, [bytes(batch) for batch in batches])


def test_an_old_message_format_is_not_read(fs: MemoryFileSystem) -> None:
    data = bytearray(build_batch(PAIR, base_offset=10))
    data[16] = 1
    with pytest.raises(UnsupportedFormat):
        _build(fs, [bytes(data)])


def test_the_budget_is_charged_for_every_byte_and_may_stop_the_build(fs: MemoryFileSystem) -> None:
    batches = [build_batch(PAIR, base_offset=10 + 2 * at) for at in range(9_000)]
    segment = write_segment(fs, 10, batches)
    spent: list[int] = []

    class Ledger(WorkBudget):
        def spend(self, size: int) -> None:
            spent.append(size)

    build_key_index(fs, segment, topic_id=TOPIC_ID, aborted=[], budget=Ledger())
    assert len(spent) > 1
    assert sum(spent) == segment.size
    fs.remove(segment.path(KEYS))

    class Stopped(WorkBudget):
        def spend(self, size: int) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_key_index(
            fs, segment, topic_id=TOPIC_ID, aborted=[], buffer_bytes=1 << 12, budget=Stopped()
        )
    assert fs.names(DIRECTORY) == [log_name(10, LOG)]


def test_discard_removes_what_lies_aside(fs: MemoryFileSystem) -> None:
    segment = write_segment(fs, 10, [])
    builder = _builder(fs, segment, buffer_bytes=64)
    builder.add(_table(build_batch(RECORDS, base_offset=10)))
    assert len(fs.names(DIRECTORY)) == 2
    builder.discard()
    builder.discard()
    assert fs.names(DIRECTORY) == [log_name(10, LOG)]


def test_memory_stays_within_its_bound_for_tables_too(fs: MemoryFileSystem) -> None:
    marker = [
        end_transaction_marker(
            committed=True,
            producer_id=1,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=0,
            base_offset=10 + at,
        )
        for at in range(500)
    ]
    segment = write_segment(fs, 10, marker)
    builder = _builder(fs, segment, buffer_bytes=1 << 12)
    for at, batch in enumerate(marker):
        builder.add(_table(batch, start=at * len(batch)))
    assert fs.info(segment.path(KEYS) + ".run").size > 20_000
    builder.finish(segment.size)
    index = open_key_index(fs, segment, topic_id=TOPIC_ID)
    assert index is not None
    check_index(index, model_of(10, marker))


# A stored batch whose attributes name no codec is damage, also where it is rewritten


@pytest.mark.parametrize("number", [5, 6, 7])
def test_a_rewrite_refuses_an_unknown_codec(number: int) -> None:
    batch = np.zeros(HEADER_BYTES + 20, np.uint8)
    batch[ATTRIBUTES_AT + 1] = number
    with pytest.raises(Corrupt, match=f"orders-0: codec number {number} is unknown"):
        filter_compressed(
            batch,
            horizon=KEEP_TIMESTAMP,
            keep=np.zeros(1, np.uint8),
            first_bit=0,
            where="orders-0",
        )


@pytest.mark.parametrize("count", [-1, 3, (1 << 31) - 1])
def test_a_filter_takes_no_memory_for_records_that_the_content_cannot_hold(count: int) -> None:
    batch = np.frombuffer(
        bytearray(build_batch([Record(b"", b"")] * 2, codec=Codec.ZSTD)), np.uint8
    )
    batch[HEADER_BYTES - 4 : HEADER_BYTES] = np.frombuffer(count.to_bytes(4, signed=True), np.uint8)
    with pytest.raises(Corrupt, match=f"orders-0: the batch has {count} records in "):
        filter_compressed(
            batch,
            horizon=KEEP_TIMESTAMP,
            keep=np.zeros(1, np.uint8),
            first_bit=0,
            where="orders-0",
        )


# More keys than the planning memory holds: one run still finds the latest of each. G4


KEY_COUNT = 9000


@pytest.mark.parametrize("buffer_bytes", [80_000, 300_000, 128 << 20])
def test_g4_memory_does_not_bound_the_number_of_keys(buffer_bytes: int) -> None:
    bench = CleaningBench(
        compacted(segment_bytes=60_000),
        cleaner_settings=CleanerSettings(log_cleaner_dedupe_buffer_size=buffer_bytes),
    )
    for start in range(0, 2 * KEY_COUNT, 1000):
        # Every key twice, the second time in another order and every tenth as a tombstone.
        records = [
            Record(
                b"key-%d" % (number * 7 % KEY_COUNT),
                None if number > KEY_COUNT and number % 10 == 0 else b"value %d" % number,
                timestamp=bench.now_ms,
            )
            for number in range(start, start + 1000)
        ]
        bench.append(records, codec=Codec.ZSTD if start % 3000 == 0 else Codec.NONE)
    bench.roll()
    assert len(bench.log.view) > 4
    foretold = foretell(bench)
    check_exact(bench, foretold, bench.clean())
    assert len(bench.offsets()) == KEY_COUNT
