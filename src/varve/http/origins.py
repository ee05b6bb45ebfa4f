"""Which pages of browsers may use a server, and the headers that tell a browser so.

Invariant  a server without a token serves its own pages and those of allowed origins alone: every
           page that a user opens can send requests to servers on loopback. With a token every page
           is served, since it must know the token; there are no cookies.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Final

from varve.http.exchange import Header, HttpError, HttpExchange

METHODS: Final = b"GET, POST, HEAD, DELETE, OPTIONS"
ANY_ORIGIN: Final = "*"
_OWN_SITES: Final = ("same-origin", "none")
_ALLOWED_HEADERS: Final = frozenset(
    {"authorization", "content-type", "if-none-match", "traceparent"}
)


@dataclass(frozen=True, slots=True)
class OriginRules:
    """The origins whose pages may use a server, beside its own."""

    allowed: Sequence[str] = (ANY_ORIGIN,)

    @property
    def allows_any(self) -> bool:
        return ANY_ORIGIN in self.allowed

    def check(self, exchange: HttpExchange) -> None:
        """Raises HttpError for a request of another page."""
        origin, site = exchange.header(b"origin"), exchange.header(b"sec-fetch-site")
        if self.allows_any or origin in self.allowed or site in _OWN_SITES:
            return
        if origin is None:
            # Without an origin: a picture or a script of another page, or a link that was followed.
            is_foreign = site is not None and exchange.header(b"sec-fetch-mode") != "navigate"
        else:
            is_foreign = origin.partition("://")[2] != exchange.header(b"host")
        if is_foreign:
            page = "of another origin" if origin is None else f"of {origin:.200}"
            raise HttpError(
                403,
                {
                    "message": f"pages {page} may not use this server, which has no token: add "
                    "their origin to shapes.http.allowed.origins, or give --token"
                },
            )

    def headers(self, origin: str | None, exposed: bytes) -> list[Header]:
        """Lets a page of an allowed origin read the response, with these headers.

        Their names are sent to all: by them programs tell which server this is.
        """
        fields = [
            (b"access-control-expose-headers", exposed),
            (b"access-control-allow-methods", METHODS),
        ]
        if self.allows_any or origin in self.allowed:
            page = (origin or ANY_ORIGIN).encode("latin-1", "replace")
            fields.append((b"access-control-allow-origin", page))
        return fields

    def varying(self, sent: Container[bytes]) -> list[Header]:
        """Keeps shared caches from serving requests with other headers, or without a token."""
        names = [b"origin"] if b"origin" in sent or not self.allows_any else []
        names += [b"authorization"] if b"authorization" in sent else []
        return [(b"vary", b", ".join(names))] if names else []


def preflight(requested: str | None) -> list[Header]:
    """What a browser may send: the requested headers that the server uses."""
    names = [name for part in (requested or "").split(",") if (name := part.strip().lower())]
    allowed_names = ", ".join(sorted(_ALLOWED_HEADERS.intersection(names)))
    allowed = [(b"access-control-allow-headers", allowed_names.encode())] if allowed_names else []
    return [(b"access-control-max-age", b"86400"), *allowed, (b"allow", METHODS)]
