"""Object stores of cloud providers: their common base, Google Cloud Storage, Azure, and Amazon S3
with all servers that speak its API.

A store is a class with its scheme, its obstore client and its settings, and an entry in the table
of `opening`.

Invariant  a create is a conditional put; an S3 server that ignores that is refused at open.
Crash      an interrupted multipart upload leaves parts that no list shows and that cost money:
           give the bucket a lifecycle rule that aborts incomplete multipart uploads.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Self, TypeVar

from obstore.store import AzureStore, GCSStore

from varve.foundation.clock import Clock, SystemClock
from varve.foundation.errors import InvalidSetting
from varve.foundation.settings import GivenValue, check_settings, parse_settings, setting
from varve.object_store.obstore_errors import configured
from varve.object_store.obstore_store import ObstoreObjectStore
from varve.object_store.retry import RetryPolicy

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig
import os
from functools import partial

from obstore.store import S3Store

from varve.foundation.errors import ObjectExists, StoreUnsupported
from varve.object_store.protocol import RESERVED, failure
from varve.object_store.retry import RetryingObjectStore

_NO_RETRIES: "Final[RetryConfig]" = {"max_retries": 0}

_PART_RETRIES: "Final[RetryConfig]" = {
    "max_retries": 4,
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=5),
        "base": 2,
    },
    "retry_timeout": timedelta(seconds=60),
}
"""Retries of the parts of an upload only: writing a part twice is harmless."""

OPEN_RETRIES: Final = RetryPolicy(attempt_count_max=4, wait_ms_max=1_000, deadline_ms=10_000)
"""Retries of the check at open: processes that open at the same time may conflict."""

_ENDPOINT: Final = re.compile(
    r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[A-Za-z0-9._~/%-]*)?"
)

_SECRETS: Final = frozenset(
    {
        "access.key.id",
        "account.key",
        "bearer.token",
        "client.secret",
        "sas.token",
        "secret.access.key",
        "service.account.key",
        "session.token",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class HttpStoreSettings:
    """Settings of every store over HTTP. Never printed: subclasses hold secrets.

    The settings of a subclass are options of obstore's client of the same name, unless
    `client_names` has another. `endpoint_name` is the one that takes a server's URL.
    """

    is_own: ClassVar = True
    client_names: ClassVar[Mapping[str, str]] = {}
    endpoint_name: ClassVar = "endpoint"

    allow_http: bool = setting(False, "Allow an endpoint without TLS.")
    ca_file: str = setting("", "PEM file of certificates to trust besides the system's.")
    connect_timeout_ms: int = setting(5_000, "Longest wait for a connection.", at_least=1)
    request_timeout_ms: int = setting(
        30_000,
        "Longest time of one request with its whole answer; raise it for slow lines.",
        at_least=1,
    )
    part_bytes: int = setting(
        8 << 20,
        "Objects above this size are uploaded in parts of it.",
        at_least=5 << 20,
        at_most=1 << 30,
    )

    def __post_init__(self) -> None:
        check_settings(self)

    def __repr__(self) -> str:
        changed = [
            field.name for field in fields(self) if getattr(self, field.name) != field.default
        ]
        return f"{type(self).__name__}({', '.join(f'{name}=...' for name in changed)})"

    def client_options(self) -> "ClientConfig":
        options: ClientConfig = {
            "allow_http": self.allow_http,
            "connect_timeout": timedelta(milliseconds=self.connect_timeout_ms),
            "timeout": timedelta(milliseconds=self.request_timeout_ms),
        }
        if self.ca_file:
            options["root_certificate"] = _read_certificates(self.ca_file)
        return options

    @classmethod
    def parse(cls, values: Mapping[str, GivenValue], where: str) -> Self:
        """Parses settings by name like `parse_settings`; errors never show a secret."""
        for name in _SECRETS & values.keys():
            if not isinstance(values[name], str):
                raise InvalidSetting(f"{name} of {where} must be text (its value is not shown)")
        return parse_settings(cls, values, where)

    def find_endpoint(self) -> str:
        """The server's URL, empty for the provider's own."""
        return str(getattr(self, self.endpoint_name))

    def client_config(self) -> dict[str, Any]:
        """The options of the obstore client, without empty ones, which it would take as values."""
        shared = {field.name for field in fields(HttpStoreSettings)}
        own = [field.name for field in fields(self) if field.name not in shared]
        config = {self.client_names.get(name, name): getattr(self, name) for name in own}
        return {name: value for name, value in config.items() if value != ""}

    def check_endpoint(self, where: str) -> None:
        """Raise InvalidSetting unless the endpoint is an http URL; plain http must be allowed."""
        endpoint, name = self.find_endpoint(), self.endpoint_name.replace("_", ".")
        if not endpoint:
            return
        if _ENDPOINT.fullmatch(endpoint) is None:
            # It is not shown, because it may contain a secret.
            raise InvalidSetting(
                f"{name} of {where} must be a URL such as https://host:port, without user, "
                "password and query: credentials and options have settings of their own"
            )
        if endpoint.startswith("http://") and not self.allow_http:
            raise InvalidSetting(
                f"{name} of {where} is {endpoint}, which has no TLS: use https, or set allow.http "
                "to true if everyone on the way may read the data"
            )


def _read_certificates(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidSetting(
            f"ca.file {path} cannot be read: {error.strerror}; give a PEM file"
        ) from error


S = TypeVar("S", bound=HttpStoreSettings)


class CloudObjectStore(ObstoreObjectStore, Generic[S]):
    """An ObjectStore in a bucket, below a prefix.

    `credentials` is an obstore credential provider, used where neither settings nor environment
    have credentials.
    """

    scheme: ClassVar[str]
    client_class: ClassVar[Any]
    settings_class: ClassVar[type[HttpStoreSettings]]

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        settings: S | None = None,
        clock: Clock | None = None,
        credentials: Any = None,  # a callable of another type for each provider
    ) -> None:
        name = f"{self.scheme}://{bucket}/{prefix}".rstrip("/")
        self._settings: HttpStoreSettings = settings or self.settings_class()
        self._settings.check_endpoint(name)
        with configured(name):
            client, parts_client = (
                self.client_class(
                    bucket,
                    prefix=prefix or None,
                    config=self._settings.client_config(),
                    client_options=self._settings.client_options(),
                    retry_config=retries,
                    credential_provider=credentials,
                )
                for retries in (_NO_RETRIES, _PART_RETRIES)
            )
        super().__init__(
            name,
            client,
            parts_client,
            part_bytes=self._settings.part_bytes,
            clock=clock or SystemClock(),
        )

    def checked(self, retries: RetryPolicy | None = OPEN_RETRIES) -> Self:
        """Checks the server with a request where that is necessary; returns the store itself."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GcsSettings(HttpStoreSettings):
    """Settings of GCS stores; empty ones are taken from the GOOGLE_* variables, the
    application default credentials or the machine's own account."""

    client_names: ClassVar = {"service_account_file": "service_account"}
    endpoint_name: ClassVar = "base_url"

    service_account_file: str = setting("", "JSON file of a service account.")
    service_account_key: str = setting("", "The JSON text of a service account.")
    bearer_token: str = setting("", "An OAuth token; it is not renewed.")
    base_url: str = setting("", "URL of another server of this API.")
    skip_signature: bool = setting(False, "Send requests without credentials, to public buckets.")


