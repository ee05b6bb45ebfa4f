"""What clients are told of the APIs and their versions.

Invariant  no feature is finalised: clients then use transactions as they were before KIP-890.
"""

from collections.abc import Iterable

from varve.wire import APIS, ApiKey, ErrorCode
from varve.wire.messages.cluster import ApiVersion, ApiVersionsResponse


def tell_versions(keys: Iterable[ApiKey], error: ErrorCode = ErrorCode.NONE) -> ApiVersionsResponse:
    """The versions of these APIs; with an error as well, for a client must learn what to use."""
    found = [APIS[key] for key in sorted(keys)]
    return ApiVersionsResponse(
        error_code=error,
        api_keys=[ApiVersion(one.key, one.first_told, one.versions.last) for one in found],
    )
