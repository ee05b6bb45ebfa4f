"""nginx as a shared cache in front of a server of shapes, on loopback, in a directory of its own.

It keeps what answers allow, asks again with their ETags, and lets requests for the same wait for
one answer. Server-sent events pass by the cache.

Crash      the process is ended by its pid; what it wrote lies in its directory.
"""

import os
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import httpx

from tests.conformance.tools.program import Program
from tests.support.kafka_server import HOST, ReservedPort

_SETTINGS: Final = """
{user}
daemon off;
worker_processes 1;
pid {home}/nginx.pid;
error_log {home}/error.log warn;
events {{ worker_connections 2048; }}
http {{
    client_body_temp_path {home}/body;
    proxy_temp_path {home}/proxy;
    fastcgi_temp_path {home}/fastcgi;
    uwsgi_temp_path {home}/uwsgi;
    scgi_temp_path {home}/scgi;
    log_format told '$upstream_cache_status $upstream_status $status $request_uri';
    access_log {home}/access.log told;
    proxy_cache_path {home}/cache levels=1:2 keys_zone=shapes:8m inactive=60m use_temp_path=off;
    upstream shapes {{
        server {host}:{behind};
        keepalive 64;
    }}
    server {{
        listen {host}:{port};
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_read_timeout 150s;
        location / {{
            error_page 418 = @events;
            if ($args ~ live_sse) {{ return 418; }}
            proxy_pass http://shapes;
            proxy_cache shapes;
            proxy_cache_key $request_uri;
            proxy_cache_revalidate on;
            proxy_cache_lock on;
            proxy_cache_lock_age 60s;
            proxy_cache_lock_timeout 60s;
            add_header X-Cache $upstream_cache_status always;
        }}
        location @events {{
            proxy_pass http://shapes;
            proxy_buffering off;
        }}
    }}
}}
"""


def find_nginx() -> str | None:
    """The path of nginx, which Debian keeps apart from the programs of users."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


@dataclass(frozen=True, slots=True)
class Served:
    """One request: what the cache made of it, what the server said if it was asked, the answer."""

    outcome: str
    behind: str
    status: int
    target: str

    @property
    def is_asked(self) -> bool:
        """Whether the server of shapes was asked."""
        return self.behind != "-"


class NginxCache:
    """Serves while it is entered, for the server at a port."""

    def __init__(self, program: str, home: Path, behind: int) -> None:
        self._program = program
        self._home = home
        self._behind = behind
        self.host = HOST

    def __enter__(self) -> Self:
        self._reserved = ReservedPort()
        self.port = self._reserved.number
        self.base = f"http://{HOST}:{self.port}"
        self.url = f"{self.base}/v1/shape"
        self._home.mkdir(parents=True, exist_ok=True)
        settings = self._home / "nginx.conf"
        user = "user root;" if os.geteuid() == 0 else ""
        settings.write_text(
            _SETTINGS.format(
                user=user, home=self._home, host=HOST, port=self.port, behind=self._behind
            )
        )
        log = self._home / "error.log"
        self._running = Program(self._home / "output")
        self._running.start(
            [self._program, "-p", self._home, "-c", settings, "-e", log], self._is_open
        )
        return self

    def _is_open(self) -> bool:
        try:
            httpx.get(f"{self.base}/v1/health")
        except httpx.TransportError:
            return False
        return True

    def __exit__(self, *_: object) -> None:
        self._running.stop()
        self._reserved.__exit__()

    def served(self) -> list[Served]:
        """All requests that have ended so far."""
        found = []
        for line in (self._home / "access.log").read_text().splitlines():
            outcome, behind, status, target = line.split(" ", 3)
            found.append(Served(outcome, behind, int(status), target))
        return found

    def complaints(self) -> str:
        """What nginx warns of."""
        return (self._home / "error.log").read_text()


def count_outcomes(served: list[Served]) -> Counter[str]:
    return Counter(one.outcome for one in served)
