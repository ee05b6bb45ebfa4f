"""What only the real file system can get wrong: short calls, and locks between processes."""

import errno
import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from varve.disk import RealFileSystem, write_atomically
from varve.foundation.errors import Locked

HOLDER = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
try:
    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("held", flush=True)
except OSError:
    print("refused", flush=True)
sys.stdin.read()
"""
"""Takes the lock as Kafka does, with a POSIX record lock."""

VARVE_HOLDER = """
import sys
from varve.disk import RealFileSystem
lock = RealFileSystem().lock(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / ".lock")


def _start(program: str, path: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture
def record_lock_holder(path: str) -> Iterator[subprocess.Popen[str]]:
    with _start(HOLDER, path) as process:
        assert _first_line(process) == "held"
        yield process
        process.kill()


def test_a_record_lock_of_another_process_excludes_us(
    path: str, record_lock_holder: subprocess.Popen[str]
) -> None:
    fs = RealFileSystem()
    with pytest.raises(Locked, match="Kafka"):
        fs.lock(path)
    record_lock_holder.kill()
    record_lock_holder.wait()
    fs.lock(path).release()


def test_our_lock_excludes_record_locks_even_after_a_refused_second_lock(path: str) -> None:
    fs = RealFileSystem()
    lock = fs.lock(path)
    with pytest.raises(Locked):
        RealFileSystem().lock(path)
    fs.read(path)
    with _start(HOLDER, path) as process:
        assert _first_line(process) == "refused"
        process.kill()
    lock.release()
    with _start(HOLDER, path) as process:
        assert _first_line(process) == "held"
        process.kill()


def test_the_lock_goes_with_its_process(path: str) -> None:
    with _start(VARVE_HOLDER, path) as process:
        assert _first_line(process) == "held"
        with pytest.raises(Locked, match=f"in use by process {process.pid}, .* stop it first"):
            RealFileSystem().lock(path)
        process.kill()
    RealFileSystem().lock(path).release()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not name the process")
def test_the_process_with_a_record_lock_is_named(
    path: str, record_lock_holder: subprocess.Popen[str]
) -> None:
    with pytest.raises(Locked, match=f"in use by process {record_lock_holder.pid}, .* Kafka"):
        RealFileSystem().lock(path)


def test_a_server_is_named_with_its_address_until_it_releases_the_lock(path: str) -> None:
    with RealFileSystem().lock(path) as lock:
        lock.describe_owner("varve serve", "localhost:9092")
        with pytest.raises(Locked) as caught:
            RealFileSystem().lock(path)
    directory = os.path.dirname(path)
    assert str(caught.value) == (
        f"{directory} is in use by `varve serve` (pid {os.getpid()}, localhost:9092); stop it first"
    )
    assert caught.value.address == "localhost:9092"
    assert Path(path).read_bytes() == b""


def test_a_lock_file_that_another_program_wrote_names_no_process(path: str) -> None:
    lock = RealFileSystem().lock(path)
    Path(path).write_bytes(b"[]")
    with lock, pytest.raises(Locked, match=r"in use by another process, .* stop it first"):
        RealFileSystem().lock(path)


def test_release_unlocks_though_a_forked_child_shares_the_descriptor(path: str) -> None:
    lock = RealFileSystem().lock(path)
    shared = os.dup(lock._descriptor)
    lock.release()
    RealFileSystem().lock(path).release()
    os.close(shared)


def test_refused_locks_leave_no_descriptor_open(path: str) -> None:
    fs = RealFileSystem()
    with fs.lock(path):
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            with pytest.raises(Locked):
                fs.lock(path)
        assert len(os.listdir("/proc/self/fd")) == before


def test_short_writes_are_continued(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite, pwritev = os.pwrite, os.pwritev

    def short_pwrite(descriptor: int, data: memoryview, position: int) -> int:
        return pwrite(descriptor, memoryview(data)[:3], position)

    def short_pwritev(descriptor: int, buffers: Sequence[bytes], position: int) -> int:
        return pwritev(descriptor, [b"".join(buffers)[:5]], position)

    monkeypatch.setattr(os, "pwrite", short_pwrite)
    monkeypatch.setattr(os, "pwritev", short_pwritev)
    with RealFileSystem().open_writable(path) as file:
        file.write_at(0, b"0123456789")
        file.write_at(10, b"abc", b"", b"defghij", b"k")
        assert file.read_at(0, 100) == b"0123456789abcdefghijk"


def test_a_write_that_takes_nothing_is_an_error(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, position: 0)
    with RealFileSystem().open_writable(path) as file:
        with pytest.raises(OSError, match="took no bytes") as refused:
            file.write_at(0, b"x")
        assert refused.value.errno == errno.EIO
        assert refused.value.filename == path


def test_short_reads_are_continued(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pread, preadv = os.pread, os.preadv

    def short_pread(descriptor: int, size: int, position: int) -> bytes:
        return pread(descriptor, min(size, 3), position)

    def short_preadv(descriptor: int, buffers: Sequence[memoryview], position: int) -> int:
        return preadv(descriptor, [buffers[0][:3]], position)

    with RealFileSystem().open_writable(path) as file:
        file.write_at(0, b"0123456789")
        monkeypatch.setattr(os, "pread", short_pread)
        monkeypatch.setattr(os, "preadv", short_preadv)
        assert file.read_at(1, 8) == b"12345678"
        assert file.read_at(1, 100) == b"123456789"
        buffer = bytearray(20)
        assert file.read_into(0, memoryview(buffer)) == 10
        assert buffer[:10] == b"0123456789"


def test_descriptors_are_not_inherited_and_close_with_their_last_reference(path: str) -> None:
    file = RealFileSystem().open_writable(path)
    descriptor = file._descriptor
    assert fcntl.fcntl(descriptor, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    del file
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_opening_a_directory_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(IsADirectoryError):
            RealFileSystem().open(str(tmp_path))
    assert len(os.listdir("/proc/self/fd")) == before


def test_scan_leaves_out_entries_that_vanish(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    (tmp_path / "here").touch()
    assert [info.name for info in RealFileSystem().scan(str(tmp_path))] == ["here"]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
@pytest.mark.parametrize("is_there", [False, True])
def test_a_private_file_is_its_owners_alone(path: str, umask: int, is_there: bool) -> None:
    if is_there:
        Path(path).touch(mode=0o644)
    before = os.umask(umask)
    try:
        write_atomically(RealFileSystem(), f"{path}.secret", b"secret", is_private=True)
        RealFileSystem().open_private(path).close()
    finally:
        os.umask(before)
    for one in (path, f"{path}.secret"):
        assert stat.S_IMODE(os.stat(one).st_mode) == 0o600


@pytest.mark.parametrize("replaced", [False, True], ids=["deleted", "replaced"])
def test_a_lock_file_that_is_deleted_lets_no_second_owner_in(path: str, replaced: bool) -> None:
    with RealFileSystem().lock(path):
        os.unlink(path)
        if replaced:
            Path(path).touch()
        with pytest.raises(Locked, match="is in use"):
            RealFileSystem().lock(path)
    RealFileSystem().lock(path).release()


def test_other_lock_files_of_a_locked_directory_are_free(path: str) -> None:
    with RealFileSystem().lock(path), RealFileSystem().lock(f"{path}s"):
        pass


@pytest.mark.parametrize("call", ["open", "open_writable", "open_private", "read"])
def test_a_fifo_is_refused_and_not_waited_for(tmp_path: Path, call: str) -> None:
    path = str(tmp_path / "fifo")
    os.mkfifo(path)
    with pytest.raises(OSError, match="Not a regular file") as caught:
        getattr(RealFileSystem(), call)(path)
    assert caught.value.filename == path
