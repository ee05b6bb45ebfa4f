"""Plug-ins by name: built-in ones, and those that installed packages provide as entry points."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from varve.foundation.errors import InvalidRequest, Unavailable

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
        """Loads the plug-in if a package provides it; raises Unavailable if that fails."""
        if name in self.built_in:
            return self.built_in[name]
        for entry_point in entry_points(group=self.group, name=name):
            return self._load(entry_point)
        return None

    def _load(self, entry_point: EntryPoint) -> T:
        try:
            loaded: T = entry_point.load()
        except Exception as error:
            package = entry_point.dist.name if entry_point.dist is not None else entry_point.module
            raise Unavailable(
                f"{self.kind} {entry_point.name!r:.80}: {entry_point.value} of package {package} "
                f"cannot be imported ({type(error).__name__}: {error}); repair or uninstall the "
                "package"
            ) from error
        return loaded

    def get(self, name: str) -> T:
        """Raises InvalidRequest for an unknown name; the message lists the known ones."""
        plugin = self.find(name)
        if plugin is None:
            raise InvalidRequest(
                f"{self.kind} {name!r:.80} is unknown; use one of {', '.join(self.names())}, or "
                f"install a package with an entry point of group {self.group}"
            )
        return plugin

    def names(self) -> list[str]:
        """Built-in names first, then those of installed packages."""
        provided = {entry_point.name for entry_point in entry_points(group=self.group)}
        return [*self.built_in, *sorted(provided - set(self.built_in))]
