"""Translates obstore's exceptions to varve's errors.

obstore has few error types: the HTTP status and the store's error code are only in the text, and
the network error in the debug part after it. The text may hold a signed URL, so queries and user
parts of URLs are removed, and the exception itself is not chained.
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
"""Exceptions of obstore; a missing object is a FileNotFoundError, a bad path a ValueError."""

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"(?:<Code>|\(code: )([\w.]+)(?:</Code>|\))")
"""As in a response, or as obstore repeats it for one key of a bulk delete."""
_NETWORK: Final = re.compile(
    r'(?:message|error): "([^"\n]{1,120})"|InvalidCertificate\(\s*(\w+)|source: (TimedOut)\b'
)
_QUERY: Final = re.compile(r"(https?://[^\s?]+)\?[^\s,)]*")
_USER: Final = re.compile(r"(https?://)[^/@\s]+@")
_CAUSE_SIZE_MAX: Final = 400

_EXISTS: Final = frozenset({"BlobAlreadyExists"})
"""Error codes with which a 409 means the same as a 412. Any other 409, such as S3's
ConditionalRequestConflict, is a conflict with a concurrent write, which decides nothing."""

_Verdict = tuple[type[StoreError], str]
"""The error class of varve, and the remedy."""

_CREDENTIALS: Final[_Verdict] = (
    StoreDenied,
    "check the credentials in settings or environment and that they may read, write, list and "
    "delete here",
)
_REGION: Final[_Verdict] = (StoreDenied, "set `region` to the bucket's own")
_CLOCK: Final[_Verdict] = (StoreDenied, "correct the clock of this machine")
_TOKEN: Final[_Verdict] = (StoreDenied, "renew the session token")
_NO_BUCKET: Final[_Verdict] = (BucketNotFound, "create the bucket or correct the URL")
_FULL: Final[_Verdict] = (
    StoreUnavailable,
    "the store has no room left: raise its quota or add space",
)
_THROTTLED: Final[_Verdict] = (StoreThrottled, "send fewer requests at a time, or raise the quota")

_VERDICTS: Final[dict[str, _Verdict]] = {
    "NoSuchUpload": (StoreUnavailable, "the upload was ended by someone else: try again"),
    **dict.fromkeys(("NoSuchBucket", "ContainerNotFound"), _NO_BUCKET),
    **dict.fromkeys(
        (
            "InsufficientStorage",
            "QuotaExceeded",
            "XMinioAdminBucketQuotaExceeded",
            "XMinioStorageFull",
        ),
        _FULL,
    ),
    **dict.fromkeys(
        (
            "AccessDenied",
            "AccountProblem",
            "AllAccessDisabled",
            "InvalidAccessKeyId",
            "InvalidSecurity",
            "InvalidToken",
            "NotSignedUp",
            "SignatureDoesNotMatch",
        ),
        _CREDENTIALS,
    ),
    **dict.fromkeys(
        (
            "AuthorizationHeaderMalformed",
            "IllegalLocationConstraintException",
            "IncorrectEndpoint",
            "PermanentRedirect",
        ),
        _REGION,
    ),
    **dict.fromkeys(("RequestExpired", "RequestTimeTooSkewed"), _CLOCK),
    **dict.fromkeys(("ExpiredToken", "TokenRefreshRequired"), _TOKEN),
    "InvalidObjectState": (
        StoreDenied,
        "the object went to an archive class, as by a rule of the bucket: restore it, and end the "
        "rule",
    ),
}
"""Error codes of stores that determine the error class by themselves."""

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
_TRANSIENT: Final = frozenset(
    {
        "BadDigest",
        "IncompleteBody",
        "InternalError",
        "OperationTimedOut",
        "RequestTimeout",
        "XAmzContentSHA256Mismatch",
    }
)
"""Codes of client errors that are caused by the network, so that a retry helps."""

_METADATA_SERVICES: Final = ("/latest/api/token", "/computeMetadata/", "/metadata/identity")
_WRITES: Final = frozenset({"put", "create", "put parts"})

_ABORTED_UPLOAD: Final[_Verdict] = (
    StoreUnavailable,
    "the upload broke off, for a reason that this one hides, and its parts could not be removed: "
    "grant the right to abort uploads and try again",
)

_QUOTED: Final = re.compile(r'"[^"]*"?')
"""Quoted text: the parser of a service account key quotes parts of the key."""

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
    """Raise errors of creating an obstore client as InvalidSetting; no request is sent yet."""
    try:
        yield
    except OBSTORE_ERRORS as error:
        text = str(error).partition("\n\nDebug source:")[0]
        cause = _shorten(_QUOTED.sub('"..."', _hide_secrets(text)))
        remedy = next(
            (remedy for part, remedy in _SETTING_REMEDIES.items() if part in text),
            "correct the settings of the store, or the environment variables that set them",
        )
        raise InvalidSetting(f"{store}: open failed: {cause}; {remedy}") from None


@contextmanager
def translated(store: str, operation: str, key: str) -> Iterator[None]:
    """Raise obstore's errors as varve's."""
    try:
        yield
    except OBSTORE_ERRORS as error:
        raise translate(error, store=store, operation=operation, key=key) from None


def translate(error: Exception, *, store: str, operation: str, key: str) -> StoreError:
    """The error of varve for an exception of obstore."""
    text, _, debug = str(error).partition("\n\nDebug source:")
    kind, remedy = _classify(error, text, operation)
    cause = _shorten(_hide_secrets(text))
    if "HTTP error" in text:
        cause += _network_cause(debug)
    return failure(kind, store=store, operation=operation, key=key, cause=cause, remedy=remedy)


def is_past_end(error: Exception) -> bool:
    """Whether a range was refused because it begins at or after the end of the object."""
    text = str(error)
    return _find_status(text) == 416 or "Wanted range starting at" in text


def _classify(error: Exception, text: str, operation: str) -> _Verdict:
    status, code = _find_status(text), _find_group(_CODE, text)
    if isinstance(error, GenericError) and any(path in text for path in _METADATA_SERVICES):
        return _classify_missing_credentials(status)
    if isinstance(error, AlreadyExistsError):
        if status == 409 and code not in _EXISTS:
            return StoreUnavailable, "another write was in progress: try again"
        return ObjectExists, ""
    if operation == "put parts" and "performing DELETE" in text and code == "AccessDenied":
        return _ABORTED_UPLOAD
    is_missing = isinstance(error, NotFoundError | FileNotFoundError)
    if is_missing and code not in ("NoSuchUpload", "NoSuchBucket", "ContainerNotFound"):
        return _NO_BUCKET if operation in _WRITES else (ObjectNotFound, "")
    if code in _VERDICTS:
        return _VERDICTS[code]
    if status == 507:
        return _FULL
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return _CREDENTIALS
    if code.startswith("KMS."):
        return StoreDenied, "check the encryption key and the right to use it"
    if status in (301, 307, 308) or "incorrectly configured region" in text:
        return _REGION
    return _classify_by_status(error, text, operation, status=status, code=code)


def _classify_by_status(
    error: Exception, text: str, operation: str, *, status: int, code: str
) -> _Verdict:
    if status == 501 or isinstance(error, NotSupportedError | NotImplementedError):
        return StoreUnsupported, "the store does not support this request: use another store, or "
        "a newer version of it"
    if isinstance(error, ValueError):
        return InvalidRequest, ""
    if status == 429 or code in _THROTTLING:
        return _THROTTLED
    if operation == "head" and status == 400:
        # The response to a HEAD has no body, so there is no error code to distinguish these.
        return StoreDenied, f"renew the credentials, or {_REGION[1]}"
    if 400 <= status < 500 and status not in (408, 409, 425) and code not in _TRANSIENT:
        return InvalidRequest, ""
    return StoreUnavailable, _unavailable_remedy(text)


def _classify_missing_credentials(status: int) -> _Verdict:
    """A metadata service that refuses has no credentials; one that fails may have some later."""
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
    """The network or TLS error, which obstore has only in its debug text."""
    causes = [next(filter(None, groups)) for groups in _NETWORK.findall(debug)]
    if not causes:
        return ""
    return ": no answer in time" if causes[-1] == "TimedOut" else f": {causes[-1]}"


def _find_status(text: str) -> int:
    return int(_find_group(_STATUS, text) or 0)


def _find_group(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match.group(1) if match else ""


def _hide_secrets(text: str) -> str:
    return _USER.sub(r"\1", _QUERY.sub(r"\1", text))


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _CAUSE_SIZE_MAX else f"{line[: _CAUSE_SIZE_MAX - 3]}..."
