"""How parts of a broker ask for work off the loop."""

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Offload(Protocol):
    """Runs work in another thread."""

    def __call__(self, work: Callable[..., T], *args: object) -> "asyncio.Future[T]": ...
