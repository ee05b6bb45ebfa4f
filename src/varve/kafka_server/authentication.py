"""Authentication: how the clients of a listener are identified by TLS and SASL.

Invariant  before it is done a connection serves ApiVersions and SASL requests only; after a failure
           it is closed once its response is sent. A client that authenticates again must be the
           same principal by the same mechanism (KIP-368), and may do so only where sessions
           expire.
Threads    the event loop's alone, except `reload`, which reads files and may run off it.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from secrets import token_bytes
from typing import TYPE_CHECKING, Final

from varve.broker.broker import Broker
from varve.broker.request import ANONYMOUS, ConnectionContext, Principal
from varve.broker.security.credentials import ScramCredentials
from varve.broker.settings import MECHANISMS, SecuritySettings
from varve.foundation.errors import InvalidSetting
from varve.foundation.scram import BY_SASL_NAME
from varve.foundation.settings import GivenValue, parse_settings
from varve.kafka_server.sasl_mechanisms import (
    AuthenticationFailed,
    LoginQueue,
    PlainExchange,
    PlainUsers,
    SaslExchange,
    ScramExchange,
    parse_jaas,
    parse_users,
)
from varve.kafka_server.settings import (
    ENABLED_MECHANISMS,
    JAAS,
    MAX_REAUTH,
    Listener,
    ListenerOverrides,
    TlsSettings,
)
from varve.wire import ErrorCode, Message
from varve.wire.messages import security as messages

if TYPE_CHECKING:
    from varve.kafka_server.tls import TlsContext

logger = logging.getLogger(__name__)


PLAIN: Final = "PLAIN"
_NONCE_BYTES: Final = 24
_HASHING_COUNT_MAX: Final = 3


class ListenerSasl:
    """Mechanisms and users of one listener; `own` are its settings without the listener's prefix.

    Raises InvalidSetting for settings that cannot be used.
    """

    def __init__(
        self,
        listener: str,
        settings: SecuritySettings,
        own: Mapping[str, str],
        *,
        entropy: Callable[[int], bytes] = token_bytes,
    ) -> None:
        self._entropy = entropy
        self._queue = LoginQueue(_HASHING_COUNT_MAX, waiting_max=settings.sasl_logins_max_per_ip)
        self._users_file = settings.sasl_plain_users
        where = f"listener {listener}"
        overrides: dict[str, GivenValue] = {
            name: own[name] for name in (ENABLED_MECHANISMS, MAX_REAUTH) if name in own
        }
        merged = parse_settings(SecuritySettings, overrides, where, base=settings)
        if not merged.sasl_enabled_mechanisms:
            raise InvalidSetting(f"sasl.enabled.mechanisms of {where} is empty; name one")
        self.mechanisms = merged.sasl_enabled_mechanisms
        self.max_reauth_ms = {name: _max_reauth(merged, name, own) for name in MECHANISMS}
        """By mechanism; 0 where sessions do not expire."""
        jaas_key = f"{PLAIN.lower()}.{JAAS}"
        self._passwords = (
            parse_jaas(own[jaas_key], f"{jaas_key} of {where}") if jaas_key in own else {}
        )
        self.reload()

    def reload(self) -> None:
        """Reads the file of users again; raises InvalidSetting and then changes nothing."""
        hashes: dict[str, str] = {}
        if path := self._users_file:
            try:
                hashes = parse_users(Path(path).read_text(encoding="utf-8-sig"), path)
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidSetting(
                    f"varve.sasl.plain.users names {path}, which cannot be read: {error}"
                ) from error
        self._users = PlainUsers(hashes, self._passwords, entropy=self._entropy)

    def has_users(self, credentials: ScramCredentials) -> bool:
        """Whether there is a user for any of its mechanisms."""
        if PLAIN in self.mechanisms and len(self._users):
            return True
        scram = {BY_SASL_NAME[name] for name in self.mechanisms if name != PLAIN}
        return any(not scram.isdisjoint(user) for user in credentials.users.values())

    def begin(self, mechanism: str, broker: Broker, connection: ConnectionContext) -> SaslExchange:
        if mechanism == PLAIN:
            return PlainExchange(broker, self._users, self._queue, connection)
        nonce = self._entropy(_NONCE_BYTES).hex()
        return ScramExchange(BY_SASL_NAME[mechanism], broker.credentials, nonce)


def _max_reauth(settings: SecuritySettings, mechanism: str, own: Mapping[str, str]) -> int:
    key = f"{mechanism.lower()}.{MAX_REAUTH}"
    if key not in own:
        return settings.connections_max_reauth_ms
    parsed = parse_settings(SecuritySettings, {MAX_REAUTH: own[key]}, key)
    return parsed.connections_max_reauth_ms


class SaslSession:
    """The authentication of one connection."""

    def __init__(self, sasl: ListenerSasl, broker: Broker, connection: ConnectionContext) -> None:
        self._sasl = sasl
        self._broker = broker
        self._connection = connection
        self._exchange: SaslExchange | None = None
        self._mechanism = ""
        self._authenticated_by = ""
        self.is_done = False
        """Whether the client is authenticated; stays true while it re-authenticates (KIP-368)."""
        self.has_failed = False
        self.principal: Principal = ANONYMOUS
        self.takes_bare_tokens = False
        """Whether the next frames are tokens without a header, as after SaslHandshake version 0."""
        self.expires_ms: int | None = None
        """By the broker's clock, when the client must have re-authenticated."""

    async def handle(self, version: int, message: Message) -> Message:
        """Answers SaslHandshake and SaslAuthenticate."""
        if isinstance(message, messages.SaslHandshakeRequest):
            return self._handshake(version, message.mechanism)
        assert isinstance(message, messages.SaslAuthenticateRequest)
        if self._exchange is None or self.has_failed:
            # An authenticated client gets the error and may continue, as in Kafka.
            self.has_failed = self.has_failed or not self.is_done
            return messages.SaslAuthenticateResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE,
                error_message="SaslAuthenticate is not expected now: SaslHandshake comes before it",
            )
        try:
            token, lifetime_ms = await self._step(self._exchange, message.auth_bytes)
        except AuthenticationFailed as error:
            self._fail(str(error))
            return messages.SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=str(error)
            )
        return messages.SaslAuthenticateResponse(
            error_message=None, auth_bytes=token, session_lifetime_ms=lifetime_ms
        )

    async def handle_bare_token(self, token: bytes) -> bytes | None:
        """Answers a token without a header; None where the connection closes without an answer."""
        assert self._exchange is not None
        exchange = self._exchange
        try:
            response, _ = await self._step(exchange, token)
        except AuthenticationFailed as error:
            self._fail(str(error))
            return exchange.failure_token
        return response

    def _handshake(self, version: int, mechanism: str) -> messages.SaslHandshakeResponse:
        enabled = list(self._sasl.mechanisms)
        is_final = self.is_done and self.expires_ms is None
        if is_final or self.has_failed or self._exchange is not None:
            # A client whose session does not expire gets the error and may continue.
            self.has_failed = self.has_failed or not is_final
            return messages.SaslHandshakeResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=enabled
            )
        if mechanism not in self._sasl.mechanisms:
            self._fail(f"mechanism {mechanism!r:.60} is not enabled")
            return messages.SaslHandshakeResponse(
                error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=enabled
            )
        self._mechanism = mechanism
        self._exchange = self._sasl.begin(mechanism, self._broker, self._connection)
        self.takes_bare_tokens = version == 0
        return messages.SaslHandshakeResponse(mechanisms=enabled)

    async def _step(self, exchange: SaslExchange, token: bytes) -> tuple[bytes, int]:
        """The next token, and how many milliseconds a completed session lasts, 0 without end.

        Raises AuthenticationFailed, also for another principal or mechanism than before.
        """
        response = await exchange.step(token)
        if not exchange.is_done:
            return response, 0
        principal = Principal("User", exchange.user)
        if self.is_done and principal != self.principal:
            raise AuthenticationFailed(
                "Cannot change principals during re-authentication from "
                f"{self.principal}: {principal}"
            )
        if self.is_done and self._mechanism != self._authenticated_by:
            raise AuthenticationFailed(
                f"SASL mechanism {self._mechanism!r} requested by client is not supported for "
                f"re-authentication of mechanism {self._authenticated_by!r}"
            )
        lifetime_ms = self._sasl.max_reauth_ms[self._mechanism]
        self.principal, self._authenticated_by = principal, self._mechanism
        self.expires_ms = self._broker.clock.now_ms() + lifetime_ms if lifetime_ms else None
        self.is_done = True
        self.takes_bare_tokens = False
        self._exchange = None
        return response, lifetime_ms

    def _fail(self, reason: str) -> None:
        self.has_failed = True
        self._exchange = None
        self.takes_bare_tokens = False
        logger.info(
            "authentication failed",
            extra={
                "client": self._connection.client_host,
                "listener": self._connection.listener,
                "mechanism": self._mechanism,
                "error": reason,
            },
        )


