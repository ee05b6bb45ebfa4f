"""Objects in a bucket of Amazon S3 or of any server that speaks its API.

Invariant  create is a put with `If-None-Match: *`; a server that ignores it is refused at open.
Crash      an interrupted multipart upload leaves parts that no list shows and that cost money:
           give the bucket a lifecycle rule that aborts incomplete multipart uploads.
"""

import os
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, Self

from obstore.store import S3Store

from varve.foundation.clock import Clock
from varve.foundation.errors import ObjectExists, StoreUnsupported
from varve.foundation.settings import setting
from varve.object_store.cloud import OPEN_RETRIES, CloudObjectStore, HttpStoreSettings
from varve.object_store.protocol import RESERVED, failure
from varve.object_store.retry import RetryingObjectStore, RetryPolicy

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
