"""Bytes of a shape's log, its chunk index, its pointer and its manifest."""

import pytest

from tests.support.shape_entries import decode_entries, encode_entry
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Corrupt, InvalidRequest, NotFound, UnsupportedFormat
from varve.kernels.crc import crc32c_of
from varve.shapes.kernels.log_entries import EntryStatus, encode_entries
from varve.shapes.offset import BEFORE_ALL, SNAPSHOT_END, ShapeOffset
from varve.shapes.storage.chunk_index import (
    EDGE_BYTES,
    ChunkEdge,
    ChunkIndexFile,
    LogChunk,
    encode_chunks,
    encode_edge,
    find_edge,
)
from varve.shapes.storage.layout import (
    SLOT_DISTANCE,
    ShapeManifest,
    create_pointer,
    find_suffix,
    list_handles,
    list_trash,
    log_path,
    move_to_trash,
    new_suffix,
    pointer_path,
    read_manifest,
    read_pointer,
    shape_directory,
    write_manifest,
)
from varve.shapes.storage.log_writer import INSERT, ShapeEntry

GOLDEN = ShapeEntry(ShapeOffset(10, 0), b"test_key", INSERT, b'{"test":1}')
GOLDEN_BYTES = bytes.fromhex(
    "000000000000000a 0000000000000000 00000008 746573745f6b6579 69 00"
    "000000000000000a 7b2274657374223a317d"
)


def _disk() -> MemoryFileSystem:
    return MemoryFileSystem(ManualClock())


def test_an_entry_is_that_of_the_reference_and_a_crc32c_of() -> None:
    status, count, data, json_bytes = encode_entries(
        [GOLDEN], start=0, json_room=99, byte_room=99, last=(0, 0)
    )
    assert (status, count, json_bytes) == (EntryStatus.MORE, 1, len(GOLDEN.json))
    assert data.tobytes() == GOLDEN_BYTES + crc32c_of(GOLDEN_BYTES).to_bytes(4, "big")
    assert data.tobytes() == encode_entry(GOLDEN)


def test_entries_come_back_with_their_places() -> None:
    stored = list(decode_entries(encode_entry(GOLDEN) * 3))
    assert [item.position for item in stored] == [0, 52, 104]
    assert all(item.entry == GOLDEN and item.flag == 0 for item in stored)


def test_a_half_of_the_chunk_index_is_that_of_the_reference_and_a_crc32c_of() -> None:
    half = ChunkEdge(ShapeOffset(10, 0), 0)
    fields = bytes.fromhex("000000000000000a" + "0000000000000000" * 3)
    assert encode_edge(half) == fields + crc32c_of(fields).to_bytes(4, "big")
    assert find_edge(encode_edge(half)) == half
    assert find_edge(encode_edge(half)[:-1]) is None
    assert find_edge(b"\x01" + encode_edge(half)[1:]) is None


def _index(chunks: list[LogChunk], junk: bytes = b"") -> ChunkIndexFile:
    disk = _disk()
    file = disk.open_writable("/index")
    file.write_at(0, encode_chunks(chunks) + junk)
    return ChunkIndexFile(file)


def _chunks(count: int) -> list[LogChunk]:
    return [
        LogChunk(ShapeOffset(10 * n + 1, 0), n * 50, ShapeOffset(10 * n + 9, 0), n * 50 + 50)
        for n in range(count)
    ]


def test_lookup_gives_the_first_chunk_that_ends_beyond_or_the_open_one() -> None:
    complete = _chunks(5)
    opened = LogChunk(ShapeOffset(60, 0), 250)
    index = _index([*complete, opened], junk=b"torn")
    for tx in range(1, 60):
        place = ShapeOffset(tx, 0)
        expected = next((c for c in complete if c.last is not None and c.last > place), opened)
        assert index.find(place) == expected
    assert _index(complete).find(ShapeOffset(49, 0)) is None
    assert _index([]).find(SNAPSHOT_END) is None


def test_the_open_chunk_is_no_complete_one() -> None:
    """H9."""
    index = _index([*_chunks(2), LogChunk(ShapeOffset(60, 0), 100)])
    assert list(index.complete()) == _chunks(2)
    assert index.complete_count == 2
    assert [chunk.is_open for chunk in index.last_chunks(2)] == [False, True]


def test_a_changed_half_of_the_index_is_corrupt() -> None:
    disk = _disk()
    file = disk.open_writable("/index")
    data = bytearray(encode_chunks(_chunks(3)))
    data[EDGE_BYTES + 3] ^= 1
    file.write_at(0, data)
    with pytest.raises(Corrupt, match="CRC-32C"):
        list(ChunkIndexFile(file).complete())


def test_a_manifest_comes_back() -> None:
    for manifest in (ShapeManifest(), ShapeManifest("latest.9", ShapeOffset(7, 2), "compacted.8")):
        disk = _disk()
        disk.make_directory("/shape/metadata")
        write_manifest(disk, "/shape", manifest)
        assert read_manifest(disk, "/shape") == manifest
    assert ShapeManifest().boundary == BEFORE_ALL


