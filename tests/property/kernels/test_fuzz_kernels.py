"""Mutated batches through scan, inspection and parse: named answers, from their own bytes alone.

Each mutant is laid twice between guard bytes, once between zeros and once between ones; whoever
reads a guard byte gives two answers. VARVE_FUZZ_COUNT says how many mutants (default 100,000).
"""

import os
import struct

import numpy as np
import pytest

from tests.support.record_bytes import sized, varint
from varve.kernels.batch_layout import (
    NO_LOG_APPEND_TIMESTAMP,
    InspectionColumn,
    RecordColumn,
    RecordStatus,
    ScanStatus,
)
from varve.kernels.batch_scan import batch_table, inspect_batch, inspection_row, scan_batches
from varve.kernels.crc import crc32c
from varve.kernels.memory import Bytes
from varve.kernels.record_parse import Table, parse_records, record_table

MUTANT_COUNT = int(os.environ.get("VARVE_FUZZ_COUNT", "100000"))
CHUNK = 1_000
GUARD = 96
UNTOUCHED = -77
HEADER = 61
SCAN_ROWS = 3
TELLING = np.array([0, 1, 2, 3, 0x7F, 0x80, 0x81, 0xFE, 0xFF], np.uint8)
LENGTH_AT, COUNT_AT = 8, 57
TELLING_INT32 = [-(1 << 31), -1, 0, 1, 7, 13, 14, 48, 49, 50, 100, 0x7FFFFFF3, 0x7FFFFFFF]


def _record(index: int, key_size: int, value_size: int, header_count: int) -> bytes:
    body = b"\0" + varint(index * 97 - 300) + varint(index)
    body += varint(key_size) + b"k" * key_size + varint(value_size) + b"v" * value_size
    body += varint(header_count) + b"\x04hh\x06xyz" * header_count
    return sized(body)


def _batch(attributes: int, records: list[bytes]) -> bytes:
    count = len(records)
    tail = struct.pack(">hiqqqhii", attributes, count - 1, 1_000, 2_000, 9, 1, 5, count)
    tail += b"".join(records)
    checksum = crc32c(np.frombuffer(tail, np.uint8), 0, len(tail))
    return struct.pack(">qiibI", 1 << 33, len(tail) + 9, 3, 2, checksum) + tail


SEEDS = [
    _batch(0, [_record(0, 4, 10, 0)]),
    _batch(0, [_record(i, 3, 5, 0) for i in range(8)]),
    _batch(0, [_record(i, -1, -1, 0) for i in range(5)]),
    _batch(8, [_record(i, 0, 70, i) for i in range(4)]),
    _batch(0x10, [_record(i, 16, 100, 2) for i in range(2)]),
    _batch(0x30, [_record(0, 4, 6, 0)]),
    _batch(4, [b"\x28\xb5\x2f\xfd" + bytes(40)]),
    _batch(0, []),
    _batch(0, [_record(0, 4, 10, 0)]) + _batch(0, []) + _batch(0, [_record(0, 1, 1, 1)]),
]


def _mutate(seed: bytes, rng: np.random.Generator) -> Bytes:
    """CHUNK damaged copies of the seed, one per row."""
    rows = np.tile(np.frombuffer(seed, np.uint8), (CHUNK, 1))
    size = len(seed)
    every = np.arange(CHUNK)
    for edit in range(4):
        chosen = every[rng.integers(0, 4, CHUNK) >= edit]
        # Three quarters of the damage goes behind the header, where there is more to get wrong.
        behind_header = rng.integers(0, 4, chosen.size) > 0
        first = np.where(behind_header & (size > HEADER), HEADER, 0)
        position = first + (rng.random(chosen.size) * (size - first)).astype(np.int64)
        noise = rng.integers(0, 256, chosen.size, dtype=np.uint8)
        telling = TELLING[rng.integers(0, TELLING.size, chosen.size)]
        flipped = rows[chosen, position] ^ (
            np.uint8(1) << rng.integers(0, 8, chosen.size, np.uint8)
        )
        kind = rng.integers(0, 3, chosen.size)
        rows[chosen, position] = np.choose(kind, [noise, telling, flipped])
    # Bytes with the high bit set in a row make variable-length integers that do not end.
    run_start = rng.integers(0, size, CHUNK)[:, None]
    run_size = np.where(rng.integers(0, 8, CHUNK) == 0, rng.integers(1, 14, CHUNK), 0)[:, None]
    column = np.arange(size)
    rows[(column >= run_start) & (column < run_start + run_size)] |= 0x80
    for at in (LENGTH_AT, COUNT_AT):
        chosen = every[rng.integers(0, 16, CHUNK) == 0]
        values = rng.choice(TELLING_INT32, chosen.size).astype(">i4")
        rows[chosen, at : at + 4] = values.view(np.uint8).reshape(-1, 4)
    return rows


