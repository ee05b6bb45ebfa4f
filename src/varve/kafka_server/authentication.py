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
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from secrets import token_bytes
from typing import TYPE_CHECKING, Final, Protocol

from varve.broker.broker import Broker
from varve.broker.request import ANONYMOUS, ConnectionContext, Principal
from varve.broker.security.credentials import BY_SASL_NAME, ScramCredentials
from varve.broker.security.plain_users import PlainUsers, parse_jaas, parse_users
from varve.broker.settings import MECHANISMS, SecuritySettings
from varve.foundation.errors import InvalidSetting
from varve.foundation.settings import GivenValue, parse_settings
from varve.kafka_server.listeners import (
    ENABLED_MECHANISMS,
    JAAS,
    MAX_REAUTH,
    Listener,
    ListenerOverrides,
)
from varve.kafka_server.principal_mapping import NoRuleFits
from varve.kafka_server.sasl_mechanisms import (
    PlainExchange,
    SaslAuthenticationFailed,
    SaslExchange,
    ScramExchange,
)
from varve.kafka_server.tls_settings import TlsSettings
from varve.wire import ApiKey, ErrorCode, Message
from varve.wire.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

if TYPE_CHECKING:
    from varve.kafka_server.tls import TlsContext

logger = logging.getLogger(__name__)


class Authenticator(Protocol):
    """The SASL exchange of one connection."""

    @property
    def is_done(self) -> bool:
        """Whether the client is known; stays true while it authenticates anew (KIP-368)."""
        ...

    @property
    def has_failed(self) -> bool:
        """Whether the client was refused."""
        ...

    @property
    def principal(self) -> Principal:
        """Who the client is; to be asked for once it is done."""
        ...

    @property
    def takes_bare_frames(self) -> bool:
        """Whether the next frames are tokens without a header, as after SaslHandshake 0."""
        ...

    @property
    def expires_ms(self) -> int | None:
        """By the broker's clock, when the client must have authenticated anew."""
        ...

    def handle(
        self, api_key: ApiKey, version: int, message: Message
    ) -> Message | Awaitable[Message]:
        """Answers SaslHandshake and SaslAuthenticate."""
        ...

    def handle_bare(self, token: bytes) -> bytes | Awaitable[bytes]:
        """Answers a token that came without a header."""
        ...


class ListenerSecurity(Protocol):
    """How the clients of one listener come to be known."""

    @property
    def tls(self) -> ssl.SSLContext | None:
        """Asked for at each handshake, so that certificates may be renewed; None without TLS."""
        ...

    def find_principal(self, transport: asyncio.Transport) -> Principal:
        """Who shook hands: by certificate where the listener asks for one, else anonymous."""
        ...

    def make_authenticator(self, connection: ConnectionContext) -> Authenticator | None:
        """The SASL exchange of a connection, None on listeners without SASL."""
        ...


class OpenSecurity:
    """Everybody is let in, and nobody is known."""

    tls: ssl.SSLContext | None = None

    def find_principal(self, transport: asyncio.Transport) -> Principal:
        return ANONYMOUS

    def make_authenticator(self, connection: ConnectionContext) -> Authenticator | None:
        return None


MakeSecurity = Callable[[Broker, Listener], ListenerSecurity]
"""Called for each listener before the server listens; may raise InvalidSetting."""


PLAIN: Final = "PLAIN"
_NONCE_BYTES: Final = 24
_HASHED_AT_ONCE: Final = 2


