"""Objects in a container of Azure Blob Storage.

Invariant  create is a put with `If-None-Match: *`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from obstore.store import AzureStore

from varve.foundation.clock import Clock, SystemClock
from varve.foundation.settings import setting
from varve.object_store.http_settings import NO_RETRIES, PART_RETRIES, HttpSettings
from varve.object_store.obstore_errors import configured
from varve.object_store.obstore_store import ObstoreObjectStore

if TYPE_CHECKING:
    from obstore.store import AzureConfig, AzureCredentialProvider


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AzureSettings(HttpSettings):
    """Settings of Azure stores; what is left empty is taken from the AZURE_* variables or the
    machine's managed identity."""

    account_name: str = setting("", "The storage account.", "account.name", is_own=True)
    account_key: str = setting("", "The account's key.", "account.key", is_own=True)
    sas_token: str = setting("", "A shared access signature.", "sas.token", is_own=True)
    client_id: str = setting("", "Application of a service principal.", "client.id", is_own=True)
    client_secret: str = setting("", "Its secret.", "client.secret", is_own=True)
    tenant_id: str = setting("", "Its tenant.", "tenant.id", is_own=True)
    endpoint: str = setting("", "URL of another server of this API.", "endpoint", is_own=True)
    skip_signature: bool = setting(
        False,
        "Send requests without credentials, to public containers.",
        "skip.signature",
        is_own=True,
    )


class AzureObjectStore(ObstoreObjectStore):
    """An ObjectStore in a container, below a prefix."""

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


def _config(settings: AzureSettings) -> "AzureConfig":
    config: AzureConfig = {"skip_signature": settings.skip_signature}
    if settings.account_name:
        config["account_name"] = settings.account_name
    if settings.account_key:
        config["account_key"] = settings.account_key
    if settings.sas_token:
        config["sas_key"] = settings.sas_token
    if settings.client_id:
        config["client_id"] = settings.client_id
    if settings.client_secret:
        config["client_secret"] = settings.client_secret
    if settings.tenant_id:
        config["tenant_id"] = settings.tenant_id
    if settings.endpoint:
        config["endpoint"] = settings.endpoint
    return config
