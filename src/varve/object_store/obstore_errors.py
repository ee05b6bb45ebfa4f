"""obstore's exceptions in varve's words.

obstore tells little by type: the HTTP status and the store's error code stand in the text only. The
text may hold a signed URL, so queries and user parts of URLs are cut out, and the exception itself
is not chained.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotFoundError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
)

from varve.foundation.errors import (
    BucketNotFound,
    InvalidRequest,
    ObjectExists,
    ObjectNotFound,
    StoreDenied,
    StoreError,
    StoreThrottled,
    StoreUnavailable,
    StoreUnsupported,
)
from varve.object_store.failure import failure

OBSTORE_ERRORS: Final = (BaseError, OSError, ValueError, NotImplementedError)
"""What obstore raises; a missing object is a FileNotFoundError, a bad path a ValueError."""

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_QUERY: Final = re.compile(r"(https?://[^\s?]+)\?[^\s,)]*")
_USER: Final = re.compile(r"(https?://)[^/@\s]+@")
_CAUSE_SIZE_MAX: Final = 400

_IN_FLIGHT: Final = frozenset({"ConditionalRequestConflict", "OperationAborted"})
"""S3 answers a conditional write so when another one got in its way; nothing was decided."""
_NO_BUCKET: Final = frozenset({"NoSuchBucket", "ContainerNotFound"})
_THROTTLING: Final = frozenset(
    {"SlowDown", "TooManyRequests", "ServerBusy", "RequestLimitExceeded", "rateLimitExceeded"}
)
_WAITS: Final = frozenset({"RequestTimeout", "InternalError", "OperationTimedOut"})
_DENIED: Final = frozenset(
    {
        "AccessDenied",
        "AuthorizationHeaderMalformed",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "PermanentRedirect",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
    }
)
_METADATA_SERVICES: Final = ("/latest/api/token", "/computeMetadata/", "/metadata/identity")
_WRITES: Final = frozenset({"put", "create", "put parts"})

_CREDENTIALS_REMEDY: Final = (
    "check the credentials in settings or environment and that they may read, write, list and "
    "delete here"
)
_REMEDIES: Final = {
    "AuthorizationHeaderMalformed": "set `region` to the bucket's own",
    "PermanentRedirect": "set `region` to the bucket's own",
    "RequestTimeTooSkewed": "set this machine's clock",
    "ExpiredToken": "renew the session token",
}


@contextmanager
def translated(store: str, operation: str, key: str) -> Iterator[None]:
    """Raise what obstore raises inside as one of varve's errors."""
    try:
        yield
    except OBSTORE_ERRORS as error:
        raise translate(error, store=store, operation=operation, key=key) from None


def translate(error: Exception, *, store: str, operation: str, key: str) -> StoreError:
    """The error of ours that an exception of obstore stands for."""
    text = str(error).partition("\n\nDebug source:")[0]
    kind, remedy = _sort(error, text, operation)
    cause = _shorten(_USER.sub(r"\1", _QUERY.sub(r"\1", text)))
    return failure(kind, store=store, operation=operation, key=key, cause=cause, remedy=remedy)


def is_past_end(error: Exception) -> bool:
    """Whether a range was refused because it begins at or behind the object's end."""
    text = str(error)
    return _status(text) == 416 or "Wanted range starting at" in text


def _sort(error: Exception, text: str, operation: str) -> tuple[type[StoreError], str]:
    status, code = _status(text), _first(_CODE, text)
    if isinstance(error, AlreadyExistsError):
        if code in _IN_FLIGHT:
            return StoreUnavailable, "another conditional write was under way: try again"
        return ObjectExists, ""
    if code == "NoSuchUpload":
        return StoreUnavailable, "the upload was ended by someone else: try again"
    is_missing = isinstance(error, NotFoundError | FileNotFoundError)
    if code in _NO_BUCKET or (is_missing and operation in _WRITES):
        return BucketNotFound, "create the bucket or mend the URL"
    if is_missing:
        return ObjectNotFound, ""
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or code in _DENIED:
        return StoreDenied, _REMEDIES.get(code, _CREDENTIALS_REMEDY)
    if status in (301, 307, 308) or "incorrectly configured region" in text:
        return StoreDenied, _REMEDIES["PermanentRedirect"]
    if status == 501 or isinstance(error, NotSupportedError | NotImplementedError):
        return StoreUnsupported, "the store does not do this: choose another, or its newer version"
    if isinstance(error, ValueError):
        return InvalidRequest, ""
    if status == 429 or code in _THROTTLING:
        return StoreThrottled, "fewer requests at a time, or a higher quota"
    if 400 <= status < 500 and status not in (408, 409, 425) and code not in _WAITS:
        return InvalidRequest, ""
    return StoreUnavailable, _unavailable_remedy(text)


def _unavailable_remedy(text: str) -> str:
    if any(path in text for path in _METADATA_SERVICES):
        return (
            "no credentials were given, so the machine's metadata service was asked for them: "
            "set them in settings or environment"
        )
    if "builder error" in text:
        return "plain http needs the setting `allow.http`"
    return "try again; if it stays, check endpoint, network and the store's status"


def _status(text: str) -> int:
    found = _first(_STATUS, text)
    return int(found) if found else 0


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found.group(1) if found else ""


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _CAUSE_SIZE_MAX else f"{line[: _CAUSE_SIZE_MAX - 3]}..."
