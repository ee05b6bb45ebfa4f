"""A server with every kind of listener, in a thread of its own, for clients that log in."""

from pathlib import Path
from typing import Any, Final, Self

import varve
from tests.support.certificates import Authority
from tests.support.serving import Serving
from varve.broker.security.credentials import add_credential
from varve.broker.settings import SecuritySettings
from varve.disk import MemoryFileSystem
from varve.foundation.clock import SystemClock
from varve.foundation.scram import ScramMechanism
from varve.kafka_server.authentication import ListenerSecurities
from varve.kafka_server.settings import ServerSettings, TlsSettings

ADMIN: Final = "admin"
PASSWORD: Final = "correct horse"
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
        for name in ("server", ADMIN, "alice"):
            signed = self.authority.sign(name)
            signed.write(self._folder / f"{name}.pem")

    def file(self, name: str) -> str:
        return str(self._folder / f"{name}.pem")

    def __enter__(self) -> Self:
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
        securities = ListenerSecurities(settings.parsed_listeners(), self._security, tls, overrides)
        self.store = varve.open("data", fs=self._fs, maintain=False)
        self._serving = Serving(
            self.store, settings, securities=securities, security=self._security
        ).__enter__()
        self.broker = self._serving.server.broker
        return self

    def address(self, listener: str) -> str:
        return self._serving.address(listener)

    def __exit__(self, *_: object) -> None:
        self._serving.__exit__()
        self.store.close()
