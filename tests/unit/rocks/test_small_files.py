"""The store's small files: meta, checkpoint, and the log of a database in memory."""

import json
import logging

import pytest

from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Corrupt, DiskFull, LogPoisoned, Unavailable
from varve.rocks.memory_database import LOG_NAME, MemoryDatabase, MemoryDatabases
from varve.rocks.state_files import (
    Checkpoint,
    MetaChanged,
    StoreMeta,
    decode_checkpoint,
    encode_checkpoint,
    find_checkpoint,
    keep_meta,
    write_checkpoint,
)
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem

META = StoreMeta(engine="memory", layout="l", segment_ms=10, retention_ms=20)
CHECKPOINT = Checkpoint(
    stream_time_ms=36_000,
    changelog_offset=17,
    segment_starts_ms=(10_000, 30_000),
)


@pytest.fixture
def file_system() -> MemoryFileSystem:
    file_system = MemoryFileSystem(ManualClock())
    file_system.make_directory("/d")
    return file_system


def _write(file_system: MemoryFileSystem, path: str, data: bytes) -> None:
    with file_system.open_writable(path) as file:
        file.truncate(0)
        file.write_at(0, data)


def test_meta_is_written_once_and_then_compared(file_system: MemoryFileSystem) -> None:
    keep_meta(file_system, "/d", META, is_empty=True)
    keep_meta(file_system, "/d", META, is_empty=False)
    assert json.loads(file_system.read("/d/meta.json")) == {
        "format": 1,
        "engine": "memory",
        "layout": "l",
        "segment_ms": 10,
        "retention_ms": 20,
    }


@pytest.mark.parametrize(
    "other",
    [
        StoreMeta(engine="rocksdb", layout="l", segment_ms=10, retention_ms=20),
        StoreMeta(engine="memory", layout="m", segment_ms=10, retention_ms=20),
        StoreMeta(engine="memory", layout="l", segment_ms=11, retention_ms=20),
        StoreMeta(engine="memory", layout="l", segment_ms=10, retention_ms=21),
        StoreMeta(format=2, engine="memory", layout="l", segment_ms=10, retention_ms=20),
    ],
)
def test_any_other_meta_is_a_change(file_system: MemoryFileSystem, other: StoreMeta) -> None:
    keep_meta(file_system, "/d", META, is_empty=True)
    with pytest.raises(MetaChanged, match=r"/d/meta.json: the store was created with"):
        keep_meta(file_system, "/d", other, is_empty=True)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null x", b"{}"])
def test_meta_that_cannot_be_read_is_a_change(file_system: MemoryFileSystem, data: bytes) -> None:
    _write(file_system, "/d/meta.json", data)
    with pytest.raises(MetaChanged):
        keep_meta(file_system, "/d", META, is_empty=True)


def test_segments_without_meta_are_a_change(file_system: MemoryFileSystem) -> None:
    with pytest.raises(MetaChanged, match="created with None"):
        keep_meta(file_system, "/d", META, is_empty=False)


def test_a_checkpoint_comes_back_as_it_was(file_system: MemoryFileSystem) -> None:
    write_checkpoint(file_system, "/d", CHECKPOINT)
    assert find_checkpoint(file_system, "/d") == CHECKPOINT
    assert file_system.names("/d") == ["checkpoint.json"]


