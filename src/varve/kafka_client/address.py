"""The address of a cluster: a value that any process can connect by, as a Spark executor does.

Options are named as in librdkafka and in Spark's own Kafka source.

Invariant  an address holds no connections, and its text form shows no password.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from varve.foundation.errors import InvalidRequest
from varve.foundation.scram import BY_SASL_NAME

BOOTSTRAP: Final = "bootstrap.servers"
SERVER: Final = "server"
SERVER_NAMES: Final = (
    BOOTSTRAP,
    SERVER,
    "security.protocol",
    "sasl.mechanism",
    "sasl.username",
    "sasl.password",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
    "request.timeout.ms",
    "client.id",
)
PLAIN: Final = "PLAIN"
MECHANISMS: Final = (PLAIN, *BY_SASL_NAME)
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_CHECKS: Final = ("https", "none")
_TIMEOUT_MS: Final = 60_000
_CLIENT_ID: Final = "varve"
_PORT_MAX: Final = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAddress:
    """Hosts and ports to connect to first, and how the client authenticates.

    `mechanism` is None without SASL; paths are empty where no file is used.
    """

    hosts: tuple[tuple[str, int], ...]
    uses_tls: bool = False
    mechanism: str | None = None
    username: str = ""
    password: str = field(default="", repr=False)
    ca_path: str = ""
    certificate_path: str = ""
    key_path: str = ""
    key_password: str = field(default="", repr=False)
    checks_name: bool = True
    timeout_ms: int = _TIMEOUT_MS
    client_id: str = _CLIENT_ID
    """By which brokers apply quotas and name the client in their logs."""

    @property
    def name(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.hosts)


def parse_cluster_address(
    options: Mapping[str, str], *, client_id: str = _CLIENT_ID
) -> ClusterAddress | None:
    """Reads options, whose names are in lower case; None where none is for a cluster.

    `client_id` is the default of client.id.
    """
    named = [name for name in SERVER_NAMES if name in options]
    if not named:
        return None
    bootstrap = options.get(BOOTSTRAP) or options.get(SERVER)
    if not bootstrap:
        raise InvalidRequest(f"option {named[0]} is for a server: give {BOOTSTRAP} too")
    if options.get(BOOTSTRAP) and options.get(SERVER):
        raise InvalidRequest(f"give {BOOTSTRAP} or {SERVER}, not both: they mean the same")
    protocol = _choose(options, "security.protocol", _PROTOCOLS, "PLAINTEXT")
    has_login = protocol.startswith("SASL")
    check = _choose(options, "ssl.endpoint.identification.algorithm", _CHECKS, "https")
    return ClusterAddress(
        hosts=tuple(_parse_host(host.strip()) for host in bootstrap.split(",") if host.strip()),
        uses_tls=protocol.endswith("SSL"),
        mechanism=_choose(options, "sasl.mechanism", MECHANISMS, None) if has_login else None,
        username=options.get("sasl.username", ""),
        password=options.get("sasl.password", ""),
        ca_path=options.get("ssl.ca.location", ""),
        certificate_path=options.get("ssl.certificate.location", ""),
        key_path=options.get("ssl.key.location", ""),
        key_password=options.get("ssl.key.password", ""),
        checks_name=check == "https",
        timeout_ms=_parse_timeout(options.get("request.timeout.ms", str(_TIMEOUT_MS))),
        client_id=options.get("client.id", client_id),
    )


def _choose(
    options: Mapping[str, str], name: str, choices: tuple[str, ...], default: str | None
) -> str:
    text = options.get(name, default)
    for choice in choices:
        if text is not None and text.strip().lower() == choice.lower():
            return choice
    problem = "is missing" if text is None else f"cannot be {text!r:.80}"
    raise InvalidRequest(f"option {name} {problem}: {', '.join(choices)}")


def _parse_host(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) <= _PORT_MAX:
        raise InvalidRequest(f"{BOOTSTRAP}: {text!r:.200} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _parse_timeout(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise InvalidRequest(
            f"option request.timeout.ms={text!r:.40} is not a number of milliseconds"
        )
    return int(text)
