"""Signs receipts, and tells whether one is as it was signed.

Layout     Ed25519 over the document without its signature as canonical JSON: keys sorted, no
           spaces, UTF-8. docs/formats/receipt.md
Invariant  what is verified is what anybody reads: an object with a name twice is refused, since
           readers differ in which of the two they take.
"""

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any, Final, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from varve.foundation.errors import InvalidRequest, StoreError

SIGNATURE: Final = "signature"
_ALGORITHM: Final = "Ed25519"


class NotGenuine(StoreError):
    """A receipt that is not as its signer left it, or none at all."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key in use."""

    private: Ed25519PrivateKey

    @classmethod
    def read(cls, data: bytes, *, passphrase: bytes | None, where: str) -> Self:
        """From a PEM file; raises InvalidRequest for what is no private key of Ed25519."""
        try:
            key = serialization.load_pem_private_key(data, passphrase)
        except (ValueError, TypeError) as error:
            raise InvalidRequest(
                f"{where}: cannot be read as a private key ({error}): give a PEM file in PKCS8, "
                "and its passphrase in VARVE_SIGN_PASSPHRASE if it has one"
            ) from None
        if not isinstance(key, Ed25519PrivateKey):
            raise InvalidRequest(f"{where}: holds a key of another kind, Ed25519 is needed")
        return cls(key)

    def sign(self, document: dict[str, Any]) -> dict[str, Any]:
        """The document with its signature."""
        raw = self.private.public_key().public_bytes(
            serialization.Encoding.Raw, serialization.PublicFormat.Raw
        )
        signature = {
            "algorithm": _ALGORITHM,
            "public_key": base64.b64encode(raw).decode(),
            "value": base64.b64encode(self.private.sign(canonical(document))).decode(),
        }
        return {**document, SIGNATURE: signature}


def read_public_key(data: bytes, where: str) -> Ed25519PublicKey:
    """From a PEM file; raises InvalidRequest for what is no public key of Ed25519."""
    try:
        key = serialization.load_pem_public_key(data)
    except (ValueError, TypeError) as error:
        raise InvalidRequest(f"{where}: cannot be read as a public key ({error})") from None
    if not isinstance(key, Ed25519PublicKey):
        raise InvalidRequest(f"{where}: holds a key of another kind, Ed25519 is needed")
    return key


def canonical(document: dict[str, Any]) -> bytes:
    """What is signed of a receipt."""
    rest = {name: value for name, value in document.items() if name != SIGNATURE}
    return json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def verify_receipt(data: bytes, public_key: Ed25519PublicKey, *, where: str) -> dict[str, Any]:
    """The document of a receipt that this key signed; raises NotGenuine for any other."""
    document = read_receipt(data, where)
    found = document.get(SIGNATURE)
    if not isinstance(found, dict):
        raise NotGenuine(f"{where}: the receipt is not signed")
    if found.get("algorithm") != _ALGORITHM:
        raise NotGenuine(
            f"{where}: signed with {found.get('algorithm')!r:.40}, {_ALGORITHM} is known"
        )
    raw = public_key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    try:
        signer = base64.b64decode(str(found.get("public_key")), validate=True)
        value = base64.b64decode(str(found.get("value")), validate=True)
    except binascii.Error:
        raise NotGenuine(f"{where}: the signature is no base64: it was changed") from None
    if signer != raw:
        raise NotGenuine(f"{where}: another key than the one given signed it, or it was changed")
    try:
        public_key.verify(value, canonical(document))
    except (InvalidSignature, UnicodeEncodeError):  # what no UTF-8 can write was never signed
        raise NotGenuine(
            f"{where}: the signature does not fit: the receipt was changed since it was signed"
        ) from None
    return document


def read_receipt(data: bytes, where: str) -> dict[str, Any]:
    """A receipt's document; raises NotGenuine for what is none."""
    try:
        document = json.loads(data, object_pairs_hook=_object)
    except _DoubledName as error:
        raise NotGenuine(
            f"{where}: an object has the name {str(error)!r:.80} twice: it was changed"
        ) from None
    except (ValueError, RecursionError):
        raise NotGenuine(f"{where}: is no JSON") from None
    if not isinstance(document, dict) or document.get("kind") != "varve erasure receipt":
        raise NotGenuine(f"{where}: is no receipt of an erasure")
    return document


class _DoubledName(Exception):
    """A name that stands twice in one object."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _DoubledName(name)
        found[name] = value
    return found
