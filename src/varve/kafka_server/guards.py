"""Who guards the listeners: TLS and SASL of each, made from the settings, read anew when asked.

Threads    the loop's alone, but for `reload`, which reads files and may run off it.
"""

import asyncio
import logging
import ssl
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from varve.broker.broker import Broker
from varve.broker.context import ANONYMOUS, ConnectionContext, Principal
from varve.broker.security.credentials import ScramCredentials
from varve.broker.security.settings import SecuritySettings
from varve.foundation.errors import InvalidSetting
from varve.kafka_server.authenticator import Authenticator
from varve.kafka_server.listener import Listener
from varve.kafka_server.listener_overrides import ListenerOverrides
from varve.kafka_server.principal_mapping import NoRuleFits
from varve.kafka_server.sasl import ListenerSasl, SaslAuthenticator
from varve.kafka_server.tls_settings import TlsSettings
from varve.wire import ApiKey, ErrorCode, Message
from varve.wire.messages.security import SaslAuthenticateResponse, SaslHandshakeResponse

if TYPE_CHECKING:
    from varve.kafka_server.tls import Tls

logger = logging.getLogger(__name__)


_NOBODY: Final = Principal("User", "")


class _TurnedAway:
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


class ListenerGuard:
    """The guard of one listener; TLS or SASL is None where it has none."""

    def __init__(self, broker: Broker, tls: "Tls | None", sasl: ListenerSasl | None) -> None:
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
            return _TurnedAway()
        if self._sasl is None:
            return None
        return SaslAuthenticator(self._sasl, self._broker, connection)


class Guards:
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
        self._tls: dict[str, Tls] = {}
        self._sasl: dict[str, ListenerSasl] = {}
        for one in listeners:
            own = of_listeners.of(one.name)
            if one.protocol.has_tls:
                self._tls[one.name] = _make_tls(tls.for_listener(own, one.name))
            if one.protocol.has_sasl:
                self._sasl[one.name] = ListenerSasl(one.name, security, own)

    def __call__(self, broker: Broker, listener: Listener) -> ListenerGuard:
        return ListenerGuard(broker, self._tls.get(listener.name), self._sasl.get(listener.name))

    def warn_of_nobody(self, credentials: ScramCredentials) -> None:
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


def _make_tls(settings: TlsSettings) -> "Tls":
    # It imports what reads certificates; a server without any does not wait for that.
    from varve.kafka_server.tls import Tls

    return Tls(settings)
