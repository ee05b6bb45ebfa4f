"""A file that the caller of an erasure names: of keys, of values, of a key that signs."""

from typing import BinaryIO

from varve.foundation.errors import InvalidRequest


def open_input(path: str) -> BinaryIO:
    """Opens a file that the caller names; raises InvalidRequest."""
    try:
        return open(path, "rb")
    except OSError as error:
        raise InvalidRequest(
            f"{path}: {error.strerror}; correct the path or its permissions"
        ) from None
