"""A server with every kind of listener, in a thread of its own, for clients that log in."""

import asyncio
import random
import threading
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import varve
from tests.support.certificates import Authority
from varve.broker.background import LoopTimers
from varve.broker.broker import Broker
from varve.broker.security.credentials import add_credential
from varve.broker.settings import BrokerSettings, SecuritySettings
from varve.disk import MemoryFileSystem
from varve.foundation.clock import SystemClock
from varve.foundation.scram import ScramMechanism
from varve.kafka_server.authentication import ListenerSecurities
from varve.kafka_server.server import Server
from varve.kafka_server.settings import ServerSettings, TlsSettings

T = TypeVar("T")

ADMIN: Final = "admin"
PASSWORD: Final = "correct horse"
_PATIENCE_SECONDS: Final = 20.0
_NAMES: Final = {
    "SSL": "SSL",
    "MUTUAL": "SSL",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "SASL_SSL": "SASL_SSL",
}
_JAAS: Final = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'user_{ADMIN}="{PASSWORD}" user_alice="wonderland" user_anton="tirol";'
)


class SecureServer:
    """Rights are on; `admin` may do everything, by password and by certificate.

    Files for clients: `authority.pem`, and a key with its certificate by the name of its owner.
    """

    def __init__(self, folder: Path, **security: Any) -> None:
        self._folder = folder
        self.authority = Authority()
        self._write_files()
        self._security = SecuritySettings(
            authorizer_enable=True,
            super_users=f"User:{ADMIN}",
            sasl_enabled_mechanisms=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
            **security,
        )
        self._fs = MemoryFileSystem(SystemClock())
        for mechanism in ScramMechanism:
            add_credential(
                ["data"], fs=self._fs, user=ADMIN, password=PASSWORD, mechanism=mechanism
            )

    def _write_files(self) -> None:
        (self._folder / "authority.pem").write_text(self.authority.pem)
        for name in ("server", ADMIN, "alice", "berta"):
            signed = self.authority.sign(name)
            signed.write(self._folder / f"{name}.pem")

    def file(self, name: str) -> str:
        return str(self._folder / f"{name}.pem")

    def __enter__(self) -> Self:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.store = varve.open("data", fs=self._fs, maintain=False)
        self.run(self._start())
        return self

    async def _start(self) -> None:
        settings = ServerSettings(
            listeners=tuple(f"{name}://127.0.0.1:0" for name in _NAMES),
            listener_security_protocol_map=tuple(f"{a}:{b}" for a, b in _NAMES.items()),
        )
        tls = TlsSettings(
            keystore_location=self.file("server"),
            truststore_location=self.file("authority"),
            principal_mapping_rules="RULE:^CN=(admin|alice),.*$/$1/",
        )
        overrides = {
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": _JAAS,
            "listener.name.sasl_ssl.plain.sasl.jaas.config": _JAAS,
        }
        self.guards = ListenerSecurities(
            settings.parsed_listeners(), self._security, tls, overrides
        )
        self.broker = Broker(
            self.store,
            BrokerSettings(),
            clock=SystemClock(),
            timers=LoopTimers(self.loop),
            random=random.Random(1),
            loop=self.loop,
            security=self._security,
        )
        self.server = Server(self.broker, settings, securities=self.guards)
        await self.server.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(_PATIENCE_SECONDS)

    def address(self, listener: str) -> str:
        found = self.broker.endpoints[listener]
        return f"{found.host}:{found.port}"

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.run(self.server.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_PATIENCE_SECONDS)
        self.loop.close()
        self.store.close()