class GcsObjectStore(CloudObjectStore[GcsSettings]):
    """A bucket of Google; a create is a put with `x-goog-if-generation-match: 0`."""

    scheme = "gs"
    client_class = GCSStore
    settings_class = GcsSettings


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AzureSettings(HttpStoreSettings):
    """Settings of Azure stores; empty ones are taken from the AZURE_* variables or the
    machine's managed identity."""

    client_names: ClassVar = {"sas_token": "sas_key"}

    account_name: str = setting("", "The storage account.")
    account_key: str = setting("", "The account's key.")
    sas_token: str = setting("", "A shared access signature.")
    client_id: str = setting("", "Application of a service principal.")
    client_secret: str = setting("", "Its secret.")
    tenant_id: str = setting("", "Its tenant.")
    endpoint: str = setting("", "URL of another server of this API.")
    skip_signature: bool = setting(
        False, "Send requests without credentials, to public containers."
    )


class AzureObjectStore(CloudObjectStore[AzureSettings]):
    """A container of Azure; a create is a put with `If-None-Match: *`."""

    scheme = "az"
    client_class = AzureStore
    settings_class = AzureSettings


MARK: Final = f"{RESERVED}conditional-put"
"""Created once below the prefix, to test that the server refuses to create it again."""

_ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class S3Settings(HttpStoreSettings):
    """Settings of S3 stores; empty ones are taken from the AWS_* environment variables."""

    client_names: ClassVar = {
        "virtual_hosted_style": "virtual_hosted_style_request",
        "encryption": "server_side_encryption",
        "kms_key_id": "sse_kms_key_id",
    }

    endpoint: str = setting("", "URL of the server; empty: Amazon's, or AWS_ENDPOINT_URL.")
    region: str = setting("", "Region of the bucket; empty: AWS_REGION, or us-east-1.")
    access_key_id: str = setting("", "Empty: AWS_ACCESS_KEY_ID, or the machine's own role.")
    secret_access_key: str = setting("", "Empty: AWS_SECRET_ACCESS_KEY.")
    session_token: str = setting("", "Empty: AWS_SESSION_TOKEN.")
    virtual_hosted_style: bool = setting(
        False, "The endpoint's host begins with the bucket's name."
    )
    skip_signature: bool = setting(False, "Send requests unsigned, to public buckets.")
    unsigned_payload: bool = setting(
        False, "Leave the checksum of the bytes out of the signature, which saves time under TLS."
    )
    bulk_delete: bool = setting(True, "Delete up to 1000 objects by one request.")
    conditional_put_check: bool = setting(
        True,
        "Check at open that a server other than Amazon's honours If-None-Match; turn it off for "
        "readers without write permission.",
    )
    encryption: str = setting(
        "bucket",
        "Server-side encryption; `bucket` leaves it to the bucket's own rule.",
        choices=("bucket", "AES256", "aws:kms", "aws:kms:dsse"),
    )
    kms_key_id: str = setting("", "Key for aws:kms.")

    def find_endpoint(self) -> str:
        endpoints = (os.environ.get(name, "") for name in _ENDPOINT_VARIABLES)
        return self.endpoint or next(filter(None, endpoints), "")

    def client_config(self) -> dict[str, Any]:
        # Without super(): `dataclass(slots=True)` replaces the class that it would refer to.
        config = HttpStoreSettings.client_config(self)
        del config["conditional_put_check"]
        config["disable_bulk_delete"] = not config.pop("bulk_delete")
        config["conditional_put"] = "etag"
        if self.encryption == "bucket":
            del config["server_side_encryption"]
        endpoint = self.find_endpoint()
        return config | {"endpoint": endpoint} if endpoint else config


