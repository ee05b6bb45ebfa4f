"""What all stores over HTTP can be told, and how obstore is told it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from varve.foundation.errors import InvalidSetting
from varve.foundation.settings import GivenValue, check_settings, parse_settings, setting

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

NO_RETRIES: "Final[RetryConfig]" = {"max_retries": 0}

PART_RETRIES: "Final[RetryConfig]" = {
    "max_retries": 4,
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=5),
        "base": 2,
    },
    "retry_timeout": timedelta(seconds=60),
}
"""For the parts of an upload only: writing a part twice changes nothing."""


_ENDPOINT: Final = re.compile(
    r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[A-Za-z0-9._~/%-]*)?"
)

_SECRETS: Final = frozenset(
    {
        "access.key.id",
        "account.key",
        "bearer.token",
        "client.secret",
        "sas.token",
        "secret.access.key",
        "service.account.key",
        "session.token",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class HttpSettings:
    """Settings of every store over HTTP. Never printed: subclasses hold secrets."""

    allow_http: bool = setting(False, "Allow an endpoint without TLS.", "allow.http", is_own=True)
    ca_file: str = setting(
        "", "PEM file of certificates to trust besides the system's.", "ca.file", is_own=True
    )
    connect_timeout_ms: int = setting(
        5_000, "Longest wait for a connection.", "connect.timeout.ms", at_least=1, is_own=True
    )
    request_timeout_ms: int = setting(
        30_000,
        "Longest time of one request with its whole answer; raise it for slow lines.",
        "request.timeout.ms",
        at_least=1,
        is_own=True,
    )
    part_bytes: int = setting(
        8 << 20,
        "Objects above this size are uploaded in parts of it.",
        "part.bytes",
        at_least=5 << 20,
        at_most=1 << 30,
        is_own=True,
    )

    def __post_init__(self) -> None:
        check_settings(self)

    def __repr__(self) -> str:
        given = [field.name for field in fields(self) if getattr(self, field.name) != field.default]
        return f"{type(self).__name__}({', '.join(f'{name}=...' for name in given)})"

    def client_options(self) -> "ClientConfig":
        options: ClientConfig = {
            "allow_http": self.allow_http,
            "connect_timeout": timedelta(milliseconds=self.connect_timeout_ms),
            "timeout": timedelta(milliseconds=self.request_timeout_ms),
        }
        if self.ca_file:
            options["root_certificate"] = _read_certificates(self.ca_file)
        return options

    def check_endpoint(self, endpoint: str, name: str, where: str) -> None:
        """Raise InvalidSetting for an endpoint that is no http URL, or plain http unallowed."""
        if _ENDPOINT.fullmatch(endpoint) is None:
            # It is not shown: what is wrong in it may be a secret.
            raise InvalidSetting(
                f"{name} of {where} must be a URL such as https://host:port, without user, "
                "password and query: credentials and options have settings of their own"
            )
        if endpoint.startswith("http://") and not self.allow_http:
            raise InvalidSetting(
                f"{name} of {where} is {endpoint}, which has no TLS: use https, or set allow.http "
                "to true if everyone on the way may read the data"
            )


H = TypeVar("H", bound=HttpSettings)


def parse_http_settings(cls: type[H], given: Mapping[str, GivenValue], where: str) -> H:
    """Settings from their names, as `parse_settings` does it, without ever showing a secret."""
    for name in _SECRETS & given.keys():
        if not isinstance(given[name], str):
            raise InvalidSetting(f"{name} of {where} must be text (its value is not shown)")
    return parse_settings(cls, given, where)


def _read_certificates(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidSetting(
            f"ca.file {path} cannot be read: {error.strerror}; give a PEM file"
        ) from error
