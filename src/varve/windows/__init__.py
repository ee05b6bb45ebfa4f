"""A window store: entries by key and time, with a changelog."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from varve.rocks.state_files import Position, Source
    from varve.windows.changelog import Changelog
    from varve.windows.opening import open_window_store
    from varve.windows.settings import WindowSettings
    from varve.windows.standby import Standby
    from varve.windows.topic_changelog import TopicChangelog, create_changelog_topic
    from varve.windows.window_iterator import WindowEntry, WindowIterator
    from varve.windows.window_store import WindowStore

__all__ = [
    "Changelog",
    "Position",
    "Source",
    "Standby",
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
    "Position": "varve.rocks.state_files",
    "Source": "varve.rocks.state_files",
    "Standby": "standby",
    "TopicChangelog": "topic_changelog",
    "WindowEntry": "window_iterator",
    "WindowIterator": "window_iterator",
    "WindowSettings": "settings",
    "WindowStore": "window_store",
    "create_changelog_topic": "topic_changelog",
    "open_window_store": "opening",
}
"""Imported at first use: who wants the rules of a deduplication need not load a database."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'varve.windows' has no attribute {name!r}")
    module = _MODULES[name]
    full = module if module.startswith("varve.") else f"varve.windows.{module}"
    return getattr(import_module(full), name)
