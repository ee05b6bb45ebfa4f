"""An answer before it is sent, and the errors that are answers.

Invariant  the media type is JSON only where the body is: clients parse it.
"""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from varve.foundation.errors import (
    Closed,
    Fenced,
    InvalidRequest,
    NotFound,
    OffsetOutOfRange,
    StoreError,
    Unavailable,
)
from varve.http.headers import (
    CONTENT_TYPE,
    HANDLE,
    JSON,
    KNOWN_ERROR,
    NO_STORE,
    REFETCH,
    RETRY_AFTER,
    Header,
)

MUST_REFETCH: Final = b'[{"headers":{"control":"must-refetch"}}]'
_RETRY_S: Final = 5


class Answer:
    """A status, headers, and a body that is there or comes in pieces."""

    __slots__ = ("body", "headers", "status")

    def __init__(
        self, status: int, headers: list[Header], body: "bytes | AsyncIterator[bytes]" = b""
    ) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @classmethod
    def of_json(cls, status: int, told: Any, *headers: Header) -> "Answer":
        text = json.dumps(told, ensure_ascii=False, separators=(",", ":"))
        # ChunkEdge a character, which a request may hold, is told as it was sent: \ud800 is JSON.
        return cls(status, [JSON, *headers], text.encode(errors="backslashreplace"))

    @classmethod
    def of_text(cls, status: int, media_type: str, text: str) -> "Answer":
        return cls(status, [(CONTENT_TYPE, media_type.encode()), *NO_STORE], text.encode())


class Refusal(Exception):
    """A request that ends with something else than data."""

    def __init__(self, status: int, told: Any, headers: Sequence[Header] = NO_STORE) -> None:
        super().__init__(status, told)
        self.status = status
        self.told = told
        self.headers = headers

    def answer(self) -> Answer:
        if isinstance(self.told, bytes):
            return Answer(self.status, [JSON, *self.headers], self.told)
        return Answer.of_json(self.status, self.told, *self.headers)


def invalid(parameter: str, *texts: str, is_subset: bool = False) -> Refusal:
    """A parameter that cannot be used."""
    errors: dict[str, Any] = {parameter: list(texts)}
    if is_subset:
        errors = {"subset": errors}
    return Refusal(400, {"message": "Invalid request", "errors": errors})


def up_to_date(seen_tx: int) -> bytes:
    """The message that ends what there is; clients have all up to that transaction."""
    return b'{"headers":{"control":"up-to-date","global_last_seen_lsn":"%d"}}' % seen_tx


def must_refetch(handle: str) -> Refusal:
    """The shape is not, or no longer, what the client follows; this handle is."""
    return Refusal(409, MUST_REFETCH, (REFETCH, (HANDLE, handle.encode())))


def unavailable(message: str, *, retry_s: int = _RETRY_S, code: str | None = None) -> Refusal:
    """Not now: clients come again by themselves."""
    told = {"message": message} if code is None else {"code": code, "message": message}
    headers = (*NO_STORE, (RETRY_AFTER, b"%d" % retry_s), (KNOWN_ERROR, b"true"))
    return Refusal(503, told, headers)


def unauthorized(message: str) -> Refusal:
    return Refusal(401, {"message": message}, (*NO_STORE, (b"www-authenticate", b"Bearer")))


def forbidden(message: str) -> Refusal:
    return Refusal(403, {"message": message})


STATUSES: Final[tuple[tuple[type[StoreError], int], ...]] = (
    (OffsetOutOfRange, 400),
    (NotFound, 404),
    (Closed, 503),
    (InvalidRequest, 400),
    (Unavailable, 503),
    (Fenced, 503),
    (StoreError, 500),
)
"""What an error of the engine becomes: the first class that it is one of."""


def status_of(error: type[StoreError]) -> int:
    return next(status for known, status in STATUSES if issubclass(error, known))


def refusal_of(error: StoreError) -> Refusal:
    """The answer for an error of the engine; what lies inside is told to nobody."""
    status = status_of(type(error))
    if status == 503:
        return unavailable(str(error))
    if status == 500:
        return Refusal(500, {"error": "Internal error"})
    if status == 404:
        return Refusal(404, {"message": str(error)})
    return invalid(getattr(error, "parameter", None) or "request", str(error))
