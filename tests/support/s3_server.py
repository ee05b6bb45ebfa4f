"""moto's S3 server on a loopback port, for tests that want real HTTP.

moto checks `If-None-Match` and writes in two steps, which threads of its server may interleave;
conditional puts therefore pass a lock here, as they are atomic on the servers varve supports. It
takes any credentials; those signed by a user it was not made for are refused here, as servers do.
"""

import logging
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from varve.foundation.settings import GivenValue

BUCKET = "varve-test"
USER = "test"
_SIGNED_BY = re.compile(r"Credential=([^/]+)/")
_REFUSAL = (
    b"<Error><Code>InvalidAccessKeyId</Code>"
    b"<Message>The AWS Access Key Id you provided does not exist in our records.</Message></Error>"
)

_Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class S3Server:
    """A running server with one bucket, whichever program it is."""

    def __init__(self, endpoint: str, *, user: str = USER, password: str = "test-secret") -> None:
        self.endpoint = endpoint
        self._user = user
        self._password = password

    @property
    def settings(self) -> dict[str, GivenValue]:
        """What `open_object_store` needs to reach it."""
        return {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access.key.id": self._user,
            "secret.access.key": self._password,
            "allow.http": True,
        }

    def make_bucket(self, name: str) -> None:
        self._client().create_bucket(Bucket=name)

    def keep_versions(self, bucket: str) -> None:
        """Makes a bucket with versioning."""
        self.make_bucket(bucket)
        self._client().put_bucket_versioning(
            Bucket=bucket, VersioningConfiguration={"Status": "Enabled"}
        )

    def read_versions(self, bucket: str) -> dict[tuple[str, str], bytes | None]:
        """All versions by key and id; None for the marker of a deletion."""
        client = self._client()
        pages = list(client.get_paginator("list_object_versions").paginate(Bucket=bucket))
        found: dict[tuple[str, str], bytes | None] = {
            (one["Key"], one["VersionId"]): client.get_object(
                Bucket=bucket, Key=one["Key"], VersionId=one["VersionId"]
            )["Body"].read()
            for page in pages
            for one in page.get("Versions", [])
        }
        markers = [one for page in pages for one in page.get("DeleteMarkers", [])]
        return {**found, **{(one["Key"], one["VersionId"]): None for one in markers}}

    def etags(self, bucket: str = BUCKET) -> dict[str, str]:
        """Every object of the bucket by its key."""
        pages = self._client().get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return {one["Key"]: one["ETag"] for page in pages for one in page.get("Contents", [])}

    def clear(self, bucket: str = BUCKET) -> None:
        """Deletes every object, also those whose key ends with a slash, which stores do not list.

        All servers of a process have the same buckets.
        """
        client = self._client()
        for key in self.etags(bucket):
            client.delete_object(Bucket=bucket, Key=key)

    def unfinished_uploads(self, bucket: str = BUCKET) -> int:
        return len(self._client().list_multipart_uploads(Bucket=bucket).get("Uploads", []))

    def _client(self) -> Any:
        """Amazon's own client, for what object stores of ours do not do."""
        boto3: Any = import_module("boto3")
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=self._user,
            aws_secret_access_key=self._password,
        )


@contextmanager
def s3_server() -> Iterator[S3Server]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from moto.server import ThreadedMotoServer
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        wsgi: Any = server._server
        wsgi.app = _with_one_user(_with_atomic_puts(wsgi.app))
        host, port = server.get_host_and_port()
        running = S3Server(f"http://{host}:{port}")
        running.make_bucket(BUCKET)
        yield running
    finally:
        server.stop()
        wsgi.server_close()


def _with_atomic_puts(application: _Application) -> _Application:
    lock = threading.Lock()

    def guarded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "PUT" and "HTTP_IF_NONE_MATCH" in environ:
            with lock:
                return list(application(environ, start_response))
        return application(environ, start_response)

    return guarded


def _with_one_user(application: _Application) -> _Application:
    def guarded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        signed = _SIGNED_BY.search(environ.get("HTTP_AUTHORIZATION", ""))
        if signed is None or signed[1] == USER:
            return application(environ, start_response)
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        start_response("403 Forbidden", [("Content-Type", "application/xml")])
        return [_REFUSAL]

    return guarded
