"""The two brokers, each a process of its own on loopback, on ports that the kernel chose.

Both keep Kafka's defaults but for what is in `SETTINGS`; neither syncs before it answers.

Invariant  a pair that is shared ends, with its files, when this process does.
"""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.measure import MeasureSkipped, Scale
from benchmarks.workspace import Workspace
from tests.conformance.tools.broker import Broker
from tests.conformance.tools.toolchain import (
    BROKER_JVM_OPTIONS,
    Toolchain,
    ToolchainMissing,
    prepare_toolchain,
)

HEAP: Final = "1g"
SETTINGS: Final[Mapping[str, str]] = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "log.segment.delete.delay.ms": "1000",
}
# What the conformance tests make small, as Kafka has it.
_KAFKA_DEFAULTS: Final[Mapping[str, str]] = {
    "num.network.threads": "3",
    "num.io.threads": "8",
    "background.threads": "10",
    "log.cleaner.dedupe.buffer.size": "134217728",
    "log.cleaner.backoff.ms": "15000",
    "log.initial.task.delay.ms": "30000",
    "log.index.size.max.bytes": "10485760",
    "log.retention.check.interval.ms": "300000",
}
_LIFE_SECONDS: Final = 3600.0
_WAIT_SECONDS: Final = 60.0


class RunningBroker(Protocol):
    """One broker on a directory of its own, that may be started again."""

    @property
    def address(self) -> str: ...

    @property
    def process_id(self) -> int: ...

    def start(self) -> None:
        """Comes back when clients can connect."""
        ...

    def stop(self) -> None:
        """In good order."""
        ...

    def kill(self) -> None: ...


class VarveServer:
    """`varve serve` as it is installed."""

    def __init__(self, home: Path, settings: Mapping[str, str] | None = None) -> None:
        self._home = home
        self._settings = {**SETTINGS, **(settings or {})}
        self._process: subprocess.Popen[str] | None = None
        self.address = ""

    @property
    def process_id(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        options = [f"--set={name}={value}" for name, value in self._settings.items()]
        where = ["--dir", str(self._home / "data"), "--listen", "127.0.0.1:0"]
        # What is installed has its bytecode beside it, whatever the caller does without.
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "varve", "serve", *where, "--log-level", "warning", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if "PLAINTEXT://" not in line:
            self.kill()
            raise AssertionError(f"varve serve did not start; it said {line!r}")
        self.address = line.partition("PLAINTEXT://")[2].partition(";")[0]

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(_WAIT_SECONDS)
            self.kill()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(_WAIT_SECONDS)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


def get_toolchain() -> Toolchain:
    """Kafka's jars, with the options of its start script; raises MeasureSkipped without."""
    try:
        toolchain = prepare_toolchain()
    except ToolchainMissing as missing:
        raise MeasureSkipped(str(missing)) from missing
    options = [one for one in BROKER_JVM_OPTIONS if not one.startswith(("-Xms", "-Xmx"))]
    return replace(toolchain, jvm_options=(f"-Xmx{HEAP}", *options))


def make_kafka(home: Path) -> Broker:
    """A formatted broker of one node, controller and broker in one process."""
    kafka = Broker(
        get_toolchain(), home, {**_KAFKA_DEFAULTS, **SETTINGS}, life_seconds=_LIFE_SECONDS
    )
    kafka.format()
    return kafka


@dataclass(frozen=True, slots=True)
class Pair:
    """Both brokers, under way."""

    varve: RunningBroker
    kafka: RunningBroker

    @property
    def both(self) -> tuple[RunningBroker, RunningBroker]:
        return self.varve, self.kafka


class SharedPair:
    """A pair that measures use one after another: started when first asked for.

    `warm_up` is called with each broker before the first figure.
    """

    def __init__(self, warm_up: Callable[[RunningBroker, Scale], None]) -> None:
        self._warm_up = warm_up
        self._pair: Pair | None = None
        self._home: Path | None = None

    def open(self, workspace: Workspace, scale: Scale) -> Pair:
        if self._pair is None:
            # Beside the workspace, which is removed before this process ends.
            self._home = Path(tempfile.mkdtemp(prefix="varve-brokers-", dir=workspace.root.parent))
            atexit.register(self.close)
            kafka = make_kafka(self._home / "kafka")
            varve = VarveServer(self._home / "varve")
            self._pair = Pair(varve, kafka)
            varve.start()
            kafka.start()
            for broker in self._pair.both:
                self._warm_up(broker, scale)
        return self._pair

    def close(self) -> None:
        """Ends both at once and removes their files."""
        pair, self._pair = self._pair, None
        home, self._home = self._home, None
        atexit.unregister(self.close)
        for broker in pair.both if pair is not None else ():
            broker.kill()
        if home is not None:
            shutil.rmtree(home)


def make_topic(
    broker: RunningBroker, *, partitions: int = 1, settings: Mapping[str, str] | None = None
) -> str:
    """A new topic by a name of its own."""
    name = f"bench-{uuid.uuid4().hex[:12]}"
    # The timestamps of prepared batches are old.
    config = {"retention.ms": "-1", **(settings or {})}
    topic = NewTopic(name, partitions, 1, config=config)
    admin = _admin(broker)
    admin.create_topics([topic])[name].result(_WAIT_SECONDS)
    return name


def delete_topic(broker: RunningBroker, name: str) -> None:
    admin = _admin(broker)
    admin.delete_topics([name])[name].result(_WAIT_SECONDS)


def _admin(broker: RunningBroker) -> AdminClient:
    # It tells of events nobody waits for when it ends.
    return AdminClient({"bootstrap.servers": broker.address, "log_level": 2})


def resident_mib(broker: RunningBroker) -> float:
    """What the broker's process holds in memory now."""
    for line in Path(f"/proc/{broker.process_id}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"process {broker.process_id} tells no resident size")


def cpu_seconds(broker: RunningBroker) -> float:
    """What the threads of the broker's process have used of all processors."""
    fields = Path(f"/proc/{broker.process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pause(seconds: float) -> None:
    """Waits for another process to make progress."""
    threading.Event().wait(seconds)
