"""What a dump is made of: entries with Kafka's names for their fields, in the order of the file.

Layout     kinds and fields: docs/dump-json.md
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from varve.disk import FileSystem


class Entry(NamedTuple):
    """One line of a dump, before it is formatted."""

    kind: str
    fields: Mapping[str, object]


def problem(message: str, position: int | None = None) -> Entry:
    return Entry("problem", {"position": position, "message": message})


def show_nothing(size: int) -> None:
    """The progress of a dump nobody watches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpOptions:
    """What is read of the files; how it is shown is the formatter's."""

    deep: bool = False
    print_data: bool = False
    max_bytes: int | None = None
    verify_index_only: bool = False
    index_sanity_check: bool = False
    advance: Callable[[int], None] = show_nothing


@dataclass(frozen=True, slots=True)
class Source:
    """A file to dump; `offset` is that of its name, 0 where the name has none."""

    fs: FileSystem
    path: str
    offset: int

    def beside(self, name: str) -> str:
        """The path of another file in the same directory."""
        directory, slash, _ = self.path.rpartition("/")
        return f"{directory}{slash}{name}"
