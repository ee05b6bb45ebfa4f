"""URLs of object stores: what is refused in them, and one way to write each.

Invariant  two URLs of varve's own schemes name the same place, on the same server, exactly when
           `normal_url` writes them alike. No message shows a user, a password or a query.
"""

import os
import re
from typing import Final
from urllib.parse import SplitResult, quote, unquote, urlsplit

from varve.foundation.errors import InvalidRequest
from varve.object_store.keys import find_fault

BUCKETS: Final = frozenset({"s3", "gs", "az"})
"""Schemes whose URLs are a bucket and a prefix."""

_SECRET: Final = re.compile(r"(?<=//)[^/]*@|[?#].*", re.DOTALL)


def find_scheme(url: str) -> str:
    """What a URL begins with, in small letters; empty where it has none."""
    return url.partition(":")[0].lower() if ":" in url else ""


def normal_url(url: str) -> str:
    """The URL as varve writes it: directories absolute, prefixes without a closing '/'.

    One of a scheme that is not varve's own is left as it is. Raises InvalidRequest.
    """
    scheme = find_scheme(url)
    if scheme == "file":
        return f"file:{quote(split_directory(url))}"
    if scheme in BUCKETS:
        bucket, prefix = split_bucket(url)
        return f"{scheme}://{bucket}/{prefix}".rstrip("/")
    return f"memory:{url.partition(':')[2]}" if scheme == "memory" else url


def split_directory(url: str) -> str:
    """The absolute path that a file: URL names; raises InvalidRequest."""
    parts = _split(url)
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise InvalidRequest(
            f"{hide_secrets(url)} names no directory of this machine: write file:/path or "
            "file:///path"
        )
    path = os.path.abspath(unquote(parts.path))
    return f"/{path.lstrip('/')}"


def split_bucket(url: str) -> tuple[str, str]:
    """The bucket and prefix that a URL names; raises InvalidRequest."""
    parts = _split(url)
    prefix = parts.path.strip("/")
    fault = find_fault(prefix) if prefix else None
    if not parts.netloc or fault is not None:
        raise InvalidRequest(
            f"{hide_secrets(url)} names no place in an object store: write "
            f"{parts.scheme}://bucket/prefix" + (f"; its prefix {fault}" if fault else "")
        )
    return parts.netloc, prefix


def hide_secrets(url: str) -> str:
    """The URL as a message may show it."""
    return _SECRET.sub("", url)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidRequest(
            f"the {find_scheme(url)}: URL of an object store cannot be read: {error}"
        ) from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise InvalidRequest(
            f"a {parts.scheme}: URL of an object store takes no user, password, '?' or '#': "
            "credentials and options are settings"
        )
    return parts
