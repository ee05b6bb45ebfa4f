"""Object versions of an S3 bucket: lists and deletes them.

A capability beside ObjectStore, which sees only the newest version. obstore has no such requests,
so they are signed here (AWS Signature Version 4) with keys from settings or the environment. Keys
of an instance role are not used.

Threads    any; nothing is shared in Python.
"""

import hashlib
import hmac
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree

from varve.foundation.clock import Clock, SystemClock
from varve.foundation.errors import (
    BucketNotFound,
    InvalidRequest,
    StoreDenied,
    StoreError,
    StoreUnavailable,
    StoreUnsupported,
)
from varve.foundation.settings import GivenValue
from varve.object_store.cloud import S3ObjectStore, S3Settings
from varve.object_store.opening import find_scheme, split_bucket
from varve.object_store.protocol import failure
from varve.object_store.retry import RetryingObjectStore

_SAFE: Final = "-_.~"
_EMPTY: Final = hashlib.sha256(b"").hexdigest()
_RESPONSE_BYTES_MAX: Final = 16 << 20
_ERRORS: Final[Mapping[int, type[StoreError]]] = {
    400: InvalidRequest,
    401: StoreDenied,
    403: StoreDenied,
    404: BucketNotFound,
    405: StoreUnsupported,
    501: StoreUnsupported,
}


@dataclass(frozen=True, slots=True)
class ObjectVersion:
    """A version of an object, or a delete marker."""

    key: str
    version: str
    is_latest: bool
    is_marker: bool

    def to_json(self) -> dict[str, object]:
        return {"key": self.key, "version": self.version, "is_marker": self.is_marker}


@dataclass(frozen=True, slots=True)
class _Keys:
    id: str
    secret: str
    token: str


def open_versions(
    url: str, settings: Mapping[str, GivenValue], *, clock: Clock | None = None
) -> "S3Versions | None":
    """The versions of a store by its URL; None for other stores, or without access keys."""
    if find_scheme(url) != "s3":
        return None
    s3_settings = S3Settings.parse(settings, url)
    keys = _find_keys(s3_settings, os.environ)
    return (
        None if keys is None else S3Versions(url, s3_settings, keys, clock=clock or SystemClock())
    )


def _find_keys(settings: S3Settings, environment: Mapping[str, str]) -> _Keys | None:
    if settings.skip_signature:
        return None
    if settings.access_key_id:
        keys = (settings.access_key_id, settings.secret_access_key, settings.session_token)
    else:
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
        keys = tuple(environment.get(name, "") for name in names)  # type: ignore[assignment]  # three
    return _Keys(*keys) if keys[0] and keys[1] else None


