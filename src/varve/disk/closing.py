"""What every handle has in common: it is closed at the end of its `with` block."""

from types import TracebackType
from typing import Self


class Closing:
    """Makes a context manager of a class that can `close`."""

    __slots__ = ()

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
