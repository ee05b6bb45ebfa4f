"""A key index lists what a dict of the same records holds, whatever the batches and the memory."""

import random

import numpy as np
import pytest

from tests.support.key_model import DIRECTORY, TOPIC_ID, check_index, model_of, write_segment
from tests.support.key_writer import KeyWriter
from varve.cleaning.key_index.builder import KeyIndexBuilder, build_key_index
from varve.cleaning.key_index.key_index import open_key_index
from varve.commit_log.names import KEYS, LOG, log_name
from varve.commit_log.segment_reader import BatchWalk
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.kernels.hashes import hash_bytes
from varve.kernels.key_entries import digest_entries

SEEDS = range(10)
TINY, SMALL, ROOMY = 1 << 11, 1 << 16, 1 << 24


@pytest.mark.parametrize("buffer_bytes", [TINY, SMALL, ROOMY])
@pytest.mark.parametrize("seed", SEEDS)
def test_index_equals_dict(seed: int, buffer_bytes: int, rounds_factor: int) -> None:
    for salt in range(rounds_factor):
        writer = KeyWriter(seed + 1000 * salt).write(40)
        fs = MemoryFileSystem(ManualClock())
        segment = write_segment(fs, writer.base_offset, writer.batches)
        header = build_key_index(
            fs, segment, topic_id=TOPIC_ID, aborted=writer.aborted, buffer_bytes=buffer_bytes
        )
        index = open_key_index(fs, segment, topic_id=TOPIC_ID)
        assert index is not None
        with index:
            assert index.header == header
            check_index(index, model_of(writer.base_offset, writer.batches, writer.aborted))
        names = [log_name(segment.base_offset, kind) for kind in (KEYS, LOG)]
        assert fs.names(DIRECTORY) == names


@pytest.mark.parametrize("seed", SEEDS)
def test_digest_is_that_of_the_entries_however_they_were_merged(seed: int) -> None:
    writer = KeyWriter(seed).write(20)
    digests = set()
    for buffer_bytes in (TINY, ROOMY):
        fs = MemoryFileSystem(ManualClock())
        segment = write_segment(fs, writer.base_offset, writer.batches)
        builder = KeyIndexBuilder(
            fs,
            segment.path(KEYS),
            base_offset=segment.base_offset,
            topic_id=TOPIC_ID,
            buffer_bytes=buffer_bytes,
            aborted=writer.aborted,
        )
        for table in BatchWalk(segment.file(), start=0, end=segment.size, verify_crc=False):
            builder.add(table)
        header = builder.finish(segment.size)
        digests.add(builder.digest)
        index = open_key_index(fs, segment, topic_id=TOPIC_ID)
        assert index is not None
        entries = np.empty((header.entry_count, 4), np.uint64)
        index.read_entries(0, header.entry_count, entries)
        shuffled = np.random.default_rng(seed).permutation(entries)
        digests.add(digest_entries(np.ascontiguousarray(shuffled), segment.base_offset))
    assert len(digests) == 1


@pytest.mark.parametrize("seed", range(3))
def test_lower_bound_equals_bisection(seed: int) -> None:
    chooser = random.Random(seed)
    writer = KeyWriter(seed, key_count=100_000).write(150)
    fs = MemoryFileSystem(ManualClock())
    segment = write_segment(fs, writer.base_offset, writer.batches)
    build_key_index(fs, segment, topic_id=TOPIC_ID, aborted=writer.aborted)
    index = open_key_index(fs, segment, topic_id=TOPIC_ID)
    assert index is not None
    entries = np.empty((index.header.entry_count, 4), np.uint64)
    index.read_entries(0, len(entries), entries)
    hashes = entries[:, 0]
    wanted = [0, (1 << 64) - 1, *(chooser.getrandbits(64) for _ in range(100))]
    wanted += [int(h) + chooser.choice((-1, 0, 1)) for h in hashes[:: len(hashes) // 50 + 1]]
    for value in wanted:
        expected = int(np.searchsorted(hashes, np.uint64(value)))
        assert index.lower_bound(value) == expected
        start = chooser.randrange(len(entries) + 1)
        assert index.lower_bound(value, start=start) == max(expected, start)
    k0, k1 = (int.from_bytes(TOPIC_ID[at : at + 8], "little") for at in (0, 8))
    missing = np.frombuffer(b"a key that nobody wrote", np.uint8)
    assert index.find(*hash_bytes(missing, 0, missing.size, np.uint64(k0), np.uint64(k1))) is None
