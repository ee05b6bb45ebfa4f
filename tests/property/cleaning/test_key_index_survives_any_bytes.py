"""A damaged key index is refused by name, taken for another generation's, or fails its CRC."""

import random

import numpy as np

from tests.support.key_model import TOPIC_ID, write_segment
from tests.support.key_writer import KeyWriter
from varve.cleaning.key_index.builder import build_key_index
from varve.cleaning.key_index.key_index import KeyIndex, open_key_index
from varve.commit_log.names import KEYS
from varve.commit_log.segment import Segment
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Corrupt

MUTANTS = 1500


def _mutate(whole: bytes, chooser: random.Random) -> bytes:
    data = bytearray(whole)
    kind = chooser.randrange(4)
    if kind == 0:
        return bytes(data[: chooser.randrange(len(data))])
    if kind == 1:
        return bytes(data) + chooser.randbytes(chooser.randrange(1, 50))
    end = 128 if kind == 2 else len(data)
    for _ in range(chooser.randrange(1, 4)):
        data[chooser.randrange(end)] = chooser.choice((0, 1, 0x7F, 0x80, 0xFF))
    return bytes(data)


def _use(index: KeyIndex, chooser: random.Random) -> None:
    """What damage does not show must at least not run away."""
    index.batches()
    index.marks()
    for _ in range(5):
        hash_high = chooser.getrandbits(64)
        assert 0 <= index.lower_bound(hash_high) <= index.header.entry_count
        index.find(hash_high, 0)
    entries = np.empty((index.header.entry_count, 4), np.uint64)
    index.read_entries(0, len(entries), entries)
    for high, low, *_ in entries[:: len(entries) // 5 + 1].tolist():
        index.find(high, low)


def test_no_damage_goes_unseen(rounds_factor: int) -> None:
    chooser = random.Random(8)
    writer = KeyWriter(3, key_count=100_000).write(30)
    fs = MemoryFileSystem(ManualClock())
    segment = write_segment(fs, writer.base_offset, writer.batches)
    build_key_index(fs, segment, topic_id=TOPIC_ID, aborted=writer.aborted)
    whole = fs.read(segment.path(KEYS))
    outcomes = set()
    for _ in range(MUTANTS * rounds_factor):
        data = _mutate(whole, chooser)
        with fs.open_writable(segment.path(KEYS)) as file:
            file.truncate(0)
            file.write_at(0, data)
        outcomes.add(_outcome(fs, segment, data == whole, chooser))
    assert outcomes >= {"refused", "fails its CRC"}


def _outcome(fs: MemoryFileSystem, segment: Segment, is_whole: bool, chooser: random.Random) -> str:
    try:
        index = open_key_index(fs, segment, topic_id=TOPIC_ID)
    except Corrupt:
        return "refused"
    if index is None:
        return "of another generation"
    with index:
        _use(index, chooser)
        try:
            index.verify()
        except Corrupt:
            return "fails its CRC"
    assert is_whole
    return "unchanged"
