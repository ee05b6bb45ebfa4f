"""Messages to bytes and back.

All by compiled functions except the Fetch response: encoding that by hand is measurably faster.

Invariant  `decode` reads any version of a message into the same class; bytes behind a message are
           left alone, as Kafka does.
"""

from typing import Final, TypeVar

from varve.foundation.errors import MalformedMessage
from varve.wire.compiler import StructError, decoder, encoder
from varve.wire.fetch_codec import fetch_encoder
from varve.wire.messages.data import FetchResponse
from varve.wire.schema import Message

M = TypeVar("M", bound=Message)
Buffer = bytes | bytearray | memoryview

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
            f"{kind.__name__} version {version}: {len(data) - end} bytes behind the end"
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
    """Writes a message, behind what is in `out` already."""
    kind = type(message)
    out = bytearray() if out is None else out
    encoder(kind, version, version >= kind.FLEXIBLE)(out, message)
    return out


def encode_parts(message: Message, version: int, out: bytearray | None = None) -> list[Buffer]:
    """The bytes of a message, behind what is in `out`, as buffers to be written one by one.

    Those with many records are the message's own: they must stay as they are until written.
    """
    if type(message) is not FetchResponse:
        return [encode(message, version, out)]
    return fetch_encoder(version).encode_parts(message, bytearray() if out is None else out)
