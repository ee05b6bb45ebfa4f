"""Entries sorted by hash, the latest of each: even and uneven hashes, few keys and many."""

import numpy as np
import numpy.typing as npt
import pytest

from varve.kernels.key_sort import sort_entries

Entries = npt.NDArray[np.uint64]
ALL_BITS = 64


def _entries(count: int, key_count: int, high_bits: int, seed: int = 0) -> Entries:
    """In the order of their offsets; only the lowest bits of the first word differ."""
    chooser = np.random.default_rng(seed)
    keys = chooser.integers(0, 2**64 - 1, (key_count, 2), np.uint64, endpoint=True)
    if high_bits < ALL_BITS:
        keys[:, 0] &= np.uint64((1 << high_bits) - 1)
    entries = np.empty((count, 4), np.uint64)
    entries[:, :2] = keys[chooser.integers(0, key_count, count)]
    entries[:, 2] = np.arange(count)
    entries[:, 3] = chooser.integers(0, 1000, count)
    return entries


def _expected(entries: Entries) -> Entries:
    ordered = entries[np.lexsort((entries[:, 2], entries[:, 1], entries[:, 0]))]
    is_last = np.ones(len(ordered), np.bool_)
    is_last[:-1] = (ordered[:-1, :2] != ordered[1:, :2]).any(axis=1)
    return ordered[is_last]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 41, 100, 5000, 100_000])
@pytest.mark.parametrize("key_count", [1, 2, 30, 1000, 200_000])
@pytest.mark.parametrize("high_bits", [0, 1, 12, 40, ALL_BITS])
def test_the_latest_of_each_hash_in_order(count: int, key_count: int, high_bits: int) -> None:
    entries = _entries(count, key_count, high_bits)
    expected = _expected(entries)
    left = sort_entries(entries, np.empty_like(entries))
    np.testing.assert_array_equal(entries[:left], expected)


def test_sorting_again_changes_nothing() -> None:
    entries = _entries(10_000, 3000, ALL_BITS)
    left = sort_entries(entries, np.empty_like(entries))
    again = entries[:left].copy()
    assert sort_entries(again, np.empty_like(again)) == left
    np.testing.assert_array_equal(again, entries[:left])


def test_too_little_scratch_is_refused() -> None:
    entries = _entries(10, 10, ALL_BITS)
    with pytest.raises(IndexError):
        sort_entries(entries, entries[:9].copy())


def test_nothing_outside_the_arrays_is_touched() -> None:
    guarded = np.full((3000, 4), 7, np.uint64)
    scratch = guarded.copy()
    guarded[1000:2000] = _entries(1000, 500, ALL_BITS)
    sort_entries(guarded[1000:2000], scratch[1000:2000])
    for array in (guarded, scratch):
        assert (array[:1000] == 7).all()
        assert (array[2000:] == 7).all()
