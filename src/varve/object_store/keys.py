"""Which keys and prefixes varve uses: those that every store takes as they are.

Invariant  a checked key is 1 to 900 bytes of names joined by single '/', each of 1 to 200 letters,
           digits and `-_.=+@,:!()`, none of them '.', '..' or beginning with `.varve-`.

Object stores escape, refuse or rewrite other characters, each in its own way; file systems limit
names to 255 bytes and S3 limits keys to 1024, of which the prefix of the store takes a part.
"""

import re
from typing import Final

from varve.foundation.errors import InvalidRequest
from varve.object_store.failure import failure

RESERVED: Final = ".varve-"
"""Names that begin so are the stores' own: temporary files and marks. No list shows them."""

_KEY_BYTES_MAX: Final = 900
_NAME_BYTES_MAX: Final = 200
_NAME: Final = re.compile(r"[A-Za-z0-9_.=+@,:!()-]+")


def check_key(key: str, *, store: str, operation: str) -> None:
    """Raise InvalidRequest unless the key is one of ours."""
    reason = find_fault(key)
    if reason is not None:
        shown = key if len(key) <= 120 else f"{key[:117]}..."
        raise failure(
            InvalidRequest,
            store=store,
            operation=operation,
            key=shown,
            cause=f"the key {reason}",
            remedy=f"use names of at most {_NAME_BYTES_MAX} letters, digits and -_.=+@,:!() joined "
            f"by '/', {_KEY_BYTES_MAX} characters in all",
        )


def check_prefix(prefix: str, *, store: str, operation: str) -> str:
    """The prefix without its closing '/'; raises InvalidRequest unless it is "" or like a key."""
    bare = prefix[:-1] if prefix.endswith("/") else prefix
    if bare or prefix:
        check_key(bare, store=store, operation=operation)
    return bare


def find_fault(key: str) -> str | None:
    """What is wrong with a key, None where nothing is."""
    if not key:
        return "is empty"
    if len(key) > _KEY_BYTES_MAX:
        return f"has {len(key)} characters, more than {_KEY_BYTES_MAX}"
    for name in key.split("/"):
        if name in ("", ".", ".."):
            return f"has the name {name!r} in it" if name else "begins, ends or doubles with '/'"
        if not _NAME.fullmatch(name):
            return f"has a character in {name!r} that not every store takes"
        if len(name) > _NAME_BYTES_MAX:
            return f"has a name of {len(name)} characters, more than {_NAME_BYTES_MAX}"
        if name.startswith(RESERVED):
            return f"has a name that begins with {RESERVED!r}, which stores keep for themselves"
    return None


def is_reserved(key: str) -> bool:
    """Whether a key belongs to the stores themselves."""
    return key.startswith(RESERVED) or f"/{RESERVED}" in key
