"""Traffic that goes on in a thread of its own while something else happens."""

import threading
from collections.abc import Callable
from typing import Final, Self

_PATIENCE_SECONDS: Final = 60.0


class SteadyWriter:
    """Writes while it is entered; then everything is acknowledged, or what failed is raised."""

    def __init__(self, write: Callable[[], None]) -> None:
        """`write` makes some changes, and returns when they are acknowledged."""
        self._step = write
        self._end = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._write, daemon=True)
        self.step_count = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(_PATIENCE_SECONDS)
        if self._failure is not None:
            raise self._failure
        assert not self._thread.is_alive(), "the last changes are not acknowledged"

    def _write(self) -> None:
        try:
            while not self._end.wait(0.01):
                self._step()
                self.step_count += 1
        except BaseException as error:
            self._failure = error
