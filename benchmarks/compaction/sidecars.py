"""Key indexes without their segments, for planning alone. docs/reference/formats/keys.md

Invariant  the hashes stand for `key_count` keys, each with its first record in some segment; a
           quarter as many records more are updates of earlier keys. The same in every run.
"""

from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from varve.cleaning.key_index.key_index import KeyIndexHeader
from varve.commit_log.names import KEYS, log_name
from varve.kernels.crc import crc32c
from varve.kernels.key_entries import ENTRY_WORDS
from varve.kernels.key_sort import sort_entries

SEGMENT_COUNT = 25
UPDATE_SHARE = 0.25
_RECORD_SIZE = 128
_SEED = 7
_TOPIC_ID = bytes(16)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

Words = npt.NDArray[np.uint64]


def write_sidecars(directory: Path, key_count: int) -> int:
    """One key index per segment, oldest first by name; gives the number of entries in all."""
    source = np.random.default_rng(_SEED)
    bounds = np.linspace(0, key_count, SEGMENT_COUNT + 1).astype(np.int64).tolist()
    base_offset = entry_count = 0
    for start, end in pairwise(bounds):
        fresh = np.arange(start, end, dtype=np.uint64)
        updated = source.integers(0, start, round((end - start) * UPDATE_SHARE)) if start else ()
        keys = np.concatenate([fresh, np.asarray(updated, np.uint64)])
        source.shuffle(keys)
        base_offset += len(keys)
        entry_count += _write_sidecar(directory, base_offset - len(keys), keys)
    return entry_count


def _write_sidecar(directory: Path, base_offset: int, keys: Words) -> int:
    entries = np.empty((len(keys), ENTRY_WORDS), np.uint64)
    record = np.arange(len(keys), dtype=np.uint64)
    entries[:, 0] = _mix(keys)
    entries[:, 1] = _mix(entries[:, 0])
    entries[:, 2] = record | (record << np.uint64(32))
    entries[:, 3] = _RECORD_SIZE
    count = int(sort_entries(entries, np.empty_like(entries)))
    content = entries[:count].astype("<u8", copy=False).tobytes()
    header = KeyIndexHeader(
        topic_id=_TOPIC_ID,
        base_offset=base_offset,
        last_offset=base_offset + len(keys) - 1,
        log_size=len(keys) * _RECORD_SIZE,
        last_batch_crc=0,
        entry_count=count,
        batch_count=0,
        mark_count=0,
        record_count=len(keys),
        null_key_count=0,
        tombstone_count=0,
        record_bytes=len(keys) * _RECORD_SIZE,
        earliest_horizon=-1,
        sections_crc=crc32c(np.frombuffer(content, np.uint8), 0, len(content)),
    )
    with open(directory / log_name(base_offset, KEYS), "xb") as file:
        file.write(header.encode())
        file.write(content)
    return count


def _mix(words: Words) -> Words:
    """SplitMix64: distinct words become distinct words spread evenly."""
    mixed = words + _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
