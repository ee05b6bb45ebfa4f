"""Files of a receipt outside the topics: copies of it as JSON and as a page, and PEM keys.

Invariant  that a copy can be written is checked before anything is erased.
"""

import os
import tempfile
from typing import Any, Final

from varve.foundation.errors import InvalidRequest, Unavailable
from varve.jobs.erase.receipt import (
    SigningKey,
    encode_receipt,
    read_public_key,
    render_receipt,
    verify_receipt,
)
from varve.jobs.erase.request import open_input
from varve.jobs.erase.result import ErasureResult

PASSPHRASE_VARIABLE: Final = "VARVE_SIGN_PASSPHRASE"


def check_receipt_path(path: str) -> None:
    """Raises InvalidRequest if PATH.json and PATH.html cannot be written."""
    for file in _files(path):
        if os.path.isdir(file):
            raise InvalidRequest(f"--receipt: {file} is a directory; nothing was erased")
        if os.path.exists(file) and not os.access(file, os.W_OK):
            raise InvalidRequest(f"--receipt: {file} may not be written; nothing was erased")
        try:
            with tempfile.TemporaryFile(dir=os.path.dirname(os.path.abspath(file))):
                pass
        except OSError as error:
            raise InvalidRequest(
                f"--receipt: {file} cannot be written ({error.strerror}); nothing was erased"
            ) from None


def write_receipt(path: str, result: ErasureResult) -> None:
    """Writes PATH.json and PATH.html; raises Unavailable, which says that the erasure is done."""
    assert result.receipt is not None
    pages = (encode_receipt(result.receipt), render_receipt(result.receipt).encode())
    for name, data in zip(_files(path), pages, strict=True):
        try:
            with open(name, "wb") as file:
                file.write(data)
        except OSError as error:
            raise Unavailable(
                f"{name}: {error.strerror}; the erasure is done, and its receipt is at "
                f"{', '.join(result.receipt_places)}: copy it from there"
            ) from error


def _files(path: str) -> tuple[str, str]:
    plain = path.removesuffix(".json").removesuffix(".html")
    return f"{plain}.json", f"{plain}.html"


def read_signing_key(path: str) -> SigningKey:
    """Reads a private key; its passphrase is in VARVE_SIGN_PASSPHRASE."""
    passphrase = os.environ.get(PASSPHRASE_VARIABLE)
    with open_input(path) as file:
        data = file.read()
    return SigningKey.read(data, passphrase=passphrase.encode() if passphrase else None, where=path)


def verify_receipt_file(path: str, public_key: str) -> dict[str, Any]:
    """Returns the document of a receipt that the key of a PEM file signed; raises NotGenuine."""
    with open_input(public_key) as file:
        key = read_public_key(file.read(), public_key)
    with open_input(path) as file:
        return verify_receipt(file.read(), key, where=path)
