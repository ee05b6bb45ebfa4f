"""A base for context managers that only close."""

from typing import Self


class Closing:
    """Makes a context manager of a class that can `close`."""

    __slots__ = ()

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