class ListenerSasl:
    """How clients log in at one listener; `own` are the settings it has of its own.

    Raises InvalidSetting for what cannot be used.
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
        self._turns = asyncio.Semaphore(_HASHED_AT_ONCE)
        self._users_file = settings.sasl_plain_users
        where = f"listener {listener}"
        told: dict[str, GivenValue] = {
            name: own[name] for name in (ENABLED_MECHANISMS, MAX_REAUTH) if name in own
        }
        merged = parse_settings(SecuritySettings, told, where, base=settings)
        if not merged.sasl_enabled_mechanisms:
            raise InvalidSetting(f"sasl.enabled.mechanisms of {where} is empty; name one")
        self.mechanisms = merged.sasl_enabled_mechanisms
        self.max_reauth_ms = {one: _max_reauth(merged, one, own) for one in MECHANISMS}
        """By mechanism; 0 where sessions do not end."""
        jaas_key = f"{PLAIN.lower()}.{JAAS}"
        self._passwords = (
            parse_jaas(own[jaas_key], f"{jaas_key} of {where}") if jaas_key in own else {}
        )
        self.reload()

    def reload(self) -> None:
        """Reads the file of users again, for logins to come.

        Raises InvalidSetting, and then all is as before.
        """
        hashes = _read_users(self._users_file) if self._users_file else {}
        self._users = PlainUsers(hashes, self._passwords, entropy=self._entropy)

    def has_users(self, credentials: ScramCredentials) -> bool:
        """Whether anybody can log in, by any of its mechanisms."""
        if PLAIN in self.mechanisms and len(self._users):
            return True
        kinds = {BY_SASL_NAME[one] for one in self.mechanisms if one != PLAIN}
        return any(not kinds.isdisjoint(of) for of in credentials.users.values())

    def begin(self, mechanism: str, broker: Broker) -> SaslExchange:
        if mechanism == PLAIN:
            return PlainExchange(broker, self._users, self._turns)
        nonce = self._entropy(_NONCE_BYTES).hex()
        return ScramExchange(BY_SASL_NAME[mechanism], broker.credentials, nonce)


def _read_users(path: str) -> dict[str, str]:
    try:
        return parse_users(Path(path).read_text(encoding="utf-8"), path)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(
            f"varve.sasl.plain.users names {path}, which cannot be read: {error}"
        ) from error


def _max_reauth(settings: SecuritySettings, mechanism: str, own: Mapping[str, str]) -> int:
    key = f"{mechanism.lower()}.{MAX_REAUTH}"
    if key not in own:
        return settings.connections_max_reauth_ms
    parsed = parse_settings(SecuritySettings, {MAX_REAUTH: own[key]}, key)
    return parsed.connections_max_reauth_ms


class SaslAuthenticator:
    """The logins of one connection."""

    def __init__(self, sasl: ListenerSasl, broker: Broker, connection: ConnectionContext) -> None:
        self._sasl = sasl
        self._broker = broker
        self._connection = connection
        self._exchange: SaslExchange | None = None
        self._mechanism = ""
        self._known_by = ""
        self.is_done = False
        self.has_failed = False
        self.principal: Principal = ANONYMOUS
        self.takes_bare_frames = False
        self.expires_ms: int | None = None

    def handle(
        self, api_key: ApiKey, version: int, message: Message
    ) -> Message | Awaitable[Message]:
        """Answers SaslHandshake and SaslAuthenticate."""
        if isinstance(message, SaslHandshakeRequest):
            return self._shake_hands(version, message.mechanism)
        assert isinstance(message, SaslAuthenticateRequest)
        if self._exchange is None or self.has_failed:
            # Who is known already is told so and may go on, as in Kafka.
            self.has_failed = self.has_failed or not self.is_done
            return SaslAuthenticateResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE,
                error_message="SaslAuthenticate is not expected now: SaslHandshake comes before it",
            )
        try:
            answer = self._exchange.step(message.auth_bytes)
        except SaslAuthenticationFailed as error:
            return self._refuse(error)
        if isinstance(answer, bytes):
            return self._answer(self._exchange, answer)
        return self._answer_later(self._exchange, answer)

    def handle_bare(self, token: bytes) -> bytes | Awaitable[bytes]:
        """Answers a token that came without a header."""
        return self._handle_bare(token)

    async def _handle_bare(self, token: bytes) -> bytes:
        assert self._exchange is not None
        exchange = self._exchange
        try:
            answer = exchange.step(token)
            found = answer if isinstance(answer, bytes) else await answer
            self._go_on(exchange)
        except SaslAuthenticationFailed as error:
            self._refuse(error)
            return exchange.refusal
        return found

    def _shake_hands(self, version: int, mechanism: str) -> SaslHandshakeResponse:
        enabled = list(self._sasl.mechanisms)
        if self.is_done and self.expires_ms is None:
            return SaslHandshakeResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=enabled
            )
        if self.has_failed or self._exchange is not None:
            self.has_failed = True
            return SaslHandshakeResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=enabled
            )
        if mechanism not in self._sasl.mechanisms:
            self.has_failed = True
            self._tell_refused(f"mechanism {mechanism!r:.60} is not enabled")
            return SaslHandshakeResponse(
                error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=enabled
            )
        self._mechanism = mechanism
        self._exchange = self._sasl.begin(mechanism, self._broker)
        self.takes_bare_frames = version == 0
        return SaslHandshakeResponse(mechanisms=enabled)

    async def _answer_later(self, exchange: SaslExchange, answer: Awaitable[bytes]) -> Message:
        try:
            return self._answer(exchange, await answer)
        except SaslAuthenticationFailed as error:
            return self._refuse(error)

    def _answer(self, exchange: SaslExchange, token: bytes) -> Message:
        try:
            lifetime_ms = self._go_on(exchange)
        except SaslAuthenticationFailed as error:
            return self._refuse(error)
        return SaslAuthenticateResponse(
            error_message=None, auth_bytes=token, session_lifetime_ms=lifetime_ms
        )

    def _go_on(self, exchange: SaslExchange) -> int:
        """Notes who the client is once it has shown it; the milliseconds until it must do so again,
        0 if never. Raises SaslAuthenticationFailed for somebody else than before.
        """
        if not exchange.is_done:
            return 0
        principal = Principal("User", exchange.user)
        if self.is_done and principal != self.principal:
            raise SaslAuthenticationFailed(
                "Cannot change principals during re-authentication from "
                f"{self.principal}: {principal}"
            )
        if self.is_done and self._mechanism != self._known_by:
            raise SaslAuthenticationFailed(
                f"SASL mechanism {self._mechanism!r} requested by client is not supported for "
                f"re-authentication of mechanism {self._known_by!r}"
            )
        lifetime_ms = self._sasl.max_reauth_ms[self._mechanism]
        self.principal, self._known_by = principal, self._mechanism
        self.expires_ms = self._broker.clock.now_ms() + lifetime_ms if lifetime_ms else None
        self.is_done = True
        self.takes_bare_frames = False
        self._exchange = None
        return lifetime_ms

    def _refuse(self, error: SaslAuthenticationFailed) -> SaslAuthenticateResponse:
        self.has_failed = True
        self._exchange = None
        self.takes_bare_frames = False
        self._tell_refused(str(error))
        return SaslAuthenticateResponse(
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=str(error)
        )

    def _tell_refused(self, why: str) -> None:
        logger.info(
            "a client was refused",
            extra={
                "client": self._connection.client_host,
                "listener": self._connection.listener,
                "mechanism": self._mechanism,
                "why": why,
            },
        )


_NOBODY: Final = Principal("User", "")


class _RejectedClient:
    """Nothing is served to a client that came with the wrong certificate, whatever it has sent
    before it notices.
    """

    is_done = False
    has_failed = True
    principal = _NOBODY
    takes_bare_frames = False
    expires_ms: int | None = None

    def handle(self, api_key: ApiKey, version: int, message: Message) -> Message:
        if api_key is ApiKey.SASL_HANDSHAKE:
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)

    def handle_bare(self, token: bytes) -> bytes:
        return b""


class TlsSaslSecurity:
    """The guard of one listener; TLS or SASL is None where it has none."""

    def __init__(self, broker: Broker, tls: "TlsContext | None", sasl: ListenerSasl | None) -> None:
        self._broker = broker
        self._tls = tls
        self._sasl = sasl

    @property
    def tls(self) -> ssl.SSLContext | None:
        return None if self._tls is None else self._tls.context

    def find_principal(self, transport: asyncio.Transport) -> Principal:
        """Who shook hands; one whose certificate is no user's is turned away."""
        if self._tls is None or self._sasl is not None:
            return ANONYMOUS
        try:
            return self._tls.principal_of(transport.get_extra_info("ssl_object"))
        except NoRuleFits as error:
            host = transport.get_extra_info("peername", ("",))[0]
            logger.info("a client was refused", extra={"client": host, "why": str(error)})
            transport.abort()
            return _NOBODY

    def make_authenticator(self, connection: ConnectionContext) -> Authenticator | None:
        if connection.principal is _NOBODY:
            return _RejectedClient()
        if self._sasl is None:
            return None
        return SaslAuthenticator(self._sasl, self._broker, connection)


