"""A real Apache Kafka broker of one node (KRaft) on the loopback interface.

Invariant  a broker keeps its ports over its lives; nobody else can get them in between.
Crash      `kill` leaves the directories as a crash would; `stop` shuts down in good order.
"""

import socket
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from tests.conformance.tools.program import Program, ProgramFailed
from tests.conformance.tools.shell import JavaShell, records_of, to_text
from tests.conformance.tools.toolchain import Toolchain
from tests.support.kafka_server import HOST, ReservedPort
from varve.records import Record

LIFE_SECONDS = 240.0
CLUSTER_ID = "dmFydmUtY29uZm9ybS0wMQ"
CLIENT_SHELL = "varve.conformance.ClientShell"

SMALL_BROKER: Mapping[str, str] = {
    "num.network.threads": "1",
    "num.io.threads": "2",
    "background.threads": "2",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.max.timeout.ms": "900000",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "log.cleaner.backoff.ms": "200",
    "log.initial.task.delay.ms": "500",
    "log.index.size.max.bytes": "4096",
    "log.retention.check.interval.ms": "500",
    "log.message.timestamp.after.max.ms": "9223372036854775807",
    "auto.create.topics.enable": "false",
    "controlled.shutdown.enable": "true",
    "group.initial.rebalance.delay.ms": "0",
}


class Broker:
    """One formatted broker; `data` holds the partitions, the metadata log lies beside it."""

    def __init__(
        self,
        toolchain: Toolchain,
        home: Path,
        settings: Mapping[str, str] | None = None,
        *,
        doors: Mapping[str, str] | None = None,
        life_seconds: float = LIFE_SECONDS,
    ) -> None:
        """`doors` are more listeners: security protocols by name."""
        self._toolchain = toolchain
        self._doors = dict(doors or {})
        self._life_seconds = life_seconds
        self._home = home
        self._settings = dict(settings or {})
        self._program = Program(home / "broker.log")
        self._warden: threading.Timer | None = None
        self._reserved = ExitStack()
        self._ports: list[int] = []
        self.data = home / "data"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._reserved.close()

    @property
    def address(self) -> str:
        """Where clients find the broker while it runs."""
        return f"{HOST}:{self._ports[0]}"

    def door(self, name: str) -> str:
        """Where one of the other listeners is found while the broker runs."""
        return f"{HOST}:{self._ports[2 + list(self._doors).index(name)]}"

    @property
    def process_id(self) -> int:
        """Of the virtual machine, which must run."""
        return self._program.process.pid

    def format(self, features: Mapping[str, int] | None = None) -> None:
        """Writes meta.properties and the bootstrap metadata into fresh directories."""
        levels = [f"{name}={level}" for name, level in (features or {}).items()]
        self._home.mkdir(parents=True, exist_ok=True)
        self._write_settings()
        done = self._toolchain.run(
            "kafka.tools.StorageTool",
            "format",
            "--cluster-id",
            CLUSTER_ID,
            "--config",
            str(self._settings_path),
            *(argument for level in levels for argument in ("--feature", level)),
        )
        if done.returncode != 0:
            raise ProgramFailed(f"formatting failed: {done.stdout}{done.stderr}")

    def start(self) -> None:
        """Starts the broker, for at most `life_seconds`, and waits until it answers."""
        self._write_settings()
        command = self._toolchain.command("kafka.Kafka", str(self._settings_path))
        self._program.start(command, self._is_open)
        self._warden = threading.Timer(self._life_seconds, self._program.process.kill)
        self._warden.daemon = True
        self._warden.start()

    def clients(self) -> JavaShell:
        """A Java producer, consumer and admin client connected to this broker."""
        return JavaShell(self._toolchain, CLIENT_SHELL, self.address)

    def stop(self) -> None:
        """Shuts down in good order: segments flushed, clean-shutdown marker written."""
        try:
            self._program.stop()
        finally:
            self.kill()

    def kill(self) -> None:
        """SIGKILL; harmless when the broker does not run."""
        self._program.kill()
        if self._warden is not None:
            self._warden.cancel()
            self._warden = None

    @property
    def _settings_path(self) -> Path:
        return self._home / "server.properties"

    def _write_settings(self) -> None:
        if not self._ports:
            self._ports = [
                self._reserved.enter_context(ReservedPort()).number
                for _ in range(2 + len(self._doors))
            ]
        controller_port = self._ports[1]
        served = ",".join(
            [f"PLAINTEXT://{self.address}", *(f"{one}://{self.door(one)}" for one in self._doors)]
        )
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **self._doors}
        settings = {
            **SMALL_BROKER,
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": f"{served},CONTROLLER://{HOST}:{controller_port}",
            "advertised.listeners": served,
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": f"1@{HOST}:{controller_port}",
            "listener.security.protocol.map": ",".join(
                f"{name}:{protocol}" for name, protocol in protocols.items()
            ),
            "log.dirs": str(self.data),
            "metadata.log.dir": str(self._home / "metadata"),
            **self._settings,
        }
        lines = [f"{name}={value}\n" for name, value in sorted(settings.items())]
        self._settings_path.write_text("".join(lines))

    def _is_open(self) -> bool:
        try:
            socket.create_connection((HOST, self._ports[0]), timeout=1.0).close()
        except OSError:
            return False
        return True


def read_with_java(clients: JavaShell, topic: str, isolation: str) -> list[Record]:
    """What Kafka's own consumer finds."""
    return records_of(clients.call("read", topic=topic, isolation=isolation))


def write_with_java(clients: JavaShell, topic: str) -> None:
    """Ten batches of Kafka's own producer."""
    clients.call("open_producer", producer=topic, configs={"compression.type": "zstd"})
    for number in range(10):
        record = {"key": to_text(b"key %d" % number), "value": to_text(b"from Java " * 6)}
        clients.call("send", producer=topic, topic=topic, records=[record] * 3)
    clients.call("close_producer", producer=topic)
