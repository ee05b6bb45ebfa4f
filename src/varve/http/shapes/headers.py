"""Response headers of ElectricSQL's protocol, and how long caches keep a response.

Invariant  a cursor is greater than that of the request, so cached responses never form a cycle.
"""

from random import Random
from typing import Final

from varve.http.exchange import CACHE, RETRY_AFTER, Header
from varve.http.settings import HttpSettings

HANDLE: Final = b"electric-handle"
OFFSET: Final = b"electric-offset"
SCHEMA: Final = b"electric-schema"
CURSOR: Final = b"electric-cursor"
UP_TO_DATE: Final = b"electric-up-to-date"
HAS_DATA: Final = b"electric-has-data"
SNAPSHOT: Final = b"electric-snapshot"
KNOWN_ERROR: Final = b"electric-internal-known-error"

NO_SCHEMA: Final = (SCHEMA, b"{}")
"""Columns that are not in it reach clients as the JSON they are."""
EXPOSED: Final = b",".join(
    (HANDLE, OFFSET, SCHEMA, CURSOR, UP_TO_DATE, HAS_DATA, SNAPSHOT, KNOWN_ERROR, RETRY_AFTER)
)
INITIAL: Final = (CACHE, b"public, max-age=604800, s-maxage=3600, stale-while-revalidate=2629746")
LIVE: Final = (CACHE, b"public, max-age=5, stale-while-revalidate=5")
REFETCH: Final = (CACHE, b"public, max-age=60, must-revalidate")

_CURSOR_EPOCH_S: Final = 1_728_432_000
"""2024-10-09T00:00Z, so that cursors stay short."""
_CURSOR_DIGITS_MAX: Final = 1000
_CURSOR_STEP_MAX: Final = 3600


def cache_of(settings: HttpSettings, *, is_initial: bool, is_live: bool, is_events: bool) -> Header:
    """How long caches may keep a response with data."""
    if is_initial:
        return INITIAL
    if is_events:
        return CACHE, b"public, max-age=%d" % max(1, settings.events_ms // 1000 - 1)
    if is_live:
        return LIVE
    return CACHE, b"public, max-age=%d, stale-while-revalidate=%d" % (
        settings.max_age_s,
        settings.stale_age_s,
    )


def next_cursor(now_ms: int, long_poll_ms: int, sent: str | None, random: Random) -> int:
    """The next multiple of the long poll, or a random step above the cursor sent."""
    step_s = max(1, long_poll_ms // 1000)
    elapsed_s = max(0, now_ms // 1000 - _CURSOR_EPOCH_S)
    cursor = -(-elapsed_s // step_s) * step_s
    is_number = sent is not None and sent.isascii() and sent.isdigit()
    before = int(sent) if sent and is_number and len(sent) <= _CURSOR_DIGITS_MAX else 0
    return cursor if cursor > before else before + random.randint(1, _CURSOR_STEP_MAX)
