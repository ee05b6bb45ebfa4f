"""Versioned JSON documents: what is read back, and what is refused."""

import json
from typing import Any

import pytest

from varve.disk import JsonDocument, MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Corrupt, UnsupportedFormat
from varve.testing.faulty_disk import FaultyFileSystem

PLAIN = JsonDocument(version=2, version_name="version", indent=None)
CHECKED = JsonDocument(version=1, crc_name="crc", indent=2)
FIELDS: dict[str, Any] = {"name": "t", "starts": [1, 2], "nested": {"a": None}}


@pytest.mark.parametrize("document", [PLAIN, CHECKED])
def test_what_is_written_is_read_back(document: JsonDocument) -> None:
    fs = MemoryFileSystem(ManualClock())
    assert document.read(fs, "/state.json") is None
    document.write(fs, "/state.json", FIELDS)
    assert document.read(fs, "/state.json") == FIELDS
    assert fs.names("/") == ["state.json"]


def test_the_file_is_plain_json_with_version_and_checksum() -> None:
    assert PLAIN.encode({"a": 1}) == b'{"version":2,"a":1}\n'
    document = json.loads(CHECKED.encode({"a": 1}))
    assert document["format"] == 1
    assert isinstance(document["crc"], int)


def test_every_changed_byte_of_a_checked_document_is_noticed() -> None:
    data = CHECKED.encode({"offset": 12345, "name": "abc"})
    for position in range(len(data)):
        broken = bytearray(data)
        broken[position] ^= 1
        try:
            assert CHECKED.decode(bytes(broken), "f") == {"offset": 12345, "name": "abc"}
        except Corrupt:
            continue
        assert bytes(data[position : position + 1]).isspace(), position


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"1", b"{}", b'{"version":1}', b'{"version":true}', b'{"version":"2"}'],
)
def test_anything_else_is_corrupt_and_names_the_file(data: bytes) -> None:
    with pytest.raises(Corrupt, match=r"^/d/state.json"):
        PLAIN.decode(data, "/d/state.json")


def test_deep_nesting_is_corrupt() -> None:
    with pytest.raises(Corrupt):
        PLAIN.decode(b"[" * 100_000, "f")


def test_a_newer_version_is_named_as_such() -> None:
    with pytest.raises(UnsupportedFormat, match="version 3 is newer than 2"):
        PLAIN.decode(b'{"version":3}', "f")


def test_no_more_than_the_limit_is_read() -> None:
    fs = MemoryFileSystem(ManualClock())
    small = JsonDocument(version=1, max_bytes=30)
    small.write(fs, "/f", {"text": "x" * 100})
    with pytest.raises(Corrupt, match="at most 30"):
        small.read(fs, "/f")


def test_a_failed_write_leaves_the_old_document() -> None:
    fs = FaultyFileSystem(ManualClock())
    PLAIN.write(fs, "/f", {"a": 1})
    fs.fail_at(fs.steps + 3, OSError(28, "full"))
    with pytest.raises(OSError, match="full"):
        PLAIN.write(fs, "/f", {"a": 2})
    assert PLAIN.read(fs, "/f") == {"a": 1}
