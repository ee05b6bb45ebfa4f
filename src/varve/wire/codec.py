"""Messages to bytes and back.

Invariant  `decode` reads any version of a message into the same class; bytes behind a message are
           left alone, as Kafka does.
"""

from typing import Final, TypeVar

from varve.foundation.errors import MalformedMessage
from varve.wire.compiler import Compiler, StructError
from varve.wire.schema import Message

M = TypeVar("M", bound=Message)
Buffer = bytes | bytearray | memoryview

_compiler: Final = Compiler()


def decode(kind: type[M], version: int, data: Buffer, start: int = 0) -> M:
    """Reads a message; raises MalformedMessage. Records are slices of `data`, all else is copied.

    The version is one of the message's own: who takes it from a client has checked that.
    """
    read = _compiler.decoder(kind, version, version >= kind.FLEXIBLE)
    view = data if isinstance(data, memoryview) else memoryview(data)
    try:
        message, _ = read(view, start)
    except (StructError, IndexError) as error:
        raise MalformedMessage(
            f"{kind.__name__} version {version} ends in the middle of a field: {error}"
        ) from error
    except MalformedMessage as error:
        raise MalformedMessage(f"{kind.__name__} version {version}: {error}") from error
    return message  # type: ignore[no-any-return]  # made from the class


def encode(message: Message, version: int, out: bytearray | None = None) -> bytearray:
    """Writes a message, behind what is in `out` already."""
    kind = type(message)
    out = bytearray() if out is None else out
    _compiler.encoder(kind, version, version >= kind.FLEXIBLE)(out, message)
    return out
