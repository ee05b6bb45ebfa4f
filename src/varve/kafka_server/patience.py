"""How long a client may take, and when its connection is ended for it."""

from dataclasses import dataclass
from typing import Final

from varve.kafka_server.settings import ServerSettings

_GRACE_SECONDS: Final = 2.0
_SLOW_BYTES: Final = 64 << 10
"""Bytes of a request per second, after the grace, while others wait for memory."""


@dataclass(frozen=True, slots=True)
class ConnectionState:
    """A connection as it is now; times are the loop's, None where nothing of the kind goes on."""

    closing_at: float | None
    stalled_since: float | None
    """Since when the client has taken nothing of what was written to it."""
    frame_began_at: float | None
    """Of a request that has not arrived whole."""
    frame_bytes: int
    awaits_memory: bool
    unknown_since: float | None
    """Of a client that has not said who it is, and must."""
    idle_since: float | None


def find_fault(
    state: ConnectionState, settings: ServerSettings, now: float, *, is_memory_short: bool
) -> str | None:
    """A word for why the connection must end, None where it may go on."""
    send_seconds = settings.response_send_timeout_ms / 1000
    receive_seconds = settings.request_receive_timeout_ms / 1000
    if state.closing_at is not None:
        return "slow_reader" if now - state.closing_at > send_seconds else None
    if state.stalled_since is not None:
        return "slow_reader" if now - state.stalled_since > send_seconds else None
    if state.frame_began_at is not None:
        seconds = now - state.frame_began_at
        if seconds > receive_seconds:
            return "slow_request"
        # Who needs memory itself is not slow but waits.
        is_slow = state.frame_bytes < (seconds - _GRACE_SECONDS) * _SLOW_BYTES
        return "slow_request" if is_memory_short and is_slow and not state.awaits_memory else None
    if state.unknown_since is not None and now - state.unknown_since > receive_seconds:
        return "slow_authentication"
    idle_ms = settings.connections_max_idle_ms
    if idle_ms >= 0 and state.idle_since is not None and now - state.idle_since > idle_ms / 1000:
        return "idle"
    return None
