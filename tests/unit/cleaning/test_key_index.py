"""An open key index: its header, whose segment it is of, and what it finds."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.cases import case
from tests.support.key_model import DIRECTORY, TOPIC_ID, write_segment
from varve.cleaning.key_index.builder import build_key_index
from varve.cleaning.key_index.key_index import (
    HEADER_BYTES,
    KeyIndex,
    KeyIndexHeader,
    open_key_index,
)
from varve.commit_log import SegmentFiles
from varve.commit_log.names import KEYS
from varve.commit_log.segment import Segment
from varve.disk import FileSystem, MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Corrupt, UnsupportedFormat
from varve.kernels.crc import crc32c
from varve.kernels.hashes import hash_bytes
from varve.records import Record, build_batch, end_transaction_marker

HEADER = KeyIndexHeader(TOPIC_ID, 40, 90, 1000, 0xFEDCBA98, 3, 2, 1, 9, 4, 1, 700, 5, 0x12345678)


@pytest.fixture
def fs() -> MemoryFileSystem:
    return MemoryFileSystem(ManualClock())


def _batches(count: int = 3, base_offset: int = 40) -> list[bytes]:
    return [
        build_batch(
            [Record(b"%d" % (at * 2 + i), None if at == 1 else b"v") for i in range(2)],
            base_offset=base_offset + 2 * at,
        )
        for at in range(count)
    ]


def _built(fs: FileSystem, batches: list[bytes]) -> Segment:
    segment = write_segment(fs, 40, batches)
    build_key_index(fs, segment, topic_id=TOPIC_ID, aborted=[])
    return segment


def _resized(segment: Segment, fs: FileSystem, size: int) -> Segment:
    return Segment(SegmentFiles(fs), DIRECTORY, base_offset=segment.base_offset, size=size)


def _damage(fs: FileSystem, path: str, at: int, value: bytes) -> None:
    with fs.open_writable(path) as file:
        file.write_at(at, value)


def _sealed(data: bytearray) -> bytes:
    """The header with a right CRC."""
    checksum = crc32c(np.frombuffer(data, np.uint8), 0, 96)
    data[96:100] = checksum.to_bytes(4, "little")
    return bytes(data)


def test_a_header_comes_back_from_its_bytes() -> None:
    data = HEADER.encode()
    assert len(data) == HEADER_BYTES
    assert KeyIndexHeader.decode(data) == HEADER
    assert HEADER.file_size == 128 + 3 * 32 + 2 * 32 + 16


def test_a_header_with_any_byte_changed_is_refused() -> None:
    for at in range(HEADER_BYTES):
        with case(at=at):
            data = bytearray(HEADER.encode())
            data[at] ^= 0x40
            with pytest.raises(Corrupt, match="delete the file"):
                KeyIndexHeader.decode(bytes(data))


@pytest.mark.parametrize("size", [0, 4, HEADER_BYTES - 1])
def test_a_short_header_is_refused(size: int) -> None:
    with pytest.raises(Corrupt, match=f"{size} bytes"):
        KeyIndexHeader.decode(HEADER.encode()[:size])


@pytest.mark.parametrize(("at", "value"), [(4, 2), (6, 1)])
def test_a_later_version_or_an_unknown_flag_is_not_read(at: int, value: int) -> None:
    data = bytearray(HEADER.encode())
    data[at] = value
    with pytest.raises(UnsupportedFormat):
        KeyIndexHeader.decode(_sealed(data))


def test_no_file_is_no_index(fs: MemoryFileSystem) -> None:
    assert open_key_index(fs, write_segment(fs, 40, _batches()), topic_id=TOPIC_ID) is None


def test_an_empty_segment_has_an_empty_index(fs: MemoryFileSystem) -> None:
    segment = _built(fs, [])
    index = open_key_index(fs, segment, topic_id=TOPIC_ID)
    assert index is not None
    index.verify()
    assert (index.header.last_offset, index.header.entry_count) == (39, 0)
    assert len(index.batches()) == len(index.marks()) == index.lower_bound(0) == 0
    assert index.find(1, 2) is None


def test_a_key_is_found_by_its_hash(fs: MemoryFileSystem) -> None:
    index = open_key_index(fs, _built(fs, _batches()), topic_id=TOPIC_ID)
    assert index is not None
    secret = np.frombuffer(TOPIC_ID, "<u8")
    for number in range(6):
        key = np.frombuffer(b"%d" % number, np.uint8)
        high, low = hash_bytes(key, 0, key.size, secret[0], secret[1])
        found = index.find(high, low)
        assert found is not None
        assert (found.offset, found.record) == (40 + number, number)
        assert found.is_tombstone == (number in (2, 3))
        assert index.find(high, low + 1) is index.find(high, low - 1) is None
    assert index.lower_bound(1 << 64) == 6


def test_an_index_of_another_generation_is_none(fs: MemoryFileSystem) -> None:
    batches = _batches()
    segment = _built(fs, batches)
    other_topic = bytes(16)
    assert open_key_index(fs, segment, topic_id=other_topic) is None
    assert open_key_index(fs, _resized(segment, fs, segment.size - 1), topic_id=TOPIC_ID) is None
    rewritten = build_batch([Record(b"x", b"y"), Record(b"z", b"v")], base_offset=44)
    assert len(rewritten) == len(batches[-1])
    _damage(fs, segment.path(".log"), segment.size - len(rewritten), rewritten)
    assert open_key_index(fs, segment, topic_id=TOPIC_ID) is None


def test_an_index_under_another_name_is_none(fs: MemoryFileSystem) -> None:
    segment = _built(fs, _batches())
    other = Segment(SegmentFiles(fs), DIRECTORY, base_offset=41, size=segment.size)
    fs.rename(segment.path(KEYS), other.path(KEYS))
    assert open_key_index(fs, other, topic_id=TOPIC_ID) is None


def test_a_file_of_another_length_is_corrupt(fs: MemoryFileSystem) -> None:
    segment = _built(fs, _batches())
    size = fs.info(segment.path(KEYS)).size
    for wrong in (size - 1, size + 1, HEADER_BYTES):
        with fs.open_writable(segment.path(KEYS)) as file:
            file.truncate(wrong)
        with pytest.raises(Corrupt, match=f"{wrong} bytes"):
            open_key_index(fs, segment, topic_id=TOPIC_ID)


def test_a_last_batch_that_does_not_end_the_data_file_is_corrupt(fs: MemoryFileSystem) -> None:
    segment = _built(fs, _batches())
    path = segment.path(KEYS)
    last_batch = fs.info(path).size - 32
    _damage(fs, path, last_batch, b"\xff")
    with pytest.raises(Corrupt, match="last batch ends"):
        open_key_index(fs, segment, topic_id=TOPIC_ID)


def test_a_file_that_shrinks_while_open_is_corrupt(fs: MemoryFileSystem) -> None:
    segment = _built(fs, _batches())
    with fs.open_writable(segment.path(KEYS)) as file:
        index = KeyIndex(file)
        file.truncate(HEADER_BYTES + 40)
        with pytest.raises(Corrupt):
            index.read_entries(0, 6, np.empty((6, 4), np.uint64))
        with pytest.raises(Corrupt):
            index.batches()
        with pytest.raises(Corrupt):
            index.verify()


# The example of docs/reference/formats/keys.md is what the builder writes


PAGE = Path(__file__).parents[3] / "docs" / "reference" / "formats" / "keys.md"
TIME_MS = 1_700_000_000_000


def _example() -> bytes:
    lines = PAGE.read_text(encoding="utf-8").split("```hex\n")[1].split("```")[0].splitlines()
    return b"".join(bytes.fromhex(line.split(";")[0]) for line in lines)


def test_the_example_is_what_the_builder_writes() -> None:
    content = [(b"a", b"1"), (b"b", None), (b"a", b"2")]
    data = build_batch(
        [Record(key, value, timestamp=TIME_MS) for key, value in content],
        base_offset=42,
        producer_id=9,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    marker = end_transaction_marker(
        committed=True,
        producer_id=9,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp=TIME_MS,
        base_offset=45,
    )
    fs = MemoryFileSystem(ManualClock())
    segment = write_segment(fs, 42, [data, marker])
    build_key_index(fs, segment, topic_id=TOPIC_ID, aborted=[])
    assert fs.read(segment.path(KEYS)) == _example()
