"""Requests: from a frame to its handler, and from a handler's error to a response.

Invariant  only APIs and versions that ApiVersions lists are served; before a client is
           authenticated, only those it authenticates with. A rejected request closes its
           connection, as in Kafka, except an ApiVersions of an unknown version.
Threads    the event loop's alone.
"""

import logging
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Final

from varve.broker.broker import Broker
from varve.broker.error_responses import error_response
from varve.broker.handlers import Handler, api_versions_response
from varve.broker.request import CloseConnection, ConnectionContext, RequestContext
from varve.foundation.errors import InvalidRequest, StoreError
from varve.kafka_server.authentication import SaslSession
from varve.kafka_server.metrics import FAILED_REQUESTS, ServerMetrics
from varve.wire import APIS, Api, ApiKey, ErrorCode, Message, decode, read_request_header, skip_tags
from varve.wire.errors import KafkaError, code_for
from varve.wire.messages.data import ProduceRequest
from varve.wire.messages.security import SaslAuthenticateResponse, SaslHandshakeResponse

logger = logging.getLogger(__name__)

HandlerResult = Message | Awaitable[Message | None] | None

SASL_KEYS: Final = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
_OF_CLIENTS: Final = frozenset({
    ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH,
    ApiKey.METADATA, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.TXN_OFFSET_COMMIT, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.CONSUMER_GROUP_HEARTBEAT,
})  # fmt: skip
"""Requests of producers, consumers and members of groups that name all partitions they work on.

A Produce names those of one batch each, in one turn of the loop.
"""
_BEFORE_AUTHENTICATION: Final = (*SASL_KEYS, ApiKey.API_VERSIONS)


class RejectedRequest(StoreError):
    """A request that closes its connection; `reason` labels it in metrics."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(slots=True)
class Request:
    """A decoded request; `context.version` is also the version of its response."""

    api: Api
    correlation_id: int
    context: RequestContext
    message: Message | None
    """None for an ApiVersions of an unknown version."""

    @property
    def has_response(self) -> bool:
        return not (isinstance(self.message, ProduceRequest) and self.message.acks == 0)


class Dispatcher:
    """Decodes requests and calls their handlers."""

    def __init__(
        self,
        broker: Broker,
        handlers: Mapping[ApiKey, Handler],
        metrics: ServerMetrics,
        *,
        element_count_max: int,
        admin_element_count_max: int,
    ) -> None:
        self._broker = broker
        self._element_count_max = element_count_max
        self._admin_element_count_max = min(element_count_max, admin_element_count_max)
        self._handlers = handlers
        self._metrics = metrics
        self._keys = {*handlers, *SASL_KEYS}
        self._served = {int(key): APIS[int(key)] for key in self._keys}

    def read(
        self,
        frame: memoryview,
        connection: ConnectionContext,
        sasl: SaslSession | None,
    ) -> Request:
        """Decodes a frame; raises RejectedRequest or MalformedMessage.

        Nothing but its header is decoded before the client is authenticated for it.
        """
        header = read_request_header(frame)
        api = self._served.get(header.api_key)
        if api is None:
            raise RejectedRequest("unknown_api", f"API {header.api_key} is not served")
        version, client_id = header.version, header.client_id or ""
        if version not in api.versions:
            if api.key is ApiKey.API_VERSIONS:
                context = self._make_context(api.key, 0, client_id, connection)
                return Request(api, header.correlation_id, context, None)
            raise RejectedRequest(
                "unknown_version",
                f"{api.key.name} version {version} is not served, only "
                f"{api.versions.first} to {api.versions.last}",
            )
        if sasl is not None and api.key not in _BEFORE_AUTHENTICATION:
            self._check_authenticated(api.key, sasl)
        start = header.end
        if api.is_flexible(version):
            start = skip_tags(frame, start)
        limit = self._element_count_max
        if api.key not in _OF_CLIENTS:
            limit = self._admin_element_count_max
        message = decode(api.request, version, frame, start, element_count_max=limit)
        context = self._make_context(api.key, version, client_id, connection)
        return Request(api, header.correlation_id, context, message)

    def _make_context(
        self, key: ApiKey, version: int, client_id: str, connection: ConnectionContext
    ) -> RequestContext:
        broker = self._broker
        return RequestContext(key, version, client_id, connection, broker.authorizer, broker.topics)

    def dispatch(self, request: Request, sasl: SaslSession | None) -> HandlerResult:
        """The response, or what will return it; raises what the handler raises."""
        key, message = request.api.key, request.message
        if message is None:
            return api_versions_response(self._keys, ErrorCode.UNSUPPORTED_VERSION)
        if key not in SASL_KEYS:
            return self._handlers[key](self._broker, request.context, message)
        if sasl is not None:
            return sasl.handle(request.context.version, message)
        if key is ApiKey.SASL_HANDSHAKE:
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        return SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="this listener has no SASL authentication",
        )

    def _check_authenticated(self, key: ApiKey, sasl: SaslSession) -> None:
        if not sasl.is_done:
            raise RejectedRequest(
                "not_authenticated", f"{key.name} before the client has authenticated"
            )
        expires_ms = sasl.expires_ms
        if expires_ms is not None and self._broker.clock.now_ms() > expires_ms:
            raise RejectedRequest(
                "session_expired", f"{key.name} after the client should have re-authenticated"
            )

    def charge_quotas(
        self, request: Request, *, received_bytes: int, sent_bytes: int, busy_seconds: float
    ) -> int:
        """Adds a request to the client's quotas; how many milliseconds the client must wait."""
        if not self._broker.quotas.are_set or request.api.key in SASL_KEYS:
            return 0
        return self._broker.quotas.charge_request(
            request.api.key,
            request.context.principal,
            request.context.client_id,
            received_bytes=received_bytes,
            sent_bytes=sent_bytes,
            elapsed_ms=busy_seconds * 1_000,
        )

    def error_response(self, request: Request, error: BaseException) -> Message | None:
        """The response to a request whose handler failed; None where the connection must close."""
        self.log_failure(request, error)
        if isinstance(error, CloseConnection):
            return None
        if request.message is None or not request.has_response:
            return None
        code, text = ErrorCode.UNKNOWN_SERVER_ERROR, None
        if isinstance(error, KafkaError):
            code, text = error.code, error.message
        elif isinstance(error, InvalidRequest):
            code, text = code_for(error), str(error)
        version = request.context.version
        return error_response(request.api, request.message, version, code, text)

    def log_failure(self, request: Request, error: BaseException) -> None:
        """Counts and logs an error of a handler; a KafkaError is a response like any other."""
        if isinstance(error, KafkaError):
            return
        context = request.context
        name = request.api.key.name.lower()
        fields = {
            "api": name,
            "version": context.version,
            "client_id": context.client_id,
            "client": context.connection.client_host,
            "principal": str(context.principal),
        }
        if isinstance(error, CloseConnection):
            logger.info("a request closes its connection", extra=fields | {"error": str(error)})
            return
        if isinstance(error, InvalidRequest):
            logger.warning("an invalid request", extra=fields | {"error": str(error)})
            return
        self._metrics.add(FAILED_REQUESTS, 1, name)
        logger.error("a request failed", exc_info=error, extra=fields)
