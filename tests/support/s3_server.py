"""moto's S3 server on a loopback port, for tests that want real HTTP.

moto checks `If-None-Match` and writes in two steps, which threads of its server may interleave;
conditional puts therefore pass a lock here, as they are atomic on the servers varve supports.
"""

import logging
import threading
import urllib.request
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from varve.foundation.settings import GivenValue

BUCKET = "varve-test"

_Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class S3Server:
    """A running server with one bucket."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    @property
    def settings(self) -> dict[str, GivenValue]:
        """What `open_object_store` needs to reach it."""
        return {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access.key.id": "test",
            "secret.access.key": "test-secret",
            "allow.http": True,
        }

    def make_bucket(self, name: str) -> None:
        request = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")
        urllib.request.urlopen(request, timeout=30).close()

    def unfinished_uploads(self, bucket: str = BUCKET) -> int:
        with urllib.request.urlopen(f"{self.endpoint}/{bucket}?uploads", timeout=30) as answer:
            count: int = answer.read().count(b"<Upload>")
        return count


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
