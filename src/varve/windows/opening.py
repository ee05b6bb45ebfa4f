"""Opens a window store from its settings, with what most stores use where nothing else is given."""

from collections.abc import Callable

from varve.disk import FileSystem, RealFileSystem
from varve.foundation.clock import Clock, SystemClock
from varve.rocks.database import Databases, RocksDatabases
from varve.windows.changelog import Changelog
from varve.windows.local_store import LocalStore
from varve.windows.logged_store import LoggedStore
from varve.windows.restore import RestoreProgress
from varve.windows.segmented_store import SegmentedStore
from varve.windows.settings import WindowSettings
from varve.windows.window_store import WindowStore


def open_window_store(
    settings: WindowSettings,
    *,
    directory: str,
    changelog: Changelog | None = None,
    databases: Databases | None = None,
    file_system: FileSystem | None = None,
    clock: Clock | None = None,
    on_progress: Callable[[RestoreProgress], None] | None = None,
) -> WindowStore:
    """The store in a directory of its own, made if absent, and restored from its changelog.

    Stores that are open together share memory when they are given the same `databases`. Without
    a changelog a damaged directory raises `Corrupt`.
    """
    store = SegmentedStore(
        settings,
        directory=directory,
        databases=databases or RocksDatabases(),
        file_system=file_system or RealFileSystem(),
        clock=clock or SystemClock(),
    )
    if changelog is None:
        return WindowStore(LocalStore(store)).open()
    return WindowStore(LoggedStore(store, changelog, on_progress=on_progress)).open()
