"""The fused key scan says of any bytes what parsing and hashing say, and reads no others.

Each mutant lies once between zeros and once between ones: whoever reads a guard byte gives two
answers.
"""

import os
import random

import numpy as np
import numpy.typing as npt

from varve.kernels.batch_layout import NO_LOG_APPEND_TIMESTAMP, RecordColumn, RecordStatus
from varve.kernels.hashes import hash_keys
from varve.kernels.key_entries import scan_payload_keys
from varve.kernels.record_parse import parse_records, record_table
from varve.records import Record, build_batch

MUTANT_COUNT = int(os.environ.get("VARVE_FUZZ_COUNT", "100000")) // 20
GUARD = 32
SECRET = (np.uint64(3), np.uint64(4))
HEADER = 61
OFFSET_SPAN = 1 << 31
TELLING = [0, 1, 2, 3, 0x7F, 0x80, 0x81, 0xFE, 0xFF]


def _records(chooser: random.Random) -> list[Record]:
    return [
        Record(
            key=chooser.choice([None, b"", b"k" * chooser.randrange(1, 40)]),
            value=chooser.choice([None, b"", b"v" * chooser.randrange(200)]),
            headers=chooser.choice([(), (("h", b"x"), ("", None))]),
            timestamp=chooser.randrange(1 << 45),
        )
        for _ in range(chooser.randrange(1, 6))
    ]


def _mutate(data: bytearray, chooser: random.Random) -> bytearray:
    for _ in range(chooser.randrange(4)):
        at = chooser.randrange(len(data))
        data[at] = chooser.choice([chooser.choice(TELLING), data[at] ^ 1 << chooser.randrange(8)])
    if chooser.random() < 0.1:
        at = chooser.randrange(len(data))
        for place in range(at, min(at + chooser.randrange(1, 13), len(data))):
            data[place] |= 0x80
    return data[: chooser.randrange(len(data) + 1)] if chooser.random() < 0.15 else data


def _scan(payload: bytearray, count: int, guard: int) -> tuple[list[list[int]], tuple[int, ...]]:
    arena = np.full(len(payload) + 2 * GUARD, guard, np.uint8)
    arena[GUARD : GUARD + len(payload)] = np.frombuffer(payload, np.uint8)
    out = np.empty((max(count, 0) + 1, 4), np.uint64)
    entries, nulls, status, position, index, _ = scan_payload_keys(
        arena, GUARD, GUARD + len(payload), 0, count, -1, OFFSET_SPAN, 0, 0, *SECRET, out
    )
    return out[:entries].tolist(), (nulls, status, position - GUARD, index)


def _expected(
    payload: npt.NDArray[np.uint8], count: int
) -> tuple[list[list[int]], tuple[int, ...]]:
    table = record_table(max(count, 0))
    status, filled = parse_records(
        payload, 0, payload.size, count, 0, 0, NO_LOG_APPEND_TIMESTAMP, table
    )
    hashes = np.empty((filled, 2), np.uint64)
    hash_keys(payload, table[:filled], *SECRET, hashes)
    entries: list[list[int]] = []
    nulls, position, previous = 0, 0, -1
    for index, row in enumerate(table[:filled].tolist()):
        delta = row[RecordColumn.OFFSET]
        if not previous < delta:
            return entries, (nulls, RecordStatus.OFFSET_DELTA, position, index)
        size = row[RecordColumn.RECORD_END] - row[RecordColumn.RECORD_START]
        if row[RecordColumn.KEY_SIZE] < 0:
            nulls += 1
        else:
            flags = int(row[RecordColumn.VALUE_SIZE] < 0)
            high, low = hashes[index].tolist()
            entries.append([high, low, delta | index << 32, size | flags << 32])
        position, previous = row[RecordColumn.RECORD_END], delta
    return entries, (nulls, status, position, filled)


def test_any_bytes_are_scanned_as_they_are_parsed() -> None:
    seen = set()
    chooser = random.Random(5)
    for _ in range(MUTANT_COUNT):
        records = _records(chooser)
        data = _mutate(bytearray(build_batch(records)[HEADER:]), chooser)
        count = chooser.choice([len(records)] * 20 + [-1, 0, 1, 1000])
        expected = _expected(np.frombuffer(data, np.uint8), count)
        assert _scan(data, count, 0) == expected
        assert _scan(data, count, 255) == expected
        seen.add(expected[1][1])
    if MUTANT_COUNT >= 5_000:
        # Otherwise the mutations would have become too tame to prove anything.
        assert seen == set(RecordStatus) - {RecordStatus.NOT_PARSED}
