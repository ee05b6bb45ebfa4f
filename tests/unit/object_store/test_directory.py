"""The directory store: what is on disk, what is left over, and what the disk refuses."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from varve.foundation.clock import ManualClock
from varve.foundation.errors import (
    DiskFull,
    InvalidRequest,
    ObjectExists,
    StoreDenied,
    StoreUnavailable,
    StoreUnsupported,
)
from varve.object_store import DirectoryObjectStore
from varve.object_store.directory import WRITING

DAY_MS = 24 * 60 * 60 * 1000


@pytest.fixture
def store(tmp_path: Path) -> DirectoryObjectStore:
    return DirectoryObjectStore(str(tmp_path))


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that are synced, in order."""
    paths: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    )
    return paths


def test_keys_are_paths_and_nothing_else_stays(tmp_path: Path) -> None:
    store = DirectoryObjectStore(str(tmp_path / "new" / "root"))
    store.put("a/b/c", b"1")
    store.create("a/d", b"2")
    root = tmp_path / "new" / "root"
    assert store.name == f"file://{root}"
    assert (root / "a/b/c").read_bytes() == b"1"
    assert (root / "a/d").read_bytes() == b"2"
    assert list((root / WRITING).iterdir()) == []
    assert (root / "a/d").stat().st_nlink == 1


def test_failed_writes_leave_nothing_aside(tmp_path: Path, store: DirectoryObjectStore) -> None:
    store.create("a", b"1")
    with pytest.raises(ObjectExists):
        store.create("a", b"2")
    with pytest.raises(InvalidRequest):
        store.put_parts("b", [b"1"], size=2)
    assert list((tmp_path / WRITING).iterdir()) == []


def test_emptied_directories_go(tmp_path: Path, store: DirectoryObjectStore) -> None:
    store.put("a/b/c/d", b"1")
    store.put("a/e", b"2")
    store.delete(["a/b/c/d"])
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["e"]


def test_empty_directories_of_others_are_not_listed(
    tmp_path: Path, store: DirectoryObjectStore
) -> None:
    (tmp_path / "x" / "y").mkdir(parents=True)
    store.put("z/1", b"")
    assert store.list_directories("") == ["z"]


def test_objects_of_others_are_listed(tmp_path: Path, store: DirectoryObjectStore) -> None:
    (tmp_path / "not ours").write_bytes(b"123")
    assert [(info.key, info.size) for info in store.list("")] == [("not ours", 3)]


@pytest.mark.parametrize("must_exist", [False, True])
def test_leftovers_go_after_a_day(tmp_path: Path, must_exist: bool) -> None:
    DirectoryObjectStore(str(tmp_path)).put("a", b"1")
    leftover = tmp_path / WRITING / "0123"
    leftover.write_bytes(b"half")
    written_ms = leftover.stat().st_mtime_ns // 1_000_000
    for age_ms, is_there in ((DAY_MS - 1000, True), (DAY_MS + 1000, False)):
        clock = ManualClock(written_ms + age_ms)
        store = DirectoryObjectStore(str(tmp_path), clock=clock, must_exist=must_exist)
        assert leftover.exists() == is_there
        assert [info.key for info in store.list("")] == ["a"]


def test_a_key_below_an_object_is_refused(store: DirectoryObjectStore) -> None:
    store.put("a/b", b"1")
    for key in ("a", "a/b/c"):
        for write in (store.put, store.create):
            with pytest.raises(InvalidRequest, match="directory of another") as caught:
                write(key, b"2")
            assert not isinstance(caught.value, ObjectExists)


def test_a_write_is_synced_up_to_the_root(
    store: DirectoryObjectStore, tmp_path: Path, synced: list[str]
) -> None:
    for write in (store.put, store.create):
        synced.clear()
        write(f"a/b/{write.__name__}", b"1")
        assert synced[0].startswith(f"{tmp_path}/{WRITING}/")
        assert synced[1:] == [f"{tmp_path}/a/b", f"{tmp_path}/a", f"{tmp_path}"]
    synced.clear()
    store.delete(["a/b/put"])
    assert synced[0] == f"{tmp_path}/a/b"


def test_a_new_root_is_synced_up_to_what_was_there(tmp_path: Path, synced: list[str]) -> None:
    DirectoryObjectStore(str(tmp_path / "a" / "b"))
    assert synced == [f"{tmp_path}/a/b", f"{tmp_path}/a", f"{tmp_path}"]