def test_a_manifest_of_another_version_is_not_read() -> None:
    text = b'{"version":%d,"latest":"latest.0","boundary":null,"compacted":null}'
    with pytest.raises(Corrupt, match="version is 1, not 2"):
        _read_manifest(text % 1)
    with pytest.raises(UnsupportedFormat, match="version 3"):
        _read_manifest(text % 3)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"version":2}',
        b'{"version":2,"latest":1,"boundary":null,"compacted":null}',
        b'{"version":2,"latest":"latest.0","boundary":"1_0","compacted":null}',
        b'{"version":2,"latest":"latest.0","boundary":"x","compacted":"compacted.1"}',
        b"\xff",
    ],
)
def test_what_is_no_manifest_is_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt):
        _read_manifest(data)


def _read_manifest(data: bytes) -> ShapeManifest:
    disk = _disk()
    disk.make_directory("/shape/metadata")
    with disk.open_writable("/shape/metadata/manifest.json") as file:
        file.write_at(0, data)
    return read_manifest(disk, "/shape")


def test_a_directory_without_a_manifest_is_no_shape() -> None:
    with pytest.raises(NotFound):
        read_manifest(_disk(), "/nowhere")


def test_the_pointer_survives_a_torn_write_of_either_slot() -> None:
    disk = _disk()
    disk.make_directory("/s/metadata")
    create_pointer(disk, "/s")
    pointer = read_pointer(disk, "/s")
    assert pointer.offset == SNAPSHOT_END
    assert pointer.is_certain
    for tx in range(1, 6):
        read_pointer(disk, "/s").write(ShapeOffset(tx, 3))
        assert read_pointer(disk, "/s").offset == ShapeOffset(tx, 3)
        with disk.open_writable(pointer_path("/s")) as file:
            older = tx % 2 * SLOT_DISTANCE
            kept = file.read_at(older, 28)
            file.write_at(older, b"torn")
            assert read_pointer(disk, "/s").offset == ShapeOffset(tx, 3)
            assert not read_pointer(disk, "/s").is_certain
            file.write_at(older, kept)


def test_a_pointer_without_a_sound_slot_is_corrupt() -> None:
    disk = _disk()
    disk.make_directory("/s/metadata")
    create_pointer(disk, "/s")
    read_pointer(disk, "/s").write(ShapeOffset(1, 0))
    with disk.open_writable(pointer_path("/s")) as file:
        file.write_at(0, b"xxxx")
        file.write_at(SLOT_DISTANCE, b"xxxx")
    with pytest.raises(Corrupt, match="neither slot"):
        read_pointer(disk, "/s")


def test_shapes_are_spread_over_two_levels_and_listed() -> None:
    disk = _disk()
    assert shape_directory("/r", "abcdef") == "/r/ab/cd/abcdef"
    for handle in ("abcdef", "abcdxx", "99-17"):
        disk.make_directory(shape_directory("/r", handle) + "/log")
    disk.make_directory("/r/tables/topic")
    disk.make_directory("/r/.trash/old1")
    assert sorted(list_handles(disk, "/r")) == ["99-17", "abcdef", "abcdxx"]


@pytest.mark.parametrize("handle", ["", "abc", "../../x", "a/bcd", ".abc", "abcd" * 60, "ab\ncd"])
def test_a_handle_that_is_no_plain_name_is_refused(handle: str) -> None:
    with pytest.raises(InvalidRequest, match="handle"):
        shape_directory("/r", handle)


def test_names_of_logs_are_never_used_twice() -> None:
    disk = _disk()
    disk.make_directory("/s/log")
    disk.open_writable(log_path("/s", "latest.7")).close()
    assert new_suffix(disk, "/s", "latest", 7) == "latest.8"
    assert new_suffix(disk, "/s", "latest", 5) == "latest.8"
    assert new_suffix(disk, "/s", "latest", 9) == "latest.9"
    assert new_suffix(disk, "/s", "compacted", 7) == "compacted.7"
    assert find_suffix("log.compacted.12.chunk.bin") == "compacted.12"
    assert find_suffix("0.jsonsnapshot") is None


def test_dropped_shapes_wait_in_the_trash_under_names_of_their_own() -> None:
    disk = _disk()
    for _ in range(2):
        disk.make_directory(shape_directory("/r", "abcdef") + "/log")
        assert move_to_trash(disk, "/r", "abcdef")
    assert not move_to_trash(disk, "/r", "abcdef")
    assert disk.names("/r/.trash") == ["abcdef", "abcdef.1"]
    assert list_trash(disk, "/r") == ["/r/.trash/abcdef", "/r/.trash/abcdef.1"]
    assert list_trash(disk, "/elsewhere") == []
