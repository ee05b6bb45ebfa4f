"""A PostgreSQL of its own, on loopback, whose changes can be followed (wal_level=logical).

with Postgres(find_postgres()) as database:
    database.run("CREATE TABLE parcels (id bigint PRIMARY KEY, state text)")
    rows = database.ask("SELECT * FROM parcels")

Layout     a temporary directory holds the cluster, which is gone with it.
Invariant  the server runs without the rights of the superuser: PostgreSQL refuses them.
Crash      nothing is synced; the cluster lives as long as one run of the tests.
"""

import json
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final, Self

from tests.conformance.tools.program import Program
from tests.support.kafka_server import HOST, ReservedPort

USER: Final = "varve"
DATABASE: Final = "postgres"
_PROGRAMS: Final = ("initdb", "postgres", "psql")
_DEBIAN: Final = Path("/usr/lib/postgresql")
_OTHERS: Final = ("postgres", "nobody")
"""Who may run the server where the tests are run by the superuser."""
_PATIENCE_SECONDS: Final = 60.0
_SETTINGS: Final = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "wal_level": "logical",
    "max_wal_senders": "8",
    "max_replication_slots": "8",
    "fsync": "off",
    "shared_buffers": "16MB",
    "autovacuum": "off",
    "timezone": "UTC",
}


class PostgresFailed(Exception):
    """The server refused a statement; the message says what it told."""


def find_postgres() -> Path | None:
    """The directory of its programs, which Debian keeps apart by version; None without them."""
    found = shutil.which("initdb")
    beside = [] if found is None else [Path(found).resolve().parent]
    by_version = sorted(_DEBIAN.glob("*/bin"), key=lambda path: _version(path.parent.name))
    for directory in [*beside, *reversed(by_version)]:
        if all((directory / name).is_file() for name in _PROGRAMS):
            return directory
    return None


def _version(name: str) -> int:
    return int(name) if name.isdigit() else 0


class Postgres:
    """Serves while it is entered."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self.host = HOST
        self.password = secrets.token_hex(16)
        self._owner = _find_owner()

    def __enter__(self) -> Self:
        self._reserved = ReservedPort()
        self.port = self._reserved.number
        self._home = Path(tempfile.mkdtemp(prefix="varve-postgres-"))
        self._program = Program(self._home / "server.log")
        try:
            self._make_cluster()
            self._start()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            # As its manual has it: clients are let go of at once, and all is written.
            self._program.stop(signal.SIGINT)
        finally:
            self._remove()

    def run(self, *statements: str) -> None:
        """One after the other; each is a transaction of its own unless BEGIN says otherwise."""
        self._psql(";\n".join(statements))

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The rows as JSON has them."""
        told = self._psql(f"SELECT row_to_json(asked) FROM ({query}) AS asked")
        return [json.loads(line) for line in told.splitlines()]

    def _psql(self, text: str) -> str:
        done = subprocess.run(
            [
                str(self._programs / "psql"),
                *("-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"),
                *("-h", HOST, "-p", str(self.port), "-U", USER, "-d", DATABASE),
            ],
            input=text,
            env={**os.environ, "PGPASSWORD": self.password, "PGCLIENTENCODING": "UTF8"},
            capture_output=True,
            text=True,
            timeout=_PATIENCE_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise PostgresFailed(f"{text[:500]}: {done.stderr}")
        return done.stdout

    def _make_cluster(self) -> None:
        secret = self._home / "password"
        secret.write_text(self.password)
        if self._owner is not None:
            for path in (self._home, secret):
                os.chown(path, *self._owner)
        done = subprocess.run(
            [
                str(self._programs / "initdb"),
                *("-D", str(self._home / "data"), "-U", USER, "-A", "scram-sha-256"),
                *("--pwfile", str(secret), "-E", "UTF8", "--locale", "C", "--no-sync"),
            ],
            cwd=self._home,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_SECONDS,
            check=False,
            **self._as_owner(),
        )
        if done.returncode != 0:
            raise PostgresFailed(f"initdb: {done.stdout}{done.stderr}")

    def _start(self) -> None:
        settings = {**_SETTINGS, "port": str(self.port)}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        self._program.start(
            [self._programs / "postgres", "-D", self._home / "data", *options],
            self._is_open,
            cwd=self._home,
            **self._as_owner(),
        )

    def _is_open(self) -> bool:
        try:
            self.run("SELECT 1")
        except PostgresFailed:
            return False
        return True

    def _as_owner(self) -> dict[str, Any]:
        if self._owner is None:
            return {}
        user, group = self._owner
        return {"user": user, "group": group, "extra_groups": []}

    def _remove(self) -> None:
        shutil.rmtree(self._home, ignore_errors=True)
        self._reserved.__exit__()


def _find_owner() -> tuple[int, int] | None:
    """User and group that the server runs as; None where it may run as who started it."""
    if os.geteuid() != 0:
        return None
    for name in _OTHERS:
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        return found.pw_uid, found.pw_gid
    raise PostgresFailed(f"PostgreSQL refuses to run as root, and there is no user {_OTHERS}")
