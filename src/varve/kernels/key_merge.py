"""Finds the latest record of each key over the key entries of many segments.

The entries of a segment are sorted by hash (docs/reference/formats/keys.md). The merge walks narrow
ranges of hashes; in each it enters the entries of all segments, newest first, into a hash table
that fits the CPU's cache: the first entry of a hash is the latest, all others are superseded.

Invariant  entries are compared by all 128 bits of their hash. Bits are set only for records that
           the segments have; nothing outside the bitmaps is written.
"""

from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from varve.kernels.compile import as_int, inlined, kernel
from varve.kernels.key_entries import mix_entry

Entries = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint8]

_RANGE_ENTRIES = 2048
"""Entries per range on average: their table of 128 KiB fits the second-level cache."""
# States of a slot of the table.
_FREE, _VALUE, _TOMBSTONE = 0, 1, 2
_FLAG_TOMBSTONE = np.uint64(1)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ONE = np.uint64(1)


class Tally(IntEnum):
    """Columns of the counts of a merge, one row per segment; the digests wrap around."""

    KEPT = 0
    KEPT_BYTES = 1
    SUPERSEDED = 2
    SUPERSEDED_BYTES = 3
    EXPIRED = 4
    """Tombstones past their delete horizon that are the latest of their key."""
    EXPIRED_BYTES = 5
    DELETED = 6
    """Superseded records whose key has a tombstone as its latest record."""
    TOMBSTONES = 7
    """Kept records without a value."""
    DIGEST_HIGH = 8
    DIGEST_LOW = 9


TALLY_COUNT = len(Tally)


@inlined
def _has_bit(bits: Bits, number: int) -> bool:
    return as_int(bits[number >> 3]) >> (number & 7) & 1 != 0


@inlined
def _set_bit(bits: Bits, number: int) -> None:
    bits[number >> 3] |= np.uint8(1) << np.uint8(number & 7)


@kernel
def _find_end(entries: Entries, start: int, end: int, limit: Any) -> int:
    """The first entry in [start, end) with a high word of at least `limit`, by galloping."""
    step = 8
    while start + step < end and entries[start + step, 0] < limit:
        start += step
        step *= 2
    end = min(end, start + step)
    while start < end:
        middle = (start + end) >> 1
        if entries[middle, 0] < limit:
            start = middle + 1
        else:
            end = middle
    return start


