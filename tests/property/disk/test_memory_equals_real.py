"""Under any sequence of calls the file systems in memory answer as the real one does."""

import shutil
import tempfile
from collections.abc import Callable
from functools import partial

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from varve.disk import File, FileSystem, MemoryFileSystem, RealFileSystem
from varve.foundation.clock import ManualClock
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem

NAMES = st.sampled_from(["a", "b", "c", "d", "d/a", "d/b", "d/e", "d/e/a"])
POSITIONS = st.integers(0, 40)
Answer = tuple[str, object]


class FileSystemsAgree(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.directory = tempfile.mkdtemp()
        self.faulty = FaultyFileSystem(ManualClock())
        self.systems: list[tuple[FileSystem, str]] = [
            (RealFileSystem(), self.directory),
            (MemoryFileSystem(ManualClock()), "/data"),
            (self.faulty, "/data"),
        ]
        for fs, root in self.systems:
            fs.make_directory(root)
        self.handles: list[list[File]] = []

    def teardown(self) -> None:
        for files in self.handles:
            for file in files:
                file.close()
        shutil.rmtree(self.directory)

    def _agree(self, call: Callable[[FileSystem, str], object]) -> Answer:
        answers = [_answer(partial(call, fs, root)) for fs, root in self.systems]
        assert answers[0] == answers[1] == answers[2]
        return answers[0]

    def _files_agree(self, number: int, call: Callable[[File], object]) -> None:
        if self.handles:
            files = self.handles[number % len(self.handles)]
            answers = [_answer(partial(call, file)) for file in files]
            assert answers[0] == answers[1] == answers[2]

    @rule(name=NAMES, writable=st.booleans())
    def open(self, name: str, writable: bool) -> None:
        files: list[File] = []

        def call(fs: FileSystem, root: str) -> None:
            opener = fs.open_writable if writable else fs.open
            files.append(opener(f"{root}/{name}"))

        kind, _ = self._agree(call)
        if kind == "value":
            self.handles.append(files)

    @rule(
        number=st.integers(0, 99),
        position=POSITIONS,
        buffers=st.lists(st.binary(max_size=9), max_size=3),
    )
    def write_at(self, number: int, position: int, buffers: list[bytes]) -> None:
        self._files_agree(number, lambda file: file.write_at(position, *buffers))

    @rule(number=st.integers(0, 99), size=POSITIONS)
    def truncate(self, number: int, size: int) -> None:
        self._files_agree(number, lambda file: file.truncate(size))

    @rule(number=st.integers(0, 99), position=POSITIONS, size=POSITIONS)
    def read(self, number: int, position: int, size: int) -> None:
        def read_into(file: File) -> tuple[int, bytes]:
            buffer = bytearray(10)
            return file.read_into(position, memoryview(buffer)), bytes(buffer)

        self._files_agree(number, lambda file: file.read_at(position, size))
        self._files_agree(number, read_into)
        self._files_agree(number, lambda file: file.size())

    @rule(number=st.integers(0, 99))
    def sync(self, number: int) -> None:
        self._files_agree(number, lambda file: file.sync())

    @rule(number=st.integers(0, 99))
    def close(self, number: int) -> None:
        self._files_agree(number, lambda file: file.close())

    @rule(old=NAMES, new=NAMES)
    def rename(self, old: str, new: str) -> None:
        self._agree(lambda fs, root: fs.rename(f"{root}/{old}", f"{root}/{new}"))

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        self._agree(lambda fs, root: fs.remove(f"{root}/{name}"))

    @rule(name=NAMES)
    def remove_tree(self, name: str) -> None:
        self._agree(lambda fs, root: fs.remove_tree(f"{root}/{name}"))

    @rule(name=NAMES)
    def make_directory(self, name: str) -> None:
        self._agree(lambda fs, root: fs.make_directory(f"{root}/{name}"))

    @rule(name=NAMES)
    def sync_directory(self, name: str) -> None:
        self._agree(lambda fs, root: fs.sync_directory(f"{root}/{name}"))

    @rule(name=NAMES, modified_ms=st.integers(0, 2_000_000_000_000))
    def set_modified(self, name: str, modified_ms: int) -> None:
        self._agree(lambda fs, root: fs.set_modified_ms(f"{root}/{name}", modified_ms))
        self._agree(lambda fs, root: fs.info(f"{root}/{name}").modified_ms)

    @rule(name=NAMES)
    def ask(self, name: str) -> None:
        self._agree(lambda fs, root: fs.read(f"{root}/{name}"))
        self._agree(lambda fs, root: fs.names(f"{root}/{name}"))
        self._agree(lambda fs, root: fs.exists(f"{root}/{name}"))
        self._agree(lambda fs, root: fs.info(f"{root}/{name}").size)

    @rule()
    def kill_keeps_all(self) -> None:
        killed = self.faulty.after_crash(CrashMode.KEEP_ALL)
        assert _walk(killed, "/data") == _walk(self.faulty, "/data")

    @rule(seed=st.integers(0, 1000))
    def power_loss_leaves_a_readable_tree(self, seed: int) -> None:
        for mode in (CrashMode.LOSE_UNSYNCED, CrashMode.RANDOM):
            left = self.faulty.after_crash(mode, seed)
            if left.exists("/data"):
                _walk(left, "/data")

    @invariant()
    def trees_are_equal(self) -> None:
        self._agree(_walk)


def _answer(call: Callable[[], object]) -> Answer:
    try:
        value = call()
    except OSError as error:
        return type(error).__name__, error.errno
    return "value", value


def _walk(fs: FileSystem, path: str) -> dict[str, object]:
    return {
        info.name: _walk(fs, f"{path}/{info.name}")
        if info.is_directory
        else fs.read(f"{path}/{info.name}")
        for info in fs.scan(path)
    }


TestFileSystemsAgree = FileSystemsAgree.TestCase
TestFileSystemsAgree.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
