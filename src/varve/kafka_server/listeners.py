"""Listeners: where the server listens and what it advertises.

A listener is written `NAME://host:port`. The name is a security protocol, unless
`listener.security.protocol.map` maps it to one.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from varve.foundation.errors import InvalidSetting

_LISTENER: Final = re.compile(
    r"(?P<name>[A-Za-z0-9_.-]+)://(?P<host>\[[0-9A-Fa-f:.%]+\]|[^:/\[\]\s]*):(?P<port>[0-9]{1,5})"
)
_EVERYWHERE: Final = frozenset({"", "0.0.0.0", "::"})
PORT_MAX: Final = 65_535


class SecurityProtocol(StrEnum):
    """Whether a listener uses TLS, and whether its clients authenticate by SASL."""

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
    """One address; port 0 is any free port, an empty host every interface."""

    name: str
    host: str
    port: int
    protocol: SecurityProtocol

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"

    @property
    def is_everywhere(self) -> bool:
        """Whether it is on every interface, so that its host cannot be advertised."""
        return self.host in _EVERYWHERE


def parse_listeners(
    texts: Iterable[str], protocols: Mapping[str, SecurityProtocol], setting: str
) -> tuple[Listener, ...]:
    """Parses addresses; raises InvalidSetting for an invalid one or a name that occurs twice."""
    listeners: dict[str, Listener] = {}
    for text in texts:
        listener = _parse(text, protocols, setting)
        if listener.name in listeners:
            raise InvalidSetting(
                f"{setting} has two listeners named {listener.name}; give one another name and "
                "map that name in listener.security.protocol.map"
            )
        listeners[listener.name] = listener
    return tuple(listeners.values())


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
            f"{setting} has the listener {name}, whose protocol is not set: name it in "
            f"listener.security.protocol.map, as in {name}:PLAINTEXT"
        )
    return Listener(name, match["host"].strip("[]"), int(match["port"]), protocol)


def parse_protocol_map(texts: Iterable[str]) -> dict[str, SecurityProtocol]:
    """The protocol of each listener name; names of protocols stand for themselves."""
    protocols = {protocol.value: protocol for protocol in SecurityProtocol}
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
