"""Objects in Google Cloud Storage and Azure Blob Storage; the settings of all stores over HTTP."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from obstore.store import AzureStore, GCSStore

from varve.foundation.clock import Clock, SystemClock
from varve.foundation.errors import InvalidSetting
from varve.foundation.settings import GivenValue, check_settings, parse_settings, setting
from varve.object_store.obstore_errors import configured
from varve.object_store.obstore_store import ObstoreObjectStore

if TYPE_CHECKING:
    from obstore.store import (
        AzureConfig,
        AzureCredentialProvider,
        ClientConfig,
        GCSConfig,
        GCSCredentialProvider,
        RetryConfig,
    )

NO_RETRIES: "Final[RetryConfig]" = {"max_retries": 0}

PART_RETRIES: "Final[RetryConfig]" = {
    "max_retries": 4,
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=5),
        "base": 2,
    },
    "retry_timeout": timedelta(seconds=60),
}
"""For the parts of an upload only: writing a part twice changes nothing."""


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
    """Settings of every store over HTTP. Never printed: subclasses hold secrets."""

    is_own: ClassVar = True

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
        given = [field.name for field in fields(self) if getattr(self, field.name) != field.default]
        return f"{type(self).__name__}({', '.join(f'{name}=...' for name in given)})"

    def client_options(self) -> "ClientConfig":
        options: ClientConfig = {
            "allow_http": self.allow_http,
            "connect_timeout": timedelta(milliseconds=self.connect_timeout_ms),
            "timeout": timedelta(milliseconds=self.request_timeout_ms),
        }
        if self.ca_file:
            options["root_certificate"] = _read_certificates(self.ca_file)
        return options

    def check_endpoint(self, endpoint: str, name: str, where: str) -> None:
        """Raise InvalidSetting for an endpoint that is no http URL, or plain http unallowed."""
        if _ENDPOINT.fullmatch(endpoint) is None:
            # It is not shown: what is wrong in it may be a secret.
            raise InvalidSetting(
                f"{name} of {where} must be a URL such as https://host:port, without user, "
                "password and query: credentials and options have settings of their own"
            )
        if endpoint.startswith("http://") and not self.allow_http:
            raise InvalidSetting(
                f"{name} of {where} is {endpoint}, which has no TLS: use https, or set allow.http "
                "to true if everyone on the way may read the data"
            )


H = TypeVar("H", bound=HttpStoreSettings)


def parse_http_settings(cls: type[H], values: Mapping[str, GivenValue], where: str) -> H:
    """Settings from their names, as `parse_settings` does it, without ever showing a secret."""
    for name in _SECRETS & values.keys():
        if not isinstance(values[name], str):
            raise InvalidSetting(f"{name} of {where} must be text (its value is not shown)")
    return parse_settings(cls, values, where)


def _read_certificates(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidSetting(
            f"ca.file {path} cannot be read: {error.strerror}; give a PEM file"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GcsSettings(HttpStoreSettings):
    """Settings of GCS stores; what is left empty is taken from the GOOGLE_* variables, the
    application default credentials or the machine's own account."""

    service_account_file: str = setting("", "JSON file of a service account.")
    service_account_key: str = setting("", "The JSON text of a service account.")
    bearer_token: str = setting("", "An OAuth token; it is not renewed.")
    base_url: str = setting("", "URL of another server of this API.")
    skip_signature: bool = setting(False, "Send requests without credentials, to public buckets.")


class GcsObjectStore(ObstoreObjectStore):
    """An ObjectStore in a bucket, below a prefix.

    A create is a put with `x-goog-if-generation-match: 0`.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        settings: GcsSettings | None = None,
        clock: Clock | None = None,
        credentials: "GCSCredentialProvider | None" = None,
    ) -> None:
        settings = settings or GcsSettings()
        name = f"gs://{bucket}/{prefix}".rstrip("/")
        if settings.base_url:
            settings.check_endpoint(settings.base_url, "base.url", name)
        with configured(name):
            client, parts_client = (
                GCSStore(
                    bucket,
                    prefix=prefix or None,
                    config=_gcs_config(settings),
                    client_options=settings.client_options(),
                    retry_config=retries,
                    credential_provider=credentials,
                )
                for retries in (NO_RETRIES, PART_RETRIES)
            )
        super().__init__(
            name,
            client,
            parts_client,
            part_bytes=settings.part_bytes,
            clock=clock or SystemClock(),
        )


def _gcs_config(settings: GcsSettings) -> "GCSConfig":
    optional = {
        "service_account": settings.service_account_file,
        "service_account_key": settings.service_account_key,
        "bearer_token": settings.bearer_token,
        "base_url": settings.base_url,
    }
    # obstore takes a missing name for its own default, and an empty text for a value.
    config: Any = {name: value for name, value in optional.items() if value}
    config["skip_signature"] = settings.skip_signature
    return config  # type: ignore[no-any-return]  # the names above are those of obstore


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AzureSettings(HttpStoreSettings):
    """Settings of Azure stores; what is left empty is taken from the AZURE_* variables or the
    machine's managed identity."""

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


class AzureObjectStore(ObstoreObjectStore):
    """An ObjectStore in a container, below a prefix; a create is a put with `If-None-Match: *`."""

    def __init__(
        self,
        container: str,
        prefix: str = "",
        *,
        settings: AzureSettings | None = None,
        clock: Clock | None = None,
        credentials: "AzureCredentialProvider | None" = None,
    ) -> None:
        settings = settings or AzureSettings()
        name = f"az://{container}/{prefix}".rstrip("/")
        if settings.endpoint:
            settings.check_endpoint(settings.endpoint, "endpoint", name)
        with configured(name):
            client, parts_client = (
                AzureStore(
                    container,
                    prefix=prefix or None,
                    config=_azure_config(settings),
                    client_options=settings.client_options(),
                    retry_config=retries,
                    credential_provider=credentials,
                )
                for retries in (NO_RETRIES, PART_RETRIES)
            )
        super().__init__(
            name,
            client,
            parts_client,
            part_bytes=settings.part_bytes,
            clock=clock or SystemClock(),
        )


def _azure_config(settings: AzureSettings) -> "AzureConfig":
    optional = {
        "account_name": settings.account_name,
        "account_key": settings.account_key,
        "sas_key": settings.sas_token,
        "client_id": settings.client_id,
        "client_secret": settings.client_secret,
        "tenant_id": settings.tenant_id,
        "endpoint": settings.endpoint,
    }
    # obstore takes a missing name for its own default, and an empty text for a value.
    config: Any = {name: value for name, value in optional.items() if value}
    config["skip_signature"] = settings.skip_signature
    return config  # type: ignore[no-any-return]  # the names above are those of obstore
