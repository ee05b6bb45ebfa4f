"""The handler of each API, and the versions that clients may use.

Invariant  no feature is finalized: clients use transactions as they were before KIP-890.
"""

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from varve.broker.admin import cluster, config_requests, topics
from varve.broker.broker import Broker
from varve.broker.data import fetch, metadata, offsets, produce
from varve.broker.groups import offset_requests
from varve.broker.groups import requests as group_requests
from varve.broker.request import RequestContext
from varve.broker.security import requests as security
from varve.broker.transactions import marker_requests
from varve.broker.transactions import requests as transaction_requests
from varve.wire import APIS, ApiKey, ErrorCode, Message
from varve.wire.messages.cluster import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

Handler = Callable[[Broker, RequestContext, Any], Message | Awaitable[Message | None] | None]
"""Answers a request at once or later; None where the request has no response.

The bytes of the request belong to the handler until then. Raises KafkaError where the whole request
fails, and CloseConnection.
"""

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_PREFIX: Final = "handle_"
_MODULES: Final = (
    produce, fetch, offsets, metadata, topics, config_requests, cluster,
    group_requests, offset_requests, transaction_requests, marker_requests, security,
)  # fmt: skip
"""With the handlers of all APIs but ApiVersions and those that the server serves itself."""
_SERVER_APIS: Final = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
"""Served by the server itself."""


def api_versions_response(
    keys: Iterable[ApiKey], error: ErrorCode = ErrorCode.NONE
) -> ApiVersionsResponse:
    """The versions of these APIs; also with an error, because the client needs them to continue."""
    apis = [APIS[key] for key in sorted(keys)]
    return ApiVersionsResponse(
        error_code=error,
        api_keys=[ApiVersion(api.key, api.first_advertised, api.versions.last) for api in apis],
    )


def handle_api_versions(
    broker: Broker, context: RequestContext, request: ApiVersionsRequest
) -> ApiVersionsResponse:
    served = (*HANDLERS, *_SERVER_APIS)
    software = (request.client_software_name, request.client_software_version)
    if context.version >= 3 and not all(_SOFTWARE.fullmatch(text) for text in software):
        return api_versions_response(served, ErrorCode.INVALID_REQUEST)
    return api_versions_response(served)


def _collect() -> dict[ApiKey, Handler]:
    """The functions that are named after their APIs: `handle_list_offsets` serves LIST_OFFSETS."""
    return {
        ApiKey[name.removeprefix(_PREFIX).upper()]: handler
        for module in _MODULES
        for name, handler in vars(module).items()
        if name.startswith(_PREFIX)
    }


HANDLERS: Final[dict[ApiKey, Handler]] = {ApiKey.API_VERSIONS: handle_api_versions, **_collect()}
"""ApiVersions reports these, and the APIs that the server serves itself."""
