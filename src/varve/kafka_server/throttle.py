"""How long a client is not read from, because it has used more than its quotas.

Threads    the loop's alone.
"""

from collections.abc import Callable
from typing import Final

from varve.broker.context import ConnectionContext
from varve.kafka_server.router import Request
from varve.kafka_server.shared import Shared
from varve.kafka_server.slot import Slot

_MUTE_MAX_MS: Final = 30_000


class Throttle:
    """Holds back one connection; `on_end` is called when it may go on."""

    def __init__(self, shared: Shared, on_end: Callable[[], None]) -> None:
        self._shared = shared
        self._on_end = on_end
        self.mutes = 0
        """How many answers have told the client to wait, and it still must."""

    def note_use(self, slot: Slot, request: Request, context: ConnectionContext) -> int:
        """Adds a request to what its client has used; the milliseconds it must wait for that."""
        return self._shared.router.note_use(
            request,
            context,
            received_bytes=slot.request_bytes,
            sent_bytes=slot.size,
            busy_seconds=slot.busy_seconds or self._shared.loop.time() - slot.began,
        )

    def mute(self, throttle_ms: int) -> None:
        """A client over its quota is not read from for as long as it was told to wait."""
        self.mutes += 1
        self._shared.timers.call_later(min(throttle_ms, _MUTE_MAX_MS), self._unmute)

    def _unmute(self) -> None:
        self.mutes -= 1
        if not self.mutes:
            self._on_end()