class Answers:
    """What the kernels say of a chunk of mutants between guards of one kind."""

    def __init__(self, seed_size: int) -> None:
        self.statuses = np.full((CHUNK, 6), UNTOUCHED, np.int64)
        self.inspected = np.full((CHUNK, inspection_row().size), UNTOUCHED, np.int64)
        self.scanned = np.full((CHUNK, *batch_table(SCAN_ROWS).shape), UNTOUCHED, np.int64)
        self.parsed = np.full((CHUNK, *record_table(seed_size // 7).shape), UNTOUCHED, np.int64)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Answers) and all(
            np.array_equal(mine, theirs)
            for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True)
        )


def _ask(arena: Bytes, starts: list[int], ends: list[int], counts: list[int], size: int) -> Answers:
    answers = Answers(size)
    statuses: list[tuple[int, ...]] = []
    targets = zip(answers.inspected, answers.scanned, answers.parsed, strict=True)
    mutants = zip(starts, ends, counts, targets, strict=True)
    for index, (start, end, count, (inspected, scanned, parsed)) in enumerate(mutants):
        inspect_status = inspect_batch(arena, start, end, inspected)
        listed = scan_batches(arena, start, end, index % 4 < 2, scanned)
        records = min(start + HEADER, end)
        read = parse_records(
            arena, records, end, count, 1 << 33, 1_000, NO_LOG_APPEND_TIMESTAMP, parsed
        )
        statuses.append((inspect_status, *listed, *read))
    answers.statuses[:] = statuses
    return answers


def _repair_checksums(flat: Bytes, starts: list[int], ends: list[int]) -> None:
    """Every second mutant gets the CRC of its bytes, so that its records are walked too."""
    for start, end in zip(starts[::2], ends[::2], strict=True):
        if end - start >= HEADER:
            length = int.from_bytes(flat[start + 8 : start + 12].tobytes(), "big", signed=True)
            batch_end = min(max(start + 12 + length, start + 21), end)
            checksum = crc32c(flat, start + 21, batch_end)
            flat[start + 17 : start + 21] = np.frombuffer(struct.pack(">I", checksum), np.uint8)


def _check_bounds(answers: Answers, starts: Table, ends: Table) -> None:
    """All answers are named, and whatever they point at lies inside the mutant."""
    inspect_status, listed, position, scan_status, parse_status, filled = answers.statuses.T
    assert set(inspect_status) | set(scan_status) <= set(ScanStatus)
    assert set(parse_status) <= set(RecordStatus)
    assert set(answers.inspected[inspect_status == 0, InspectionColumn.RECORDS_STATUS]) <= set(
        RecordStatus
    )
    assert ((position >= starts) & (position <= ends)).all()
    assert ((listed >= 0) & (listed <= SCAN_ROWS)).all()
    good = parse_status == RecordStatus.OK
    rows = answers.parsed[good]
    used = np.arange(rows.shape[1]) < filled[good][:, None]
    low = np.broadcast_to(starts[good][:, None], used.shape)[used]
    high = np.broadcast_to(ends[good][:, None], used.shape)[used]
    columns = rows[used].T
    for start_field, size_field in (
        (RecordColumn.KEY_START, RecordColumn.KEY_SIZE),
        (RecordColumn.VALUE_START, RecordColumn.VALUE_SIZE),
    ):
        begin, size = columns[start_field], columns[size_field]
        assert ((begin >= low) & (size >= -1) & (begin + np.maximum(size, 0) <= high)).all()
    assert (columns[RecordColumn.RECORD_START] >= low).all()
    assert (columns[RecordColumn.RECORD_END] <= high).all()
    assert (columns[RecordColumn.HEADERS_START] <= columns[RecordColumn.RECORD_END]).all()


def _fuzz_chunk(seed: bytes, rng: np.random.Generator) -> Answers:
    size = len(seed)
    width = size + 2 * GUARD
    inside = slice(GUARD, GUARD + size)
    starts = np.arange(CHUNK) * width + GUARD
    # A quarter of the mutants is cut short as well; the bytes cut off become guard bytes.
    is_cut = rng.integers(0, 4, CHUNK) == 0
    sizes = np.where(is_cut, rng.integers(0, size, CHUNK), size)
    ends = starts + sizes
    bounds = starts.tolist(), ends.tolist()
    arena = np.zeros((CHUNK, width), np.uint8)
    arena[:, inside] = _mutate(seed, rng)
    _repair_checksums(arena.reshape(-1), *bounds)
    counts = arena[:, inside][:, COUNT_AT : COUNT_AT + 4].copy().view(">i4").ravel().tolist()
    is_mutant = np.zeros((CHUNK, width), bool)
    is_mutant[:, inside] = np.arange(size) < sizes[:, None]
    between_zeros = np.where(is_mutant, arena, 0).astype(np.uint8).reshape(-1)
    between_ones = np.where(is_mutant, arena, 255).astype(np.uint8).reshape(-1)
    answers = _ask(between_zeros, *bounds, counts, size)
    assert answers == _ask(between_ones, *bounds, counts, size)
    _check_bounds(answers, starts, ends)
    return answers


@pytest.mark.timeout(1_800)
def test_mutated_batches_get_named_answers_from_their_own_bytes_alone() -> None:
    seen: set[tuple[str, int]] = set()
    for chunk in range(-(-MUTANT_COUNT // CHUNK)):
        rng = np.random.default_rng([22, chunk])
        answers = _fuzz_chunk(SEEDS[chunk % len(SEEDS)], rng)
        seen |= {("scan", status) for status in set(answers.statuses[:, 3].tolist())}
        seen |= {("parse", status) for status in set(answers.statuses[:, 4].tolist())}
    if MUTANT_COUNT >= 100_000:
        # Otherwise the mutations would have become too tame to prove anything.
        not_by_parse = {RecordStatus.NOT_PARSED, RecordStatus.OFFSET_DELTA}
        assert {("scan", int(status)) for status in set(ScanStatus) - {ScanStatus.FULL}} <= seen
        assert {("parse", int(status)) for status in set(RecordStatus) - not_by_parse} <= seen


def test_guard_bytes_show_a_reader_that_is_one_byte_too_greedy() -> None:
    seed = SEEDS[0]
    checksums = set()
    for guard in (0, 255):
        arena = np.full(len(seed) + 1, guard, np.uint8)
        arena[: len(seed)] = np.frombuffer(seed, np.uint8)
        checksums.add(crc32c(arena, 21, arena.size))
    assert len(checksums) == 2
