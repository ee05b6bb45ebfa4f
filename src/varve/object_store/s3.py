"""Objects in a bucket of Amazon S3 or of any server that speaks its API.

Invariant  create is a put with `If-None-Match: *`; a server that ignores it is refused at open.
Crash      an upload in parts that was cut short leaves parts that no list shows and that cost
           money: give the bucket a rule that aborts incomplete multipart uploads.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from obstore.store import S3Store

from varve.foundation.clock import Clock, SystemClock
from varve.foundation.errors import ObjectExists, StoreUnsupported
from varve.foundation.settings import setting
from varve.object_store.cloud import NO_RETRIES, PART_RETRIES, HttpStoreSettings
from varve.object_store.obstore_errors import configured
from varve.object_store.obstore_store import ObstoreObjectStore
from varve.object_store.protocol import RESERVED, failure
from varve.object_store.retry import RetryingObjectStore, RetryPolicy

if TYPE_CHECKING:
    from obstore.store import S3Config, S3CredentialProvider

MARK: Final = f"{RESERVED}conditional-put"
"""Created once below the prefix to see whether the server refuses to create it again."""

OPEN_RETRIES: Final = RetryPolicy(attempt_count_max=4, wait_ms_max=1_000, deadline_ms=10_000)
"""For the check at open: two processes that open at once may get in each other's way."""

_ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class S3Settings(HttpStoreSettings):
    """Settings of S3 stores; what is left empty is taken from the AWS_* environment variables."""

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
        "See at open whether a server other than Amazon's honours If-None-Match; "
        "readers without the right to write switch it off.",
    )
    encryption: str = setting(
        "bucket",
        "Server-side encryption; `bucket` leaves it to the bucket's own rule.",
        choices=("bucket", "AES256", "aws:kms", "aws:kms:dsse"),
    )
    kms_key_id: str = setting("", "Key for aws:kms.")


class S3ObjectStore(ObstoreObjectStore):
    """An ObjectStore in a bucket, below a prefix.

    `credentials` is asked for credentials where neither settings nor environment have them.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        settings: S3Settings | None = None,
        clock: Clock | None = None,
        credentials: "S3CredentialProvider | None" = None,
    ) -> None:
        settings = settings or S3Settings()
        name = f"s3://{bucket}/{prefix}".rstrip("/")
        endpoint = find_endpoint(settings, os.environ)
        if endpoint:
            settings.check_endpoint(endpoint, "endpoint", name)
        _check_bucket(name, bucket)
        with configured(name):
            client, parts_client = (
                S3Store(
                    bucket,
                    prefix=prefix or None,
                    config=_config(settings, endpoint),
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
        self._is_foreign = bool(endpoint)
        self._check = settings.conditional_put_check

    def check_conditional_put(self, retries: RetryPolicy | None = OPEN_RETRIES) -> None:
        """Raise StoreUnsupported unless the server creates only what is absent.

        One request when the mark is there already, two the first time, more while the server is
        unavailable, if there are to be retries. Amazon's own S3 is known to honour the condition
        and is not asked.
        """
        if not (self._check and self._is_foreign):
            return
        create = partial(self._create, MARK, b"varve")
        if retries is not None:
            retrying = RetryingObjectStore(self, policy=retries, clock=self._clock)
            create = partial(retrying.repeat, create)
        try:
            for _ in range(2):
                create()
        except ObjectExists:
            return
        raise failure(
            StoreUnsupported,
            store=self.name,
            operation="open",
            key="",
            cause="the server ignores `If-None-Match: *` on PutObject: it created an object twice",
            remedy="two writers would overwrite each other's commits; use a server that honours "
            "it (docs/object-stores.md names some)",
        )


def find_endpoint(settings: S3Settings, environment: Mapping[str, str]) -> str:
    """The endpoint given by settings or environment, empty for Amazon's."""
    given = (environment.get(name, "") for name in _ENDPOINT_VARIABLES)
    return settings.endpoint or next(filter(None, given), "")


def _config(settings: S3Settings, endpoint: str) -> "S3Config":
    config: S3Config = {
        "virtual_hosted_style_request": settings.virtual_hosted_style,
        "skip_signature": settings.skip_signature,
        "unsigned_payload": settings.unsigned_payload,
        "disable_bulk_delete": not settings.bulk_delete,
        "conditional_put": "etag",
    }
    optional = {
        "endpoint": endpoint,
        "region": settings.region,
        "access_key_id": settings.access_key_id,
        "secret_access_key": settings.secret_access_key,
        "session_token": settings.session_token,
        "server_side_encryption": settings.encryption.removeprefix("bucket"),
        "sse_kms_key_id": settings.kms_key_id,
    }
    # obstore takes a missing name for its own default, and an empty text for a value.
    given: Any = {name: value for name, value in optional.items() if value}
    config.update(given)
    return config


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
