"""Writes changes to a topic of shapes all the time; rests when it is asked to.

Threads    its own; the lock is held from the first record of a round to its acknowledgement.
"""

import random
import threading
from contextlib import AbstractContextManager
from typing import Final

from tests.support.shape_topic import ShapeTopic
from tests.support.shape_traffic import Traffic

_ROUND_CHANGES_MAX: Final = 80
_PAUSE_SECONDS: Final = 0.1
_FINISH_SECONDS: Final = 180.0
_FIRST_ROWS: Final = 300


class ShapeWriter(threading.Thread):
    """The one writer of a topic."""

    def __init__(self, topic: ShapeTopic, seed: int) -> None:
        super().__init__(name=f"writer of {topic.name}", daemon=True)
        self.change_count = 0
        self._source = random.Random(seed)
        self._traffic = Traffic(topic, seed)
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._error: Exception | None = None
        self._traffic.add(_FIRST_ROWS)

    def run(self) -> None:
        try:
            while not self._ends.wait(self._source.uniform(0, 2 * _PAUSE_SECONDS)):
                with self._lock:
                    count = self._source.randint(1, _ROUND_CHANGES_MAX)
                    self._traffic.change(count)
                    self.change_count += count
        except Exception as error:
            self._error = error

    def at_rest(self) -> AbstractContextManager[bool]:
        """While it is entered all that was written is acknowledged, and nothing more comes."""
        return self._lock

    def finish(self) -> list[str]:
        """Ends the work; what went wrong, if something did."""
        self._ends.set()
        self.join(_FINISH_SECONDS)
        if self.is_alive():
            return [f"the {self.name} hangs"]
        return [] if self._error is None else [f"the {self.name} ended: {self._error!r}"]
