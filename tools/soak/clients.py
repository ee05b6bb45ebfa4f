"""The two doors of the server, open and by TLS with SCRAM, and the clients that come by them."""

import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from tests.support.certificates import Authority
from tests.support.kafka_aio import AioClient
from tests.support.kafka_clients import (
    AdminClient,
    ConsumerClient,
    ConsumerOptions,
    KafkaClient,
    ProducerClient,
    ProducerOptions,
)
from tests.support.kafka_confluent import ConfluentClient
from tests.support.kafka_login import Login
from tests.support.kafka_python import PythonClient
from tests.support.kafka_server import HOST
from tests.support.soak_server import ServedProcess
from tools.soak.forgetful import ForgetfulClient

_USER, _PASSWORD = "soak", "correct horse"
_PATIENCE_SECONDS: Final = 60.0
# A server that was down is forgotten otherwise, and who commits offsets in a transaction waits for
# the forgotten one without end: librdkafka's issues 5511 and 5456.
_STEADY: Final = {"metadata.recovery.strategy": "none"}


@dataclass(frozen=True, slots=True)
class Way:
    """A client and the door that it uses."""

    name: str
    client: KafkaClient
    bootstrap: str

    def producer(self, options: ProducerOptions) -> ProducerClient:
        return self.client.producer(self.bootstrap, options)

    def consumer(self, options: ConsumerOptions) -> ConsumerClient:
        return self.client.consumer(self.bootstrap, options)

    def admin(self) -> AdminClient:
        return self.client.admin(self.bootstrap)


class Doors:
    """`server` has both; the second lets in one user, whom `add_user` makes."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        authority = Authority()
        trusted = folder / "authority.pem"
        trusted.write_text(authority.pem)
        keys = authority.sign("server").write(folder / "server.pem")
        own = {
            "listeners": f"PLAINTEXT://{HOST}:{{0}},SASL_SSL://{HOST}:{{1}}",
            "ssl.keystore.location": str(keys),
            "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        }
        log = folder / "server.log"
        self.server = ServedProcess(folder / "data", {**settings, **own}, log=log, port_count=2)
        self._login = Login(trusted, _USER, _PASSWORD)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self.server)
        try:
            self._add_user()
            self._make_ways()
        except BaseException:
            self._stack.close()
            raise
        return self

    def _add_user(self) -> None:
        """As its operators do: by a command, at the open door."""
        mechanism = ("--mechanism", self._login.mechanism)
        words = ("user", "add", _USER, "--bootstrap", self.server.bootstrap, *mechanism)
        subprocess.run(
            [sys.executable, "-m", "varve", *words],
            input=_PASSWORD,
            text=True,
            stdout=subprocess.DEVNULL,
            timeout=_PATIENCE_SECONDS,
            check=True,
        )

    def _make_ways(self) -> None:
        self.confluent = self._open("librdkafka", ConfluentClient())
        self.python = self._open("kafka-python", PythonClient())
        self.forgetful = self._open("kafka-python", ForgetfulClient())
        self.aio = self._open("aiokafka", AioClient())
        self.confluent_tls = self._guarded("librdkafka", ConfluentClient(self._login))
        self.steady = self._open("librdkafka", ConfluentClient(settings=_STEADY))
        self.steady_tls = self._guarded("librdkafka", ConfluentClient(self._login, _STEADY))
        self.python_tls = self._guarded("kafka-python", PythonClient(self._login))
        self.aio_tls = self._guarded("aiokafka", AioClient(self._login))

    def _open(self, name: str, client: KafkaClient) -> Way:
        self._stack.callback(client.close)
        return Way(name, client, self.server.bootstrap)

    def _guarded(self, name: str, client: KafkaClient) -> Way:
        self._stack.callback(client.close)
        return Way(f"{name} by TLS", client, f"{HOST}:{self.server.ports[1]}")

    def __exit__(self, *_: object) -> None:
        self._stack.close()
