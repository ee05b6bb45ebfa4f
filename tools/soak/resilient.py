"""A client at work all the time: it writes down what it was told, and goes on after any error.

Threads    each worker has its own.
"""

import random
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, Final

from tests.support.kafka_workers import Worker

POLL_SECONDS: Final = 0.5
_PAUSE_SECONDS: Final = 0.05
_AFTER_ERROR_SECONDS: Final = 0.5
_FINISH_SECONDS: Final = 120.0


class Resilient(Worker):
    """Its client is made when it is needed, and made anew after an error."""

    def __init__(self, name: str, make: Callable[[], Any], source: random.Random) -> None:
        super().__init__(name)
        self._make = make
        self._source = source
        self._client: Any = None
        self._pause = threading.Event()
        self.errors: list[str] = []

    def work(self) -> None:
        try:
            if self._client is None:
                self._client = self._make()
            self.do(self._client)
        except Exception as error:
            self.errors.append(f"{type(error).__name__}: {error}"[:300])
            self.close()
            self._pause.wait(_AFTER_ERROR_SECONDS)
        self._pause.wait(self._source.uniform(0, 2 * _PAUSE_SECONDS))

    def do(self, client: Any) -> None:
        """One piece of the work."""
        raise NotImplementedError

    def finish(self) -> str | None:
        """Ends the work; where it hangs, if it does."""
        self._ends.set()
        self.join(_FINISH_SECONDS)
        if not self.is_alive():
            return None
        frame = sys._current_frames()[self.ident or 0]
        return "".join(traceback.format_stack(frame)[-4:])

    def close(self) -> None:
        client, self._client = self._client, None
        if client is None:
            return
        try:
            client.close()
        except Exception as error:
            self.errors.append(f"close: {type(error).__name__}: {error}"[:300])
