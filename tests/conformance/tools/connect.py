"""Kafka Connect with Debezium's connector for PostgreSQL, in a process of its own.

with Connect(prepare_connect(), home, address, capture(database, "db", "public.parcels")) as worker:
    worker.stop()
    worker.start()

Layout     the standalone worker keeps what it has read of the source in a file in `home`.
Invariant  a connector that fails is not waited for: `start` raises with what it told.
Crash      `kill` loses what was not noted; the source is then told of once more from there.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self
from urllib.request import urlopen

from tests.conformance.tools.postgres import DATABASE, USER, Postgres
from tests.conformance.tools.program import Program
from tests.conformance.tools.toolchain import Toolchain
from tests.support.kafka_server import HOST, ReservedPort

NAME: Final = "followed"
_MAIN: Final = "org.apache.kafka.connect.cli.ConnectStandalone"
_JSON: Final = "org.apache.kafka.connect.json.JsonConverter"
_PATIENCE_SECONDS: Final = 90.0
_ASK_SECONDS: Final = 5.0
_WORKER: Final = {
    "offset.flush.interval.ms": "1000",
    "task.shutdown.graceful.timeout.ms": "20000",
    "plugin.discovery": "service_load",
}


def capture(database: Postgres, prefix: str, *tables: str, **more: str) -> dict[str, str]:
    """A connector of tables; `more` are its further settings, with underscores for dots."""
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "plugin.name": "pgoutput",
        "database.hostname": database.host,
        "database.port": str(database.port),
        "database.user": USER,
        "database.password": database.password,
        "database.dbname": DATABASE,
        "topic.prefix": prefix,
        "slot.name": prefix,
        "publication.name": prefix,
        "publication.autocreate.mode": "filtered",
        "table.include.list": ",".join(tables),
        "provide.transaction.metadata": "true",
        "skipped.operations": "none",
        "poll.interval.ms": "20",
        "topic.creation.default.partitions": "1",
        "topic.creation.default.replication.factor": "1",
        **{name.replace("_", "."): value for name, value in more.items()},
    }


class Connect:
    """One worker with one connector, started when it is entered."""

    def __init__(
        self,
        toolchain: Toolchain,
        home: Path,
        bootstrap: str,
        connector: Mapping[str, str],
        *,
        has_schema: bool = False,
    ) -> None:
        """With `has_schema` each record carries the schema of its key and of its value."""
        self._toolchain = toolchain
        self._home = home
        self._connector = dict(connector)
        self._program = Program(home / "connect.log")
        shows_schema = str(has_schema).lower()
        self._worker = {
            **_WORKER,
            "bootstrap.servers": bootstrap,
            "offset.storage.file.filename": str(home / "offsets"),
            "key.converter": _JSON,
            "value.converter": _JSON,
            "key.converter.schemas.enable": shows_schema,
            "value.converter.schemas.enable": shows_schema,
        }

    def __enter__(self) -> Self:
        self._reserved = ReservedPort()
        self._home.mkdir(parents=True, exist_ok=True)
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._reserved.__exit__()

    def start(self) -> None:
        """Returns when the connector runs; raises where it does not."""
        worker = {**self._worker, "listeners": self._url}
        files = (_write(self._home / "worker", worker), _write(self._home / NAME, self._named()))
        command = self._toolchain.command(_MAIN, *map(str, files))
        self._program.start(command, self._is_running, seconds=_PATIENCE_SECONDS)

    def stop(self) -> None:
        """Ends the worker in order: what it has sent is noted."""
        self._program.stop()

    def kill(self) -> None:
        """Ends the worker as a crash does; harmless when it does not run."""
        self._program.kill()

    @property
    def _url(self) -> str:
        return f"http://{HOST}:{self._reserved.number}"

    def _named(self) -> dict[str, str]:
        return {"name": NAME, **self._connector}

    def _is_running(self) -> bool:
        """Whether the connector and its task run; raises where one of them has failed."""
        try:
            with urlopen(f"{self._url}/connectors/{NAME}/status", timeout=_ASK_SECONDS) as answer:
                told: dict[str, Any] = json.load(answer)
        except OSError:  # nobody listens, or a worker that hangs
            return False
        states = [told["connector"]["state"], *(one["state"] for one in told["tasks"])]
        assert "FAILED" not in states, f"{told}; {self._program.log.read_text()[-4000:]}"
        return states == ["RUNNING", "RUNNING"]


def _write(path: Path, settings: Mapping[str, str]) -> Path:
    made = path.with_suffix(".properties")
    made.write_text("".join(f"{name}={value}\n" for name, value in sorted(settings.items())))
    return made
