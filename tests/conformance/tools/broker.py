"""A real Apache Kafka broker of one node (KRaft) on the loopback interface.

Invariant  a broker keeps its ports over its lives; nobody else can get them in between.
Crash      `kill` leaves the directories as a crash would; `stop` shuts down in good order.
"""

import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.conformance.tools.shell import JavaShell
from tests.conformance.tools.toolchain import Toolchain

START_SECONDS = 60.0
STOP_SECONDS = 60.0
POLL_SECONDS = 0.1
LIFE_SECONDS = 240.0
CLUSTER_ID = "dmFydmUtY29uZm9ybS0wMQ"
LOOPBACK = "127.0.0.1"
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


class BrokerFailed(Exception):
    """The broker did not format, start or stop; the message ends with its log."""


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
        self._process: subprocess.Popen[bytes] | None = None
        self._warden: threading.Timer | None = None
        self._reserved = ExitStack()
        self._ports: list[int] = []
        self.data = home / "data"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        self._reserved.close()

    @property
    def address(self) -> str:
        """Where clients find the broker while it runs."""
        return f"{LOOPBACK}:{self._ports[0]}"

    def door(self, name: str) -> str:
        """Where one of the other listeners is found while the broker runs."""
        return f"{LOOPBACK}:{self._ports[2 + list(self._doors).index(name)]}"

    @property
    def process_id(self) -> int:
        """Of the virtual machine, which must run."""
        assert self._process is not None
        return self._process.pid

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
            raise BrokerFailed(f"formatting failed: {done.stdout}{done.stderr}")

    def start(self) -> None:
        """Starts the broker, for at most `life_seconds`, and waits until it answers."""
        self._write_settings()
        with (self._home / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._toolchain.command("kafka.Kafka", str(self._settings_path)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._warden = threading.Timer(self._life_seconds, self._process.kill)
        self._warden.daemon = True
        self._warden.start()
        self._wait_until_open()

    def clients(self) -> JavaShell:
        """A Java producer, consumer and admin client connected to this broker."""
        return JavaShell(self._toolchain, CLIENT_SHELL, self.address)

    def stop(self) -> None:
        """Shuts down in good order: segments flushed, clean-shutdown marker written."""
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise BrokerFailed(f"no clean stop in {STOP_SECONDS} s: {self._log_tail()}") from error
        finally:
            self.kill()

    def kill(self) -> None:
        """SIGKILL; harmless when the broker does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=STOP_SECONDS)
            self._process = None
        if self._warden is not None:
            self._warden.cancel()
            self._warden = None

    @property
    def _settings_path(self) -> Path:
        return self._home / "server.properties"

    def _write_settings(self) -> None:
        if not self._ports:
            self._ports = reserve_ports(2 + len(self._doors), self._reserved)
        controller_port = self._ports[1]
        served = ",".join(
            [f"PLAINTEXT://{self.address}", *(f"{one}://{self.door(one)}" for one in self._doors)]
        )
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **self._doors}
        settings = {
            **SMALL_BROKER,
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": f"{served},CONTROLLER://{LOOPBACK}:{controller_port}",
            "advertised.listeners": served,
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": f"1@{LOOPBACK}:{controller_port}",
            "listener.security.protocol.map": ",".join(
                f"{name}:{protocol}" for name, protocol in protocols.items()
            ),
            "log.dirs": str(self.data),
            "metadata.log.dir": str(self._home / "metadata"),
            **self._settings,
        }
        lines = [f"{name}={value}\n" for name, value in sorted(settings.items())]
        self._settings_path.write_text("".join(lines))

    def _wait_until_open(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                socket.create_connection((LOOPBACK, self._ports[0]), timeout=1.0).close()
            except OSError:
                pause(POLL_SECONDS)
            else:
                return
        log = self._log_tail()
        self.kill()
        raise BrokerFailed(f"broker did not start within {START_SECONDS} s; log:\n{log}")

    def _log_tail(self) -> str:
        return (self._home / "broker.log").read_text(errors="replace")[-4000:]


def pause(seconds: float) -> None:
    """Waits for an outside process to make progress."""
    threading.Event().wait(seconds)


def reserve_ports(count: int, stack: ExitStack) -> list[int]:
    """Ports that are ours until the stack is closed; Java reuses addresses, so it may have them."""
    sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
    for one in sockets:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((LOOPBACK, 0))
    return [one.getsockname()[1] for one in sockets]
