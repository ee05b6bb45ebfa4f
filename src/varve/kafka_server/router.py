"""From the bytes of a request to whoever answers it.

Invariant  only what ApiVersions tells is let in, in the versions it tells; before a client has said
           who it is, only what it needs to say so. What is refused here closes the connection, as
           Kafka does, but for an ApiVersions of a version nobody knows.
Threads    the loop's alone.
"""

import logging
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Final

from varve.broker.broker import Broker, Handler
from varve.broker.context import ConnectionContext, RequestContext
from varve.broker.data.api_versions import tell_versions
from varve.broker.errors import CloseConnection
from varve.broker.failure import failed_response
from varve.foundation.errors import InvalidRequest, StoreError
from varve.kafka_server.authentication import Authenticator
from varve.kafka_server.metrics import FAILED_REQUESTS, ServerMetrics
from varve.kafka_server.settings import ServerSettings
from varve.wire import APIS, Api, ApiKey, ErrorCode, Message, decode, read_request_header, skip_tags
from varve.wire.errors import code_for
from varve.wire.messages.data import ProduceRequest
from varve.wire.messages.security import SaslAuthenticateResponse, SaslHandshakeResponse

logger = logging.getLogger(__name__)

Answer = Message | Awaitable[Message | None] | None

_SASL_KEYS: Final = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
_BEFORE_AUTHENTICATION: Final = (*_SASL_KEYS, ApiKey.API_VERSIONS)
_NO_SASL: Final = "this listener asks nobody who they are"


class RefusedFrame(StoreError):
    """A request that is not let in; `reason` is a word for it."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(slots=True)
class Request:
    """A request as it was read; `version` is that of its answer."""

    api: Api
    version: int
    correlation_id: int
    client_id: str
    message: Message | None
    """None for an ApiVersions of a version nobody knows."""

    @property
    def has_answer(self) -> bool:
        return not (isinstance(self.message, ProduceRequest) and self.message.acks == 0)


class Router:
    """Knows the handlers."""

    def __init__(
        self,
        broker: Broker,
        handlers: Mapping[ApiKey, Handler],
        metrics: ServerMetrics,
        settings: ServerSettings,
    ) -> None:
        self._broker = broker
        self._element_count_max = settings.request_max_elements
        self._handlers = handlers
        self._metrics = metrics
        self._keys = {*handlers, *_SASL_KEYS}
        self._served = {int(key): APIS[int(key)] for key in self._keys}

    def read(self, frame: memoryview, authenticator: Authenticator | None) -> Request:
        """What a frame asks; raises RefusedFrame, or MalformedMessage.

        Only its header is read where the client may not ask it before it has authenticated.
        """
        header = read_request_header(frame)
        api = self._served.get(header.api_key)
        if api is None:
            raise RefusedFrame("unknown_api", f"API {header.api_key} is not served")
        version, client_id = header.version, header.client_id or ""
        if version not in api.versions:
            if api.key is ApiKey.API_VERSIONS:
                return Request(api, 0, header.correlation_id, client_id, None)
            raise RefusedFrame(
                "unknown_version",
                f"{api.key.name} version {version} is not served, only "
                f"{api.versions.first} to {api.versions.last}",
            )
        if authenticator is not None and api.key not in _BEFORE_AUTHENTICATION:
            self._check_known(api.key, authenticator)
        at = header.end
        if api.is_flexible(version):
            at = skip_tags(frame, at)
        message = decode(api.request, version, frame, at, element_count_max=self._element_count_max)
        return Request(api, version, header.correlation_id, client_id, message)

    def answer(
        self,
        request: Request,
        connection: ConnectionContext,
        authenticator: Authenticator | None,
    ) -> Answer:
        """The answer, or what will give it; raises RefusedFrame, and what a handler raises."""
        key, message = request.api.key, request.message
        if message is None:
            return tell_versions(self._keys, ErrorCode.UNSUPPORTED_VERSION)
        if authenticator is not None:
            if key in _SASL_KEYS:
                return authenticator.handle(key, request.version, message)
        elif key in _SASL_KEYS:
            return _refuse_sasl(key)
        context = RequestContext(key, request.version, request.client_id, connection)
        return self._handlers[key](self._broker, context, message)

    def _check_known(self, key: ApiKey, authenticator: Authenticator) -> None:
        if not authenticator.is_done:
            raise RefusedFrame(
                "not_authenticated", f"{key.name} before the client has said who it is"
            )
        expires_ms = authenticator.expires_ms
        if expires_ms is not None and self._broker.clock.now_ms() > expires_ms:
            raise RefusedFrame(
                "session_expired", f"{key.name} after the client should have authenticated anew"
            )

    @property
    def has_quotas(self) -> bool:
        """Whether what clients use is to be noted."""
        return self._broker.quotas.are_set

    def note_use(
        self,
        request: Request,
        connection: ConnectionContext,
        *,
        received_bytes: int,
        sent_bytes: int,
        busy_seconds: float,
    ) -> int:
        """Adds a request to what its client has used; the milliseconds that one must wait who has
        used more than its quotas.
        """
        if request.api.key in _SASL_KEYS:
            return 0
        context = RequestContext(request.api.key, request.version, request.client_id, connection)
        return self._broker.quotas.note_request(
            context, received_bytes, sent_bytes, busy_seconds * 1_000
        )

    def fail(
        self, request: Request, connection: ConnectionContext, error: BaseException
    ) -> Message | None:
        """What to answer when a handler failed; None where the connection must be closed."""
        self.note_failure(request, connection, error)
        if isinstance(error, CloseConnection):
            return None
        if request.message is None or not request.has_answer:
            return None
        code = ErrorCode.UNKNOWN_SERVER_ERROR
        if isinstance(error, InvalidRequest):
            code = code_for(error)
        return failed_response(request.api, request.message, request.version, code)

    def note_failure(
        self, request: Request, connection: ConnectionContext, error: BaseException
    ) -> None:
        """Counts and logs an error that no answer tells."""
        name = request.api.key.name.lower()
        told = {
            "api": name,
            "version": request.version,
            "client_id": request.client_id,
            "client": connection.client_host,
            "principal": str(connection.principal),
        }
        if isinstance(error, CloseConnection):
            logger.info("a request ends its connection", extra=told | {"told": str(error)})
            return
        if isinstance(error, InvalidRequest):
            logger.warning("a request was refused", extra=told | {"told": str(error)})
            return
        self._metrics.table.add(FAILED_REQUESTS, 1, name)
        logger.error("a request failed", exc_info=error, extra=told)


def _refuse_sasl(key: ApiKey) -> Message:
    if key is ApiKey.SASL_HANDSHAKE:
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=_NO_SASL)
