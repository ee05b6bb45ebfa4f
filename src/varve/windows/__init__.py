"""A window store: entries by key and time, with a changelog."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from varve.windows.changelog import Changelog, TopicChangelog, create_changelog_topic
    from varve.windows.segmented_store import WindowEntry, WindowIterator
    from varve.windows.settings import WindowSettings
    from varve.windows.window_store import WindowStore, open_window_store

__all__ = [
    "Changelog",
    "TopicChangelog",
    "WindowEntry",
    "WindowIterator",
    "WindowSettings",
    "WindowStore",
    "create_changelog_topic",
    "open_window_store",
]

_MODULES: Final = {
    "Changelog": "changelog",
    "TopicChangelog": "changelog",
    "WindowEntry": "segmented_store",
    "WindowIterator": "segmented_store",
    "WindowSettings": "settings",
    "WindowStore": "window_store",
    "create_changelog_topic": "changelog",
    "open_window_store": "window_store",
}
"""Imported at first use: a database is only loaded with a store."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'varve.windows' has no attribute {name!r}")
    return getattr(import_module(f"varve.windows.{_MODULES[name]}"), name)
