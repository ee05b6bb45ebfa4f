"""Where the server listens, and what it tells clients of that.

A listener is written `NAME://host:port`. The name is a protocol, unless
`listener.security.protocol.map` says which protocol it stands for.
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
