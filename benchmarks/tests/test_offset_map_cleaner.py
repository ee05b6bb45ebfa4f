"""The baseline cleaner keeps what a dictionary of the latest offsets keeps."""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks.compaction.offset_map_cleaner import SLOT_BYTES, OffsetMap, OffsetMapCleaner
from benchmarks.hot_log.logs import UnsyncedFileSystem, open_log
from varve.commit_log import LogSettings
from varve.foundation.errors import InvalidRequest
from varve.records import Batch, Codec, Record, build_batch

NOW_MS = 1_700_000_100_000
SETTINGS = LogSettings(segment_bytes=4096, index_interval_bytes=256, delete_retention_ms=1000)
ROOMY = 10_000 * SLOT_BYTES
Kept = tuple[int, bytes | None, bytes | None, int]


def write_partition(directory: Path, batches: Sequence[bytes]) -> int:
    """A closed log of the batches behind which an empty segment is active; gives its end."""
    directory.mkdir(exist_ok=True)
    log = open_log(directory, settings=SETTINGS, file_system=UnsyncedFileSystem())
    for batch in batches:
        log.append(batch)
    log.roll()
    end_offset = log.end_offset
    log.close()
    return end_offset


def random_batches(seed: int, codec: Codec, *, key_count: int = 40) -> list[bytes]:
    source = random.Random(seed)
    batches = []
    for number in range(60):
        records = [
            Record(
                key=None if source.random() < 0.05 else b"k%d" % source.randrange(key_count),
                value=None if source.random() < 0.05 else source.randbytes(source.randrange(60)),
                headers=(),
                timestamp=1_700_000_000_000 + 100 * number + index,
            )
            for index in range(source.randrange(1, 12))
        ]
        batches.append(build_batch(records, codec=codec))
    return batches


def stored(directory: Path) -> list[Kept]:
    found: list[Kept] = []
    for path in sorted(directory.glob("*.log")):
        data, position = path.read_bytes(), 0
        while position < len(data):
            batch = Batch(data, position=position)
            assert batch.is_valid_crc()
            position += batch.header.size
            found += [(r.offset, r.key, r.value, r.timestamp) for r in batch.records()]
    return found


def expected(before: Sequence[Kept]) -> list[Kept]:
    latest = {key: offset for offset, key, _, _ in before}
    return [record for record in before if record[1] is not None and latest[record[1]] == record[0]]


def clean(
    directory: Path, end_offset: int, *, first_dirty_offset: int = 0, map_bytes: int = ROOMY
) -> OffsetMapCleaner:
    cleaner = OffsetMapCleaner(
        UnsyncedFileSystem(), str(directory), SETTINGS, OffsetMap(map_bytes), now_ms=NOW_MS
    )
    report = cleaner.clean(first_dirty_offset=first_dirty_offset, end_offset=end_offset)
    assert report.end_offset == end_offset
    return cleaner


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("seed", range(4))
def test_latest_record_of_each_key_stays(seed: int, codec: Codec, tmp_path: Path) -> None:
    directory = tmp_path / "log"
    end_offset = write_partition(directory, random_batches(seed, codec))
    before = stored(directory)
    clean(directory, end_offset)
    assert stored(directory) == expected(before)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_full_map_leaves_the_rest_to_further_rounds(codec: Codec, tmp_path: Path) -> None:
    directory = tmp_path / "log"
    end_offset = write_partition(directory, random_batches(1, codec))
    before = stored(directory)
    cleaner = OffsetMapCleaner(
        UnsyncedFileSystem(), str(directory), SETTINGS, OffsetMap(12 * SLOT_BYTES), now_ms=NOW_MS
    )
    report = cleaner.clean(first_dirty_offset=0, end_offset=end_offset)
    assert report.rounds > 2
    assert stored(directory) == expected(before)


def test_second_cleaning_begins_at_the_first_dirty_offset(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    first_end = write_partition(directory, random_batches(2, Codec.NONE))
    clean(directory, first_end)
    end_offset = write_partition(directory, random_batches(3, Codec.NONE))
    before = stored(directory)
    clean(directory, end_offset, first_dirty_offset=first_end)
    assert stored(directory) == expected(before)


def test_tombstone_gets_a_horizon_and_goes_after_it(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    records = [
        Record(key=b"a", value=b"1"),
        Record(key=b"a", value=None),
        Record(key=b"b", value=None),
    ]
    kept = Record(key=b"c", value=b"2")
    end_offset = write_partition(directory, [build_batch(records), build_batch([kept])])
    clean(directory, end_offset)
    batch = Batch(next(directory.glob("*0.log")).read_bytes())
    assert batch.header.delete_horizon_ms == NOW_MS + SETTINGS.delete_retention_ms
    assert [record[:2] for record in stored(directory)] == [(1, b"a"), (2, b"b"), (3, b"c")]
    later = OffsetMapCleaner(
        UnsyncedFileSystem(), str(directory), SETTINGS, OffsetMap(ROOMY), now_ms=NOW_MS + 1000
    )
    later.clean(first_dirty_offset=0, end_offset=end_offset)
    assert [record[:2] for record in stored(directory)] == [(3, b"c")]


def test_last_batch_keeps_its_shell(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    batches = [
        build_batch([Record(key=b"a", value=b"1")]),
        build_batch([Record(key=None, value=b"keyless")]),
    ]
    end_offset = write_partition(directory, batches)
    clean(directory, end_offset)
    data = next(directory.glob("*0.log")).read_bytes()
    first = Batch(data)
    shell = Batch(data, position=first.header.size)
    assert (shell.header.records_count, shell.header.next_offset) == (0, end_offset)


def test_cleaned_log_opens_without_recovery(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    end_offset = write_partition(directory, random_batches(5, Codec.NONE))
    before = stored(directory)
    clean(directory, end_offset)
    log = open_log(directory, clean=True, settings=SETTINGS)
    offset, found = 0, []
    while offset < log.end_offset:
        result = log.read(start_offset=offset)
        batch, position = bytes(result.data), 0
        while position < len(batch):
            read = Batch(batch, position=position)
            found += read.columns().offsets.tolist()
            position += read.header.size
        offset = result.next_offset
    log.abandon()
    assert found == [record[0] for record in expected(before)]


def test_transactions_are_refused(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    batch = build_batch(
        [Record(key=b"a", value=b"1")],
        producer_id=1,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    end_offset = write_partition(directory, [batch])
    with pytest.raises(InvalidRequest, match="transactions"):
        clean(directory, end_offset)


def test_map_without_room_for_a_key_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="holds no key"):
        OffsetMap(SLOT_BYTES)


def test_map_is_empty_after_it_was_cleared() -> None:
    offset_map = OffsetMap(ROOMY)
    offset_map.slots[:] = 1
    offset_map.clear(7)
    assert not np.any(offset_map.slots)
    assert offset_map.latest_offset == 6
