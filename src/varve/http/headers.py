"""Response headers that every API uses: content types, caching, cross-origin requests."""

from collections.abc import Container
from typing import Final

Header = tuple[bytes, bytes]

RETRY_AFTER: Final = b"retry-after"
ETAG: Final = b"etag"
CACHE: Final = b"cache-control"
CONTENT_TYPE: Final = b"content-type"

JSON: Final = (CONTENT_TYPE, b"application/json")
EVENTS: Final = (CONTENT_TYPE, b"text/event-stream")
METHODS: Final = b"GET, POST, HEAD, DELETE, OPTIONS"
NO_CACHE: Final = (CACHE, b"no-cache")
NO_STORE: Final[tuple[Header, ...]] = ((CACHE, b"no-store"), (b"surrogate-control", b"no-store"))

_VARYING: Final = (b"origin", b"authorization")
_ALLOWED_HEADERS: Final = frozenset(
    {"authorization", "content-type", "if-none-match", "traceparent"}
)


def cross_origin(origin: str | None, exposed: bytes) -> list[Header]:
    """Lets a page of another origin read the response, with these headers."""
    return [
        (b"access-control-allow-origin", (origin or "*").encode("latin-1", "replace")),
        (b"access-control-expose-headers", exposed),
        (b"access-control-allow-methods", METHODS),
    ]


def varying(sent: Container[bytes]) -> list[Header]:
    """Keeps shared caches from serving requests with other headers, or without a token."""
    names = [name for name in _VARYING if name in sent]
    return [(b"vary", b", ".join(names))] if names else []


def preflight(requested: str | None) -> list[Header]:
    """What a browser may send: the requested headers that the server uses."""
    names = [name for part in (requested or "").split(",") if (name := part.strip().lower())]
    allowed_names = ", ".join(sorted(_ALLOWED_HEADERS.intersection(names)))
    allowed = [(b"access-control-allow-headers", allowed_names.encode())] if allowed_names else []
    return [(b"access-control-max-age", b"86400"), *allowed, (b"allow", METHODS)]
