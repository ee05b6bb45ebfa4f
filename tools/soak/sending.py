"""What was sent: until it is acknowledged or given up on."""

import time
from concurrent.futures import Future
from typing import Final

from tests.support.kafka_clients import ProducerClient

_PATIENCE_SECONDS: Final = 60.0


def flush_all(client: ProducerClient, sent: "list[Future[int]]") -> Exception | None:
    """Until all is acknowledged or given up on; the error where something was."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not all(one.done() for one in sent):
        try:
            client.flush()
        except Exception as error:
            if time.monotonic() > deadline:
                return error
    return next(filter(None, map(_error_of, sent)), None)


def _error_of(sent: "Future[int]") -> Exception | None:
    error = sent.exception(0)
    return error if isinstance(error, Exception) else None


def is_acknowledged(sent: "Future[int]") -> bool:
    return sent.done() and sent.exception(0) is None