class ListenerSecurity:
    """How the clients of one listener authenticate; TLS or SASL is None where it is not used."""

    def __init__(self, broker: Broker, tls: "TlsContext | None", sasl: ListenerSasl | None) -> None:
        self._broker = broker
        self._tls = tls
        self._sasl = sasl

    @property
    def tls(self) -> ssl.SSLContext | None:
        """Read at each handshake, as certificates may be reloaded."""
        return None if self._tls is None else self._tls.context

    def find_principal(self, transport: asyncio.Transport) -> Principal | None:
        """The client by its certificate; None for a certificate that maps to no user."""
        if self._tls is None or self._sasl is not None:
            return ANONYMOUS
        try:
            return self._tls.principal_of(transport.get_extra_info("ssl_object"))
        except AuthenticationFailed as error:
            host = transport.get_extra_info("peername", ("",))[0]
            logger.info("authentication failed", extra={"client": host, "error": str(error)})
            return None

    def start_sasl(self, connection: ConnectionContext) -> SaslSession | None:
        """The SASL session of a connection; None on listeners without SASL."""
        if self._sasl is None:
            return None
        return SaslSession(self._sasl, self._broker, connection)


class ListenerSecurities:
    """TLS and SASL of all listeners; raises InvalidSetting for settings that cannot be used.

    `overrides` are the settings that begin with `listener.name.`.
    """

    def __init__(
        self,
        listeners: Sequence[Listener],
        security: SecuritySettings | None = None,
        tls: TlsSettings | None = None,
        overrides: Mapping[str, str] | None = None,
    ) -> None:
        security, tls = security or SecuritySettings(), tls or TlsSettings()
        parsed = ListenerOverrides(overrides or {}, [listener.name for listener in listeners])
        self._tls: dict[str, TlsContext] = {}
        self._sasl: dict[str, ListenerSasl] = {}
        for listener in listeners:
            name, own = listener.name, parsed.for_listener(listener.name)
            if listener.protocol.has_tls:
                has_sasl = listener.protocol.has_sasl
                self._tls[name] = _make_tls(tls.for_listener(own, name, has_sasl=has_sasl))
            if listener.protocol.has_sasl:
                self._sasl[name] = ListenerSasl(name, security, own)

    def for_listener(self, listener: Listener, broker: Broker) -> ListenerSecurity:
        return ListenerSecurity(broker, self._tls.get(listener.name), self._sasl.get(listener.name))

    def warn_if_no_users(self, credentials: ScramCredentials) -> None:
        """Warns of listeners without users; to be called when credentials are loaded."""
        for name, sasl in self._sasl.items():
            if not sasl.has_users(credentials):
                logger.warning(
                    "a listener has no users for its mechanisms; add one with `varve user add "
                    "NAME` through a listener without SASL, or with `varve user add NAME -d DIR` "
                    "while the server is stopped, or name users of PLAIN in varve.sasl.plain.users",
                    extra={"listener": name, "mechanisms": ",".join(sasl.mechanisms)},
                )

    def reload(self) -> list[InvalidSetting]:
        """Reads keys, certificates and users again, for connections to come.

        What cannot be used stays as it was; the errors are logged and returned.
        """
        failures: list[InvalidSetting] = []
        parts: list[tuple[str, TlsContext | ListenerSasl]] = [*self._tls.items()]
        parts += self._sasl.items()
        for name, part in parts:
            try:
                part.reload()
            except InvalidSetting as error:
                failures.append(error)
                logger.warning("not reloaded", extra={"listener": name, "error": str(error)})
        return failures


def _make_tls(settings: TlsSettings) -> "TlsContext":
    # Imports `cryptography`, which a server without certificates does not need.
    from varve.kafka_server.tls import TlsContext

    return TlsContext(settings)
