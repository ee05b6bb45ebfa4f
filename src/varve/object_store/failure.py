"""One shape for what object stores say when something fails."""

from typing import TypeVar

from varve.foundation.errors import StoreError

E = TypeVar("E", bound=StoreError)


def failure(
    kind: type[E], *, store: str, operation: str, key: str, cause: str, remedy: str = ""
) -> E:
    """An error that names the store, what was asked of it, for which key, why, and what helps."""
    wanted = f"{operation} {key!r}" if key else operation
    return kind(f"{store}: {wanted} failed: {cause}" + (f"; {remedy}" if remedy else ""))