def test_without_a_file_there_is_no_checkpoint_and_no_warning(
    file_system: MemoryFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    assert find_checkpoint(file_system, "/d") is None
    assert not caplog.records


def test_a_checkpoint_cut_anywhere_is_none_with_a_warning(
    file_system: MemoryFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    data = encode_checkpoint(CHECKPOINT)
    for end in range(0, len(data) - 1, 7):
        caplog.clear()
        _write(file_system, "/d/checkpoint.json", data[:end])
        with caplog.at_level(logging.WARNING):
            assert find_checkpoint(file_system, "/d") is None
        assert len(caplog.records) == 1


def test_a_changed_number_in_a_checkpoint_is_noticed() -> None:
    data = encode_checkpoint(CHECKPOINT)
    with pytest.raises(Corrupt, match="crc"):
        decode_checkpoint(data.replace(b": 17", b": 18"))


@pytest.mark.parametrize("data", [b"0\n1\nin 0 5\n", b"[1]", b'{"format": 2}', b'"x"', b"\xff\x00"])
def test_a_foreign_checkpoint_is_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt, match="checkpoint"):
        decode_checkpoint(data)


def test_a_full_disk_leaves_the_old_checkpoint() -> None:
    file_system = FaultyFileSystem(ManualClock())
    file_system.make_directory("/d")
    write_checkpoint(file_system, "/d", CHECKPOINT)
    file_system.full_at(len(encode_checkpoint(CHECKPOINT)) + 10)
    with pytest.raises(DiskFull, match="free some space"):
        write_checkpoint(file_system, "/d", Checkpoint(stream_time_ms=1, changelog_offset=99))
    assert find_checkpoint(file_system, "/d") == CHECKPOINT


# The log of a database in memory


def _flushed(file_system: MemoryFileSystem) -> bytes:
    database = MemoryDatabases(file_system).open("/db")
    database.write([(b"a", b"1"), (b"b", b"2")])
    database.flush()
    database.write([(b"a", None), (b"c", b"")])
    database.close()
    return file_system.read(f"/db/{LOG_NAME}")


def _content(file_system: MemoryFileSystem) -> dict[bytes, bytes]:
    return dict(MemoryDatabase("/db", file_system).scan(None, None, backward=False))


def test_a_torn_last_frame_was_not_flushed(file_system: MemoryFileSystem) -> None:
    data = _flushed(file_system)
    first = 8 + 2 * (8 + 2)
    for end in range(len(data)):
        _write(file_system, f"/db/{LOG_NAME}", data[:end])
        assert _content(file_system) == ({b"a": b"1", b"b": b"2"} if end >= first else {})
        assert file_system.info(f"/db/{LOG_NAME}").size == (first if end >= first else 0)


def test_a_broken_frame_before_another_is_corrupt(file_system: MemoryFileSystem) -> None:
    data = bytearray(_flushed(file_system))
    data[12] ^= 1
    _write(file_system, f"/db/{LOG_NAME}", bytes(data))
    with pytest.raises(Corrupt, match="the frame at 0 of 20 bytes has a wrong checksum"):
        MemoryDatabase("/db", file_system)


def test_a_crash_loses_what_was_not_flushed(file_system: MemoryFileSystem) -> None:
    databases = MemoryDatabases(file_system)
    database = databases.open("/db")
    database.write([(b"a", b"1")])
    database.flush()
    database.write([(b"b", b"2")])
    databases.crash()
    assert _content(file_system) == {b"a": b"1"}


def test_what_was_flushed_survives_a_power_loss() -> None:
    file_system = FaultyFileSystem(ManualClock())
    database = MemoryDatabases(file_system).open("/db")
    for entry in ((b"a", b"1"), (b"b", b"2")):
        database.write([entry])
        database.flush()
        left = MemoryDatabases(file_system.after_crash(CrashMode.LOSE_UNSYNCED))
        assert left.open("/db", must_exist=True).get(entry[0]) == entry[1]


def test_a_log_of_overwritten_entries_is_written_anew(file_system: MemoryFileSystem) -> None:
    database = MemoryDatabases(file_system).open("/db")
    for number in range(40):
        database.write([(b"a", bytes([number]) * 100_000), (b"b", b"2"), (b"c", None)])
        database.flush()
        assert database.size() < 1_500_000
        assert database.size() == file_system.info(f"/db/{LOG_NAME}").size
    database.write([(b"b", None)])
    database.close()
    assert _content(file_system) == {b"a": bytes([39]) * 100_000}


def test_a_flush_on_a_full_disk_may_be_tried_again() -> None:
    file_system = FaultyFileSystem(ManualClock())
    database = MemoryDatabases(file_system).open("/db")
    database.write([(b"a", b"1" * 100)])
    file_system.full_at(50)
    with pytest.raises(DiskFull):
        database.flush()
    file_system.full_at(None)
    database.flush()
    assert dict(MemoryDatabase("/db", file_system).scan(None, None, backward=False)) == {
        b"a": b"1" * 100
    }


def test_no_flush_after_a_failed_sync() -> None:
    file_system = FaultyFileSystem(ManualClock())
    database = MemoryDatabases(file_system).open("/db")
    database.write([(b"a", b"1")])
    database.flush()
    database.write([(b"b", b"2")])
    file_system.fail_at(file_system.steps + 2, OSError(5, "Input/output error"))
    with pytest.raises(Unavailable, match="flush of"):
        database.flush()
    with pytest.raises(LogPoisoned, match="open the store again"):
        database.flush()
