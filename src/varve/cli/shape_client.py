"""A client of a shape server, over HTTP.

Invariant  one connection, opened when needed and again when it was lost.
"""

import http.client
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from varve.foundation.closing import Closing
from varve.foundation.errors import InvalidRequest, NotFound, StoreError, Unavailable

_TIMEOUT_S: Final = 90
_FOR_APPS: Final = "/v1/shape"
_RETRIES_MAX: Final = 10
_RETRY_S_MAX: Final = 10


class Digits(str):
    """A number as text: parsing it would lose digits, or refuse too many of them."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """A response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error_text(self) -> str:
        """The message of an error response, in one line."""
        try:
            found = self.json()
        except ValueError:
            return f"status {self.status}"
        if not isinstance(found, dict):
            return f"status {self.status}"
        parts = _leaves(found.get("errors", {}), "")
        return "; ".join(parts) or str(found.get("message", found.get("error", self.status)))


class ShapeClient(Closing):
    """A connection to one server. Use it as a context manager."""

    def __init__(self, url: str, token: str | None) -> None:
        parts, port = _split(url)
        if token is not None and not (token.isprintable() and max(token, default="") < "\u0100"):
            raise InvalidRequest(
                "the token cannot be sent in a header: it must be printable Latin-1 text"
            )
        # The server prints the address for applications when it starts.
        self._url = url.rstrip("/").removesuffix(_FOR_APPS)
        self._path = parts.path.rstrip("/").removesuffix(_FOR_APPS)
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        self._connection = kind(str(parts.hostname), port, timeout=_TIMEOUT_S)

    def close(self) -> None:
        self._connection.close()

    def ask(self, method: str, path: str, query: Mapping[str, str] | None = None) -> Reply:
        """Any response; raises Unavailable without one."""
        try:
            target = f"{self._path}{path}{'?' if query else ''}{urlencode(query or {})}"
            self._connection.request(method, target, headers=self._headers)
            answer = self._connection.getresponse()
            headers = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, headers, answer.read())
        except UnicodeError as error:
            raise InvalidRequest(
                f"the request cannot be sent to {self._url}: its address or a parameter has "
                "characters that no URL holds; write them as %XX"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            self.close()
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise Unavailable(
                f"no shape server answers at {self._url}: {reason}; is `varve shape serve` running "
                "there?"
            ) from error

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        """The JSON of a successful response; raises the error of another."""
        return self.check(self.ask("GET", path, query)).json()

    def check(self, reply: Reply) -> Reply:
        """The response if it succeeded; raises its error otherwise."""
        if reply.status >= 400:
            raise _error_of(reply, self._url)
        is_json = not reply.body or reply.headers.get("content-type") == "application/json"
        # Every response of a shape server exposes the handle to web pages.
        exposed = reply.headers.get("access-control-expose-headers", "")
        if not is_json or "electric-handle" not in exposed:
            raise InvalidRequest(f"the server at {self._url} is not a shape server")
        return reply

    def list_shapes(self, table: str | None) -> list[dict[str, Any]]:
        """The shapes of a topic, or all; the server sends them in pages."""
        query = {} if table is None else {"table": table}
        shapes: list[dict[str, Any]] = []
        while True:
            page = self.get("/v1/shapes", query)
            shapes += page["shapes"]
            if "after" not in page:
                return shapes
            query["after"] = page["after"]

    def follow(
        self, query: Mapping[str, str], *, start: str, is_once: bool, warn: Callable[[str], None]
    ) -> Iterator[dict[str, Any]]:
        """Messages in order; after must-refetch those of the shape that replaced the old one."""
        position = {"offset": start}
        failures = 0
        while True:
            try:
                reply = self.ask("GET", _FOR_APPS, {**query, **position})
            except Unavailable as error:
                failures += 1
                if (failures == 1 and position["offset"] == start) or failures > _RETRIES_MAX:
                    raise
                _warn_once(warn, str(error), failures)
                time.sleep(min(_RETRY_S_MAX, 0.1 * 2**failures))  # noqa: TID251, a command waits
                continue
            if reply.status == 409 and failures < _RETRIES_MAX:
                failures += 1
                warn("the shape was dropped: starting again")
                # The handle is for caches: without it they may return the rows of the old shape.
                position = {"offset": "-1", "handle": reply.headers.get("electric-handle", "")}
                continue
            if reply.status in (429, 503) and failures < _RETRIES_MAX:
                failures += 1
                _warn_once(warn, reply.error_text, failures)
                time.sleep(_retry_seconds(reply.headers.get("retry-after", "")))  # noqa: TID251
                continue
            self.check(reply)
            failures = 0
            yield from json.loads(reply.body, parse_int=Digits, parse_float=Digits)
            position = {
                "offset": reply.headers["electric-offset"],
                "handle": reply.headers["electric-handle"],
            }
            if "electric-up-to-date" in reply.headers:
                if is_once:
                    return
                position["live"] = "true"
                position["cursor"] = reply.headers.get("electric-cursor", "")


def _warn_once(warn: Callable[[str], None], text: str, failures: int) -> None:
    if failures == 1:
        warn(f"{text}; retrying")


def _retry_seconds(retry_after: str) -> int:
    """The seconds of the header; a proxy may send a date instead."""
    is_number = retry_after.isascii() and retry_after.isdigit() and len(retry_after) < 10
    return min(_RETRY_S_MAX, int(retry_after)) if is_number else 1


def _split(url: str) -> tuple[SplitResult, int | None]:
    """The parts of a URL, and its port; raises InvalidRequest."""
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname:
            return parts, parts.port
    except ValueError:
        pass
    raise InvalidRequest(f"--url {url!r:.120} is not a URL; write http://HOST:PORT")


def shape_path(handle: str, *more: str) -> str:
    return "/".join(("/v1/shapes", quote(handle, safe=""), *more))


def _error_of(reply: Reply, url: str) -> StoreError:
    if reply.status == 401:
        return InvalidRequest(
            f"{url} requires a token: {reply.error_text}; give it with --token or VARVE_SHAPE_TOKEN"
        )
    if reply.status == 404:
        return NotFound(reply.error_text)
    if reply.status >= 500:
        return Unavailable(f"{url}: {reply.error_text}")
    return InvalidRequest(reply.error_text)


def _leaves(errors: Any, name: str) -> list[str]:
    if isinstance(errors, dict):
        return [part for key, value in errors.items() for part in _leaves(value, str(key))]
    texts = errors if isinstance(errors, list) else [errors]
    return [f"{name}: {text}" for text in texts]
