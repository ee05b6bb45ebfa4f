"""SCRAM keys and proofs, for servers and clients (RFC 5802, RFC 7677).

Invariant  a credential holds neither the password nor the salted password. Names and passwords are
           plain UTF-8, as in Kafka, without SASLprep.
"""

import hashlib
import hmac
from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class ScramMechanism(IntEnum):
    """SCRAM mechanisms with Kafka's ids."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        return self.name.replace("_", "-")

    @property
    def hash(self) -> str:
        return "sha256" if self is ScramMechanism.SCRAM_SHA_256 else "sha512"

    @property
    def key_bytes(self) -> int:
        return 32 if self is ScramMechanism.SCRAM_SHA_256 else 64


BY_SASL_NAME: Final[dict[str, ScramMechanism]] = {
    mechanism.sasl_name: mechanism for mechanism in ScramMechanism
}


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What a server stores to verify a password."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


def salted_password(
    mechanism: ScramMechanism, password: str, *, salt: bytes, iterations: int
) -> bytes:
    """PBKDF2 of a password; slow by design, several milliseconds."""
    return hashlib.pbkdf2_hmac(mechanism.hash, password.encode(), salt, iterations)


def credential_of(
    mechanism: ScramMechanism, salted: bytes, *, salt: bytes, iterations: int
) -> ScramCredential:
    """The credential of a salted password."""
    return ScramCredential(
        salt=salt,
        iterations=iterations,
        stored_key=_hash(mechanism, _client_key(mechanism, salted)),
        server_key=keyed(mechanism, salted, b"Server Key"),
    )


def keyed(mechanism: ScramMechanism, key: bytes, message: bytes) -> bytes:
    """The HMAC of a message; with the server key it is the server signature."""
    return hmac.digest(key, message, mechanism.hash)


def make_proof(mechanism: ScramMechanism, salted: bytes, message: bytes) -> bytes:
    """The client proof for the messages of an exchange."""
    client_key = _client_key(mechanism, salted)
    return _xor(client_key, keyed(mechanism, _hash(mechanism, client_key), message))


def is_proof(
    mechanism: ScramMechanism, credential: ScramCredential, proof: bytes, message: bytes
) -> bool:
    """Whether a client proof is valid for the messages of an exchange."""
    signature = keyed(mechanism, credential.stored_key, message)
    if len(proof) != len(signature):
        return False
    stored_key = _hash(mechanism, _xor(proof, signature))
    return hmac.compare_digest(stored_key, credential.stored_key)


def _client_key(mechanism: ScramMechanism, salted: bytes) -> bytes:
    return keyed(mechanism, salted, b"Client Key")


def _hash(mechanism: ScramMechanism, data: bytes) -> bytes:
    return hashlib.new(mechanism.hash, data).digest()


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
