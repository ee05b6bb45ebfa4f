"""The signature of a receipt: Ed25519 over its canonical JSON. docs/reference/formats/receipt.md

Imports nothing of topics, so that `varve receipt verify` starts fast.
"""

import base64
import binascii
import json
import os
from dataclasses import dataclass
from typing import Any, Final, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from varve.foundation.errors import InvalidRequest, StoreError
from varve.jobs.erase.input_file import open_input

KIND: Final = "varve erasure receipt"
SIGNATURE: Final = "signature"
_ALGORITHM: Final = "Ed25519"
PASSPHRASE_VARIABLE: Final = "VARVE_SIGN_PASSPHRASE"


class NotGenuine(StoreError):
    """A receipt whose signature does not match, or a file that is not a receipt."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    """An Ed25519 private key that signs receipts."""

    private: Ed25519PrivateKey

    @classmethod
    def read(cls, data: bytes, *, passphrase: bytes | None, where: str) -> Self:
        """Reads a PEM file; raises InvalidRequest if it has no Ed25519 private key."""
        try:
            key = serialization.load_pem_private_key(data, passphrase)
        except (ValueError, TypeError) as error:
            raise InvalidRequest(
                f"{where}: cannot be read as a private key: give a PEM file in PKCS8, and its "
                "passphrase in VARVE_SIGN_PASSPHRASE if it has one"
            ) from error
        if not isinstance(key, Ed25519PrivateKey):
            raise InvalidRequest(f"{where}: holds a key of another kind, Ed25519 is needed")
        return cls(key)

    def sign(self, document: dict[str, Any]) -> dict[str, Any]:
        """Returns the document with its signature."""
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
    """Reads a PEM file; raises InvalidRequest if it has no Ed25519 public key."""
    try:
        key = serialization.load_pem_public_key(data)
    except (ValueError, TypeError) as error:
        raise InvalidRequest(
            f"{where}: cannot be read as a public key: give the PEM file of an Ed25519 key"
        ) from error
    if not isinstance(key, Ed25519PublicKey):
        raise InvalidRequest(f"{where}: holds a key of another kind, Ed25519 is needed")
    return key


def canonical(document: dict[str, Any]) -> bytes:
    """Encodes the signed part of a receipt, the document without its signature."""
    signed = {name: value for name, value in document.items() if name != SIGNATURE}
    return json.dumps(signed, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def verify_receipt(data: bytes, public_key: Ed25519PublicKey, *, where: str) -> dict[str, Any]:
    """Returns the document of a receipt that this key signed; raises NotGenuine otherwise."""
    document = read_receipt(data, where)
    signature = document.get(SIGNATURE)
    if not isinstance(signature, dict):
        raise NotGenuine(
            f"{where}: the receipt is not signed: compare it with the copy that is stored with the "
            "topic; --sign-key signs those of later erasures"
        )
    if signature.get("algorithm") != _ALGORITHM:
        raise NotGenuine(
            f"{where}: signed with {signature.get('algorithm')!r:.40}, {_ALGORITHM} is known"
        )
    raw = public_key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    try:
        signer = base64.b64decode(str(signature.get("public_key")), validate=True)
        value = base64.b64decode(str(signature.get("value")), validate=True)
    except binascii.Error:
        raise NotGenuine(f"{where}: the signature is not base64: it was changed") from None
    if signer != raw:
        raise NotGenuine(f"{where}: another key than the one given signed it, or it was changed")
    try:
        public_key.verify(value, canonical(document))
    except (InvalidSignature, UnicodeEncodeError):  # text that UTF-8 cannot encode was never signed
        raise NotGenuine(
            f"{where}: the signature does not fit: the receipt was changed since it was signed"
        ) from None
    return document


def read_receipt(data: bytes, where: str) -> dict[str, Any]:
    """Decodes a receipt without checking its signature; raises NotGenuine."""
    try:
        document = json.loads(data, object_pairs_hook=_refuse_duplicates)
    except _DuplicateName as error:
        raise NotGenuine(
            f"{where}: an object has the name {str(error)!r:.80} twice: it was changed"
        ) from None
    except (ValueError, RecursionError):
        raise NotGenuine(f"{where}: not JSON") from None
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise NotGenuine(f"{where}: not a receipt of an erasure")
    return document


class _DuplicateName(Exception):
    """A name that occurs twice in one JSON object."""


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise _DuplicateName(name)
        members[name] = value
    return members


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
