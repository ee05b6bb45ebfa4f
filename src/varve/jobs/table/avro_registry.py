"""Schemas by their number from a registry, as Confluent's has them over HTTP.

Invariant  a number names one schema for good: what was fetched is kept, per process. A number that
           the registry does not know is told by None, and asked for again the next time; a
           registry that does not answer is an error.
Threads    any; `_lock` guards what was fetched.
"""

import json
import threading
from typing import Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

import requests

from varve.foundation.errors import Corrupt, StoreDenied, StoreUnavailable

_TIMEOUT_SECONDS: Final = 10
_TRIES: Final = 3
_LIMIT_BYTES: Final = 4 << 20
_lock = threading.Lock()
_known: dict[tuple[str, int], str] = {}  # guarded by _lock


def find_schema(url: str, number: int) -> str | None:
    """The text of a schema; None where the registry has none of that number."""
    with _lock:
        if (url, number) in _known:
            return _known[url, number]
        found = _fetch(url, number)
        if found is not None:
            _known[url, number] = found
        return found


def _fetch(url: str, number: int) -> str | None:
    bare, auth = _split_user(url)
    where = f"{bare.rstrip('/')}/schemas/ids/{number}"
    answer = _ask(where, auth)
    if answer.status_code == 404:
        return None
    if answer.status_code in (401, 403):
        raise StoreDenied(f"{where}: the registry refuses ({answer.status_code}): mend the rights")
    if answer.status_code != 200:
        raise StoreUnavailable(f"{where}: the registry answers {answer.status_code}")
    if len(answer.content) > _LIMIT_BYTES:
        raise Corrupt(
            f"{where}: {len(answer.content)} bytes are no schema, {_LIMIT_BYTES} may be: mend the "
            "registry"
        )
    try:
        document: dict[str, Any] = answer.json()
        kind = document.get("schemaType", "AVRO")
        schema = document["schema"]
        if kind != "AVRO":
            raise ValueError(f"a schema of type {kind}")
        json.loads(schema)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(f"{where}: no Avro schema: {error!r:.200}: mend the registry") from error
    return str(schema)


def _ask(where: str, auth: tuple[str, str] | None) -> requests.Response:
    headers = {"accept": "application/vnd.schemaregistry.v1+json, application/json"}
    for left in reversed(range(_TRIES)):
        try:
            answer = requests.get(where, auth=auth, headers=headers, timeout=_TIMEOUT_SECONDS)
        except requests.RequestException as error:
            if not left:
                line = f"{type(error).__name__}: {error}".splitlines()[0]
                raise StoreUnavailable(
                    f"{where}: the registry is not reached: {line:.200}"
                ) from error
            continue
        if answer.status_code < 500 or not left:
            return answer
    raise AssertionError("the last try returns or raises")


def _split_user(url: str) -> tuple[str, tuple[str, str] | None]:
    """A URL without user and password, and these."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url, None
    user, _, host = parts.netloc.rpartition("@")
    name, _, word = user.partition(":")
    return urlunsplit(parts._replace(netloc=host)), (unquote(name), unquote(word))
