"""The headers of requests and responses.

Invariant  the client id is a non-compact string in every version. The response to ApiVersions has
           the non-flexible header in every version, so that a client can read it before it knows
           the server's versions.
"""

from struct import Struct
from typing import Final, NamedTuple

from varve.foundation.errors import MalformedMessage
from varve.wire.compiler import read_text, read_uvarint

API_VERSIONS: Final = 18

_REQUEST: Final = Struct(">hhih")
_CORRELATION: Final = Struct(">i")
_TAG_COUNT_MAX: Final = 256
"""No known client sends any, and the client is not authenticated yet."""


class RequestHeader(NamedTuple):
    """A request's header; `end` is where its tagged fields start, or else its message.

    Only flexible versions have tagged fields: `skip_tags` is for them.
    """

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    end: int


def read_request_header(data: memoryview) -> RequestHeader:
    """The header of a frame without its length; raises MalformedMessage."""
    if len(data) < _REQUEST.size:
        raise MalformedMessage(f"a request of {len(data)} bytes has no complete header")
    api_key, version, correlation_id, length = _REQUEST.unpack_from(data)
    at = _REQUEST.size
    if length < 0:
        return RequestHeader(api_key, version, correlation_id, None, at)
    if length > len(data) - at:
        raise MalformedMessage(f"a client id of {length} bytes where {len(data) - at} are left")
    client_id = read_text(data, at, at + length)
    return RequestHeader(api_key, version, correlation_id, client_id, at + length)


def skip_tags(data: memoryview, at: int) -> int:
    """Where the tagged fields of a flexible header end."""
    try:
        count, at = read_uvarint(data, at)
        if count > _TAG_COUNT_MAX:
            raise MalformedMessage(f"a header with {count} tagged fields")
        for _ in range(count):
            _, at = read_uvarint(data, at)
            size, at = read_uvarint(data, at)
            at += size
            if at > len(data):
                raise MalformedMessage(f"a tagged field of {size} bytes is longer than its request")
    except IndexError as error:
        raise MalformedMessage("a request ends within its header") from error
    return at


def write_request_header(
    api_key: int, version: int, correlation_id: int, client_id: str, *, is_flexible: bool
) -> bytearray:
    """As a client sends it."""
    name = client_id.encode()
    out = bytearray(_REQUEST.pack(api_key, version, correlation_id, len(name)))
    out += name
    if is_flexible:
        out.append(0)
    return out


def write_response_header(api_key: int, correlation_id: int, *, is_flexible: bool) -> bytearray:
    """`is_flexible` is that of the request's version."""
    out = bytearray(_CORRELATION.pack(correlation_id))
    if is_flexible and api_key != API_VERSIONS:
        out.append(0)
    return out