class S3ObjectStore(CloudObjectStore[S3Settings]):
    """A bucket of S3, or of a server that speaks its API."""

    scheme = "s3"
    client_class = S3Store
    settings_class = S3Settings

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        settings: S3Settings | None = None,
        clock: Clock | None = None,
        credentials: Any = None,
    ) -> None:
        settings = settings or S3Settings()
        super().__init__(bucket, prefix, settings=settings, clock=clock, credentials=credentials)
        _check_bucket(self.name, bucket)
        self._must_check = settings.conditional_put_check and bool(settings.find_endpoint())

    def checked(self, retries: RetryPolicy | None = OPEN_RETRIES) -> Self:
        """The store itself; raises StoreUnsupported unless the server supports create-if-absent.

        Takes one request when the mark exists, two the first time, more while an unavailable
        server is retried. Amazon's own S3 honours the condition and is not tested.
        """
        if not self._must_check:
            return self
        create = partial(self._create_unchecked, MARK, b"varve")
        if retries is not None:
            retrying = RetryingObjectStore(self, policy=retries, clock=self._clock)
            create = partial(retrying.repeat, create)
        try:
            for _ in range(2):
                create()
        except ObjectExists:
            return self
        raise failure(
            StoreUnsupported,
            store=self.name,
            operation="open",
            key="",
            cause="the server ignores `If-None-Match: *` on PutObject: it created an object twice",
            remedy="two writers would overwrite each other's commits; use a server that honours "
            "it (docs/reference/object-stores.md names some)",
        )


def _check_bucket(name: str, bucket: str) -> None:
    if bucket.endswith("--x-s3"):
        raise failure(
            StoreUnsupported,
            store=name,
            operation="open",
            key="",
            cause="a directory bucket (S3 Express One Zone) does not list keys in order",
            remedy="use a general purpose bucket",
        )