class S3Versions:
    """The object versions below the prefix of a store."""

    def __init__(self, url: str, settings: S3Settings, keys: _Keys, *, clock: Clock) -> None:
        bucket, prefix = split_bucket(url)
        store = S3ObjectStore(bucket, prefix, settings=settings, clock=clock)
        self.name = store.name
        self._repeat = RetryingObjectStore(store, clock=clock).repeat
        self._keys = keys
        self._clock = clock
        self._prefix = f"{prefix}/" if prefix else ""
        self._timeout_s = settings.request_timeout_ms / 1000
        self._region = settings.region or os.environ.get("AWS_REGION", "") or "us-east-1"
        server = settings.find_endpoint() or f"https://s3.{self._region}.amazonaws.com"
        folder = "" if settings.virtual_hosted_style else f"/{bucket}"
        self._root = f"{server.rstrip('/')}{folder}"
        self._tls = ssl.create_default_context()
        if settings.ca_file:
            self._tls.load_verify_locations(settings.ca_file)

    def find(self, prefix: str) -> Iterator[ObjectVersion]:
        """All versions and markers of keys that begin with a prefix, by key, the newest first."""
        marker = ("", "")
        while True:
            page = self._read_page(prefix, marker)
            for entry in page:
                if _name(entry) in ("Version", "DeleteMarker"):
                    yield self._decode(entry)
            following = (_text(page, "NextKeyMarker"), _text(page, "NextVersionIdMarker"))
            if _text(page, "IsTruncated") != "true":
                return
            if following == marker:
                raise self._failed(StoreUnsupported, "list versions", prefix, "pages repeat")
            marker = following

    def delete(self, version: ObjectVersion) -> None:
        """Deletes a version permanently; a missing one is not an error."""
        self._send("DELETE", version.key, {"versionId": version.version})

    def _read_page(self, prefix: str, marker: tuple[str, str]) -> ElementTree.Element:
        query = {"versions": "", "prefix": f"{self._prefix}{prefix}", "max-keys": "1000"}
        if marker != ("", ""):
            query |= {"key-marker": marker[0], "version-id-marker": marker[1]}
        data = self._send("GET", None, query)
        try:
            return ElementTree.fromstring(data)
        except ElementTree.ParseError as error:
            raise self._failed(StoreUnsupported, "list versions", prefix, str(error)) from error

    def _decode(self, entry: ElementTree.Element) -> ObjectVersion:
        return ObjectVersion(
            _text(entry, "Key").removeprefix(self._prefix),
            _text(entry, "VersionId"),
            _text(entry, "IsLatest") == "true",
            _name(entry) == "DeleteMarker",
        )

    def _send(self, method: str, key: str | None, query: Mapping[str, str]) -> bytes:
        """Sends a request with retries; `key` None addresses the bucket."""
        path = "" if key is None else f"/{quote(f'{self._prefix}{key}', safe=f'/{_SAFE}')}"
        return self._repeat(lambda: self._send_once(method, f"{self._root}{path}", query, key))

    def _send_once(self, method: str, url: str, query: Mapping[str, str], key: str | None) -> bytes:
        pairs = [f"{quote(name, _SAFE)}={quote(query[name], _SAFE)}" for name in sorted(query)]
        request = urllib.request.Request(
            f"{url}?{'&'.join(pairs)}",
            method=method,
            headers=self._sign(method, url, "&".join(pairs)),
        )
        operation = "list versions" if key is None else "delete a version of"
        try:
            with urllib.request.urlopen(
                request, timeout=self._timeout_s, context=self._tls
            ) as response:
                return bytes(response.read(_RESPONSE_BYTES_MAX))
        except urllib.error.HTTPError as error:
            response = " ".join(error.read(2000).decode("utf-8", "replace").split())
            if error.code == 404 and key is not None and "NoSuchBucket" not in response:
                return b""
            kind = _ERRORS.get(error.code, StoreUnavailable)
            cause = f"HTTP {error.code}: {response:.300}"
            raise self._failed(kind, operation, key or "", cause) from None
        except (OSError, ValueError) as error:
            raise self._failed(StoreUnavailable, operation, key or "", str(error)) from error

    def _failed(self, kind: type[StoreError], operation: str, key: str, cause: str) -> StoreError:
        remedy = "check that the credentials may list and delete versions of objects"
        return failure(
            kind,
            store=self.name,
            operation=operation,
            key=key,
            cause=cause,
            remedy=remedy if kind is StoreDenied else "",
        )

    def _sign(self, method: str, url: str, query: str) -> dict[str, str]:
        """The headers of a request without a body."""
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
        stamp = now.strftime("%Y%m%dT%H%M%SZ")
        parts = urlsplit(url)
        headers = {
            "host": parts.netloc,
            "x-amz-content-sha256": _EMPTY,
            "x-amz-date": stamp,
            **({"x-amz-security-token": self._keys.token} if self._keys.token else {}),
        }
        signed = ";".join(headers)
        lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
        canonical_request = "\n".join((method, parts.path or "/", query, lines, signed, _EMPTY))
        scope = f"{stamp[:8]}/{self._region}/s3/aws4_request"
        digest = hashlib.sha256(canonical_request.encode()).hexdigest()
        secret = f"AWS4{self._keys.secret}".encode()
        for part in scope.split("/"):
            secret = hmac.digest(secret, part.encode(), "sha256")
        to_sign = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"
        signature = hmac.digest(secret, to_sign.encode(), "sha256").hex()
        credential = f"Credential={self._keys.id}/{scope}"
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 {credential}, SignedHeaders={signed}, Signature={signature}"
        )
        return headers


def _name(entry: ElementTree.Element) -> str:
    """Without the namespace, which servers write or leave out."""
    return entry.tag.rpartition("}")[2]


def _text(entry: ElementTree.Element, name: str) -> str:
    return next((element.text or "" for element in entry if _name(element) == name), "")
