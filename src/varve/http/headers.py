"""Names and values of response headers: for clients, for caches, for browsers.

Invariant  a cursor is greater than that of the request, so cached responses never form a cycle.
"""

from collections.abc import Container
from random import Random
from typing import Final

from varve.http.settings import HttpSettings

Header = tuple[bytes, bytes]

HANDLE: Final = b"electric-handle"
OFFSET: Final = b"electric-offset"
SCHEMA: Final = b"electric-schema"
CURSOR: Final = b"electric-cursor"
UP_TO_DATE: Final = b"electric-up-to-date"
HAS_DATA: Final = b"electric-has-data"
SNAPSHOT: Final = b"electric-snapshot"
KNOWN_ERROR: Final = b"electric-internal-known-error"
RETRY_AFTER: Final = b"retry-after"
ETAG: Final = b"etag"
CACHE: Final = b"cache-control"
CONTENT_TYPE: Final = b"content-type"

NO_SCHEMA: Final = (SCHEMA, b"{}")
"""Columns that are not in it reach clients as the JSON they are."""
JSON: Final = (CONTENT_TYPE, b"application/json")
EVENTS: Final = (CONTENT_TYPE, b"text/event-stream")
METHODS: Final = b"GET, POST, HEAD, DELETE, OPTIONS"
ALLOW: Final = (b"allow", METHODS)
NO_CACHE: Final = (CACHE, b"no-cache")
NO_STORE: Final[tuple[Header, ...]] = ((CACHE, b"no-store"), (b"surrogate-control", b"no-store"))
INITIAL: Final = (CACHE, b"public, max-age=604800, s-maxage=3600, stale-while-revalidate=2629746")
LIVE: Final = (CACHE, b"public, max-age=5, stale-while-revalidate=5")
REFETCH: Final = (CACHE, b"public, max-age=60, must-revalidate")

_EXPOSED: Final = b",".join(
    (HANDLE, OFFSET, SCHEMA, CURSOR, UP_TO_DATE, HAS_DATA, SNAPSHOT, KNOWN_ERROR, RETRY_AFTER)
)
_CROSS_ORIGIN: Final[tuple[Header, ...]] = (
    (b"access-control-expose-headers", _EXPOSED),
    (b"access-control-allow-methods", METHODS),
)
_VARYING: Final = (b"origin", b"authorization")
_ASKABLE: Final = frozenset({"authorization", "content-type", "if-none-match", "traceparent"})
_CURSOR_EPOCH_S: Final = 1_728_432_000
"""2024-10-09T00:00Z, so that cursors stay short."""
_CURSOR_DIGITS_MAX: Final = 1000
_CURSOR_STEP_MAX: Final = 3600


def cross_origin(origin: str | None) -> list[Header]:
    """Lets a page of another origin read the response."""
    return [
        (b"access-control-allow-origin", (origin or "*").encode("latin-1", "replace")),
        *_CROSS_ORIGIN,
    ]


def varying(sent: Container[bytes]) -> list[Header]:
    """Keeps shared caches from serving requests with other headers, or without a token."""
    names = [name for name in _VARYING if name in sent]
    return [(b"vary", b", ".join(names))] if names else []


def preflight(requested: str | None) -> list[Header]:
    """What a browser may send: the requested headers that the server uses."""
    names = [name for part in (requested or "").split(",") if (name := part.strip().lower())]
    known = ", ".join(sorted(_ASKABLE.intersection(names)))
    allowed = [(b"access-control-allow-headers", known.encode())] if known else []
    return [(b"access-control-max-age", b"86400"), *allowed, ALLOW]


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
