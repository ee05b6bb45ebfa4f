"""Sorts key entries by their hash and keeps the latest of each. docs/reference/formats/keys.md

Hashes are uniform, so their top bits distribute the entries over buckets that fit the CPU's cache,
and the bits below over cells of a few entries, which are sorted by insertion. A cell that crafted
keys make large is sorted by merging: no input takes more than n log n steps.

Invariant  the sort is stable. Entries come in the order of their offsets, so the last of equal
           hashes is the latest. Nothing outside the two arrays is read or written.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from varve.kernels.compile import as_int, inlined, kernel
from varve.kernels.key_entries import ENTRY_WORDS, Entries
from varve.kernels.memory import address_of, copy_bytes, load_u64_at

Counts = npt.NDArray[np.int64]

ENTRY_BYTES = 8 * ENTRY_WORDS
_BUCKET_BITS = 11
"""Buckets of about 2^11 entries, 64 KiB, fit the CPU's second-level cache."""
_BUCKET_BITS_MAX = 12
"""More buckets than 2^12 would exceed the entries of the TLB."""
_CELL_BITS_MAX = 13
_CELL_DISTINCT_MAX = 40
"""Different hashes in a cell up to which insertion is used; uniform hashes never reach it."""


@inlined
def copy_entry(target: int, source: int) -> None:
    copy_bytes(target, source, ENTRY_BYTES)


@inlined
def _bits_of(count: int) -> int:
    """The number of bits needed for numbers below `count`."""
    bits = 0
    while (1 << bits) < count:
        bits += 1
    return bits


@inlined
def _is_above(first: int, second: int) -> bool:
    """Whether the hash at address `first` is larger than that at `second`."""
    high, other_high = load_u64_at(first), load_u64_at(second)
    if high != other_high:
        return bool(high > other_high)
    return bool(load_u64_at(first + 8) > load_u64_at(second + 8))


@inlined
def _is_same(first: int, second: int) -> bool:
    return bool(
        load_u64_at(first) == load_u64_at(second)
        and load_u64_at(first + 8) == load_u64_at(second + 8)
    )


@inlined
def _distribute(
    source: int, count: int, target: int, skipped_bits: int, bits: int, ends: Counts
) -> None:
    """Copies entries into 2^bits cells by the hash bits after `skipped_bits`, in their order.

    Afterwards ends[i] is the end of cell i, counted in entries from `target`.
    """
    cells = 1 << bits
    left, right = np.uint64(skipped_bits), np.uint64(64 - bits)
    for cell in range(cells):
        ends[cell] = 0
    at = source
    for _ in range(count):
        ends[as_int((load_u64_at(at) << left) >> right)] += 1
        at += ENTRY_BYTES
    total = 0
    for cell in range(cells):
        size = ends[cell]
        ends[cell] = total
        total += size
    at = source
    for _ in range(count):
        cell = as_int((load_u64_at(at) << left) >> right)
        copy_entry(target + ends[cell] * ENTRY_BYTES, at)
        ends[cell] += 1
        at += ENTRY_BYTES


@kernel
def _merge_runs(first: int, count: int, spare: int) -> None:
    """Merge-sorts `count` entries at an address, stably; `spare` has room for as many."""
    width = 1
    source, target = first, spare
    while width < count:
        for left in range(0, count, 2 * width):
            middle, right = min(left + width, count), min(left + 2 * width, count)
            a, a_end = source + left * ENTRY_BYTES, source + middle * ENTRY_BYTES
            b, b_end = a_end, source + right * ENTRY_BYTES
            out = target + left * ENTRY_BYTES
            while a < a_end or b < b_end:
                if b == b_end or (a < a_end and not _is_above(a, b)):
                    copy_entry(out, a)
                    a += ENTRY_BYTES
                else:
                    copy_entry(out, b)
                    b += ENTRY_BYTES
                out += ENTRY_BYTES
        source, target = target, source
        width *= 2
    if source != first:
        for at in range(0, count * ENTRY_BYTES, ENTRY_BYTES):
            copy_entry(first + at, source + at)


