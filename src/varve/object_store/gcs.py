"""Objects in a bucket of Google Cloud Storage.

Invariant  create is a put with `x-goog-if-generation-match: 0`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from obstore.store import GCSStore

from varve.foundation.clock import Clock, SystemClock
from varve.foundation.settings import setting
from varve.object_store.http_settings import NO_RETRIES, PART_RETRIES, HttpSettings
from varve.object_store.obstore_errors import configured
from varve.object_store.obstore_store import ObstoreObjectStore

if TYPE_CHECKING:
    from obstore.store import GCSConfig, GCSCredentialProvider


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GcsSettings(HttpSettings):
    """Settings of GCS stores; what is left empty is taken from the GOOGLE_* variables, the
    application default credentials or the machine's own account."""

    service_account_file: str = setting(
        "", "JSON file of a service account.", "service.account.file", is_own=True
    )
    service_account_key: str = setting(
        "", "The JSON text of a service account.", "service.account.key", is_own=True
    )
    bearer_token: str = setting(
        "", "An OAuth token; it is not renewed.", "bearer.token", is_own=True
    )
    base_url: str = setting("", "URL of another server of this API.", "base.url", is_own=True)
    skip_signature: bool = setting(
        False,
        "Send requests without credentials, to public buckets.",
        "skip.signature",
        is_own=True,
    )


class GcsObjectStore(ObstoreObjectStore):
    """An ObjectStore in a bucket, below a prefix."""

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
                    config=_config(settings),
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


def _config(settings: GcsSettings) -> "GCSConfig":
    config: GCSConfig = {"skip_signature": settings.skip_signature}
    if settings.service_account_file:
        config["service_account"] = settings.service_account_file
    if settings.service_account_key:
        config["service_account_key"] = settings.service_account_key
    if settings.bearer_token:
        config["bearer_token"] = settings.bearer_token
    if settings.base_url:
        config["base_url"] = settings.base_url
    return config
