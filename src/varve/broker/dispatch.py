"""Which handler answers which request: the tables of all parts, put together."""

import re
from typing import Final

from varve.broker.admin import handlers as admin
from varve.broker.broker import Broker, Handler
from varve.broker.context import RequestContext
from varve.broker.data import handlers as data
from varve.broker.data.api_versions import tell_versions
from varve.broker.groups import handlers as groups
from varve.broker.security import handlers as security
from varve.broker.transactions import handlers as transactions
from varve.wire import ApiKey, ErrorCode
from varve.wire.messages.cluster import ApiVersionsRequest, ApiVersionsResponse

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_OF_THE_SERVER: Final = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)


def api_versions_response(error: ErrorCode = ErrorCode.NONE) -> ApiVersionsResponse:
    """The answer to ApiVersions; with UNSUPPORTED_VERSION it is sent in version 0."""
    return tell_versions((*HANDLERS, *_OF_THE_SERVER), error)


def _api_versions(
    broker: Broker, context: RequestContext, request: ApiVersionsRequest
) -> ApiVersionsResponse:
    name, version = request.client_software_name, request.client_software_version
    if context.version >= 3:
        if not _SOFTWARE.fullmatch(name) or not _SOFTWARE.fullmatch(version):
            return api_versions_response(ErrorCode.INVALID_REQUEST)
        context.connection.software = (name, version)
    return api_versions_response()


HANDLERS: Final[dict[ApiKey, Handler]] = {
    ApiKey.API_VERSIONS: _api_versions,
    **admin.HANDLERS,
    **data.HANDLERS,
    **groups.HANDLERS,
    **security.HANDLERS,
    **transactions.HANDLERS,
}
"""ApiVersions tells clients of these, and of what the server answers itself."""