class ListenerSecurities:
    """Makes the guard of each listener. Raises InvalidSetting for what cannot be used.

    `overrides` are the settings that begin with `listener.name.`.
    """

    def __init__(
        self,
        listeners: Iterable[Listener],
        security: SecuritySettings | None = None,
        tls: TlsSettings | None = None,
        overrides: Mapping[str, str] | None = None,
    ) -> None:
        listeners = tuple(listeners)
        security, tls = security or SecuritySettings(), tls or TlsSettings()
        of_listeners = ListenerOverrides(overrides or {}, (one.name for one in listeners))
        self._tls: dict[str, TlsContext] = {}
        self._sasl: dict[str, ListenerSasl] = {}
        for one in listeners:
            own = of_listeners.of(one.name)
            if one.protocol.has_tls:
                self._tls[one.name] = _make_tls(tls.for_listener(own, one.name))
            if one.protocol.has_sasl:
                self._sasl[one.name] = ListenerSasl(one.name, security, own)

    def __call__(self, broker: Broker, listener: Listener) -> TlsSaslSecurity:
        return TlsSaslSecurity(broker, self._tls.get(listener.name), self._sasl.get(listener.name))

    def warn_if_no_users(self, credentials: ScramCredentials) -> None:
        """Tells of listeners at which nobody can log in; for when credentials were loaded."""
        for name, sasl in self._sasl.items():
            if not sasl.has_users(credentials):
                logger.warning(
                    "nobody can log in at a listener: there is no user for its mechanisms; add one "
                    "with `varve user add NAME`, through a listener without SASL or with "
                    "--directory while the server is stopped, or name users of PLAIN in "
                    "varve.sasl.plain.users",
                    extra={"listener": name, "mechanisms": ",".join(sasl.mechanisms)},
                )

    def reload(self) -> list[InvalidSetting]:
        """Reads keys, certificates and users again, for connections to come.

        What cannot be used stays as it was; why is given back.
        """
        failures: list[InvalidSetting] = []
        reloads = [(name, one.reload) for name, one in self._tls.items()]
        reloads += [(name, one.reload) for name, one in self._sasl.items()]
        for name, reload in reloads:
            try:
                reload()
            except InvalidSetting as error:
                failures.append(error)
                logger.warning("not reloaded", extra={"listener": name, "why": str(error)})
        return failures

    def reload_if_changed(self) -> None:
        """Reads certificates again where a file has changed, and tells if they cannot be used."""
        for name, one in self._tls.items():
            try:
                if one.reload_if_changed():
                    logger.info("new certificates", extra={"listener": name})
            except InvalidSetting as error:
                logger.warning("not reloaded", extra={"listener": name, "why": str(error)})


def _make_tls(settings: TlsSettings) -> "TlsContext":
    # It imports what reads certificates; a server without any does not wait for that.
    from varve.kafka_server.tls import TlsContext

    return TlsContext(settings)
