"""SCRAM's keys: what a server keeps of a password (RFC 5802, RFC 7677).

Invariant  neither the password nor the salted password is kept; names and passwords are plain
           UTF-8, as Kafka has them, without SASLprep.
"""

import hashlib
import hmac
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

ITERATIONS_MIN: Final = 4_096
ITERATIONS_MAX: Final = 16_384
ITERATIONS: Final = 8_192
"""For credentials that varve makes itself."""
SALT_BYTES: Final = 24
SALT_BYTES_MAX: Final = 1_024


class Mechanism(IntEnum):
    """By Kafka's numbers."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        return self.name.replace("_", "-")

    @property
    def hash(self) -> str:
        return "sha256" if self is Mechanism.SCRAM_SHA_256 else "sha512"

    @property
    def key_bytes(self) -> int:
        return 32 if self is Mechanism.SCRAM_SHA_256 else 64


BY_SASL_NAME: Final[dict[str, Mechanism]] = {one.sasl_name: one for one in Mechanism}


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What proves a password without telling it."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


def salted_password(mechanism: Mechanism, password: str, *, salt: bytes, iterations: int) -> bytes:
    """Takes some milliseconds, on purpose."""
    return hashlib.pbkdf2_hmac(mechanism.hash, password.encode(), salt, iterations)


def credential_of(
    mechanism: Mechanism, salted: bytes, *, salt: bytes, iterations: int
) -> ScramCredential:
    """The credential that a salted password makes."""
    client_key = keyed(mechanism, salted, b"Client Key")
    return ScramCredential(
        salt=salt,
        iterations=iterations,
        stored_key=hashlib.new(mechanism.hash, client_key).digest(),
        server_key=keyed(mechanism, salted, b"Server Key"),
    )


def keyed(mechanism: Mechanism, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, mechanism.hash)


def is_proof(
    mechanism: Mechanism, credential: ScramCredential, proof: bytes, message: bytes
) -> bool:
    """Whether a client's proof for what was said shows that it knows the password."""
    signature = keyed(mechanism, credential.stored_key, message)
    if len(proof) != len(signature):
        return False
    client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
    found = hashlib.new(mechanism.hash, client_key).digest()
    return hmac.compare_digest(found, credential.stored_key)
