"""Messages and their headers to bytes and back.

Invariant  `decode` reads any version of a message into the same class; bytes after a
           message are ignored, as in Kafka.
           The client id is a non-compact string in every version. The response to ApiVersions has
           the non-flexible header in every version, so that a client can read it before it knows
           the server's versions.
"""

from struct import Struct
from typing import Final, NamedTuple, TypeVar

from varve.foundation.errors import MalformedMessage
from varve.wire.compiler import (
    Buffer,
    PartsBuffer,
    StructError,
    decoder,
    encoder,
    read_text,
    read_uvarint,
)
from varve.wire.schema import Message
from varve.wire.schema import Struct as WireStruct

M = TypeVar("M", bound=Message)

ELEMENT_COUNT_MAX: Final = 1 << 31
"""No bound but the bytes of a message; for messages that do not come from clients."""


def decode(
    kind: type[M],
    version: int,
    data: Buffer,
    start: int = 0,
    *,
    element_count_max: int = ELEMENT_COUNT_MAX,
) -> M:
    """Reads a message; raises MalformedMessage. Records are slices of `data`, all else is copied.

    The version must be one of the message's own. A message with more array elements and tagged
    fields than `element_count_max` is refused before they are decoded.
    """
    message, _ = _decode(kind, version, data, start, element_count_max)
    return message


def decode_exactly(kind: type[M], version: int, data: Buffer, start: int = 0) -> M:
    """Reads a message that takes all bytes from `start` on; raises MalformedMessage."""
    message, end = _decode(kind, version, data, start, ELEMENT_COUNT_MAX)
    if end != len(data):
        raise MalformedMessage(
            f"{kind.__name__} version {version}: {len(data) - end} bytes after the end"
        )
    return message


def _decode(
    kind: type[M], version: int, data: Buffer, start: int, element_count_max: int
) -> tuple[M, int]:
    view = data if isinstance(data, memoryview) else memoryview(data)
    try:
        message, end = decoder(kind, version, version >= kind.FLEXIBLE)(
            view, start, [element_count_max]
        )
    except (StructError, IndexError) as error:
        raise MalformedMessage(
            f"{kind.__name__} version {version} ends in the middle of a field: {error}"
        ) from error
    except MalformedMessage as error:
        raise MalformedMessage(f"{kind.__name__} version {version}: {error}") from error
    return message, end


def encode(message: Message, version: int, out: bytearray | None = None) -> bytearray:
    """Writes a message, appended to the content of `out`."""
    kind = type(message)
    out = bytearray() if out is None else out
    encoder(kind, version, version >= kind.FLEXIBLE)(out, message)
    return out


def encoded_size(struct: WireStruct, version: int, *, is_flexible: bool) -> int:
    """The bytes that a struct takes within a message."""
    out = bytearray()
    encoder(type(struct), version, is_flexible)(out, struct)
    return len(out)


def encode_parts(message: Message, version: int, start: Buffer = b"") -> list[Buffer]:
    """The bytes of a message, after those of `start`, as buffers to be written one by one.

    Large records are not copied: they must stay as they are until written.
    """
    out = PartsBuffer(start)
    encode(message, version, out)
    return out.parts()


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
