"""Settings of the server, of TLS, and of single listeners.

A listener is written `NAME://host:port`. The name is a security protocol, unless
`listener.security.protocol.map` maps it to one.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final

from varve.broker.settings import MECHANISMS
from varve.foundation.errors import InvalidSetting
from varve.foundation.settings import INT_MAX, check_settings, declared, parse_settings, setting

_LISTENER: Final = re.compile(
    r"(?P<name>[A-Za-z0-9_.-]+)://(?P<host>\[[0-9A-Fa-f:.%]+\]|[^:/\[\]\s]*):(?P<port>[0-9]{1,5})"
)
_ALL_INTERFACES: Final = frozenset({"", "0.0.0.0", "::"})
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
        return self.host in _ALL_INTERFACES


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
    if match is not None and int(match["port"]) > PORT_MAX:
        raise InvalidSetting(
            f"{setting} has {text!r:.120}: port {match['port']} is not 1 to {PORT_MAX}; 0 is any "
            "free port"
        )
    if match is None:
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
            choices = ", ".join(SecurityProtocol)
            raise InvalidSetting(
                f"listener.security.protocol.map has {text!r:.120}; write NAME:PROTOCOL with one "
                f"of {choices}"
            )
        protocols[name] = SecurityProtocol(protocol)
    return protocols


_STORE_TYPES: Final = ("PEM", "PKCS12", "JKS")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Listeners, and the limits of connections and requests."""

    listeners: tuple[str, ...] = setting(
        ("PLAINTEXT://127.0.0.1:9092",),
        "Where to listen: NAME://host:port, several separated by commas. An empty host is every "
        "interface, port 0 any free one.",
    )
    advertised_listeners: tuple[str, ...] = setting(
        (),
        "The addresses that clients connect to, by the same names; listeners not named here are "
        "advertised as in listeners. Port 0 is the one that is listened on.",
    )
    listener_security_protocol_map: tuple[str, ...] = setting(
        (),
        "The security protocol of a listener's name: NAME:PROTOCOL, several separated by commas. "
        "Names of protocols stand for themselves.",
    )
    socket_request_max_bytes: int = setting(100 << 20, "The largest Produce request.", at_least=1)
    request_max_bytes: int = setting(
        8 << 20,
        "The largest request other than Produce, if socket.request.max.bytes is not less. Decoded, "
        "such a request takes many times its size.",
        kafka_name="varve.request.max.bytes",
        at_least=1,
    )
    request_max_elements: int = setting(
        100_000,
        "How many array elements (topics, partitions, names) a request may have; the connection of "
        "one with more is closed before they are decoded.",
        kafka_name="varve.request.max.elements",
        at_least=1,
    )
    admin_request_max_elements: int = setting(
        10_000,
        "How many array elements a Produce or a request of an administrator may have, if "
        "varve.request.max.elements is not less: all requests but those in which consumers, "
        "members of groups and transactional producers name all their partitions.",
        kafka_name="varve.admin.request.max.elements",
        at_least=1,
    )
    socket_listen_backlog_size: int = setting(
        128,
        "Connections that may wait to be accepted; the operating system may allow fewer.",
        at_least=1,
    )
    socket_send_buffer_bytes: int = setting(
        -1,
        "The system's send buffer of a connection; -1 leaves it to the system.",
        at_least=1,
        also=(-1,),
    )
    socket_receive_buffer_bytes: int = setting(
        -1,
        "The system's receive buffer of a connection; -1 leaves it to the system.",
        at_least=1,
        also=(-1,),
    )
    queued_max_request_bytes: int = setting(
        256 << 20,
        "Memory for requests that arrive or are in progress, over all connections; further "
        "connections are not read from. One request is always accepted.",
        at_least=1 << 20,
        long=True,
    )
    queued_max_response_bytes: int = setting(
        256 << 20,
        "Memory for responses that clients have not read yet, over all connections; further "
        "requests with large answers wait, such as Fetch.",
        kafka_name="varve.queued.max.response.bytes",
        at_least=1 << 20,
        long=True,
    )
    connection_max_request_bytes: int = setting(
        32 << 20,
        "Bytes of one connection's requests in progress; the next waits. One is always accepted.",
        kafka_name="varve.connection.max.request.bytes",
        at_least=1,
        long=True,
    )
    connection_max_requests: int = setting(
        64,
        "How many requests of one connection may be in progress; the next waits.",
        kafka_name="varve.connection.max.requests",
        at_least=1,
    )
    max_connections: int = setting(
        INT_MAX,
        "Connections at a time; further ones are closed. Never more than half of the files that "
        "the process may open, as logs need the others.",
        at_least=0,
    )
    reserved_files: int = setting(
        128,
        "How many of the files that the process may open are kept for logs and monitoring: a "
        "connection that would take one of them is closed. At most an eighth of the files.",
        kafka_name="varve.connections.reserved.files",
        at_least=0,
    )
    max_connections_per_ip: int = setting(
        INT_MAX, "Connections at a time from one address; further ones are closed.", at_least=0
    )
    connections_max_idle_ms: int = setting(
        600_000,
        "Close a connection without requests for this long; -1 never does.",
        at_least=1,
        also=(-1,),
        long=True,
    )
    request_receive_timeout_ms: int = setting(
        30_000,
        "Close a connection whose request does not arrive completely within this time, or whose "
        "client has not authenticated by then.",
        kafka_name="varve.request.receive.timeout.ms",
        at_least=1,
    )
    response_send_timeout_ms: int = setting(
        60_000,
        "Close a connection whose client reads nothing of its responses for this long.",
        kafka_name="varve.response.send.timeout.ms",
        at_least=1,
    )
    sasl_server_max_receive_size: int = setting(
        524_288, "The largest request before a client is authenticated.", at_least=1
    )
    connection_failed_authentication_delay_ms: int = setting(
        100, "How long the response to a failed authentication is delayed.", at_least=0
    )
    http_port: int = setting(
        -1,
        "Port for /metrics, /health and /ready over HTTP; 0 is any free one, -1 none.",
        kafka_name="varve.http.port",
        at_least=0,
        at_most=PORT_MAX,
        also=(-1,),
    )
    http_host: str = setting("127.0.0.1", "The address of that port.", kafka_name="varve.http.host")
    shutdown_timeout_ms: int = setting(
        10_000,
        "How long a stop waits for requests in progress.",
        kafka_name="varve.shutdown.timeout.ms",
        at_least=0,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if not self.parsed_listeners():
            raise InvalidSetting("listeners is empty; name one, as in PLAINTEXT://127.0.0.1:9092")
        self.parsed_advertised()

    def parsed_listeners(self) -> tuple[Listener, ...]:
        """The value of listeners."""
        protocols = parse_protocol_map(self.listener_security_protocol_map)
        return parse_listeners(self.listeners, protocols, "listeners")

    def parsed_advertised(self) -> dict[str, Listener]:
        """The advertised address of each listener, by name; raises InvalidSetting."""
        listeners = {listener.name: listener for listener in self.parsed_listeners()}
        protocols = parse_protocol_map(self.listener_security_protocol_map)
        advertised = parse_listeners(self.advertised_listeners, protocols, "advertised.listeners")
        for listener in advertised:
            if listener.name not in listeners:
                raise InvalidSetting(
                    f"advertised.listeners has {listener.name}, which is not among listeners "
                    f"({', '.join(listeners)})"
                )
            if listener.is_everywhere:
                raise InvalidSetting(
                    f"advertised.listeners has {listener}: clients need the name or address of one "
                    "host"
                )
        return listeners | {listener.name: listener for listener in advertised}


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """The server's certificate, and the certificates it trusts."""

    setting_prefix: ClassVar = "ssl."

    keystore_location: str = setting(
        "", "The file with the server's key and its chain of certificates, PEM or PKCS12."
    )
    keystore_type: str = setting(
        "PEM",
        "Accepted for compatibility: the type is recognized by content. JKS must be converted.",
        choices=_STORE_TYPES,
    )
    keystore_password: str = setting("", "The password of a PKCS12 store.")
    keystore_certificate_chain: str = setting(
        "", "The server's chain of certificates itself, in PEM, instead of a file."
    )
    keystore_key: str = setting("", "The server's private key itself, in PEM, instead of a file.")
    key_password: str = setting("", "The password of the private key.")
    truststore_location: str = setting(
        "",
        "The file with the certificates that clients' certificates are checked against, PEM or "
        "PKCS12.",
    )
    truststore_type: str = setting(
        "PEM",
        "Accepted for compatibility: the type is recognized by content. JKS must be converted.",
        choices=_STORE_TYPES,
    )
    truststore_password: str = setting("", "The password of a PKCS12 store.")
    truststore_certificates: str = setting(
        "", "Those certificates themselves, in PEM, instead of a file."
    )
    client_auth: str = setting(
        "none",
        "Whether clients must present a certificate, may, or are not asked for one. On SASL_SSL "
        "listeners it counts only as listener.name.NAME.ssl.client.auth.",
        choices=("none", "requested", "required"),
    )
    enabled_protocols: tuple[str, ...] = setting(
        ("TLSv1.2", "TLSv1.3"), "The enabled versions of TLS.", choices=("TLSv1.2", "TLSv1.3")
    )
    principal_mapping_rules: str = setting(
        "DEFAULT",
        "How a certificate's subject becomes a user: DEFAULT takes it whole, "
        "RULE:pattern/replacement/ a part of it, with L or U in lower or upper case; several "
        "separated by commas, the first that matches applies.",
    )

    def __post_init__(self) -> None:
        check_settings(self)

    def for_listener(
        self, overrides: Mapping[str, str], listener: str, *, has_sasl: bool
    ) -> "TlsSettings":
        """These settings with the overrides of one listener."""
        own = {name: value for name, value in overrides.items() if name in _TLS_NAMES}
        if has_sasl:
            # KIP-684: clients that authenticate by SASL need no certificate as well.
            own.setdefault(CLIENT_AUTH, "none")
        return parse_settings(TlsSettings, own, f"listener {listener}", base=self)


_PREFIX: Final = "listener.name."
CLIENT_AUTH: Final = "ssl.client.auth"
JAAS: Final = "sasl.jaas.config"
ENABLED_MECHANISMS: Final = "sasl.enabled.mechanisms"
MAX_REAUTH: Final = "connections.max.reauth.ms"

_TLS_NAMES: Final = frozenset(declaration.kafka_name for declaration in declared(TlsSettings))
_LISTENER_NAMES: Final = _TLS_NAMES | {ENABLED_MECHANISMS, MAX_REAUTH}
_MECHANISM_NAMES: Final = frozenset(
    f"{mechanism.lower()}.{name}" for mechanism in MECHANISMS for name in (JAAS, MAX_REAUTH)
)


class ListenerOverrides:
    """Settings of single listeners; raises InvalidSetting for an unknown one.

    `listener.name.<name>.<setting>` overrides a setting for one listener; a mechanism may stand in
    between, in lower case, as in `listener.name.sasl_ssl.plain.sasl.jaas.config`.
    """

    def __init__(self, overrides: Mapping[str, str], listeners: Iterable[str]) -> None:
        self._by_listener: dict[str, dict[str, str]] = {name.lower(): {} for name in listeners}
        for key, value in overrides.items():
            listener, name = self._parse_key(key)
            if name not in _LISTENER_NAMES and name not in _MECHANISM_NAMES:
                allowed = ", ".join(sorted(_LISTENER_NAMES | _MECHANISM_NAMES))
                raise InvalidSetting(
                    f"unknown setting {key!r:.120}: a listener has {allowed} of its own"
                )
            self._by_listener[listener][name] = value

    def _parse_key(self, key: str) -> tuple[str, str]:
        # A listener's name may have dots: the longest match is meant.
        suffix = key.removeprefix(_PREFIX)
        matching = [name for name in self._by_listener if suffix.startswith(f"{name}.")]
        if not key.startswith(_PREFIX) or not matching:
            raise InvalidSetting(
                f"{key!r:.120} is not for a listener of this server; it has "
                f"{', '.join(self._by_listener)}"
            )
        listener = max(matching, key=len)
        return listener, suffix.removeprefix(f"{listener}.")

    def for_listener(self, listener: str) -> dict[str, str]:
        """The overrides of a listener, by names without the prefix."""
        return self._by_listener.get(listener.lower(), {})
