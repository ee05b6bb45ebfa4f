"""Who asks, and how: what a handler knows of a request beside its message."""

from dataclasses import dataclass, field
from typing import Final

from varve.wire import ApiKey


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody by name; unauthenticated clients are all the same one."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS: Final = Principal("User", "ANONYMOUS")


@dataclass(slots=True)
class ConnectionContext:
    """A client's connection; `id` is its own as long as the process lives."""

    id: int
    listener: str
    client_host: str
    principal: Principal = ANONYMOUS
    is_closed: bool = False
    software: tuple[str, str] = field(default=("", ""))
    """Name and version, where the client told them."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """One request on a connection."""

    api_key: ApiKey
    version: int
    client_id: str
    connection: ConnectionContext

    @property
    def principal(self) -> Principal:
        return self.connection.principal
