"""Every file system keeps the promises of `varve.disk.FileSystem`."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from varve.disk import FileSystem, MemoryFileSystem, RealFileSystem, write_atomically
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Locked
from varve.testing.faulty_disk import FaultyFileSystem


class Place:
    """A file system and a directory in it that exists and is empty."""

    def __init__(self, fs: FileSystem, root: str) -> None:
        self.fs = fs
        self.root = root

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def put(self, name: str, data: bytes) -> str:
        with self.fs.open_writable(self.path(name)) as file:
            file.write_at(0, data)
        return self.path(name)


def _memory(_: Path) -> Place:
    fs = MemoryFileSystem(ManualClock())
    fs.make_directory("/data")
    return Place(fs, "/data")


def _faulty(_: Path) -> Place:
    fs = FaultyFileSystem(ManualClock())
    fs.make_directory("/data")
    return Place(fs, "/data")


def _real(tmp_path: Path) -> Place:
    return Place(RealFileSystem(), str(tmp_path))


@pytest.fixture(params=[_real, _memory, _faulty], ids=["real", "memory", "faulty"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    make: Callable[[Path], Place] = request.param
    return make(tmp_path)


def test_written_bytes_are_read_back(place: Place) -> None:
    path = place.put("a", b"hello world")
    with place.fs.open(path) as file:
        assert file.path == path
        assert file.read_at(6, 5) == b"world"
        assert file.size() == 11
    assert place.fs.read(path) == b"hello world"


def test_several_buffers_are_written_one_after_the_other(place: Place) -> None:
    with place.fs.open_writable(place.path("a")) as file:
        file.write_at(0, b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3], b"")
        file.write_at(6, *[bytes([65 + n % 26]) for n in range(3000)])
        assert file.read_at(0, 9) == b"abcdefABC"
        assert file.size() == 3006
        file.write_at(3)
        assert file.size() == 3006


def test_write_past_the_end_leaves_zeros(place: Place) -> None:
    with place.fs.open_writable(place.path("a")) as file:
        file.write_at(4, b"x")
        file.write_at(100, b"")
        assert file.read_at(0, 100) == b"\0\0\0\0x"


def test_overwrite_keeps_the_rest(place: Place) -> None:
    with place.fs.open_writable(place.put("a", b"abcdef")) as file:
        file.write_at(2, b"XY")
        assert file.read_at(0, 10) == b"abXYef"


def test_read_is_short_only_at_the_end(place: Place) -> None:
    with place.fs.open(place.put("a", b"abc")) as file:
        assert file.read_at(1, 10) == b"bc"
        assert file.read_at(3, 10) == b""
        assert file.read_at(99, 1) == b""
        assert file.read_at(0, 0) == b""


def test_read_into_fills_the_buffer(place: Place) -> None:
    with place.fs.open(place.put("a", b"abcdef")) as file:
        buffer = bytearray(b"......")
        assert file.read_into(1, memoryview(buffer)[:3]) == 3
        assert buffer == b"bcd..."
        assert file.read_into(4, memoryview(buffer)) == 2
        assert buffer == b"efd..."
        assert file.read_into(6, memoryview(buffer)) == 0


def test_truncate_cuts_and_extends_with_zeros(place: Place) -> None:
    with place.fs.open_writable(place.put("a", b"abcdef")) as file:
        file.truncate(2)
        file.truncate(4)
        assert file.read_at(0, 10) == b"ab\0\0"


def test_a_private_file_is_written_and_read_as_any(place: Place) -> None:
    with place.fs.open_private(place.path("a")) as file:
        file.write_at(0, b"secret")
    with place.fs.open_private(place.path("a")) as file:
        assert file.read_at(0, 6) == b"secret"


def test_open_writable_never_truncates(place: Place) -> None:
    path = place.put("a", b"abc")
    with place.fs.open_writable(path) as file:
        assert file.size() == 3


def test_read_only_handle_refuses_changes_but_syncs(place: Place) -> None:
    with place.fs.open(place.put("a", b"abc")) as file:
        with pytest.raises(OSError, match="a") as refused:
            file.write_at(0, b"x")
        assert refused.value.errno == errno.EBADF
        with pytest.raises(OSError, match="a") as refused:
            file.truncate(0)
        assert refused.value.errno == errno.EINVAL
        file.sync()
        assert file.read_at(0, 3) == b"abc"


def test_negative_positions_and_sizes_are_refused(place: Place) -> None:
    with place.fs.open_writable(place.put("a", b"abc")) as file:
        for call in (
            lambda: file.write_at(-1, b"x"),
            lambda: file.write_at(-1, b"x", b"y"),
            lambda: file.write_at(-1),
            lambda: file.read_into(-1, memoryview(bytearray(1))),
            lambda: file.read_at(-1, 1),
            lambda: file.read_at(0, -1),
            lambda: file.truncate(-1),
        ):
            with pytest.raises(OSError, match="Invalid argument") as refused:
                call()
            assert refused.value.errno == errno.EINVAL
            assert refused.value.filename == file.path


def test_closed_handle_refuses_calls_and_closes_twice(place: Place) -> None:
    file = place.fs.open_writable(place.path("a"))
    file.close()
    file.close()
    for call in (
        lambda: file.write_at(0, b"x"),
        lambda: file.read_at(0, 1),
        lambda: file.read_into(0, memoryview(bytearray(1))),
        file.size,
        lambda: file.truncate(0),
        file.sync,
    ):
        with pytest.raises(OSError, match="Bad file descriptor") as refused:
            call()
        assert refused.value.errno == errno.EBADF
        assert refused.value.filename == file.path


def test_handle_outlives_remove_and_rename(place: Place) -> None:
    removed = place.fs.open_writable(place.put("a", b"removed"))
    renamed = place.fs.open_writable(place.put("b", b"renamed"))
    replaced = place.fs.open(place.put("c", b"replaced"))
    place.fs.remove(removed.path)
    place.fs.rename(renamed.path, replaced.path)
    renamed.write_at(0, b"R")
    removed.write_at(0, b"R")
    assert removed.read_at(0, 10) == b"Removed"
    assert replaced.read_at(0, 10) == b"replaced"
    assert place.fs.read(place.path("c")) == b"Renamed"
    assert place.fs.names(place.root) == ["c"]
    for file in (removed, renamed, replaced):
        file.close()


def test_a_new_file_does_not_see_the_removed_one(place: Place) -> None:
    with place.fs.open(place.put("a", b"old")) as old:
        place.fs.remove(place.path("a"))
        place.put("a", b"new")
        assert old.read_at(0, 3) == b"old"


def test_missing_names_raise_file_not_found(place: Place) -> None:
    missing = place.path("missing")
    for call in (
        place.fs.open,
        place.fs.scan,
        place.fs.names,
        place.fs.info,
        place.fs.read,
        place.fs.remove,
        place.fs.remove_tree,
        place.fs.sync_directory,
        lambda path: place.fs.rename(path, place.path("b")),
        lambda path: place.fs.set_modified_ms(path, 0),
        lambda path: place.fs.open_writable(path + "/child"),
        lambda path: place.fs.lock(path + "/child"),
    ):
        with pytest.raises(FileNotFoundError, match="missing"):
            call(missing)
    assert not place.fs.exists(missing)


def test_directories_are_not_files(place: Place) -> None:
    directory, file = place.path("d"), place.put("f", b"x")
    place.fs.make_directory(directory)
    for as_file in (place.fs.open, place.fs.open_writable, place.fs.read, place.fs.remove):
        with pytest.raises(IsADirectoryError):
            as_file(directory)
    for call in (
        place.fs.scan,
        place.fs.names,
        place.fs.remove_tree,
        place.fs.sync_directory,
        lambda path: place.fs.open(path + "/x"),
        lambda path: place.fs.make_directory(path + "/x"),
    ):
        with pytest.raises(NotADirectoryError):
            call(file)
    with pytest.raises(FileExistsError):
        place.fs.make_directory(file)
    assert not place.fs.exists(file + "/x")


def test_scan_and_names_are_sorted(place: Place) -> None:
    place.put("b", b"12")
    place.put("a", b"1")
    place.fs.make_directory(place.path("c"))
    assert place.fs.names(place.root) == ["a", "b", "c"]
    assert [(i.name, i.size, i.is_directory) for i in place.fs.scan(place.root)] == [
        ("a", 1, False),
        ("b", 2, False),
        ("c", 0, True),
    ]
    assert place.fs.info(place.path("b")).size == 2
    assert place.fs.info(place.path("c")).is_directory
    assert place.fs.info(place.path("c") + "/").name == "c"


def test_modified_time_is_set_in_milliseconds(place: Place) -> None:
    path = place.put("a", b"x")
    place.fs.set_modified_ms(path, 1_234_567_890_123)
    assert place.fs.info(path).modified_ms == 1_234_567_890_123
    assert place.fs.scan(place.root)[0].modified_ms == 1_234_567_890_123


def test_rename_replaces_files_and_moves_directories(place: Place) -> None:
    place.put("a", b"new")
    place.put("b", b"old")
    place.fs.rename(place.path("a"), place.path("b"))
    place.fs.rename(place.path("b"), place.path("b"))
    assert place.fs.read(place.path("b")) == b"new"
    place.fs.make_directory(place.path("d/e"))
    place.put("d/e/f", b"x")
    place.fs.rename(place.path("d"), place.path("g"))
    assert place.fs.read(place.path("g/e/f")) == b"x"
    assert not place.fs.exists(place.path("d"))


def test_rename_refuses_what_would_lose_or_loop(place: Place) -> None:
    file = place.put("f", b"x")
    place.fs.make_directory(place.path("full/inner"))
    place.fs.make_directory(place.path("other"))
    for source, target, code in (
        (file, place.path("other"), errno.EISDIR),
        (place.path("other"), file, errno.ENOTDIR),
        (place.path("other"), place.path("full"), errno.ENOTEMPTY),
        (place.path("full"), place.path("full/inner/deep"), errno.EINVAL),
        (file, place.path("nowhere/f"), errno.ENOENT),
    ):
        with pytest.raises(OSError, match="Errno") as refused:
            place.fs.rename(source, target)
        assert refused.value.errno == code
    place.fs.rename(place.path("full"), place.path("other"))
    assert place.fs.names(place.path("other")) == ["inner"]


def test_remove_tree_takes_all_below(place: Place) -> None:
    place.fs.make_directory(place.path("d/e"))
    place.put("d/a", b"x")
    place.put("d/e/b", b"x")
    place.fs.remove_tree(place.path("d"))
    assert place.fs.names(place.root) == []


def test_make_directory_makes_parents_and_accepts_existing_ones(place: Place) -> None:
    place.fs.make_directory(place.path("d/e/f"))
    place.fs.make_directory(place.path("d/e/f"))
    place.fs.sync_directory(place.path("d/e"))
    assert place.fs.names(place.path("d/e")) == ["f"]


def test_many_files_are_synced_together_and_each_tells_what_failed(place: Place) -> None:
    for count in (0, 1, 40):
        files = [place.fs.open_writable(place.path(f"f{number}")) for number in range(count)]
        for file in files:
            file.write_at(0, b"x")
        for file in files[1:2]:
            file.close()
        errors = place.fs.sync_files(files)
        failed = [error.errno for error in errors if error is not None]
        assert (len(errors), failed) == (count, [errno.EBADF] * len(files[1:2]))
        for file in files:
            file.close()


def test_lock_excludes_a_second_holder_until_released(place: Place) -> None:
    path = place.path(".lock")
    lock = place.fs.lock(path)
    assert place.fs.exists(path)
    for _ in range(2):
        with pytest.raises(Locked, match=r"in use by this process.*close that first"):
            place.fs.lock(path)
    lock.release()
    lock.release()
    with place.fs.lock(path) as again:
        assert again.path == path
    place.fs.lock(path).release()


def test_stale_release_does_not_free_the_next_holder(place: Place) -> None:
    first = place.fs.lock(place.path(".lock"))
    first.release()
    with place.fs.lock(place.path(".lock")):
        first.release()
        with pytest.raises(Locked):
            place.fs.lock(place.path(".lock"))


def test_write_atomically_replaces_the_whole_file(place: Place) -> None:
    path = place.path("checkpoint")
    write_atomically(place.fs, path, b"a long first version")
    place.put("checkpoint.tmp", b"left behind by a crash, longer than what comes")
    write_atomically(place.fs, path, b"second")
    assert place.fs.read(path) == b"second"
    assert place.fs.names(place.root) == ["checkpoint"]


def test_failed_write_atomically_leaves_the_target_and_no_temporary(place: Place) -> None:
    place.fs.make_directory(place.path("taken/inner"))
    with pytest.raises(IsADirectoryError):
        write_atomically(place.fs, place.path("taken"), b"data")
    assert place.fs.names(place.root) == ["taken"]
