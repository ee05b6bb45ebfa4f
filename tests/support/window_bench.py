"""Window stores for tests: on an engine and a disk, with short words for what tests do."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.memory_changelog import MemoryChangelog
from varve.disk import FileSystem, MemoryFileSystem, RealFileSystem
from varve.foundation.clock import ManualClock
from varve.rocks.database import Databases, RocksDatabases
from varve.rocks.memory_database import MemoryDatabases
from varve.windows.changelog import Changelog, LoggedWrite, OnProgress, WindowSettings
from varve.windows.entries import WindowEntry
from varve.windows.window_store import WindowStore

NAME = "s"
SEGMENT_MS = 10_000
RETENTION_MS = 25_000
SMALL_MEMORY_BYTES = 8 << 20


def window_settings(**changes: Any) -> WindowSettings:
    """The worked example's settings."""
    given = {"name": NAME, "retention_ms": RETENTION_MS, "segment_ms": SEGMENT_MS}
    return WindowSettings(**{**given, **changes})


@dataclass
class WindowBench:
    """One directory, and the stores that are opened in it one after the other."""

    file_system: FileSystem
    databases: Databases
    directory: str
    clock: ManualClock = field(default_factory=ManualClock)
    changelog: Changelog = field(default_factory=MemoryChangelog)
    on_progress: OnProgress | None = None

    def local(self, **changes: Any) -> WindowStore:
        """An open store without a changelog."""
        return self.make(None, **changes).open()

    def store(self, **changes: Any) -> WindowStore:
        """An open store, restored from the changelog."""
        return self.make(self.changelog, **changes).open()

    def make(
        self, changelog: Changelog | None, *, pending_count_max: int = 1_000, **changes: Any
    ) -> WindowStore:
        return WindowStore(
            window_settings(**changes),
            directory=self.directory,
            databases=self.databases,
            file_system=self.file_system,
            clock=self.clock,
            changelog=changelog,
            on_progress=self.on_progress,
            pending_count_max=pending_count_max,
        )

    def names(self) -> list[str]:
        """What is in the directory beside the store's own small files."""
        own = (".lock", "meta.json", "checkpoint.json")
        return [name for name in self.file_system.names(self.directory) if name not in own]

    def starts(self) -> list[int]:
        """The starts of the segments on disk."""
        return sorted(int(name.removeprefix(f"{NAME}.")) for name in self.names())

    def path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def write_file(self, name: str, data: bytes) -> None:
        with self.file_system.open_writable(self.path(name)) as file:
            file.truncate(0)
            file.write_at(0, data)


def memory_bench(file_system: FileSystem | None = None) -> WindowBench:
    chosen = file_system or MemoryFileSystem(ManualClock())
    return WindowBench(chosen, MemoryDatabases(chosen), "/state/s")


def rocks_bench(path: Path) -> WindowBench:
    return WindowBench(
        RealFileSystem(), RocksDatabases(memory_bytes=SMALL_MEMORY_BYTES), str(path / "state" / "s")
    )


def put_all(store: WindowStore, times: Iterable[int], key: bytes = b"k") -> None:
    for time_ms in times:
        store.put(key, str(time_ms).encode(), time_ms)


def visible(store: WindowStore) -> list[WindowEntry]:
    """Every entry that a read of all gives, sorted."""
    with store.all() as entries:
        return sorted(entries)


def times(entries: Iterable[WindowEntry]) -> list[int]:
    return [entry.time_ms for entry in entries]


def logged_writes(changelog: Changelog) -> list[tuple[bytes, bytes | None]]:
    """All writes of a changelog: composite key and value."""
    return [put for batch in changelog.read(changelog.start_offset) for put in batch.puts]


def changelog_of(writes: Iterable[LoggedWrite], *, batch_count_max: int = 1_000) -> MemoryChangelog:
    changelog = MemoryChangelog(batch_count_max=batch_count_max)
    changelog.append(list(writes))
    return changelog