@kernel
def merge_latest(
    entries: Entries,
    bounds: Integers,
    low: Any,
    high: Any,
    base_offsets: Integers,
    record_counts: Integers,
    bit_starts: Integers,
    expired: Bits,
    keep: Bits,
    tombstones: Bits,
    tallies: Integers,
) -> int:
    """Merges the entries of one range of hashes, entries[bounds[s]:bounds[s + 1]] for segment s.

    Segments are numbered from the oldest on. `low` and `high` (np.uint64, both included) enclose
    all high words. Record r of segment s is bit `bit_starts[s] + r` of the three bitmaps: `expired`
    marks the records of batches past their delete horizon, `keep` gets the latest records,
    `tombstones` those of them without a value. The counts are added to `tallies`. Returns the
    number of a segment with an entry for a record that it does not have, or -1.
    """
    count = len(base_offsets)
    if len(bounds) != count + 1 or len(record_counts) != count or len(bit_starts) != count:
        raise IndexError("the columns of segments differ in length")
    if tallies.shape[0] < count or tallies.shape[1] < TALLY_COUNT:
        raise IndexError("tallies has too few rows or columns")
    if entries.shape[1] != 4:
        raise IndexError("an entry has four words")
    bit_count = min(len(expired), len(keep), len(tombstones)) * 8
    for s in range(count):
        if bounds[s] < 0 or bounds[s] > bounds[s + 1] or bounds[s + 1] > entries.shape[0]:
            raise IndexError("a segment's entries lie outside the table")
        if bit_starts[s] < 0 or record_counts[s] < 0 or record_counts[s] > bit_count:
            raise IndexError("a segment's bits lie outside the bitmaps")
        if bit_starts[s] > bit_count - record_counts[s]:
            raise IndexError("a segment's bits lie outside the bitmaps")
    cursors = bounds[:-1].copy()
    ends = np.empty(count, np.int64)
    total = bounds[count] - bounds[0]
    steps = np.uint64(max(total // _RANGE_ENTRIES, 1))
    width = max((high - low) // steps, _ONE)
    capacity = 4 * _RANGE_ENTRIES
    table = np.empty((capacity, 2), np.uint64)
    state = np.zeros(capacity, np.uint8)
    start = low
    while True:
        is_last = high - start <= width
        limit = high if is_last else start + width
        entry_count = 0
        for s in range(count):
            if is_last:
                ends[s] = bounds[s + 1]
            else:
                ends[s] = _find_end(entries, cursors[s], bounds[s + 1], limit)
            entry_count += ends[s] - cursors[s]
        if 2 * entry_count > capacity:
            while 2 * entry_count > capacity:
                capacity *= 2
            table = np.empty((capacity, 2), np.uint64)
            state = np.zeros(capacity, np.uint8)
        else:
            state[:] = 0
        mask = np.uint64(capacity - 1)
        for back in range(count):
            s = count - 1 - back
            tally = tallies[s]
            for i in range(cursors[s], ends[s]):
                hash_high, hash_low = entries[i, 0], entries[i, 1]
                offset_and_record, size_and_flags = entries[i, 2], entries[i, 3]
                record = np.int64(offset_and_record >> _HALF)
                if record >= record_counts[s]:
                    return s
                size = np.int64(size_and_flags & _LOW)
                is_tombstone = (size_and_flags >> _HALF) & _FLAG_TOMBSTONE
                slot = np.int64(hash_low & mask)
                while state[slot] != _FREE and (
                    table[slot, 0] != hash_high or table[slot, 1] != hash_low
                ):
                    slot = np.int64(np.uint64(slot + 1) & mask)
                if state[slot] != _FREE:
                    tally[Tally.SUPERSEDED] += 1
                    tally[Tally.SUPERSEDED_BYTES] += size
                    tally[Tally.DELETED] += np.int64(state[slot] == _TOMBSTONE)
                    continue
                table[slot, 0] = hash_high
                table[slot, 1] = hash_low
                state[slot] = _TOMBSTONE if is_tombstone else _VALUE
                bit = bit_starts[s] + record
                if is_tombstone:
                    if _has_bit(expired, bit):
                        tally[Tally.EXPIRED] += 1
                        tally[Tally.EXPIRED_BYTES] += size
                        continue
                    _set_bit(tombstones, bit)
                    tally[Tally.TOMBSTONES] += 1
                _set_bit(keep, bit)
                tally[Tally.KEPT] += 1
                tally[Tally.KEPT_BYTES] += size
                offset = np.uint64(base_offsets[s]) + (offset_and_record & _LOW)
                first, second = mix_entry(hash_high, hash_low, offset)
                tally[Tally.DIGEST_HIGH] += np.int64(first)
                tally[Tally.DIGEST_LOW] += np.int64(second)
        for s in range(count):
            cursors[s] = ends[s]
        if is_last:
            return -1
        start = limit


@kernel
def count_bits(bits: Bits, start: int, counts: Integers, out: Integers) -> None:
    """Counts the set bits in each of consecutive groups of `counts` bits, from `start` on."""
    if len(out) < len(counts):
        raise IndexError("out is shorter than counts")
    at = start
    for index in range(len(counts)):
        end = at + counts[index]
        if at < 0 or end < at or end > len(bits) * 8:
            raise IndexError("a group lies outside the bits")
        bit_count = 0
        while at < end and at & 7:
            bit_count += as_int(_has_bit(bits, at))
            at += 1
        while end - at >= 8:
            byte = bits[at >> 3]
            byte = byte - ((byte >> np.uint8(1)) & np.uint8(0x55))
            byte = (byte & np.uint8(0x33)) + ((byte >> np.uint8(2)) & np.uint8(0x33))
            bit_count += as_int((byte + (byte >> np.uint8(4))) & np.uint8(0x0F))
            at += 8
        while at < end:
            bit_count += as_int(_has_bit(bits, at))
            at += 1
        out[index] = bit_count


@kernel
def set_ranges(bits: Bits, starts: Integers, counts: Integers) -> None:
    """Sets `counts[i]` bits from `starts[i]` on, for each i."""
    if len(starts) != len(counts):
        raise IndexError("starts and counts differ in length")
    for index in range(len(starts)):
        start, end = starts[index], starts[index] + counts[index]
        if start < 0 or end < start or end > len(bits) * 8:
            raise IndexError("a range lies outside the bits")
        for number in range(start, end):
            _set_bit(bits, number)


def warm() -> None:
    """Compile for the argument types in use."""
    bits = np.zeros(1, np.uint8)
    one = np.zeros(1, np.int64)
    merge_latest(
        np.zeros((1, 4), np.uint64),
        np.array([0, 1], np.int64),
        np.uint64(0),
        np.uint64(2**64 - 1),
        one,
        one + 1,
        one,
        bits,
        bits.copy(),
        bits.copy(),
        np.zeros((1, TALLY_COUNT), np.int64),
    )
    count_bits(bits, 0, one, one.copy())
    set_ranges(bits, one, one)
