"""Answers about many things: made in turns with the loop's other work, and of bounded size.

Threads    the event loop's alone.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final, TypeVar

from varve.broker.broker import Broker
from varve.broker.metrics import OVERSIZED_ANSWERS
from varve.broker.request import RequestContext
from varve.wire import APIS, ErrorCode, encoded_size
from varve.wire.errors import KafkaError
from varve.wire.schema import Struct

T = TypeVar("T")

_TURN_SECONDS: Final = 0.005


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """The items; other work of the loop runs whenever they have taken a few milliseconds."""
    loop = asyncio.get_running_loop()
    turn_end = loop.time() + _TURN_SECONDS
    for item in items:
        if loop.time() > turn_end:
            await asyncio.sleep(0)
            turn_end = loop.time() + _TURN_SECONDS
        yield item


class AnswerSize:
    """Counts the bytes of an answer while it is made."""

    def __init__(self, broker: Broker, context: RequestContext) -> None:
        self._broker = broker
        self._api = APIS[context.api_key]
        self._version = context.version
        self._bytes = 0

    def add(self, element: Struct) -> None:
        """Raises KafkaError where the answer becomes larger than varve.response.max.bytes."""
        is_flexible = self._api.is_flexible(self._version)
        self._bytes += encoded_size(element, self._version, is_flexible=is_flexible)
        limit = self._broker.settings.response_max_bytes
        if self._bytes > limit:
            name = self._api.key.name
            self._broker.metrics.add(OVERSIZED_ANSWERS, 1, name.lower())
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"the answer to {name} takes more than {limit} bytes: request fewer at a time, or "
                "raise varve.response.max.bytes",
            )
