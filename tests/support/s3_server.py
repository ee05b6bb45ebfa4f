"""moto's S3 server on a loopback port, for tests that want real HTTP.

moto checks `If-None-Match` and writes in two steps, which threads of its server may interleave;
conditional puts therefore pass a lock here, as they are atomic on the servers varve supports.
"""

import logging
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from varve.foundation.settings import GivenValue

BUCKET = "varve-test"

_Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class S3Server:
    """A running server with one bucket, whichever program it is."""

    def __init__(self, endpoint: str, *, user: str = "test", password: str = "test-secret") -> None:
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
        wsgi.app = _with_atomic_puts(wsgi.app)
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
