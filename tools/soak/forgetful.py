"""kafka-python's transactions, which forget what they were about to ask while nobody serves.

Its sender takes a request from its queue, finds that the server is down, and drops it. A commit or
abort then waits without end; this one ends the wait, where that and nothing else is the reason
(docs/contributing/soak.md).

Threads    each end of a transaction has one, which is left behind where its request is forgotten.
"""

import threading
import time
from collections.abc import Callable
from typing import Final

from tests.support.kafka_clients import ProducerOptions
from tests.support.kafka_python import PythonClient, PythonProducer

_LOOK_SECONDS: Final = 0.5
_FORGOTTEN_SECONDS: Final = 20.0
"""Longer than a request that was taken from the queue waits for its connection."""


class Forgotten(Exception):
    """The client waits for an answer to a request that it has neither sent nor kept."""


class ForgetfulProducer(PythonProducer):
    def commit(self) -> None:
        self._end(super().commit)

    def abort(self) -> None:
        self._end(super().abort)

    def _end(self, call: Callable[[], None]) -> None:
        errors: list[BaseException] = []

        def run() -> None:
            try:
                call()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        remembered_at = time.monotonic()
        while thread.is_alive():
            thread.join(_LOOK_SECONDS)
            if not self._is_idle():
                remembered_at = time.monotonic()
            elif time.monotonic() - remembered_at > _FORGOTTEN_SECONDS:
                raise Forgotten("the end of a transaction")
        if errors:
            raise errors[0]

    def _is_idle(self) -> bool:
        """Whether a transaction is to end, but nothing is sent or will be."""
        manager = self._producer._transaction_manager
        return (
            manager.is_completing()
            and not manager._pending_requests
            and not manager.has_in_flight_transactional_request()
        )


class ForgetfulClient(PythonClient):
    """kafka-python, for transactions while the server comes and goes."""

    def producer(self, bootstrap: str, options: ProducerOptions) -> PythonProducer:
        return ForgetfulProducer(bootstrap, options, self._connection)