def test_a_removed_directory_is_made_again(
    store: DirectoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace
    removed: list[str] = []

    def remove_first(source: str, target: str) -> None:
        if len(removed) < 3:
            removed.append(target)
            os.rmdir(os.path.dirname(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", remove_first)
    store.put("a/b", b"1")
    assert store.get("a/b") == b"1"
    assert len(removed) == 3


def test_a_directory_that_goes_while_it_is_looked_at_is_made_again(
    store: DirectoryObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`makedirs` meets it, a delete takes it away, and the look at what is there finds nothing."""
    (tmp_path / "page").mkdir()
    looks = []
    is_directory = os.path.isdir

    def delete_before_looking(path: str) -> bool:
        looks.append(path)
        if len(looks) == 1:
            (tmp_path / "page").rmdir()
        return is_directory(path)

    monkeypatch.setattr(os.path, "isdir", delete_before_looking)
    store.put("page/1", b"kept")
    monkeypatch.undo()
    assert looks[0] == str(tmp_path / "page")
    assert store.get("page/1") == b"kept"


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, DiskFull),
        (errno.EDQUOT, DiskFull),
        (errno.EACCES, StoreDenied),
        (errno.EROFS, StoreDenied),
        (errno.EIO, StoreUnavailable),
    ],
)
def test_what_the_disk_says_becomes_a_named_error(
    store: DirectoryObjectStore, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:

    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(kind, match="put 'a' failed") as caught:
        store.put("a", b"1")
    assert store.name in str(caught.value)


def test_what_cannot_be_cleaned_up_hides_no_error(
    store: DirectoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:

    def refuse(*given: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "fsync", refuse)
    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(StoreDenied, match="mount it for writing"):
        store.put("a", b"1")


@pytest.mark.parametrize("must_exist", [False, True])
@pytest.mark.parametrize("below", ["", "/deeper"])
def test_a_root_that_is_a_file_is_unavailable(tmp_path: Path, below: str, must_exist: bool) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreUnavailable, match="a file is where a directory has to be"):
        DirectoryObjectStore(f"{tmp_path}/file{below}", must_exist=must_exist)


def test_a_file_system_without_hard_links_is_named(
    store: DirectoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:

    def refuse(source: str, target: str) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(StoreUnsupported, match="hard links"):
        store.create("a", b"1")


def test_large_ranges_are_read_in_several_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("varve.object_store.directory._CHUNK_BYTES", 7)
    store = DirectoryObjectStore(str(tmp_path))
    data = bytes(range(100))
    store.put("a", data)
    assert store.get("a") == data
    assert bytes(store.get_range("a", 3, 60)) == data[3:60]


@pytest.mark.parametrize("is_mount_point", [False, True])
def test_a_root_that_goes_away_is_unavailable_for_every_request(
    tmp_path: Path, is_mount_point: bool
) -> None:
    """Not a store without objects: readers would take all for lost, and writers begin anew."""
    root, away = tmp_path / "root", tmp_path / "away"
    store = DirectoryObjectStore(str(root))
    store.put("a/b", b"1")
    root.rename(away)
    if is_mount_point:
        (root / "lost+found").mkdir(parents=True)
    requests: list[Callable[[], object]] = [
        lambda: store.get("a/b"),
        lambda: store.get_range("a/b", 0, 1),
        lambda: store.head("a/b"),
        lambda: list(store.list("")),
        lambda: list(store.list("a")),
        lambda: store.list_directories(""),
        lambda: store.put("a/c", b"2"),
        lambda: store.create("a/c", b"2"),
        lambda: store.delete(["a/b"]),
        lambda: DirectoryObjectStore(str(root), must_exist=True),
    ]
    for request in requests:
        with pytest.raises(StoreUnavailable, match=r"root (is|exists).*; mount or restore it"):
            request()
    assert root.exists() == is_mount_point
    if is_mount_point:
        (root / "lost+found").rmdir()
        root.rmdir()
    away.rename(root)
    assert store.get("a/b") == DirectoryObjectStore(str(root), must_exist=True).get("a/b") == b"1"


def test_a_root_that_must_exist_may_lack_the_directory_of_files_being_written(
    tmp_path: Path,
) -> None:
    """As one that was brought back by a tool that leaves empty directories out."""
    (tmp_path / "a").write_bytes(b"1")
    store = DirectoryObjectStore(str(tmp_path), must_exist=True)
    store.put("b", b"2")
    assert [info.key for info in store.list("")] == ["a", "b"]


def test_a_root_that_must_exist_gets_nothing_by_reading(tmp_path: Path) -> None:
    """It may be a log directory, in which only logs are expected."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a/b").write_bytes(b"1")
    store = DirectoryObjectStore(str(tmp_path), must_exist=True)
    assert (store.get("a/b"), store.head("a/b").size) == (b"1", 1)
    assert [info.key for info in store.list("")] == ["a/b"]
    assert store.list_directories("") == ["a"]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_root_that_must_exist_is_changed_by_the_first_write(
    tmp_path: Path, synced: list[str]
) -> None:
    (tmp_path / "a").write_bytes(b"1")
    store = DirectoryObjectStore(str(tmp_path), must_exist=True)
    store.put("b", b"2")
    assert synced[0] == str(tmp_path), "the new directory outlasts a loss of power"
    assert list((tmp_path / WRITING).iterdir()) == []


def test_a_root_that_is_emptied_is_a_store_without_objects(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    store = DirectoryObjectStore(str(tmp_path), must_exist=True)
    store.delete(["a"])
    assert list(store.list("")) == []
    assert list(DirectoryObjectStore(str(tmp_path), must_exist=True).list("")) == []
