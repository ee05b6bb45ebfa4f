"""Listeners: where the server listens, what it advertises, and settings of a single listener.

A listener is written `NAME://host:port`. The name is a security protocol, unless
`listener.security.protocol.map` maps it to one. `listener.name.<name>.<setting>` overrides a
setting for one listener; a mechanism may stand in between, in lower case, as in
`listener.name.sasl_ssl.plain.sasl.jaas.config`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from varve.broker.settings import MECHANISMS
from varve.foundation.errors import InvalidSetting
from varve.foundation.settings import declared
from varve.kafka_server.tls_settings import TlsSettings

_LISTENER: Final = re.compile(
    r"(?P<name>[A-Za-z0-9_.-]+)://(?P<host>\[[0-9A-Fa-f:.%]+\]|[^:/\[\]\s]*):(?P<port>[0-9]{1,5})"
)
_EVERYWHERE: Final = frozenset({"", "0.0.0.0", "::"})
PORT_MAX: Final = 65_535


class SecurityProtocol(StrEnum):
    """How bytes travel, and whether the client must say who it is."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


@dataclass(frozen=True, slots=True)
class Listener:
    """One address; port 0 means any free one, an empty host every interface."""

    name: str
    host: str
    port: int
    protocol: SecurityProtocol

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"

    @property
    def is_everywhere(self) -> bool:
        """Whether it is on every interface, which is no address that clients can be told."""
        return self.host in _EVERYWHERE


def parse_listeners(
    texts: Iterable[str], protocols: Mapping[str, SecurityProtocol], setting: str
) -> tuple[Listener, ...]:
    """Reads a list of addresses; raises InvalidSetting for one it cannot read or a name twice."""
    found: dict[str, Listener] = {}
    for text in texts:
        listener = _parse(text, protocols, setting)
        if listener.name in found:
            raise InvalidSetting(
                f"{setting} has two listeners named {listener.name}; give one another name and "
                "map that name in listener.security.protocol.map"
            )
        found[listener.name] = listener
    return tuple(found.values())


def _parse(text: str, protocols: Mapping[str, SecurityProtocol], setting: str) -> Listener:
    match = _LISTENER.fullmatch(text)
    if match is None or int(match["port"]) > PORT_MAX:
        raise InvalidSetting(
            f"{setting} has {text!r:.120}; write NAME://host:port, as in PLAINTEXT://127.0.0.1:9092"
        )
    name = match["name"].upper()
    protocol = protocols.get(name)
    if protocol is None:
        raise InvalidSetting(
            f"{setting} has the listener {name}, whose protocol nobody told: name it in "
            f"listener.security.protocol.map, as in {name}:PLAINTEXT"
        )
    return Listener(name, match["host"].strip("[]"), int(match["port"]), protocol)


def parse_protocol_map(texts: Iterable[str]) -> dict[str, SecurityProtocol]:
    """Which protocol a name stands for; names of protocols stand for themselves."""
    protocols = {one.value: one for one in SecurityProtocol}
    for text in texts:
        name, colon, protocol = (part.strip().upper() for part in text.partition(":"))
        if not (name and colon and protocol in SecurityProtocol.__members__):
            known = ", ".join(SecurityProtocol)
            raise InvalidSetting(
                f"listener.security.protocol.map has {text!r:.120}; write NAME:PROTOCOL with one "
                f"of {known}"
            )
        protocols[name] = SecurityProtocol(protocol)
    return protocols


PREFIX: Final = "listener.name."
JAAS: Final = "sasl.jaas.config"
ENABLED_MECHANISMS: Final = "sasl.enabled.mechanisms"
MAX_REAUTH: Final = "connections.max.reauth.ms"

_OF_A_LISTENER: Final = frozenset(
    {ENABLED_MECHANISMS, MAX_REAUTH, *(one.kafka_name for one in declared(TlsSettings))}
)
_OF_A_MECHANISM: Final = frozenset(
    f"{mechanism.lower()}.{name}" for mechanism in MECHANISMS for name in (JAAS, MAX_REAUTH)
)


class ListenerOverrides:
    """All such settings, by listener; raises InvalidSetting for one that nobody understands."""

    def __init__(self, given: Mapping[str, str], listeners: Iterable[str]) -> None:
        self._by_listener: dict[str, dict[str, str]] = {one.lower(): {} for one in listeners}
        for key, value in given.items():
            listener, name = self._parse_key(key)
            if name not in _OF_A_LISTENER and name not in _OF_A_MECHANISM:
                known = ", ".join(sorted(_OF_A_LISTENER | _OF_A_MECHANISM))
                raise InvalidSetting(
                    f"unknown setting {key!r:.120}: a listener has {known} of its own"
                )
            self._by_listener[listener][name] = value

    def _parse_key(self, key: str) -> tuple[str, str]:
        # A listener's name may have dots, so the longest that fits is meant.
        rest = key.removeprefix(PREFIX)
        fitting = [one for one in self._by_listener if rest.startswith(f"{one}.")]
        if not key.startswith(PREFIX) or not fitting:
            raise InvalidSetting(
                f"{key!r:.120} is for no listener of this server; there are "
                f"{', '.join(self._by_listener)}"
            )
        listener = max(fitting, key=len)
        return listener, rest.removeprefix(f"{listener}.")

    def of(self, listener: str) -> dict[str, str]:
        """What a listener has of its own, by the names without the prefix."""
        return self._by_listener.get(listener.lower(), {})
