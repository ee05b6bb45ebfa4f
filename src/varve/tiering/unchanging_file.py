"""What files over objects have in common: they are read, and nothing else.

Threads    any; nothing is held open.
"""

from typing import NoReturn

from varve.disk import Buffer
from varve.disk.file_system import Closing
from varve.foundation.errors import InvalidRequest


class UnchangingFile(Closing):
    """The half of a `disk.File` that an object has no use for; `path` is its key."""

    __slots__ = ()

    path: str

    def write_at(self, position: int, *buffers: Buffer) -> NoReturn:
        raise self._unchangeable("written")

    def truncate(self, size: int) -> NoReturn:
        raise self._unchangeable("truncated")

    def _unchangeable(self, what: str) -> InvalidRequest:
        return InvalidRequest(
            f"object {self.path!r} cannot be {what}: objects never change, a new segment has new "
            "ones"
        )

    def sync(self) -> None:
        """An object is durable from the first."""

    def close(self) -> None:
        """Holds nothing open."""
