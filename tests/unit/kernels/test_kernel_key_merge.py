"""The latest entry of each hash wins, whatever range or table it falls into."""

from itertools import pairwise

import numpy as np
import pytest

from varve.kernels.key_merge import TALLY_COUNT, Tally, count_bits, merge_latest, set_ranges

HASH_MAX = np.uint64(2**64 - 1)


def _entries(*rows: tuple[int, int, int, bool]) -> np.ndarray:
    """Rows of hash high, hash low, record number and whether it is a tombstone; size 10 each."""
    return np.array(
        [
            (high, low, record | record << 32, 10 | int(gone) << 32)
            for high, low, record, gone in rows
        ],
        np.uint64,
    ).reshape(-1, 4)


def _merge(
    segments: list[np.ndarray], *, records: int = 64, expired: tuple[int, ...] = ()
) -> tuple[list[set[int]], list[set[int]], np.ndarray, int]:
    count = len(segments)
    bounds = np.cumsum([0, *(len(one) for one in segments)], dtype=np.int64)
    bits = [np.zeros(count * records // 8, np.uint8) for _ in range(3)]
    for number in expired:
        bits[0][number >> 3] |= 1 << (number & 7)
    tallies = np.zeros((count, TALLY_COUNT), np.int64)
    fault = merge_latest(
        np.concatenate(segments),
        bounds,
        np.uint64(0),
        HASH_MAX,
        np.arange(count, dtype=np.int64) * 1000,
        np.full(count, records, np.int64),
        np.arange(count, dtype=np.int64) * records,
        bits[0],
        bits[1],
        bits[2],
        tallies,
    )
    found = []
    for one in bits[1:]:
        rows = np.unpackbits(one, bitorder="little").reshape(count, records)
        found.append([set(np.flatnonzero(row).tolist()) for row in rows])
    return found[0], found[1], tallies, fault


def test_the_newest_segment_has_the_latest_record_of_a_key() -> None:
    old = _entries((1, 1, 0, False), (5, 5, 1, False))
    new = _entries((1, 1, 3, False), (9, 9, 4, False))
    keep, tombstones, tallies, fault = _merge([old, new])
    assert fault == -1
    assert keep == [{1}, {3, 4}]
    assert tombstones == [set(), set()]
    assert tallies[0, [Tally.KEPT, Tally.SUPERSEDED, Tally.SUPERSEDED_BYTES]].tolist() == [1, 1, 10]
    assert tallies[1, [Tally.KEPT, Tally.KEPT_BYTES]].tolist() == [2, 20]


def test_hashes_that_share_one_word_are_different_keys() -> None:
    old = _entries((7, 1, 0, False), (8, 2, 1, False))
    new = _entries((7, 2, 0, False), (9, 1, 1, False))
    keep, _, _, _ = _merge([old, new])
    assert keep == [{0, 1}, {0, 1}]


def test_a_tombstone_supersedes_and_tells_of_what_it_deletes() -> None:
    keep, tombstones, tallies, _ = _merge([_entries((1, 1, 0, False)), _entries((1, 1, 2, True))])
    assert keep == [set(), {2}]
    assert tombstones == [set(), {2}]
    assert tallies[0, Tally.DELETED] == 1
    assert tallies[1, Tally.TOMBSTONES] == 1


def test_a_tombstone_past_its_horizon_goes_and_still_deletes() -> None:
    keep, tombstones, tallies, _ = _merge(
        [_entries((1, 1, 0, False)), _entries((1, 1, 2, True))], expired=(64 + 2,)
    )
    assert keep == [set(), set()]
    assert tombstones == [set(), set()]
    assert tallies[0, Tally.DELETED] == 1
    assert tallies[1, [Tally.EXPIRED, Tally.EXPIRED_BYTES, Tally.KEPT]].tolist() == [1, 10, 0]


def test_a_value_in_a_batch_past_its_horizon_stays() -> None:
    keep, _, tallies, _ = _merge([_entries((1, 1, 0, False))], expired=(0,))
    assert keep == [{0}]
    assert tallies[0, Tally.EXPIRED] == 0


def test_an_entry_beyond_the_records_of_its_segment_is_named() -> None:
    *_, fault = _merge([_entries((1, 1, 0, False)), _entries((2, 2, 64, False))])
    assert fault == 1


@pytest.mark.parametrize("spread", [1, 2**20, 2**51])
def test_many_keys_crowded_or_spread_equal_a_dict(spread: int) -> None:
    random = np.random.default_rng(spread)
    latest: dict[int, tuple[int, int]] = {}
    segments = []
    for segment in range(5):
        keys = np.sort(random.choice(6000, 4096, replace=False))
        rows = [(int(key) * spread, int(key), number, False) for number, key in enumerate(keys)]
        segments.append(_entries(*rows))
        latest.update({int(key): (segment, number) for number, key in enumerate(keys)})
    keep, _, tallies, _ = _merge(segments, records=4096)
    assert {(s, r) for s, records in enumerate(keep) for r in records} == set(latest.values())
    assert tallies[:, [Tally.KEPT, Tally.SUPERSEDED]].sum() == 5 * 4096


def test_bits_outside_the_bitmaps_are_refused() -> None:
    with pytest.raises(IndexError):
        merge_latest(
            _entries((1, 1, 0, False)),
            np.array([0, 1]),
            np.uint64(0),
            HASH_MAX,
            np.zeros(1, np.int64),
            np.array([9]),
            np.zeros(1, np.int64),
            np.zeros(1, np.uint8),
            np.zeros(1, np.uint8),
            np.zeros(1, np.uint8),
            np.zeros((1, TALLY_COUNT), np.int64),
        )


def test_bits_are_counted_and_set_by_ranges() -> None:
    bits = np.zeros(8, np.uint8)
    set_ranges(bits, np.array([3, 20, 40]), np.array([10, 0, 24]))
    counts = np.array([3, 7, 5, 25, 24])
    found = np.empty(5, np.int64)
    count_bits(bits, 0, counts, found)
    flat = np.unpackbits(bits, bitorder="little")
    edges = np.cumsum([0, *counts])
    assert found.tolist() == [int(flat[a:b].sum()) for a, b in pairwise(edges)]
    assert flat.nonzero()[0].tolist() == [*range(3, 13), *range(40, 64)]


def test_ranges_outside_the_bits_are_refused() -> None:
    bits = np.zeros(2, np.uint8)
    with pytest.raises(IndexError):
        set_ranges(bits, np.array([10]), np.array([7]))
    with pytest.raises(IndexError):
        count_bits(bits, 0, np.array([17]), np.empty(1, np.int64))
    with pytest.raises(IndexError):
        count_bits(bits, 0, np.array([-1]), np.empty(1, np.int64))
