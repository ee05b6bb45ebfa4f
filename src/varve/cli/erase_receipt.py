"""The copy of a receipt that `varve job erase --receipt PATH` writes: PATH.json and PATH.html.

Invariant  that it can be written is found out before anything is erased.
"""

import os
import tempfile
from typing import TYPE_CHECKING

from varve.foundation.errors import InvalidRequest, Unavailable

if TYPE_CHECKING:
    from varve.jobs.erase.result import ErasureResult


def check_receipt_path(path: str) -> None:
    """Raises InvalidRequest where the files cannot be written."""
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


def write_receipt(path: str, result: "ErasureResult") -> None:
    """Writes both files; what is told where that fails is that all else is done."""
    from varve.jobs.erase.receipt import encode_receipt, render_receipt

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
