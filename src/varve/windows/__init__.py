"""A window store: entries by key and time, with a changelog."""

from varve.windows.changelog import (
    Changelog,
    TopicChangelog,
    WindowSettings,
    create_changelog_topic,
)
from varve.windows.entries import WindowEntry, WindowIterator
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
