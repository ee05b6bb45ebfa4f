"""An HTTP server that answers as told and remembers what it was asked."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Asked(NamedTuple):
    """One request; names of headers in small letters."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Answer(NamedTuple):
    """With `cut_after` the connection is reset after so many bytes of the body."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    cut_after: int | None = None


RESET = Answer(0, {})
"""The connection is reset without an answer."""


class HttpStub:
    def __init__(self, endpoint: str, asked: list[Asked]) -> None:
        self.endpoint = endpoint
        self.asked = asked


@contextmanager
def http_stub(answer: Callable[[Asked], Answer]) -> Iterator[HttpStub]:
    asked: list[Asked] = []

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            size = int(self.headers.get("content-length") or 0)
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Asked(self.command, self.path, headers, self.rfile.read(size))
            asked.append(request)
            given = answer(request)
            if given is RESET:
                self.reset()
                return
            self.send_response(given.status)
            for name, value in given.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(given.body)))
            self.end_headers()
            if self.command != "HEAD":
                with suppress(ConnectionError):  # the asker may have given up
                    self.wfile.write(given.body[: given.cut_after])
            if given.cut_after is not None:
                self.reset()

        def reset(self) -> None:
            self.wfile.flush()
            self.close_connection = True
            at_once = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
            self.connection.close()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    for method in ("GET", "PUT", "POST", "HEAD", "DELETE"):
        setattr(Handler, f"do_{method}", Handler.handle_any)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield HttpStub(f"http://127.0.0.1:{server.server_port}", asked)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
