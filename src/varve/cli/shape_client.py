"""A server of shapes asked over HTTP, as the commands do.

Invariant  one connection, opened when needed and again when it was lost.
"""

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from varve.foundation.closing import Closing
from varve.foundation.errors import InvalidRequest, NotFound, StoreError, Unavailable

_TIMEOUT_S: Final = 90
_FOR_APPS: Final = "/v1/shape"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer as it came."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def told(self) -> str:
        """What an error says, in one line."""
        try:
            found = self.json()
        except ValueError:
            return f"status {self.status}"
        if not isinstance(found, dict):
            return f"status {self.status}"
        parts = _leaves(found.get("errors", {}), "")
        return "; ".join(parts) or str(found.get("message", found.get("error", self.status)))


class ShapeClient(Closing):
    """Asks one server. Use it as a context manager."""

    def __init__(self, url: str, token: str | None) -> None:
        parts, port = _split(url)
        if token is not None and not (token.isprintable() and max(token, default="") < "\u0100"):
            raise InvalidRequest("the token holds what no header can: it is of ASCII in one line")
        # What a server tells when it starts is the address for apps.
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
        """Any answer; raises Unavailable where there is none."""
        try:
            target = f"{self._path}{path}{'?' if query else ''}{urlencode(query or {})}"
            self._connection.request(method, target, headers=self._headers)
            answer = self._connection.getresponse()
            headers = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, headers, answer.read())
        except UnicodeError as error:
            raise InvalidRequest(f"this cannot be asked at {self._url}: {error}") from error
        except (OSError, http.client.HTTPException) as error:
            self.close()
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise Unavailable(
                f"no server of shapes answers at {self._url}: {reason}; is `varve shape serve` "
                "running there?"
            ) from error

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        """The JSON of a good answer; raises what a bad one means."""
        return self.check(self.ask("GET", path, query)).json()

    def check(self, reply: Reply) -> Reply:
        """The answer if it is good."""
        if reply.status >= 400:
            raise _error_of(reply, self._url)
        is_json = not reply.body or reply.headers.get("content-type") == "application/json"
        # All answers let pages read the handle, so this tells ours from those of other servers.
        exposed = reply.headers.get("access-control-expose-headers", "")
        if not is_json or "electric-handle" not in exposed:
            raise InvalidRequest(f"what answers at {self._url} is no server of shapes")
        return reply


def _split(url: str) -> tuple[SplitResult, int | None]:
    """The parts of an address and its port; raises InvalidRequest."""
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname:
            return parts, parts.port
    except ValueError:
        pass
    raise InvalidRequest(f"--url {url!r:.120} is no address; write http://HOST:PORT")


def shape_path(handle: str, *more: str) -> str:
    return "/".join(("/v1/shapes", quote(handle, safe=""), *more))


def _error_of(reply: Reply, url: str) -> StoreError:
    if reply.status == 401:
        return InvalidRequest(f"{url} wants a token: {reply.told} (--token or VARVE_SHAPE_TOKEN)")
    if reply.status == 404:
        return NotFound(reply.told)
    if reply.status >= 500:
        return Unavailable(f"{url}: {reply.told}")
    return InvalidRequest(reply.told)


def _leaves(errors: Any, name: str) -> list[str]:
    if isinstance(errors, dict):
        return [part for key, value in errors.items() for part in _leaves(value, str(key))]
    texts = errors if isinstance(errors, list) else [errors]
    return [f"{name}: {text}" for text in texts]
