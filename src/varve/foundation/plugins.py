"""Plug-ins by name: built-in ones, and those that installed packages provide as entry points."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from varve.foundation.errors import InvalidRequest

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PluginRegistry(Generic[T]):
    """Plug-ins of one kind; `kind` names them in messages, `group` is the entry point group.

    A package cannot replace a built-in name.
    """

    kind: str
    group: str
    built_in: Mapping[str, T]

    def find(self, name: str) -> T | None:
        """Loads the plug-in if a package provides it; its errors pass through."""
        if name in self.built_in:
            return self.built_in[name]
        for entry_point in entry_points(group=self.group, name=name):
            loaded: T = entry_point.load()
            return loaded
        return None

    def get(self, name: str) -> T:
        """Raises InvalidRequest for an unknown name; the message lists the known ones."""
        plugin = self.find(name)
        if plugin is None:
            raise InvalidRequest(
                f"{self.kind} {name!r:.80} is unknown, known are {', '.join(self.names())}; a "
                f"package adds others by entry points of group {self.group}"
            )
        return plugin

    def names(self) -> list[str]:
        """Built-in names first, then those of installed packages."""
        provided = {entry_point.name for entry_point in entry_points(group=self.group)}
        return [*self.built_in, *sorted(provided - set(self.built_in))]
