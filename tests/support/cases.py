"""Many small cases in one test: a failure tells which of them it was."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def case(**values: object) -> Iterator[None]:
    """Adds the values of the case to an error that is raised within."""
    try:
        yield
    except BaseException as error:
        error.add_note(", ".join(f"{name}={value!r}" for name, value in values.items()))
        raise