@kernel
def _merge_cell(out: int, out_end: int, at: int, end: int, spare: int) -> int:
    """Finishes a cell of many different hashes by merging; returns the address after its entries.

    Entries in [out, out_end) are sorted already, those in [at, end) are not; `spare` has room for
    all of them.
    """
    first = at - (out_end - out)
    source, target = out_end, at
    while target > first:
        source -= ENTRY_BYTES
        target -= ENTRY_BYTES
        if source != target:
            copy_entry(target, source)
    _merge_runs(first, (end - first) // ENTRY_BYTES, spare)
    last = out - ENTRY_BYTES
    for entry in range(first, end, ENTRY_BYTES):
        if last < out or not _is_same(last, entry):
            last += ENTRY_BYTES
        if last != entry:
            copy_entry(last, entry)
    return last + ENTRY_BYTES


@inlined
def _sort_cell(out: int, at: int, end: int, spare: int) -> int:
    """Sorts the entries [at, end) of a cell to `out`; a later entry replaces one of its hash.

    Returns the address after the last entry written.
    """
    out_end = out
    while at < end:
        if out_end - out > _CELL_DISTINCT_MAX * ENTRY_BYTES:
            return _merge_cell(out, out_end, at, end, spare)
        high, low = load_u64_at(at), load_u64_at(at + 8)
        slot = out_end
        is_new = True
        while slot > out:
            other = load_u64_at(slot - ENTRY_BYTES)
            if other < high:
                break
            if other == high:
                other_low = load_u64_at(slot - ENTRY_BYTES + 8)
                if other_low < low:
                    break
                if other_low == low:
                    is_new = False
                    slot -= ENTRY_BYTES
                    break
            slot -= ENTRY_BYTES
        if not is_new:
            copy_entry(slot, at)
        elif slot == out_end:
            if out_end != at:
                copy_entry(out_end, at)
            out_end += ENTRY_BYTES
        else:
            copy_entry(spare, at)
            move = out_end
            while move > slot:
                copy_entry(move, move - ENTRY_BYTES)
                move -= ENTRY_BYTES
            copy_entry(slot, spare)
            out_end += ENTRY_BYTES
        at += ENTRY_BYTES
    return out_end


@kernel
def sort_entries(entries: Entries, scratch: Entries) -> int:
    """Sorts in place by hash and keeps the last entry of each hash; returns their number.

    `scratch` has room for as many entries. Its content, and that of `entries` after those kept, is
    undefined afterwards.
    """
    count = entries.shape[0]
    if entries.shape[1] != ENTRY_WORDS or scratch.shape[1] != ENTRY_WORDS:
        raise IndexError("entries have four words each")
    if scratch.shape[0] < count:
        raise IndexError("scratch has room for fewer entries than there are")
    first, spare = address_of(entries), address_of(scratch)
    bucket_bits = min(max(_bits_of(count) - _BUCKET_BITS, 1), _BUCKET_BITS_MAX)
    bucket_ends = np.empty(1 << bucket_bits, np.int64)
    cell_ends = np.empty(1 << _CELL_BITS_MAX, np.int64)
    _distribute(first, count, spare, 0, bucket_bits, bucket_ends)
    out = first
    bucket_start = 0
    for bucket in range(1 << bucket_bits):
        size = bucket_ends[bucket] - bucket_start
        if size == 0:
            continue
        cell_bits = min(max(_bits_of(size) - 1, 1), _CELL_BITS_MAX)
        bucket_source = spare + bucket_start * ENTRY_BYTES
        target = first + bucket_start * ENTRY_BYTES
        _distribute(bucket_source, size, target, bucket_bits, cell_bits, cell_ends)
        at = target
        for cell in range(1 << cell_bits):
            end = target + cell_ends[cell] * ENTRY_BYTES
            out = _sort_cell(out, at, end, bucket_source)
            at = end
        bucket_start = bucket_ends[bucket]
    return (out - first) // ENTRY_BYTES


def warm() -> None:
    """Compile for the argument types in use."""
    entries: Any = np.zeros((2, ENTRY_WORDS), np.uint64)
    sort_entries(entries, np.empty_like(entries))
