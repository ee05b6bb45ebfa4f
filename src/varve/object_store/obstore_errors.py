"""obstore's exceptions in varve's words.

obstore tells little by type: the HTTP status and the store's error code stand in the text only, and
what the network said in the debug part behind it. The text may hold a signed URL, so queries and
user parts of URLs are cut out, and the exception itself is not chained.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    GenericError,
    NotFoundError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
)

from varve.foundation.errors import (
    BucketNotFound,
    InvalidRequest,
    InvalidSetting,
    ObjectExists,
    ObjectNotFound,
    StoreDenied,
    StoreError,
    StoreThrottled,
    StoreUnavailable,
    StoreUnsupported,
)
from varve.object_store.protocol import failure

OBSTORE_ERRORS: Final = (BaseError, OSError, ValueError, NotImplementedError)
"""What obstore raises; a missing object is a FileNotFoundError, a bad path a ValueError."""

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"(?:<Code>|\(code: )([\w.]+)(?:</Code>|\))")
"""As an answer has it, or as obstore repeats it for one key of a bulk delete."""
_NETWORK: Final = re.compile(
    r'(?:message|error): "([^"\n]{1,120})"|InvalidCertificate\(\s*(\w+)|source: (TimedOut)\b'
)
_QUERY: Final = re.compile(r"(https?://[^\s?]+)\?[^\s,)]*")
_USER: Final = re.compile(r"(https?://)[^/@\s]+@")
_CAUSE_SIZE_MAX: Final = 400

_EXISTS: Final = frozenset({"BlobAlreadyExists"})
"""With these a 409 means what a 412 does. Any other 409, as S3's ConditionalRequestConflict, says
that another write got in the way and that nothing was decided."""
_NO_BUCKET: Final = frozenset({"NoSuchBucket", "ContainerNotFound"})
_THROTTLING: Final = frozenset(
    {
        "BandwidthLimitExceeded",
        "RequestLimitExceeded",
        "RequestThrottled",
        "ServerBusy",
        "SlowDown",
        "SlowDownRead",
        "SlowDownWrite",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
        "rateLimitExceeded",
    }
)
_WAITS: Final = frozenset(
    {
        "BadDigest",
        "IncompleteBody",
        "InternalError",
        "OperationTimedOut",
        "RequestTimeout",
        "XAmzContentSHA256Mismatch",
    }
)
"""Refusals that blame the request but come from the way it took."""
_FULL: Final = frozenset(
    {"InsufficientStorage", "QuotaExceeded", "XMinioAdminBucketQuotaExceeded", "XMinioStorageFull"}
)
_DENIED: Final = frozenset(
    {
        "AccessDenied",
        "AccountProblem",
        "AllAccessDisabled",
        "AuthorizationHeaderMalformed",
        "ExpiredToken",
        "IllegalLocationConstraintException",
        "IncorrectEndpoint",
        "InvalidAccessKeyId",
        "InvalidObjectState",
        "InvalidSecurity",
        "InvalidToken",
        "NotSignedUp",
        "PermanentRedirect",
        "RequestExpired",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    }
)
_METADATA_SERVICES: Final = ("/latest/api/token", "/computeMetadata/", "/metadata/identity")
_WRITES: Final = frozenset({"put", "create", "put parts"})

_CREDENTIALS_REMEDY: Final = (
    "check the credentials in settings or environment and that they may read, write, list and "
    "delete here"
)
_ABORT_REMEDY: Final = (
    "the upload broke off, for a reason that this one hides, and its parts could not be removed: "
    "grant the right to abort uploads and try again"
)
_REGION_REMEDY: Final = "set `region` to the bucket's own"
_REMEDIES: Final = {
    "AuthorizationHeaderMalformed": _REGION_REMEDY,
    "IllegalLocationConstraintException": _REGION_REMEDY,
    "IncorrectEndpoint": _REGION_REMEDY,
    "PermanentRedirect": _REGION_REMEDY,
    "RequestExpired": "set this machine's clock",
    "RequestTimeTooSkewed": "set this machine's clock",
    "ExpiredToken": "renew the session token",
    "TokenRefreshRequired": "renew the session token",
    "InvalidObjectState": "the object went to an archive class, as by a rule of the bucket: "
    "restore it, and end the rule",
}


_QUOTED: Final = re.compile(r'"[^"]*"?')
"""What the reader of a key's JSON shows of it."""

_SETTING_REMEDIES: Final = {
    "Account must be specified": "name the storage account by the setting account.name, or by "
    "AZURE_STORAGE_ACCOUNT_NAME in the environment",
    "Invalid Access Key": "account.key is base64, as the portal shows it",
    "SAS": "sas.token is written as in the query of a URL, name=value joined by '&'",
    "AccessKeyId": "give access.key.id and secret.access.key together",
    "SecretAccessKey": "give access.key.id and secret.access.key together",
    "service account": "give the JSON of a service account by service.account.file or "
    "service.account.key, or by GOOGLE_APPLICATION_CREDENTIALS",
    "pem file": "private_key of the service account must be PEM",
    "root_certificate": "ca.file must hold PEM certificates",
}


@contextmanager
def configured(store: str) -> Iterator[None]:
    """Raise what obstore raises when a client is made, before any request, as InvalidSetting."""
    try:
        yield
    except OBSTORE_ERRORS as error:
        text = str(error).partition("\n\nDebug source:")[0]
        cause = _shorten(_QUOTED.sub('"..."', _hide(text)))
        remedy = next(
            (remedy for part, remedy in _SETTING_REMEDIES.items() if part in text),
            "mend the store's settings, or the variables of the environment that stand for them",
        )
        raise InvalidSetting(f"{store}: open failed: {cause}; {remedy}") from None


@contextmanager
def translated(store: str, operation: str, key: str) -> Iterator[None]:
    """Raise what obstore raises inside as one of varve's errors."""
    try:
        yield
    except OBSTORE_ERRORS as error:
        raise translate(error, store=store, operation=operation, key=key) from None


def translate(error: Exception, *, store: str, operation: str, key: str) -> StoreError:
    """The error of ours that an exception of obstore stands for."""
    text, _, debug = str(error).partition("\n\nDebug source:")
    kind, remedy = _sort(error, text, operation)
    cause = _shorten(_hide(text))
    if "HTTP error" in text:
        cause += _network_cause(debug)
    return failure(kind, store=store, operation=operation, key=key, cause=cause, remedy=remedy)


def is_past_end(error: Exception) -> bool:
    """Whether a range was refused because it begins at or behind the object's end."""
    text = str(error)
    return _status(text) == 416 or "Wanted range starting at" in text


def _sort(error: Exception, text: str, operation: str) -> tuple[type[StoreError], str]:
    status, code = _status(text), _first(_CODE, text)
    if isinstance(error, GenericError) and any(path in text for path in _METADATA_SERVICES):
        return _sort_missing_credentials(status)
    if isinstance(error, AlreadyExistsError):
        if status == 409 and code not in _EXISTS:
            return StoreUnavailable, "another write was under way: try again"
        return ObjectExists, ""
    if code == "NoSuchUpload":
        return StoreUnavailable, "the upload was ended by someone else: try again"
    is_missing = isinstance(error, NotFoundError | FileNotFoundError)
    if code in _NO_BUCKET or (is_missing and operation in _WRITES):
        return BucketNotFound, "create the bucket or mend the URL"
    if is_missing:
        return ObjectNotFound, ""
    if code in _FULL or status == 507:
        return StoreUnavailable, "the store has no room left: raise its quota or add space"
    if operation == "put parts" and "performing DELETE" in text and code == "AccessDenied":
        return StoreUnavailable, _ABORT_REMEDY
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or code in _DENIED:
        return StoreDenied, _REMEDIES.get(code, _CREDENTIALS_REMEDY)
    if code.startswith("KMS."):
        return StoreDenied, "check the encryption key and the right to use it"
    if status in (301, 307, 308) or "incorrectly configured region" in text:
        return StoreDenied, _REGION_REMEDY
    return _sort_by_status(error, text, operation, status=status, code=code)


def _sort_by_status(
    error: Exception, text: str, operation: str, *, status: int, code: str
) -> tuple[type[StoreError], str]:
    if status == 501 or isinstance(error, NotSupportedError | NotImplementedError):
        return StoreUnsupported, "the store does not do this: choose another, or its newer version"
    if isinstance(error, ValueError):
        return InvalidRequest, ""
    if status == 429 or code in _THROTTLING:
        return StoreThrottled, "fewer requests at a time, or a higher quota"
    if operation == "head" and status == 400:
        # The answer to a HEAD has no body, so the code that would tell these apart is missing.
        return StoreDenied, f"renew the credentials, or {_REGION_REMEDY}"
    if 400 <= status < 500 and status not in (408, 409, 425) and code not in _WAITS:
        return InvalidRequest, ""
    return StoreUnavailable, _unavailable_remedy(text)


def _sort_missing_credentials(status: int) -> tuple[type[StoreError], str]:
    """A metadata service that refuses has none for us; one that fails or is silent may have."""
    is_refusal = 400 <= status < 500 and status not in (408, 429)
    return StoreDenied if is_refusal else StoreUnavailable, (
        "no credentials were given, so the machine's metadata service was asked for them: "
        "set them in settings or environment"
    )


def _unavailable_remedy(text: str) -> str:
    if "DeleteObjects response" in text:
        return "if it stays, the server does not delete in bulk: set `bulk.delete` to false"
    if "builder error" in text:
        return "plain http needs the setting `allow.http`"
    return "try again; if it stays, check endpoint, network and the store's status"


def _network_cause(debug: str) -> str:
    """What the network or its encryption said, which obstore leaves to its debug text."""
    found = [next(filter(None, groups)) for groups in _NETWORK.findall(debug)]
    if not found:
        return ""
    return ": no answer in time" if found[-1] == "TimedOut" else f": {found[-1]}"


def _status(text: str) -> int:
    found = _first(_STATUS, text)
    return int(found) if found else 0


def _first(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match.group(1) if match else ""


def _hide(text: str) -> str:
    return _USER.sub(r"\1", _QUERY.sub(r"\1", text))


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _CAUSE_SIZE_MAX else f"{line[: _CAUSE_SIZE_MAX - 3]}..."
